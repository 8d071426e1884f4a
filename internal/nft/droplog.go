package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
)

// Messages and attributes of nfnetlink_log (linux/netfilter/nfnetlink_log.h).
const (
	logPacket = unix.NFNL_SUBSYS_ULOG << 8   // NFULNL_MSG_PACKET
	logConfig = unix.NFNL_SUBSYS_ULOG<<8 | 1 // NFULNL_MSG_CONFIG

	logCommand     = 1 // NFULA_CFG_CMD: a number of 1 octet
	logMode        = 2 // NFULA_CFG_MODE: octets to copy, 1 octet what to copy, padding
	logQueueLength = 5 // NFULA_CFG_QTHRESH: packets in a message
	logFlags       = 6 // NFULA_CFG_FLAGS

	logBind     = 1   // NFULNL_CFG_CMD_BIND
	logCopy     = 2   // NFULNL_COPY_PACKET
	logSequence = 1   // NFULNL_CFG_F_SEQ
	logOctets   = 192 // of a packet: all headers, also some extension headers

	logPacketHeader = 1  // NFULA_PACKET_HDR: EtherType, hook, padding
	logTime         = 3  // NFULA_TIMESTAMP: seconds, microseconds
	logPayload      = 9  // NFULA_PAYLOAD
	logPrefix       = 10 // NFULA_PREFIX
	logNumber       = 12 // NFULA_SEQ
	logHardware     = 16 // NFULA_HWHEADER
	logVLAN         = 20 // NFULA_VLAN, with a protocol and a tag (NFULA_VLAN_PROTO, NFULA_VLAN_TCI)
)

// logMessage is struct nfgenmsg of a message about an nflog group.
type logMessage struct{ group uint16 }

func (m logMessage) Len() int { return netlink.SizeofNetfilter }

func (m logMessage) Serialize() []byte {
	return append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, netlink.EncodeBE16(m.group)...)
}

// HasLog reports whether the kernel has nflog groups. The kernel loads the module for the question.
//
// HasLog changes nothing in a group that does not exist: the kernel refuses that (ENODEV), a kernel without
// nfnetlink_log does not know the message (EINVAL). A listener of the group is another socket (EPERM).
func (n *Tables) HasLog() (bool, error) {
	if n.filter == nil {
		return false, nil
	}
	err := n.filter.Ask(netlink.NewRequest(logConfig, unix.NLM_F_REQUEST, logMessage{firewall.LogGroup}))
	switch {
	case netlink.Answers(err, unix.ENODEV), netlink.Answers(err, unix.EPERM):
		return true, nil
	case netlink.Answers(err, unix.EINVAL):
		return false, nil
	case err == nil:
		err = errors.New("the kernel changed a group that does not exist")
	}
	return false, fmt.Errorf("ask for nflog groups: %w", err)
}

// DropLog is the listener of the namespace's nflog group.
type DropLog struct {
	file *os.File // a netlink socket, which keeps the namespace
	nic  string
	next uint32 // the number of the next report
	lost uint32 // since the last report of the NIC
}

// ErrListened says that the namespace has a listener.
var ErrListened = errors.New("another FollowDrops (guestwire-agent drops -follow) follows the drops of this namespace: end it first")

// OpenDropLog becomes the listener of the namespace of the calling thread, for packets of one NIC. A namespace
// has one listener: for a second one the error is ErrListened. The caller has to call Close.
func OpenDropLog(nic string) (*DropLog, error) {
	s, err := netlink.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	err = s.Ask(encodeLogBind())
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EPERM) {
		err = ErrListened
	}
	if err == nil {
		err = unix.SetNonblock(s.Descriptor(), true)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("nflog group %d: %w", firewall.LogGroup, err)
	}
	return &DropLog{file: os.NewFile(uintptr(s.Descriptor()), "nflog"), nic: nic}, nil
}

// encodeLogBind is the message that makes a socket the listener. Reports come one by one, at once, with the
// first octets of the packet, and numbered.
func encodeLogBind() *nl.NetlinkRequest {
	return netlink.NewRequest(logConfig, unix.NLM_F_REQUEST, logMessage{firewall.LogGroup},
		nl.NewRtAttr(logCommand, []byte{logBind}),
		nl.NewRtAttr(logMode, append(binary.BigEndian.AppendUint32(nil, logOctets), logCopy, 0)),
		nl.NewRtAttr(logQueueLength, binary.BigEndian.AppendUint32(nil, 1)),
		nl.NewRtAttr(logFlags, netlink.EncodeBE16(logSequence)))
}

// Close closes the socket.
func (l *DropLog) Close() error { return l.file.Close() }

// Drop is a report of a dropped packet.
type Drop struct {
	// Time is the time at which the packet arrived, or, for a packet of the namespace, the report.
	Time   time.Time
	NIC    string
	Reason firewall.Reason
	// Ethernet is the Ethernet header; nil for a packet that did not arrive by a link.
	Ethernet []byte
	// EtherType is the type of Packet, which are the first octets after the Ethernet header, without VLAN
	// tags that the kernel has removed.
	EtherType uint16
	Packet    []byte
	// Tag is the outer VLAN tag, which the kernel has removed: protocol and tag. Zero: there is none.
	Tag [2]uint16
	// Lost is the number of reports that were lost since the last one, of any NIC of the namespace.
	Lost uint32

	number uint32
}

// Follow calls f with each report until ctx is done, and then returns nil. It can be called from any thread.
func (l *DropLog) Follow(ctx context.Context, f func(Drop)) error {
	stop := context.AfterFunc(ctx, func() { l.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, 1<<16)
	for {
		size, err := l.file.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // the socket's buffer was full; the next number shows how many are lost
			continue
		case err != nil:
			return fmt.Errorf("nflog: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:size])
		if err != nil {
			return fmt.Errorf("nflog: %w", err)
		}
		for _, m := range messages {
			if m.Header.Type != logPacket {
				continue
			}
			d, err := parseDrop(m.Data)
			if err != nil {
				return fmt.Errorf("nflog: %w", err)
			}
			l.lost, l.next = l.lost+d.number-l.next, d.number+1
			if d.NIC != l.nic {
				continue
			}
			d.Lost, l.lost = l.lost, 0
			if d.Time.IsZero() {
				d.Time = time.Now()
			}
			f(d)
		}
	}
}

// parseDrop parses struct nfgenmsg and the attributes of a report (NFULA_*). NIC is empty for a report of another
// program's rule.
func parseDrop(m []byte) (d Drop, err error) {
	err = netlink.EachAttribute(m, netlink.SizeofNetfilter, func(kind uint16, v []byte) error {
		switch kind {
		case logPacketHeader:
			if len(v) >= 2 {
				d.EtherType = binary.BigEndian.Uint16(v)
			}
		case logTime:
			if len(v) >= 16 {
				d.Time = time.Unix(int64(be64(v)), int64(be64(v[8:]))*1000)
			}
		case logPayload:
			d.Packet = append([]byte(nil), v...)
		case logPrefix:
			d.NIC, d.Reason, _ = firewall.ParseLogPrefix(unix.ByteSliceToString(v))
		case logNumber:
			d.number = netlink.BE32(v)
		case logHardware:
			d.Ethernet = append([]byte(nil), v...)
		case logVLAN:
			return netlink.EachAttribute(v, 0, func(kind uint16, v []byte) error {
				if (kind == 1 || kind == 2) && len(v) >= 2 {
					d.Tag[kind-1] = binary.BigEndian.Uint16(v)
				}
				return nil
			})
		}
		return nil
	})
	return d, err
}
