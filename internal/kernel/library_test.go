package kernel

import (
	"errors"
	"slices"
	"strings"
	"testing"

	library "github.com/vishvananda/netlink"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestExactness: what is listed, deleted and added again is the same by this package's messages, as ip(8) prints it. It
// is not by the functions of vishvananda/netlink. A test that fails because the library is exact by now says that the
// row about rtnetlink in docs/explanation/engine.md is out of date.
func TestExactness(t *testing.T) {
	addresses := func(l library.Link) error {
		list, err := library.AddrList(l, library.FAMILY_ALL)
		for _, a := range list {
			if a.Scope == int(library.SCOPE_UNIVERSE) {
				err = errors.Join(err, library.AddrDel(l, &a), library.AddrAdd(l, &a))
			}
		}
		return err
	}
	routes := func(l library.Link) error {
		list, err := library.RouteList(l, library.FAMILY_V6)
		for _, r := range list {
			if r.Protocol == 4 { // static
				err = errors.Join(err, library.RouteDel(&r), library.RouteAdd(&r))
			}
		}
		return err
	}
	for _, c := range []struct {
		add, show string
		library   func(library.Link) error
	}{
		{"addr add 10.0.0.2/24 metric 77 dev eth0", "-o addr show dev eth0 scope global", addresses},
		{"-6 route add 2001:db8:1::/48 via fe80::1 dev eth0 proto static pref high", "-6 route show proto static", routes},
	} {
		t.Run(c.add, func(t *testing.T) {
			nstest.Need(t)
			pod := nstest.New(t, "pod")
			pod.IP("link add eth0 type veth peer name peer0")
			pod.IP("link set peer0 up")
			pod.IP("link set eth0 up")
			pod.IP(c.add)
			before := pod.IP(c.show)
			if !strings.Contains(before, "metric") && !strings.Contains(before, "pref high") {
				t.Fatalf("ip(8) shows %q", before)
			}

			if err := inPod(pod, func(n *Namespace) error {
				s, err := n.Snapshot(netstate.NamesFor("eth0", ""), nil, nil)
				if err != nil {
					return err
				}
				var del, add []netstate.Op
				for _, a := range s.Addresses {
					if a.Scope == netstate.ScopeUniverse {
						del, add = append(del, netstate.AddressDel{Address: a, Link: "eth0"}), append(add, netstate.AddressAdd{Address: a, Link: "eth0"})
					}
				}
				for _, r := range s.Routes {
					if r.Protocol == netstate.ProtocolStatic {
						del, add = append(del, netstate.RouteDel{Route: r, Link: "eth0"}), append(add, netstate.RouteAdd{Route: r, Link: "eth0"})
					}
				}
				return n.Apply(t.Context(), slices.Concat(del, add))
			}); err != nil {
				t.Fatal(err)
			}
			if after := pod.IP(c.show); after != before {
				t.Errorf("by this package:\n%s\nwant\n%s", after, before)
			}

			if err := netns.Do(pod.File, func() error {
				l, err := library.LinkByName("eth0")
				if err != nil {
					return err
				}
				return c.library(l)
			}); err != nil {
				t.Fatal(err)
			}
			if after := pod.IP(c.show); after == before {
				t.Errorf("the library is exact:\n%s", after)
			} else {
				t.Logf("by the library:\n%s\nwas\n%s", after, before)
			}
		})
	}
}
