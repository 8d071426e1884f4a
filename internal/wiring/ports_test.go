package wiring_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TestTakenPorts: the record warns of each service of the namespace whose connections go to the guest, and of
// no other.
func TestTakenPorts(t *testing.T) {
	any4, loopback := netip.IPv4Unspecified(), netip.MustParseAddr("127.0.0.1")
	for _, c := range []struct {
		name       string
		masquerade infra.Masquerade
		listener   netstate.Listener
		warned     bool
	}{
		{"everything is forwarded", infra.Masquerade{}, netstate.Listener{Protocol: "tcp", Address: any4, Port: 22}, true},
		{"at the NIC's address", infra.Masquerade{}, netstate.Listener{Protocol: "tcp", Address: ip("10.244.1.7"), Port: 22}, true},
		{"at another address", infra.Masquerade{}, netstate.Listener{Protocol: "tcp", Address: ip("192.0.2.1"), Port: 22}, false},
		{"at the loopback", infra.Masquerade{}, netstate.Listener{Protocol: "tcp", Address: loopback, Port: 22}, false},
		{"at the loopback, forwarded", infra.Masquerade{Loopback: true}, netstate.Listener{Protocol: "tcp", Address: loopback, Port: 22}, true},
		{"at another address beside the loopback", infra.Masquerade{Loopback: true}, netstate.Listener{Protocol: "tcp", Address: ip("192.0.2.1"), Port: 22}, false},
		{"excluded", infra.Masquerade{Excluded: []infra.Ports{{First: 22}}}, netstate.Listener{Protocol: "tcp", Address: any4, Port: 22}, false},
		{"another one is excluded", infra.Masquerade{Excluded: []infra.Ports{{First: 23}}}, netstate.Listener{Protocol: "tcp", Address: any4, Port: 22}, true},
		{"excluded for another protocol", infra.Masquerade{Excluded: []infra.Ports{{First: 22}}}, netstate.Listener{Protocol: "udp", Address: any4, Port: 22}, true},
		{"in the list", infra.Masquerade{Ports: []infra.Ports{{First: 20, Last: 22}}}, netstate.Listener{Protocol: "tcp", Address: any4, Port: 22}, true},
		{"not in the list", infra.Masquerade{Ports: []infra.Ports{{First: 80}}}, netstate.Listener{Protocol: "tcp", Address: any4, Port: 22}, false},
		{"nothing is forwarded", infra.Masquerade{Ports: []infra.Ports{}}, netstate.Listener{Protocol: "tcp", Address: any4, Port: 22}, false},
		{"proxies take it", infra.Masquerade{Sidecar: &infra.Sidecar{}}, netstate.Listener{Protocol: "tcp", Address: any4, Port: 22}, false},
	} {
		found := lan4With(func(s *netstate.Snapshot) { s.Listeners = []netstate.Listener{c.listener, c.listener} })
		plan := newPlan(t, found, withSpec(masquerade(), func(s *asked) { s.Binding = c.masquerade }))
		want, remedy := "", "exclude 22/%s to keep it"
		if c.masquerade.Ports != nil { // in which an excluded port may not be
			remedy = "leave 22/%s out of binding.masquerade.ports to keep it"
		}
		if c.warned {
			want = fmt.Sprintf("the namespace serves %s port 22 at %v, which is forwarded to the guest: "+remedy, c.listener.Protocol, c.listener.Address, c.listener.Protocol)
		}
		if have := strings.Join(plan.Record.Warnings, "\n"); have != want {
			t.Errorf("%s: have %q, want %q", c.name, have, want)
		}
	}
}

// TestRoutedPorts: under a routed binding all ports but the excluded ones are the guest's, and the record warns of
// services of the namespace at the others.
func TestRoutedPorts(t *testing.T) {
	const serves, list = "the namespace serves tcp port 15008 at %v, which is the guest's now: ", "list 15008/tcp in binding.routed.excluded to keep it"
	any4, own := netip.IPv4Unspecified(), ip("10.244.1.7")
	for _, c := range []struct {
		name   string
		routed infra.Routed
		at     netip.Addr
		want   string
	}{
		{"at all addresses", infra.Routed{}, any4, fmt.Sprintf(serves, any4) + list},
		{"at all addresses, beside a sidecar", infra.Routed{Sidecar: &infra.Sidecar{}}, any4, fmt.Sprintf(serves, any4) + list},
		{"another port is excluded", infra.Routed{Excluded: []infra.Ports{{First: 15020}}}, any4, fmt.Sprintf(serves, any4) + list},
		{"excluded", infra.Routed{Excluded: []infra.Ports{{First: 15008}}}, any4, ""},
		{"at the NIC's address", infra.Routed{}, own, fmt.Sprintf(serves, own) + list + ", and let the service listen at all addresses"},
		{"at the NIC's address, excluded", infra.Routed{Excluded: []infra.Ports{{First: 15008}}}, own, fmt.Sprintf(serves, own) + list + ", and let the service listen at all addresses"},
		{"at the loopback", infra.Routed{}, ip("127.0.0.1"), ""},
		{"at another address", infra.Routed{}, ip("192.0.2.1"), ""},
	} {
		found := lan4With(func(s *netstate.Snapshot) {
			l := netstate.Listener{Protocol: "tcp", Address: c.at, Port: 15008}
			s.Listeners = []netstate.Listener{l, l}
		})
		plan := newPlan(t, found, withSpec(routed(), func(s *asked) { s.Binding = c.routed }))
		if have := strings.Join(plan.Record.Warnings, "\n"); have != c.want {
			t.Errorf("%s: have %q, want %q", c.name, have, c.want)
		}
	}
}
