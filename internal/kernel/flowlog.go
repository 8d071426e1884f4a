package kernel

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
)

// Flow is a report of a connection that the namespace tracks.
type Flow struct {
	// Ended: the connection has ended. Else it has just begun, or is open, in the list of Flows.
	Ended    bool
	Protocol uint8
	// First are the ends of the first packet, and Answers those of the answers to it, the other way round: both differ
	// where addresses are translated.
	First, Answers Ends
	// ICMP is what the first packet has in the place of ports; nil: another protocol.
	ICMP *ICMP
	// FromFirst and FromAnswers are what the connection has carried in these directions; nil: the kernel does not count.
	FromFirst, FromAnswers *Carried
	// Began is when the connection began; zero: the kernel has not kept that.
	Began time.Time
	// At is when the connection ended, if the kernel has kept that; else when the kernel made the report, or when that
	// was received.
	At time.Time
	// ID and Zone, together with First, name the connection.
	ID   uint32
	Zone uint16
	// Lost is the number of reports of the namespace that were lost since the last one for which f was called.
	Lost uint32
}

// Ends are the ends of a packet. A protocol without ports has the port 0.
type Ends struct{ Source, Destination netip.AddrPort }

// ICMP is what an ICMP or ICMPv6 packet has in the place of ports.
type ICMP struct {
	Type, Code uint8
	ID         uint16
}

// Carried is what a connection has carried in one direction, with the headers of IP.
type Carried struct{ Packets, Octets uint64 }

// flow is the connection as a report. Nothing of it shares memory with the message.
func (c connection) flow() Flow {
	f := Flow{
		Protocol: c.original.protocol, First: c.original.ends(), Answers: c.reply.ends(), ICMP: c.original.icmp,
		FromFirst: c.carried[0], FromAnswers: c.carried[1], Began: nanoseconds(c.began), At: nanoseconds(cmp.Or(c.ended, c.at)),
	}
	if len(c.id) == 4 {
		f.ID = binary.BigEndian.Uint32(c.id)
	}
	if len(c.zone) == 2 {
		f.Zone = binary.BigEndian.Uint16(c.zone)
	}
	return f
}

func (t tuple) ends() Ends {
	return Ends{netip.AddrPortFrom(t.source, t.sourcePort), netip.AddrPortFrom(t.destination, t.port)}
}

func nanoseconds(n uint64) (t time.Time) {
	if n == 0 {
		return t
	}
	return time.Unix(0, int64(n))
}

// Flows calls f with the open connections of the namespace, and before each try it calls restart. A kernel that tracks
// none is not asked.
func (n *Namespace) Flows(restart func(), f func(Flow)) error {
	if restart(); !tracks() {
		return nil
	}
	if n.filter == nil {
		return errNoConntrack
	}
	return eachConnection(n.filter, restart, func(c connection) { f(c.flow()) })
}

// FlowLog receives the reports of connections that begin and end in the namespace.
type FlowLog struct {
	file *os.File // a netlink socket, which keeps the namespace
	lost uint32   // of the socket, as reported
}

// FlowRoom is how many octets of reports wait for their reader: of about 25,000 connections.
const FlowRoom = 32 << 20

// OpenFlowLog opens the log of the namespace of the calling thread, with room for so many octets of reports. It begins
// now. The caller has to call Close.
func OpenFlowLog(room int) (*FlowLog, error) {
	s, err := netlink.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	const begins, ends = 1, 3 // NFNLGRP_CONNTRACK_NEW, NFNLGRP_CONNTRACK_DESTROY (linux/netfilter/nfnetlink_compat.h)
	// A kernel without nf_conntrack_netlink lets sockets join the groups. It loads the module for the question.
	err = s.Ask(netlink.NewRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|conntrackStatistics, 0, netlink.Netfilter(unix.AF_UNSPEC)))
	if netlink.Answers(err, unix.EINVAL) {
		err = errNoConntrack
	}
	if err == nil {
		err = s.Keep(room)
	}
	for _, group := range []int{begins, ends} {
		if err == nil {
			err = s.Join(group)
		}
	}
	if err == nil {
		err = unix.SetNonblock(s.Descriptor(), true)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("reports of connections: %w", err)
	}
	return &FlowLog{file: os.NewFile(uintptr(s.Descriptor()), "conntrack")}, nil
}

const conntrackStatistics = 5 // IPCTNL_MSG_CT_GET_STATS, linux/netfilter/nfnetlink_conntrack.h

// Close closes the socket.
func (l *FlowLog) Close() error { return l.file.Close() }

// Follow calls wants with each report, and f with those that it wants, until ctx is done, and then returns nil. It can
// be called from any thread.
//
// After the socket has lost a report, it takes no other one until all before that are received. So the number of lost
// ones is asked for until none is left to receive. It is exact, and may come with a report from before the loss.
func (l *FlowLog) Follow(ctx context.Context, wants func(Flow) bool, f func(Flow)) error {
	stop := context.AfterFunc(ctx, func() { l.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	socket, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	buffer := make([]byte, 1<<16)
	overflowed, lost := false, uint32(0)
	for {
		var size int
		var from unix.Sockaddr
		var failed error
		err := socket.Read(func(descriptor uintptr) bool {
			size, from, failed = unix.Recvfrom(int(descriptor), buffer, unix.MSG_DONTWAIT)
			if overflowed && (failed == nil || failed == unix.EAGAIN) {
				total, err := netlink.Lost(int(descriptor))
				if err != nil {
					failed = err
					return true
				}
				if failed == unix.EAGAIN { // the socket takes reports again
					overflowed = false
				}
				lost, l.lost = lost+total-l.lost, total
			}
			return failed != unix.EAGAIN
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("reports of connections: %w", err)
		case failed == unix.EINTR:
			continue
		case failed == unix.ENOBUFS:
			overflowed = true
			continue
		case failed != nil:
			return fmt.Errorf("reports of connections: %w", failed)
		}
		if sender, is := from.(*unix.SockaddrNetlink); !is || sender.Pid != 0 { // a process with CAP_NET_ADMIN
			continue
		}
		err = eachReport(buffer[:size], func(r Flow) {
			if !wants(r) {
				return
			}
			r.Lost, lost = lost, 0
			f(r)
		})
		if err != nil {
			return fmt.Errorf("reports of connections: %w", err)
		}
	}
}

// eachReport calls f with the reports of a datagram.
func eachReport(b []byte, f func(Flow)) error {
	const begins, ends = unix.NFNL_SUBSYS_CTNETLINK << 8, unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // IPCTNL_MSG_CT_NEW, IPCTNL_MSG_CT_DELETE
	for len(b) > 0 {
		kind, flags, body, rest, err := netlink.NextMessage(b)
		if err != nil {
			return err
		}
		if b = rest; kind != ends && (kind != begins || flags&unix.NLM_F_CREATE == 0) { // without the flag it is a change
			continue
		}
		c, err := parseConnection(body)
		if err != nil {
			return err
		}
		r := c.flow()
		if r.Ended = kind == ends; r.At.IsZero() {
			r.At = time.Now()
		}
		f(r)
	}
	return nil
}
