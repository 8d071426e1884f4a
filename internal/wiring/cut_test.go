package wiring_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// TestJudge: a tracked connection is refused if the guest opened it to a place that is in no set that allows it.
func TestJudge(t *testing.T) {
	box := func(first, last string, protocol uint8, port uint16) firewall.Box {
		b := firewall.Box{First: ip(first), Last: ip(last), FirstProtocol: protocol, LastProtocol: protocol, FirstPort: port, LastPort: port}
		if protocol == 0 {
			b.LastProtocol, b.LastPort = 255, 65535
		}
		return b
	}
	sets := map[string][]firewall.Box{
		"egress-4":       {box("198.51.100.9", "198.51.100.20", 17, 53), box("198.51.100.9", "198.51.100.20", 6, 443)},
		"egress-4-all":   {box("192.0.2.0", "192.0.2.255", 0, 0)},
		"divert-4-1":     {box("192.0.2.7", "192.0.2.7", 6, 80)},
		"egress-6":       {box("2001:db8::", "2001:db8::ff", 58, 0)},
		"pinnable-4":     {box("198.51.100.99", "198.51.100.99", 6, 443)},
		"pinnable-4-all": {box("0.0.0.0", "198.51.100.98", 0, 0), box("198.51.100.100", "203.0.112.255", 0, 0), box("203.0.113.128", "255.255.255.255", 0, 0)},
		"pins-4":         {box("198.51.100.99", "198.51.100.99", 6, 443), box("198.51.100.99", "198.51.100.99", 6, 80), box("203.0.113.7", "203.0.113.7", 6, 443), box("203.0.113.200", "203.0.113.200", 6, 443), box("203.0.113.200", "203.0.113.200", 6, 80)},
	}
	behind, asPod := "10.0.2.2", "10.244.1.7"
	for _, c := range []struct {
		from, to string // to: or FIRST>TO
		protocol uint8
		want     bool
	}{
		{behind, "198.51.100.9:443", 6, false}, {behind, "198.51.100.20:53", 17, false}, {behind, "198.51.100.21:443", 6, true}, {behind, "198.51.100.8:443", 6, true},
		{behind, "198.51.100.9:80", 6, true}, {behind, "198.51.100.9:443", 17, true}, {behind, "198.51.100.9:0", 1, true},
		{behind, "192.0.2.255:9", 132, false}, {behind, "192.0.2.0:0", 1, false}, {behind, "192.0.3.0:0", 1, true},
		{behind, "203.0.113.7:443", 6, true}, // refused by an entry of its own, though pinned
		{behind, "203.0.113.200:443", 6, false}, {behind, "203.0.113.200:80", 6, false}, {behind, "203.0.113.200:81", 6, true}, {behind, "203.0.113.200:443", 17, true},
		{behind, "198.51.100.99:443", 6, false}, {behind, "198.51.100.99:80", 6, true},
		{"fd10:0:2::2", "[2001:db8::7]:0", 58, false}, {"fd10:0:2::2", "[2001:db8::7]:80", 6, true},
		{"10.9.0.1", "198.51.100.8:443", 6, true},                 // of guard.prefixes
		{behind, "10.244.1.7:22", 6, false},                       // the namespace
		{behind, "10.0.2.1:53", 17, false},                        // the gateway
		{behind, behind + ":80", 6, false},                        // by the pod's address
		{behind, "10.0.2.1:53>10.244.1.7:53", 17, false},          // where another program's rule has sent it, by guard.open
		{behind, "10.0.2.1:53>127.0.0.11:53", 17, true},           // guard.open opens no loopback address
		{behind, "192.0.2.7:80>127.0.0.1:8080", 6, false},         // diverted
		{behind, "192.0.2.7:80>127.0.0.1:8081", 6, true},          // to another target
		{behind, "192.0.2.7:81>127.0.0.1:8080", 6, true},          // what is not diverted
		{behind, "192.0.2.7:80>127.0.0.1:8080", 17, true},         //
		{behind, "192.0.2.7:443>10.0.2.1:15443", 6, true},         // diverted no more
		{"10.244.1.7", "198.51.100.8:443", 6, false},              // the namespace's own
		{"10.0.2.1", "198.51.100.8:443", 6, false},                // the same, from the gateway's address
		{"198.51.100.8", behind + ":80", 6, false},                // others
		{"192.168.9.2", "198.51.100.8:443", 6, false},             // another guest
		{asPod + " routed", "198.51.100.8:443", 6, true},          // here the guest's
		{asPod + " routed", "192.0.2.1:443", 6, false},            //
		{asPod + " routed", asPod + ":80", 6, false},              // to itself
		{"169.254.75.1 routed", "198.51.100.8:443", 6, false},     // the namespace's own
		{"198.51.100.8 routed", asPod + ":80", 6, false},          // others
		{"fd00:244:1::7 routed", "[2001:db8:1::7]:80", 6, true},   //
		{"fd00:244:1::9 routed", "[2001:db8:1::7]:80", 6, false},  // another host's
		{"fd00:244:1::7 routed", "[fd00:244:1::7]:80", 17, false}, //
	} {
		from, isRouted := strings.CutSuffix(c.from, " routed")
		spec, now := masquerade(), flannel()
		now.Addresses = append(now.Addresses, address("10.0.2.1/24"))
		if isRouted {
			spec, now = routed(), flannel()
			for _, a := range now.Addresses {
				now.OffStack = append(now.OffStack, netstate.OffStack{Link: nic, Address: a.Prefix.Addr()})
			}
			now.Addresses = append(now.Addresses, address("169.254.75.1/32"))
		}
		plan := newPlan(t, flannel(), withSpec(spec, func(s *asked) {
			s.Egress, s.Guard.Prefixes = egressOf("divert 192.0.2.7 80 127.0.0.1:8080", "refuse all"), []netip.Prefix{pfx("10.9.0.0/24")}
			s.Guard.Open = []infra.Ports{{Protocol: "udp", First: 53}}
		}))
		first, to, translated := strings.Cut(c.to, ">")
		if !translated {
			to = first
		}
		have := plan.EgressSets()
		for i := range have {
			have[i].Boxes = sets[have[i].Name]
		}
		if is := plan.Judge(now, have)(wiring.Tracked{From: ip(from), First: netip.MustParseAddrPort(first), To: netip.MustParseAddrPort(to), Protocol: c.protocol}); is != c.want {
			t.Errorf("%s to %s by protocol %d is refused: %t", c.from, c.to, c.protocol, is)
		}
	}
	wide := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) {
		s.Egress, s.Guard.Prefixes = egressOf("refuse all"), []netip.Prefix{pfx("0.0.0.0/0")}
	}))
	if is := wide.Judge(flannel(), wide.EgressSets())(wiring.Tracked{From: ip(behind), To: netip.MustParseAddrPort("198.51.100.8:443"), Protocol: 6}); !is {
		t.Error("what the guest may send from is taken for where the guest is")
	}
	if sets := newPlan(t, flannel(), masquerade()).EgressSets(); sets != nil {
		t.Errorf("without a policy there are the sets %v", sets)
	}
}
