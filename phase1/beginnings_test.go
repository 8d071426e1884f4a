package phase1_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// beginning is a start of a policy. What is open by then, and would be refused as new, ends or goes on.
type beginning struct {
	name string
	// by opened it: "a process", before the NIC is wired, or "the guest", without a policy.
	by string
	// open says why it goes on until CutRefused; empty: it is refused.
	open string
	// begin starts the policy that c has.
	begin func(t *testing.T, w *wire, c wired.NIC)
}

// beginnings are all starts of a policy.
func beginnings() []beginning {
	again := func(t *testing.T, _ *wire, c wired.NIC) { setup(t, c) }
	return []beginning{
		{name: "the first Setup", by: "a process", begin: again},
		{name: "Setup after Teardown", by: "the guest", begin: func(t *testing.T, _ *wire, c wired.NIC) {
			c.Down.CutOff = true
			unwire(t, c)
			setup(t, c)
		}},
		{name: "Setup after ForceTeardown", by: "the guest", begin: func(t *testing.T, w *wire, c wired.NIC) {
			c.Down.CutOff = true
			harmJournal(t, w.n, "removed")
			if _, err := c.ForceTeardown(t.Context()); err != nil {
				t.Fatal(err)
			}
			setup(t, c)
		}},
		{name: "Setup of a wired NIC", by: "the guest", open: "the guest goes on to run", begin: again},
	}
}

// TestBeginnings: at each start of a policy, for each binding that tracks connections, each protocol and each family:
// what is open by then is refused, or goes on until CutRefused.
func TestBeginnings(t *testing.T) {
	eachTracking(t, func(t *testing.T, binding infra.Binding) {
		for _, b := range beginnings() {
			t.Run(b.name, func(t *testing.T) {
				n := nstest.NewNetwork(t)
				track(n.Pod)
				c := config(n, binding)
				var kinds []frames.Kind
				w := &wire{t: t, n: n}
				if b.by == "a process" {
					openedByProcess(t, n)
				} else {
					setup(t, c)
					w = attach(t, n, true, true)
					kinds = openings(w)
					w.leave("before", true, kinds)
					w.open(kinds)
				}
				if list := trackedRefused(t, n); len(list) == 0 {
					t.Fatal("nothing is tracked, so the test tests nothing")
				}
				c.Egress = policy(t, refuseAllButSentinels...)
				b.begin(t, w, c)
				if list := trackedRefused(t, n); len(list) > 0 && b.open == "" && (binding.Kind() == cache.BindingRouted || b.by == "the guest") {
					t.Errorf("still tracked:\n%s", strings.Join(list, "\n"))
				}
				if b.open == "" {
					w.detach()
					w = attach(t, n, true, true)
					kinds = openings(w)
				}
				w.leave("after", b.open != "", kinds)
				if b.open != "" {
					if _, err := c.CutRefused(t.Context()); err != nil {
						t.Fatal(err)
					}
					w.leave("cut", false, kinds)
				}
			})
		}
	})
}

var refuseAllButSentinels = []string{"allow 198.51.100.9 7777/udp", "allow 2001:db8:9::9 7777/udp", "refuse all"}

// detach leaves the tap and the sentinels' port to another wire.
func (w *wire) detach() {
	if w.port != nil {
		w.port.Close()
		w.receiver.Close()
	}
}

// open answers the frames' packets, so that each is one of an open connection.
func (w *wire) open(kinds []frames.Kind) {
	w.t.Helper()
	for _, k := range kinds {
		world, _ := w.send(k.Frames...)
		for _, s := range world {
			if err := w.inject(answerTo(s.Frame)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	w.send()
}

// openedByProcess has a process of the pod open the connections of openings, as those of a routed guest.
func openedByProcess(t *testing.T, n nstest.Network) {
	t.Helper()
	gateway := linkIndex(t, n.World, "pod")
	w := &wire{t: t, n: n, routed: true, inject: n.World.Injector(t, gateway)}
	in(t, n.Pod, func() error {
		nic, err := net.InterfaceByName("eth0")
		if err == nil {
			w.link = frames.Link{MAC: cache.MAC(nic.HardwareAddr), IPv4: nstest.Pod4, IPv6: nstest.Pod6, Far4: nstest.Beyond4, Far6: nstest.Beyond6}
		}
		return err
	})
	in(t, n.World, func() error {
		end, err := net.InterfaceByIndex(gateway)
		if err == nil {
			w.link.Gateway = cache.MAC(end.HardwareAddr)
		}
		return err
	})
	kinds := openings(w)
	err := netns.Do(n.Pod.File, func() error {
		for _, k := range kinds {
			for _, f := range k.Frames {
				if err := sendRaw(f[14:]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		for _, f := range k.Frames {
			if err := w.inject(answerTo(f)); err != nil {
				t.Fatal(err)
			}
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

// trackedRefused are the lines of the connections with the hosts that the policy refuses, as Linux lists them.
func trackedRefused(t *testing.T, n nstest.Network) (list []string) {
	t.Helper()
	for _, a := range []netip.Addr{refused4, refused6} {
		list = append(list, connections(n.Pod, "dst="+expanded(a))...)
	}
	return list
}

// expanded is the address as /proc/net/nf_conntrack has it.
func expanded(a netip.Addr) string { return a.StringExpanded() }
