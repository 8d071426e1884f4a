// Package names is the half of a DNS proxy that has no privileges. It answers a guest's questions about the names of a
// list, and has the addresses pinned before the guest learns them. The other half, phase1/pins, starts the process and
// sends the list.
//
// A question about a name that is not in the list is answered at once, REFUSED, and no resolver gets it. So the guest
// sends nothing to the world by names, except to the servers of the listed ones. If the name ends in a search domain of
// the guest, the answer is NXDOMAIN instead, so that its resolver goes on with the next domain. An answer has the asked
// name alone: the names that it stands for (CNAME) need no entry, and are left out.
//
// Questions of the types A, AAAA, HTTPS, SVCB, MX, SRV and TXT are answered. The answer to the others is empty, and no
// resolver is asked. Of HTTPS and SVCB the guest gets neither the hints, which are addresses, nor the key of ech, and
// no record that stands for another name. The targets of MX and SRV are names like others, and need entries. DNSSEC is
// not passed on: a guest cannot check signatures.
package names

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// Proxy answers the guest's questions. Set the fields before Serve.
type Proxy struct {
	// Pins is the socket of phase1/pins, file 3 of the command that it starts:
	// os.NewFile(3, "pins"). Serve closes it.
	Pins *os.File

	// Packets and Streams are sockets of UDP and TCP at which the guest asks. A socket of UDP
	// must be bound to one address, or its replies may come from another one. Serve closes them.
	Packets []net.PacketConn
	Streams []net.Listener

	// Addresses are further ones at which Serve listens, by UDP and TCP, also before the namespace
	// has them.
	Addresses []netip.AddrPort

	// Guest are the networks whose questions are answered. Empty: those of all.
	Guest []netip.Prefix

	// Resolvers are asked, in this order. Empty: those of ResolvConf.
	Resolvers []netip.AddrPort

	// ResolvConf is the path of a resolv.conf(5). Empty: /etc/resolv.conf, if that exists.
	// Changes of the file are followed within a second. While it is missing, empty or
	// unreadable, the last resolvers and search domains stay. Resolvers at which Serve itself
	// listens are left out.
	ResolvConf string

	// Search are the guest's search domains. A name that ends in one of them and is not in the
	// list does not exist (NXDOMAIN), and no resolver is asked. After REFUSED glibc would try no
	// further domain, and musl would give up after 5 seconds. Nil: those of ResolvConf, if the
	// resolvers come from it. Empty: none.
	Search []string

	// Log gets what is refused, left out or lost, and no names of Search: ten lines a second,
	// after a burst of fifty. Nil: they are discarded.
	Log *slog.Logger

	limits   limits // zero: defaults
	counters counters
}

// Counters count the guest's questions. One that is malformed counts nowhere.
type Counters struct {
	Answered uint64 // names of the list: with records, without, or NXDOMAIN
	Searched uint64 // other names in a search domain: NXDOMAIN
	Refused  uint64 // other names: REFUSED
	Failed   uint64 // SERVFAIL: resolvers do not answer, or the addresses cannot be pinned
	Lost     uint64 // without a reply, over a limit of Serve
}

type counters struct{ answered, searched, refused, failed, lost atomic.Uint64 }

// Counters returns the counters, also while Serve runs.
func (p *Proxy) Counters() Counters {
	c := &p.counters
	return Counters{Answered: c.answered.Load(), Searched: c.searched.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(), Lost: c.lost.Load()}
}

// add counts the answer to a question.
func (c *counters) add(a answer) {
	switch {
	case a.code == dnsmessage.RCodeRefused:
		c.refused.Add(1)
	case a.code == dnsmessage.RCodeServerFailure:
		c.failed.Add(1)
	case a.why == notListed:
		c.searched.Add(1)
	case a.code == dnsmessage.RCodeSuccess || a.code == dnsmessage.RCodeNameError:
		c.answered.Add(1)
	}
}

// Serve answers until ctx is done, and then returns nil. Another error is that of a socket, of the file ResolvConf, or
// of the conversation with phase1/pins: then the process should end, and phase1/pins starts another one.
//
// At most 1000 questions a second are answered, after a burst of as many, and 32 questions to resolvers run at once.
// Questions above that are lost, and the guest asks again. The guest has at most 32 connections of TCP. One that is
// silent for 10 seconds ends. A further one ends the connection that has been silent for the longest time. An answer is
// kept for its life, of 5 seconds to 5 minutes. One whose addresses were all left out, as egress refuses them, is kept
// for 5 seconds. A name has at most 8 addresses in an answer. Of the names of an entry with "*." at most 128 have
// addresses at a time, and others get SERVFAIL.
func (p *Proxy) Serve(ctx context.Context) error {
	if err := p.serve(ctx); err != nil {
		return fmt.Errorf("DNS proxy: %w", err)
	}
	return nil
}

func (p *Proxy) serve(ctx context.Context) error {
	serving, end := context.WithCancelCause(ctx)
	defer end(nil)
	open, err := p.open(serving)
	defer open.close()
	if err != nil {
		return err
	}
	context.AfterFunc(serving, open.close) // ends what waits at a socket
	err = p.converse(serving, open, end)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// converse receives the list, reports that the proxy is ready, and answers until ctx is done.
func (p *Proxy) converse(ctx context.Context, open sockets, end context.CancelCauseFunc) error {
	list, err := receiveNames(open.pins)
	if err != nil {
		return err
	}
	upstream, err := p.newResolvers(open.packets)
	if err != nil {
		return err
	}
	if err := sendReady(open.pins); err != nil {
		return err
	}
	newServer(p, list, upstream, open.pins).run(ctx, open, end)
	return context.Cause(ctx)
}

// sockets are those of a Serve.
type sockets struct {
	pins    net.Conn
	packets []net.PacketConn
	streams []net.Listener
}

// open returns the sockets of the caller and those of Addresses, also with an error.
func (p *Proxy) open(ctx context.Context) (open sockets, err error) {
	open.packets, open.streams = append(open.packets, p.Packets...), append(open.streams, p.Streams...)
	if p.Pins == nil {
		return open, errors.New("no socket of phase1/pins: set Pins, in the command that it starts to os.NewFile(3, \"pins\")")
	}
	open.pins, err = net.FileConn(p.Pins)
	p.Pins.Close()
	if err != nil {
		return open, fmt.Errorf("socket of phase1/pins: %w", err)
	}
	listener := net.ListenConfig{Control: listenEarly}
	for _, at := range p.Addresses {
		c, err := listener.ListenPacket(ctx, "udp", at.String())
		if err != nil {
			return open, err
		}
		open.packets = append(open.packets, c)
		l, err := listener.Listen(ctx, "tcp", at.String())
		if err != nil {
			return open, err
		}
		open.streams = append(open.streams, l)
	}
	if len(open.packets) == 0 {
		return open, errors.New("no socket at which the guest asks: set Packets or Addresses")
	}
	return open, nil
}

// listenEarly lets a socket listen at an address that the namespace does not have yet, or not at the moment.
func listenEarly(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_FREEBIND, 1) // of a kernel without it bind says so
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
	})
}

func (s sockets) close() {
	if s.pins != nil {
		s.pins.Close()
	}
	for _, c := range s.packets {
		c.Close()
	}
	for _, l := range s.streams {
		l.Close()
	}
}
