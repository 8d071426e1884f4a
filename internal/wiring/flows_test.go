package wiring_test

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/netstate"
)

// TestFlowsHas: what the network opens to the guest is no flow that the guest opened, though Guard.Prefixes have the
// network's address, as those of a guest that routes may have all.
func TestFlowsHas(t *testing.T) {
	flows := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) { s.Guard.Prefixes = []netip.Prefix{pfx("0.0.0.0/0"), pfx("10.9.0.0/24")} })).Flows(flannel())
	for _, c := range []struct {
		first, answers string
		has, opened    bool
	}{
		{"10.0.2.2", "198.51.100.8", true, true},
		{"10.0.2.2", "10.0.2.2", true, true}, // to itself, by the pod's address
		{"10.9.0.1", "198.51.100.8", true, true},
		{"203.0.113.7", "198.51.100.8", true, true}, // of guard.prefixes
		{"198.51.100.8", "10.0.2.2", true, false},
		{"198.51.100.8", "10.9.0.1", true, false},
		{"10.0.2.1", "10.0.2.2", true, false},
		{"10.244.1.7", "198.51.100.8", false, false},
	} {
		if has, opened := flows.Has(ip(c.first), ip(c.answers)); has != c.has || opened != c.opened {
			t.Errorf("from %s, answers from %s: %t, %t, want %t, %t", c.first, c.answers, has, opened, c.has, c.opened)
		}
	}
}

// TestFlowsDecide: the lists decide of what the guest opens to another guest of the namespace, whose address is one of
// another NIC, and do not decide of what it opens to the namespace.
func TestFlowsDecide(t *testing.T) {
	other, later := address("10.244.2.9/32"), address("192.0.2.77/32")
	other.Link, later.Link = 9, 9
	found, now := flannel(), flannel()
	found.Addresses, now.Addresses = append(found.Addresses, other), append(now.Addresses, other, later)
	now.OffStack = append(now.OffStack, netstate.OffStack{Link: other.Link, Address: other.Prefix.Addr()})
	flows := newPlan(t, found, withSpec(masquerade(), func(s *asked) { s.Egress = egressOf("allow 10.244.2.9", "refuse all") })).Flows(now)
	for to, want := range map[string]string{
		"10.244.2.9:80": "allow 10.244.2.9", "198.51.100.8:80": "refuse all", "10.244.1.7:22": "", "192.0.2.77:22": "", "10.0.2.1:53": "", "10.0.2.2:80": "", "127.0.0.11:53": "",
	} {
		have, at := "", netip.MustParseAddrPort(to)
		if d := flows.Decide(at, at, 6); d.Entry.To != "" {
			have = d.Entry.String()
		}
		if have != want {
			t.Errorf("%s: %q decides, want %q", to, have, want)
		}
	}
}

// TestFlowsLack: the record warns of the sysctls that the namespace does not have, and of none that it has.
func TestFlowsLack(t *testing.T) {
	found := flannel()
	found.Sysctls = maps.Clone(found.Sysctls)
	found.Sysctls[netstate.CountFlows], found.Sysctls[netstate.ReportFlows] = "0", "2"
	spec := withSpec(masquerade(), func(s *asked) { s.Flows = true })
	said := strings.Join(newPlan(t, found, spec).Record.Warnings, "\n")
	if !strings.Contains(said, "(no sysctl net.netfilter.nf_conntrack_timestamp here)") {
		t.Errorf("without one of them: %q", said)
	}
	found.Sysctls[netstate.TimeFlows] = "0"
	if said := strings.Join(newPlan(t, found, spec).Record.Warnings, "\n"); strings.Contains(said, "log of flows") {
		t.Errorf("with all: %q", said)
	}
}
