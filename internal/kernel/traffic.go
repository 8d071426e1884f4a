package kernel

import (
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
)

// Traffic is what a link has received and sent, in frames with their Ethernet header. What a tap received, a process
// wrote.
type Traffic struct{ InPackets, OutPackets, InBytes, OutBytes uint64 }

// Traffic reads the counters of the link with the name; nil: there is none. Dropped are the packets that its Shape has
// dropped; nil: it has none. Open reports whether a process has the tap
// of that name open. It is false of a tap with one queue whose process has taken the carrier away (TUNSETCARRIER).
func (n *Namespace) Traffic(link string) (t *Traffic, dropped *uint64, open bool, err error) {
	index, qdisc := 0, ""
	r := netlink.NewRequest(unix.RTM_GETLINK, 0, ifInfo(unix.AF_UNSPEC, 0), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(link)))
	err = n.route.Dump(r, func() {}, func(m []byte) (err error) {
		if t, err = parseTraffic(m); err != nil {
			return err
		}
		carrier, queues, err := parseUse(m)
		open = carrier || queues > 0
		index = int(nl.DeserializeIfInfomsg(m).Index)
		return errors.Join(err, netlink.EachAttribute(m, unix.SizeofIfInfomsg, func(kind uint16, v []byte) error {
			if kind == unix.IFLA_QDISC {
				qdisc = unix.ByteSliceToString(v)
			}
			return nil
		}))
	})
	if netlink.Answers(err, unix.ENODEV) {
		return nil, nil, false, nil
	}
	if err == nil && qdisc == "tbf" {
		dropped, err = n.droppedByShape(index)
	}
	return t, dropped, open, err
}

// parseTraffic parses the counters in a link's message: the first fields of struct rtnl_link_stats64 (linux/if_link.h).
func parseTraffic(m []byte) (t *Traffic, err error) {
	if len(m) < unix.SizeofIfInfomsg {
		return nil, netlink.ErrCutShort
	}
	err = netlink.EachAttribute(m, unix.SizeofIfInfomsg, func(kind uint16, v []byte) error {
		if kind != unix.IFLA_STATS64 {
			return nil
		}
		t = &Traffic{}
		_, err := binary.Decode(v, binary.NativeEndian, t)
		return err
	})
	return t, err
}
