package phase1_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// onLoopback gives the namespace an address on its loopback.
func onLoopback(n *nstest.Namespace, a netip.Addr) {
	n.IP("link set lo up")
	add := fmt.Sprintf("addr add %v dev lo", netip.PrefixFrom(a, a.BitLen()))
	if a.Is6() {
		add += " nodad"
	}
	n.IP(add)
}

// TestInnerAddresses: a namespace that has addresses on its loopback answers there by the NIC. It goes on
// under a binding that lists no loss of them. Where they are lost, the guest answers, once it has them and its filter
// lets them pass.
func TestInnerAddresses(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	all := []netip.Addr{netip.MustParseAddr("10.96.0.53"), netip.MustParseAddr("fd00:96::53")}
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			for _, a := range all {
				gateway := map[bool]netip.Addr{true: nstest.Pod4, false: nstest.Pod6}[a.Is4()]
				onLoopback(n.Pod, a)
				n.World.IP(fmt.Sprintf("route add %v via %v", a, gateway))
			}
			answered := func(by string) {
				t.Helper()
				for _, a := range all {
					nstest.Eventually(t, func() error {
						q, err := n.World.Question("udp", netip.Addr{}, netip.AddrPortFrom(a, 9000), 100)
						if err != nil {
							return err
						}
						defer q.Close()
						answer, err := q.Answer(time.Second)
						if err == nil && !strings.HasPrefix(answer, by) {
							err = fmt.Errorf("%v: %q, want %s", a, answer, by)
						}
						return err
					})
				}
			}
			serve := func(ns *nstest.Namespace, name string) {
				var at []netip.AddrPort
				for _, a := range all {
					at = append(at, netip.AddrPortFrom(a, 9000))
				}
				ns.Serve(name, "udp", at...)
			}
			serve(n.Pod, "pod")
			answered("pod:9000")

			c := config(n, b)
			setup(t, c)
			var lost []netip.Addr
			for _, l := range record(t, n).Losses {
				if l.Kind == "address" {
					lost = append(lost, netip.MustParseAddr(l.What))
				}
				if l.Way != "routed keeps it" {
					t.Errorf("%v", l)
				}
			}
			slices.SortFunc(lost, netip.Addr.Compare)
			if len(lost) == 0 {
				answered("pod:9000")
				return
			}
			if !slices.Equal(all, lost) {
				t.Errorf("of %v the record lists %v", all, lost)
			}
			for _, a := range all {
				c.Guard.Prefixes = append(c.Guard.Prefixes, netip.PrefixFrom(a, a.BitLen()))
			}
			setup(t, c)
			guest, _ := kernelGuest(t, n, record(t, n), 1450)
			for _, a := range all {
				onLoopback(guest, a)
			}
			serve(guest, "guest")
			answered("guest:9000")
		})
	}
}
