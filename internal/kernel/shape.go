package kernel

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

const (
	atRoot      = 0xffffffff // TC_H_ROOT, linux/pkt_sched.h
	shapeHandle = netstate.ShapeHandle << 16
	queueDrops  = 8 // offset in struct gnet_stats_queue (linux/gen_stats.h)
	overEther   = 1 // TC_LINKLAYER_ETHERNET: the kernel computes times, and wants no table of them
)

// loopback is the link that each namespace has.
const loopback = 1

// encodeShapeSet adds, changes or deletes the root qdisc tbf (tc-tbf(8)). One with the same handle keeps its queue.
func encodeShapeSet(o netstate.ShapeSet) *nl.NetlinkRequest {
	at := &nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(o.Index), Handle: shapeHandle, Parent: atRoot}
	kind := nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("tbf"))
	if o.Shape == (netstate.Shape{}) {
		return netlink.NewRequest(unix.RTM_DELQDISC, 0, at, kind)
	}
	parms := nl.TcTbfQopt{Limit: o.Shape.Limit, Buffer: o.Shape.Ticks()}
	parms.Rate.Linklayer, parms.Rate.Rate = overEther, uint32(min(o.Shape.Rate, 1<<32-1))
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_TBF_PARMS, parms.Serialize())
	options.AddRtAttr(nl.TCA_TBF_RATE64, nl.Uint64Attr(o.Shape.Rate))
	options.AddRtAttr(nl.TCA_TBF_BURST, nl.Uint32Attr(o.Shape.Burst)) // the ticks alone hold 4 seconds at most
	return netlink.NewRequest(unix.RTM_NEWQDISC, netlink.Put, at, kind, options)
}

// parseShape parses struct tcmsg and the attributes of a root qdisc, and how many packets it has dropped. A qdisc that
// the kernel has chosen by itself has no handle, and is none.
func parseShape(m []byte) (s netstate.Shape, dropped uint64, err error) {
	if len(m) < nl.SizeofTcMsg {
		return s, 0, netlink.ErrCutShort
	}
	head := nl.DeserializeTcMsg(m)
	if head.Handle == 0 {
		return s, 0, nil
	}
	var name string
	var options []byte
	err = netlink.EachAttribute(m, nl.SizeofTcMsg, func(kind uint16, v []byte) error {
		switch kind {
		case nl.TCA_KIND:
			name = unix.ByteSliceToString(v)
		case nl.TCA_OPTIONS:
			options = v
		case nl.TCA_STATS2:
			return netlink.EachAttribute(v, 0, func(kind uint16, v []byte) error {
				if kind == nl.TCA_STATS_QUEUE && len(v) >= queueDrops+4 {
					dropped = uint64(netlink.U32(v[queueDrops:]))
				}
				return nil
			})
		}
		return nil
	})
	if err != nil || name != "tbf" || head.Handle != shapeHandle {
		return netstate.Shape{Other: cmp.Or(name, "another")}, 0, err
	}
	var ticks uint32
	err = netlink.EachAttribute(options, 0, func(kind uint16, v []byte) error {
		switch {
		case kind == nl.TCA_TBF_PARMS && len(v) >= nl.SizeofTcTbfQopt:
			p := nl.DeserializeTcTbfQopt(v)
			s.Limit, ticks, s.Rate = p.Limit, p.Buffer, max(s.Rate, uint64(p.Rate.Rate))
		case kind == nl.TCA_TBF_RATE64 && len(v) == 8: // of a rate of 2^32 and more
			s.Rate = binary.NativeEndian.Uint64(v)
		}
		return nil
	})
	s.Burst = uint32(float64(ticks)*64*float64(s.Rate)/1e9 + 0.5)
	return s, dropped, err
}

// HasShaper reports whether the kernel has tbf. The kernel loads the module for the question.
//
// HasShaper asks for a tbf without options. A kernel with tbf refuses that (EINVAL), a kernel without it refuses the
// kind (ENOENT). No qdisc is made.
func (n *Namespace) HasShaper() (bool, error) {
	err := n.route.Ask(netlink.NewRequest(unix.RTM_NEWQDISC, netlink.Put,
		&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: loopback, Handle: shapeHandle, Parent: atRoot}, nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("tbf"))))
	switch {
	case netlink.Answers(err, unix.EINVAL):
		return true, nil
	case netlink.Answers(err, unix.ENOENT):
		return false, nil
	}
	return false, fmt.Errorf("ask for the qdisc tbf: %w", err)
}

// droppedByShape reads how many packets the Shape of a link has dropped; nil: there is none.
func (n *Namespace) droppedByShape(link int) (packets *uint64, err error) {
	r := netlink.NewRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP, &nl.TcMsg{Family: unix.AF_UNSPEC})
	err = n.route.Dump(r, func() { packets = nil }, func(m []byte) error {
		q, err := parseQdisc(m)
		if err != nil || q.link != link || q.parent != atRoot {
			return err
		}
		s, dropped, err := parseShape(m)
		if s.Rate != 0 {
			packets = &dropped
		}
		return err
	})
	return packets, err
}
