package phase1_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// TestOwnConnectionStays: a connection that a process of the pod has open, and that rules of another program translate,
// goes on after Setup and Teardown, and after a first Setup that fails. The other side is the first to send then: what
// the process sends would have the kernel track it anew.
func TestOwnConnectionStays(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*testing.T, nstest.Network, wired.NIC){
		"Setup and Teardown": func(t *testing.T, _ nstest.Network, c wired.NIC) {
			setup(t, c)
			unwire(t, c)
		},
		"a Setup that fails": func(t *testing.T, n nstest.Network, c wired.NIC) {
			record := filepath.Join(n.State, "eth0.json")
			if err := os.MkdirAll(filepath.Join(record, "in the way"), 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Setup(t.Context()); err == nil {
				t.Error("Setup has written a record over a directory")
			}
			if err := os.RemoveAll(record); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachOf(t, []infra.Binding{infra.Routed{}, infra.Masquerade{}, infra.Redirect{}, infra.Bridge{}}, func(t *testing.T, b infra.Binding) {
				n := nstest.NewNetwork(t)
				n.Pod.Exec("nft", fmt.Sprintf("add table ip theirs; add chain ip theirs out { type nat hook output priority -100; }; add rule ip theirs out ip daddr %v tcp dport 80 dnat to %[1]v:8080", nstest.Beyond4))
				server := listen(t, n.World, netip.AddrPortFrom(nstest.Beyond4, 8080))
				conn := dial(t, n.Pod, "tcp", netip.AddrPortFrom(nstest.Beyond4, 80))
				peer, err := server.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer peer.Close()
				change(t, n, config(n, b))
				for _, way := range [][2]net.Conn{{peer, conn}, {conn, peer}} {
					way[1].SetReadDeadline(time.Now().Add(30 * time.Second))
					_, err := way[0].Write([]byte("x"))
					if err == nil {
						_, err = way[1].Read(make([]byte, 1))
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// guestSends sends a datagram of a guest to a refused host, from its own address or another one, and returns how many
// frames leave.
func guestSends(t *testing.T, n nstest.Network, from netip.Addr) int {
	t.Helper()
	w := attach(t, n, true, true)
	defer w.detach()
	if !from.IsValid() {
		from = w.link.IPv6
	}
	world, _ := w.send(w.link.Packet(unix.IPPROTO_UDP, from, refused6, frames.Datagram(6001, 5353, []byte("x"))))
	return len(world)
}

// TestBeginningEndsPins: a guest that begins has no pin of an earlier one.
func TestBeginningEndsPins(t *testing.T) {
	t.Parallel()
	eachOf(t, []infra.Binding{infra.Routed{}, infra.Masquerade{}}, func(t *testing.T, b infra.Binding) {
		for how, again := range map[string]func(t *testing.T, n nstest.Network, c wired.NIC, guest func()){
			"While": func(t *testing.T, _ nstest.Network, c wired.NIC, guest func()) {
				err := c.While(t.Context(), c.Spec, func(cache.Record) error { guest(); return nil })
				if err != nil {
					t.Error(err)
				}
			},
			"another tap": func(t *testing.T, n nstest.Network, c wired.NIC, guest func()) {
				n.Pod.IP("link del eth0-tap")
				setup(t, c)
				guest()
			},
		} {
			t.Run(how, func(t *testing.T) {
				n := nstest.NewNetwork(t)
				c := config(n, b)
				c.Egress = policy(t, onlySentinels...)
				c.For = "vm1"
				setup(t, c)
				if err := c.Pin(t.Context(), phase1.Pin{Addresses: []netip.Addr{refused6}, Ports: []infra.Ports{{First: 5353, Protocol: "udp"}}, Life: time.Hour}); err != nil {
					t.Fatal(err)
				}
				other := c
				other.Egress = policy(t, append([]string{"allow 198.51.100.9 7778/udp"}, onlySentinels...)...)
				again(t, n, other, func() {
					if pins := n.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-6"); strings.Contains(pins, "5353") {
						t.Errorf("pinned are still\n%s", pins)
					}
					if left := guestSends(t, n, netip.Addr{}); left > 0 {
						t.Errorf("%d frames leave to what the earlier guest had pinned", left)
					}
				})
			})
		}
	})
}

// TestBeginningForgetsPrefixes: what an earlier guest has opened from an address of its guard.prefixes is forgotten,
// also if the guest that begins has no such prefix.
func TestBeginningForgetsPrefixes(t *testing.T) {
	t.Parallel()
	eachOf(t, []infra.Binding{infra.Routed{}, infra.Masquerade{}}, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		first := config(n, b)
		first.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("fd44::/64")}
		first.For = "vm1"
		from := netip.MustParseAddr("fd44::77")
		setup(t, first)
		w := attach(t, n, true, true)
		world, _ := w.send(w.link.Packet(unix.IPPROTO_UDP, from, refused6, frames.Datagram(6001, 5353, []byte("x"))))
		if len(world) == 0 {
			t.Fatal("without a policy nothing leaves")
		}
		for _, s := range world {
			w.inject(answerTo(s.Frame))
		}
		w.send()
		w.detach()
		second := first
		second.Guard.Prefixes, second.Egress = nil, policy(t, onlySentinels...)
		err := second.While(t.Context(), second.Spec, func(cache.Record) error {
			third := second
			third.Guard.Prefixes = first.Guard.Prefixes
			setup(t, third)
			if left := guestSends(t, n, from); left > 0 {
				t.Errorf("%d frames leave on what the earlier guest had opened", left)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
