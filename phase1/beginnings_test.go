package phase1_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// What becomes of connections at a start of a policy: the first words of what a beginning wants.
const (
	refusedThen = "refused"           // none of it is tracked, and nothing leaves
	goesOn      = "goes on"           // until CutRefused
	processOwn  = "the process's own" // it is tracked, and the guest has no part in it
	noStart     = "no start"          // the policy does not start
)

// beginning is a start of a policy. docs/proofs/security.md tells them in a paragraph.
type beginning struct {
	name, tracked      string // and who has opened what is tracked by then
	routed, masquerade string
	// begin opens connections, starts the policy, and calls b.judge while it holds.
	begin func(b *begun)
}

const (
	ofGuest = "what the guest of that wiring has open"
	byCut   = goesOn + ": the guest does, and `CutRefused` ends it"
)

var beginnings = []beginning{
	{"the first Setup", "what a process of the pod has open", refusedThen, processOwn + ": the guest has other addresses", func(b *begun) {
		b.openAsProcess(nstest.Pod4, nstest.Pod6)
		b.restrict()
		b.judge()
	}},
	{"a process of the pod sends from an address of the guest", "nothing, as each first packet is dropped", refusedThen, refusedThen, func(b *begun) {
		b.restrict()
		r := record(b.T, b.n)
		for name, err := range b.openAsProcess(r.IPv4.Address.Addr(), r.IPv6.Address) {
			if !errors.Is(err, unix.EPERM) {
				b.Errorf("a process sends %s as the guest: %v, want EPERM", name, err)
			}
		}
		b.judge()
	}},
	{"a process of the pod opens one to the guest in the name of a refused host", "nothing, as each first packet is dropped", refusedThen, refusedThen, func(b *begun) {
		b.n.Pod.Exec("sysctl", "-qw", "net.ipv4.ping_group_range=0 0", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.lo.rp_filter=0")
		b.restrict()
		b.w = attach(b.T, b.n, true, true)
		b.openAsHost()
		b.judge()
	}},
	{"Setup after Teardown", ofGuest, refusedThen, refusedThen, func(b *begun) {
		b.openAsGuest()
		unwire(b.T, b.c)
		if !b.w.routed { // there the NIC's addresses are the namespace's again
			b.nothingTracked("after Teardown")
		}
		b.restrict()
		b.judge()
	}},
	{"Setup after Teardown with Force", ofGuest, refusedThen, refusedThen, func(b *begun) {
		b.openAsGuest()
		harmJournal(b.T, b.n, "removed")
		if _, err := b.c.ForceTeardown(b.Context()); err != nil {
			b.Fatal(err)
		}
		if !b.w.routed {
			b.nothingTracked("after ForceTeardown")
		}
		b.restrict()
		b.judge()
	}},
	{"Setup after Teardown with Discard", ofGuest, noStart + ": the NIC is wired until Teardown with Force", noStart + ": the NIC is wired until Teardown with Force", func(b *begun) {
		b.openAsGuest()
		b.w.detach()
		b.c.Down.Discard = true
		unwire(b.T, b.c)
		b.c.Egress = policy(b.T, onlySentinels...)
		if _, err := b.c.Setup(b.Context()); !errors.Is(err, infra.ErrWired) {
			b.Errorf("Setup: %v, want ErrWired", err)
		}
	}},
	{"Setup after the guest's tap is deleted", ofGuest, refusedThen, refusedThen, func(b *begun) {
		b.openAsGuest()
		b.n.Pod.IP("link del eth0-tap")
		b.restrict()
		b.judge()
	}},
	{"`While`, or `guestwire-agent run`, that uses the wiring of a killed one", ofGuest, refusedThen, refusedThen, func(b *begun) {
		b.c.For = "vm1"
		b.openAsGuest()
		b.c.Egress = policy(b.T, onlySentinels...)
		if err := b.c.While(b.Context(), b.c.Spec, func(cache.Record) error { b.judge(); return nil }); err != nil {
			b.Error(err)
		}
	}},
	{"Setup of a wired NIC, with its first list or another one", ofGuest, byCut, byCut, func(b *begun) {
		b.openAsGuest()
		b.restrict()
		b.judge()
	}},
	{"Activate after Deactivate and such a Setup", ofGuest, noStart + ": there is no standby", byCut, func(b *begun) {
		b.openAsGuest()
		if _, err := b.c.Deactivate(b.Context()); err != nil {
			if b.w.routed {
				return
			}
			b.Fatal(err)
		}
		if b.w.routed {
			b.Error("a routed guest has a standby")
		}
		b.restrict()
		if _, err := b.c.Activate(b.Context(), phase1.Other{Gone: true}); err != nil {
			b.Fatal(err)
		}
		b.judge()
	}},
	{"the end of a pin", "what the guest has opened meanwhile", byCut, byCut, func(b *begun) {
		b.restrict()
		ports := []infra.Ports{{First: 53, Protocol: "udp"}, {First: 80}, {First: 80, Protocol: "sctp"}}
		if err := b.c.Pin(b.Context(), phase1.Pin{Addresses: []netip.Addr{refused4, refused6}, Ports: ports, Life: time.Hour}); err != nil {
			b.Fatal(err)
		}
		b.openAsGuest()
		for _, set := range []string{"pins-4", "pins-6"} { // as if the hour were over
			b.n.Pod.Exec("nft", "flush", "set", "inet", "guestwire-eth0", set)
		}
		b.judge()
	}},
}

// begun is a beginning under one binding.
type begun struct {
	*testing.T
	n     nstest.Network
	c     wired.NIC
	w     *wire // the guest's, as soon as it has a tap
	kinds []frames.Kind
	want  string
}

// TestBeginnings: at each start of a policy, under each binding that tracks connections, by each protocol and family:
// what is open by then is refused, goes on until CutRefused, or is no connection of the guest.
func TestBeginnings(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachTracking(t, func(t *testing.T, binding infra.Binding) {
		for _, b := range beginnings {
			t.Run(b.name, func(t *testing.T) {
				t.Parallel()
				t.Logf("tracked by then: %s", b.tracked)
				n := nstest.NewNetwork(t)
				track(n.Pod)
				started := &begun{T: t, n: n, c: config(n, binding), want: b.masquerade}
				if binding.Kind() == cache.BindingRouted {
					started.want = b.routed
				}
				started.c.Down.CutOff = true
				b.begin(started)
			})
		}
	})
}

// onlySentinels is a policy under which nothing of openings can begin.
var onlySentinels = []string{"allow 198.51.100.9 7777/udp", "allow 2001:db8:9::9 7777/udp", "refuse all"}

// restrict calls Setup with the policy.
func (b *begun) restrict() {
	b.Helper()
	b.c.Egress = policy(b.T, onlySentinels...)
	setup(b.T, b.c)
}

// openAsGuest has the guest open the connections, as far as they leave, and others answer.
func (b *begun) openAsGuest() {
	b.Helper()
	setup(b.T, b.c)
	b.w = attach(b.T, b.n, true, true)
	for _, k := range openings(b.w) {
		world, _ := b.w.send(k.Frames...)
		if len(world) > 0 {
			b.kinds = append(b.kinds, k)
		}
		for _, s := range world {
			if err := b.w.inject(answerTo(s.Frame)); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.w.send()
	if len(b.kinds) < 8 {
		b.Fatalf("%d kinds of connections are open, want at least 8", len(b.kinds))
	}
	b.w.leave("open", true, b.kinds)
}

// openAsProcess has a process of the pod open the connections, from addresses of its choice, and others answer. It
// returns the error of each kind's last packet.
func (b *begun) openAsProcess(from4, from6 netip.Addr) map[string]error {
	b.Helper()
	gateway := linkIndex(b.T, b.n.World, "pod")
	link := frames.Link{IPv4: from4, IPv6: from6, Far4: nstest.Beyond4, Far6: nstest.Beyond6}
	for _, end := range []struct {
		of  *nstest.Namespace
		at  int
		mac *cache.MAC
	}{{b.n.Pod, linkIndex(b.T, b.n.Pod, "eth0"), &link.MAC}, {b.n.World, gateway, &link.Gateway}} {
		in(b.T, end.of, func() error {
			l, err := net.InterfaceByIndex(end.at)
			if err == nil {
				*end.mac = cache.MAC(l.HardwareAddr)
			}
			return err
		})
	}
	answer, sent := b.n.World.Injector(b.T, gateway), map[string]error{}
	b.kinds = openings(&wire{link: link, routed: true})
	for _, k := range b.kinds {
		for _, f := range k.Frames {
			sent[k.Name] = netns.Do(b.n.Pod.File, func() error { return sendRaw(f[14:]) })
		}
		for _, f := range k.Frames {
			if sent[k.Name] != nil {
				break // nobody can answer it
			}
			if err := answer(answerTo(f)); err != nil {
				b.Fatal(err)
			}
		}
	}
	return sent
}

// openAsHost has processes of the pod open connections to the guest, from addresses of hosts that the policy refuses:
// to the guest's addresses, and to ports of the pod that are forwarded to it. One process has raw sockets, and packet
// sockets by which it sends to the loopback link. The other one has no capability. No packet gets to the guest.
func (b *begun) openAsHost() {
	b.Helper()
	targets := []frames.Link{b.w.link}
	if !b.w.routed {
		targets = append(targets, frames.Link{IPv4: nstest.Pod4, IPv6: nstest.Pod6, Far4: nstest.Beyond4, Far6: nstest.Beyond6})
	}
	const loopback = 1
	inject := b.n.Pod.Injector(b.T, loopback)
	for i, to := range targets {
		for _, k := range openings(&wire{link: to, routed: b.w.routed}) {
			if i > 0 && strings.HasSuffix(k.Name, "TCP in its middle") {
				continue // such a packet is not forwarded
			}
			var err error // of the last fragment: the kernel keeps the others until then
			for _, f := range k.Frames {
				f = answerTo(f)
				err = netns.Do(b.n.Pod.File, func() error { return sendRaw(f[14:]) })
				copy(f, make([]byte, 6)) // the loopback's MAC
				if i > 0 {
					continue // by the loopback link no port is forwarded
				}
				if err := inject(f); err != nil {
					b.Fatal(err)
				}
			}
			if !errors.Is(err, unix.EPERM) && !strings.HasSuffix(k.Name, "echo request") { // of which the kernel reports no error
				b.Errorf("a process with raw sockets sends %s to the guest, by address %d of it, from a refused host: %v, want EPERM", k.Name, i, err)
			}
		}
		in(b.T, b.n.Pod, func() error {
			if err := dropCapabilities(); err != nil {
				return err
			}
			b.openFreely(refused6, to.IPv6)
			b.openFreely(netip.AddrFrom16(refused4.As16()), netip.AddrFrom16(to.IPv4.As16()))
			return nil
		})
	}
}

// openFreely sends by sockets that have an address which is not the namespace's (IPV6_FREEBIND), by each protocol that
// the kernel lets a process without capabilities use. By IPv4 the kernel itself refuses that.
func (b *begun) openFreely(from, to netip.Addr) {
	b.Helper()
	const freebind, udpLite = 78, 136 // linux/in6.h, linux/in.h
	for _, k := range []struct {
		kind, protocol int
		reports        bool // the kernel reports to the process that the packet is dropped
	}{{unix.SOCK_DGRAM, unix.IPPROTO_UDP, true}, {unix.SOCK_DGRAM, udpLite, true}, {unix.SOCK_STREAM, unix.IPPROTO_TCP, false}, {unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6, false}} {
		fd, err := unix.Socket(unix.AF_INET6, k.kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, k.protocol)
		if err != nil {
			b.Error(err)
			continue
		}
		defer unix.Close(fd)
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_IPV6, freebind, 1), unix.Bind(fd, udpAddress(netip.AddrPortFrom(from, 5999))))
		if err != nil && !to.Is4In6() {
			b.Errorf("protocol %d, from %v: %v", k.protocol, from, err)
		}
		if err = unix.Connect(fd, udpAddress(netip.AddrPortFrom(to, 5998))); err == nil {
			err = unix.Sendto(fd, []byte{128, 0, 0, 0, 0, 9, 0, 1}, 0, nil)
		}
		if k.reports && err == nil {
			b.Errorf("a process without capabilities sends protocol %d from %v to %v", k.protocol, from, to)
		}
	}
}

// sendRaw sends the packet as a process of the calling thread's namespace.
func sendRaw(packet []byte) error {
	family, to := unix.AF_INET, unix.Sockaddr(nil)
	if packet[0]>>4 == 4 {
		to = &unix.SockaddrInet4{Addr: [4]byte(packet[16:])}
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte(packet[24:])}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, packet, 0, to)
}

// judge wants what is wanted of the connections that were opened.
func (b *begun) judge() {
	b.Helper()
	outcome, _, _ := strings.Cut(b.want, ":")
	if outcome == goesOn {
		b.w.leave("after", true, b.kinds)
		cut(b.T, b.c, len(b.kinds))
		b.nothingTracked("after CutRefused")
		b.w.leave("after CutRefused", false, b.kinds)
		return
	}
	if list := trackedRefused(b.n); (len(list) > 0) != (outcome == processOwn) {
		b.Errorf("want %q, and tracked are\n%s", b.want, strings.Join(list, ""))
	}
	if b.w != nil {
		b.w.detach()
	}
	b.w = attach(b.T, b.n, true, true)
	b.w.leave("after", false, openings(b.w))
}

// nothingTracked wants no connection with a host that the policy refuses.
func (b *begun) nothingTracked(when string) {
	b.Helper()
	if list := trackedRefused(b.n); len(list) > 0 {
		b.Errorf("%s these are tracked:\n%s", when, strings.Join(list, ""))
	}
}

// trackedRefused are the lines of the connections with hosts that the policy refuses, as Linux lists them.
func trackedRefused(n nstest.Network) []string {
	return slices.Concat(connections(n.Pod, "dst="+refused4.String()), connections(n.Pod, "dst="+refused6.StringExpanded()))
}

// detach leaves the tap, and the sentinels' port, to another wire.
func (w *wire) detach() {
	w.port.Close()
	w.receiver.Close()
}
