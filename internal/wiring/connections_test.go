package wiring_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/undo"
)

// TestConnections: which tracked connections Setup and Teardown have the kernel forget. With a policy a Setup for a
// guest that begins has it forget the guest's, too. Where the journal is lost, Teardown has it forget the same, with
// the record and by what the namespace shows.
func TestConnections(t *testing.T) {
	masqueraded := func(m infra.Masquerade) asked {
		return withSpec(masquerade(), func(s *asked) { s.Binding = m })
	}
	guests := []string{"--orig-src 10.0.2.0/24", "--reply-src 10.0.2.0/24", "--orig-src fd10:0:2::/120", "--reply-src fd10:0:2::/120"}
	routedGuests := []string{"--orig-src 10.244.1.7", "--reply-src 10.244.1.7", "--orig-src fd00:244:1::7", "--reply-src fd00:244:1::7"}
	// With the wiring gone, the other connections of the NIC's addresses are the namespace's.
	hops := []string{
		"--orig-src 10.244.1.7 --reply-src 169.254.75.1", "--orig-src 169.254.75.1 --reply-dst 10.244.1.7", "--orig-dst 10.244.1.7 --reply-src 169.254.75.1",
		"--orig-src 169.254.75.1 --orig-dst 10.244.1.7", "--reply-src 10.244.1.7 --reply-dst 169.254.75.1",
		"--orig-src fd00:244:1::7 --reply-src fd00:a9fe:4b01::1", "--orig-src fd00:a9fe:4b01::1 --reply-dst fd00:244:1::7", "--orig-dst fd00:244:1::7 --reply-src fd00:a9fe:4b01::1",
		"--orig-src fd00:a9fe:4b01::1 --orig-dst fd00:244:1::7", "--reply-src fd00:244:1::7 --reply-dst fd00:a9fe:4b01::1",
	}
	further := []string{"--orig-src 10.9.0.0/20", "--reply-src 10.9.0.0/20"}
	prefixes := func(s *asked) { s.Guard.Prefixes = []netip.Prefix{pfx("10.9.0.0/20"), pfx("fe80::/64")} }
	both := []string{"-p udp --orig-dst 10.244.1.7 --reply-src 10.244.1.7", "-p udp --orig-dst fd00:244:1::7 --reply-src fd00:244:1::7"}
	all := slices.Clone(both)
	for _, own := range []string{"10.244.1.7", "fd00:244:1::7"} {
		const portless = "# for each PROTOCOL without ports: conntrack -D -p PROTOCOL "
		all = append(all, portless+"--orig-dst "+own+" --reply-src "+own, portless+"--orig-src "+own+" --reply-dst "+own)
	}
	dns := []infra.Ports{{First: 80}, {Protocol: "udp", First: 53}}
	withPort := func(lines []string) (list []string) {
		for _, l := range lines {
			list = append(list, l+" --orig-port-dst 53")
		}
		return list
	}
	others := []string{"--orig-src 192.168.9.0/30", "--reply-src 192.168.9.0/30", "--orig-src fd77::/64", "--reply-src fd77::/64"}
	within := append([]string{"--orig-src 10.244.1.3", "--reply-src 10.244.1.3"}, guests[2:]...)
	for _, c := range []struct {
		name               string
		spec               asked
		older, guests, own []string
	}{
		{"masquerade", masquerade(), all, guests, guests},
		{"other networks", masqueraded(infra.Masquerade{IPv4: pfx("192.168.9.0/30"), IPv6: pfx("fd77::/64")}), all, others, others},
		{"in the NIC's network", masqueradeWithin("10.244.1.0/24", "10.244.1.3"), all, within, within},
		{"ports", masqueraded(infra.Masquerade{Ports: dns}), withPort(both), guests, guests},
		{"TCP alone", masqueraded(infra.Masquerade{Ports: dns[:1]}), nil, guests, guests},
		{"a sidecar", masqueraded(infra.Masquerade{Sidecar: &infra.Sidecar{}}), nil, nil, guests}, // it takes no policy
		{"further addresses", withSpec(masquerade(), prefixes), all, slices.Concat(guests, further), slices.Concat(guests, further)},
		{"routed", routed(), nil, routedGuests, hops},
		{"routed, further addresses", withSpec(routed(), prefixes), nil, slices.Concat(routedGuests, further), slices.Concat(hops, further)},
		{"routed, excluded", withSpec(routed(), func(s *asked) { s.Binding = infra.Routed{Excluded: dns} }), withPort(both), routedGuests, hops},
		{"redirect", redirect(), nil, nil, nil}, // nor do these two
		{"bridge", bridge(), nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, flannel(), c.spec)
			forgets(t, "Setup", plan.OlderConnections(true), c.older, true)
			if c.guests != nil {
				egress := withSpec(c.spec, func(s *asked) { s.Egress = egressOf("refuse all") })
				restricted := newPlan(t, flannel(), egress)
				forgets(t, "Setup with a policy", restricted.OlderConnections(true), slices.Concat(c.older, c.guests), true)
				forgets(t, "a later Setup with a policy", restricted.OlderConnections(false), c.older, true)
			}
			forgets(t, "Teardown", undo.Connections(plan.Made()), c.own, true)
			for how, record := range map[string]*cache.Record{"by the namespace": nil, "by the record": &plan.Record} {
				k := wire(t, plan, flannel())
				shown := undo.Salvage(k.snapshot(), "eth0", c.spec.Binding.Kind(), record)
				forgets(t, "ForceTeardown, "+how, undo.Connections(shown.Made), c.own, false)
			}
		})
	}
}

// forgets wants the commands of conntrack(8), and if exactly is set no others.
func forgets(t *testing.T, who string, ops []netstate.ConnectionsDel, want []string, exactly bool) {
	t.Helper()
	var have []string
	for _, o := range ops {
		have = append(have, strings.TrimPrefix(o.String(), "conntrack -D "))
	}
	for _, l := range want {
		if !slices.Contains(have, l) {
			t.Errorf("%s does not forget %s", who, l)
		}
	}
	if exactly && len(have) != len(want) || len(want) == 0 && len(have) > 0 {
		t.Errorf("%s forgets\n%s, want\n%s", who, strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}
