package wiring_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TestResolver: where the guest's gateway leads the questions for a resolver on loopback. A resolver that resolv.conf
// names has to listen, one of Spec.DNS need not listen yet. TestResolver of package phase1 asks it.
func TestResolver(t *testing.T) {
	listener := func(protocol, address string, port uint16) netstate.Listener {
		return netstate.Listener{Protocol: protocol, Address: ip(address), Port: port}
	}
	docker := []netstate.Listener{listener("udp", "127.0.0.11", 41327), listener("tcp", "127.0.0.11", 37581)}
	dns := func(servers ...string) func(*asked) {
		return func(s *asked) {
			s.DNS = &cache.DNS{}
			for _, a := range servers {
				s.DNS.Servers = append(s.DNS.Servers, ip(a))
			}
		}
	}
	egress := func(edit func(*asked), texts ...string) func(*asked) {
		return func(s *asked) {
			edit(s)
			s.Egress = egressOf(texts...)
		}
	}
	none := func(s *asked) { s.DNS = nil }
	for _, c := range []struct {
		name      string
		conf      string // the loopback address of resolv.conf
		listeners []netstate.Listener
		spec      asked
		edit      func(*asked)
		udp, tcp  string // where port 53 of the gateway leads; empty: nowhere
	}{
		{"Docker", "127.0.0.11", docker, masquerade(), none, "127.0.0.11:41327", "127.0.0.11:37581"},
		{"Docker, routed", "127.0.0.11", docker, routed(), none, "127.0.0.11:41327", "127.0.0.11:37581"},
		{"without a resolver on loopback", "", docker, masquerade(), none, "", ""},
		{"another namespace's", "127.0.0.53", docker, masquerade(), none, "", ""},
		{"of all addresses", "127.0.0.1", []netstate.Listener{listener("udp", "0.0.0.0", 53), listener("tcp", "::", 53)}, masquerade(), none, "", ""},
		{"of all addresses, of the Spec", "", []netstate.Listener{listener("udp", "0.0.0.0", 53)}, masquerade(), dns("127.0.0.1"), "127.0.0.1:53", "127.0.0.1:53"},
		{"another service beside it", "127.0.0.53", []netstate.Listener{listener("udp", "127.0.0.53", 53), listener("tcp", "127.0.0.53", 9100)}, masquerade(), none, "127.0.0.53:53", "127.0.0.53:53"},
		{"another service, of the Spec", "", []netstate.Listener{listener("udp", "127.0.0.5", 8080), listener("tcp", "127.0.0.5", 8080)}, masquerade(), dns("127.0.0.5"), "127.0.0.5:53", "127.0.0.5:53"},
		{"within an operator's list", "", docker, masquerade(), func(s *asked) { dns("127.0.0.11")(s); s.EgressWithin = egressOf("allow all") }, "", ""},
		{"that the operator names", "", docker, masquerade(), func(s *asked) {
			dns("127.0.0.11")(s)
			s.EgressWithin = egressOf("allow 127.0.0.11 53/udp", "allow all")
		}, "127.0.0.11:41327", ""},
		{"beside names, whose proxy asks it", "127.0.0.11", docker, masquerade(), func(s *asked) {
			s.Names, s.Egress = []infra.Name{{Name: "a.example", Ports: []infra.Ports{{First: 443}}}}, egressOf("refuse all")
		}, "", ""},
		{"two sockets, none of them at 53", "127.0.0.11", append(docker, listener("udp", "127.0.0.11", 9)), masquerade(), none, "", ""},
		{"beside others", "127.0.0.53", append(docker, listener("udp", "127.0.0.53", 53), listener("udp", "127.0.0.53", 5355)), masquerade(), none, "127.0.0.53:53", "127.0.0.53:53"},
		{"another service on 127.0.0.1", "127.0.0.1", []netstate.Listener{listener("udp", "127.0.0.1", 9)}, masquerade(), none, "", ""},
		{"of the Spec", "", docker, masquerade(), dns("10.96.0.10", "127.0.0.11"), "127.0.0.11:41327", "127.0.0.11:37581"},
		{"of the Spec, and it starts later", "", nil, masquerade(), dns("::ffff:127.0.0.53"), "127.0.0.53:53", "127.0.0.53:53"},
		{"the Spec names others", "127.0.0.11", docker, masquerade(), dns("10.96.0.10"), "", ""},
		{"a port of guard.open", "127.0.0.11", docker, masquerade(), func(s *asked) { s.DNS = nil; s.Guard.Open = []infra.Ports{{Protocol: "udp", First: 50, Last: 60}} }, "", "127.0.0.11:37581"},
		{"refused", "", docker, masquerade(), egress(dns("127.0.0.11"), "refuse all"), "", ""},
		{"allowed by one protocol", "", docker, masquerade(), egress(dns("127.0.0.11"), "allow resolvers 53/udp", "refuse all"), "127.0.0.11:41327", ""},
		{"allowed by its address", "127.0.0.11", docker, masquerade(), egress(none, "allow 127.0.0.11 53/udp", "allow 127.0.0.11 53", "refuse all"), "127.0.0.11:41327", "127.0.0.11:37581"},
		{"diverted", "", docker, masquerade(), egress(dns("127.0.0.11"), "divert resolvers 53/udp :5353", "refuse all"), "10.0.2.1:5353", ""},
		{"diverted to itself", "", docker, masquerade(), egress(dns("127.0.0.11"), "divert resolvers 53/udp 127.0.0.11:53", "refuse all"), "127.0.0.11:41327", ""},
		{"iptables alone", "127.0.0.11", docker, withSpec(masquerade(), func(s *asked) { s.Guard.Off = true }), none, "", ""},
	} {
		found := flannelWith(func(s *netstate.Snapshot) {
			s.Listeners, s.NoNFTables = c.listeners, c.name == "iptables alone"
			if c.conf != "" {
				s.LoopbackDNS = ip(c.conf)
			}
		})
		plan := newPlan(t, found, withSpec(c.spec, c.edit))
		have := map[uint8]string{}
		for _, table := range plan.Tables() {
			for _, chain := range table.Chains {
				for _, r := range chain.Rules {
					to, is := r.Verdict.(firewall.DNAT)
					set, number := "", uint8(0)
					for _, m := range r.Matches {
						switch m := m.(type) {
						case firewall.InDestinations:
							set = m.Set
						case firewall.Protocol:
							number = m.Number
						}
					}
					if is && (set == "divert-resolver-udp" || set == "divert-resolver-tcp") {
						have[number] = netip.AddrPortFrom(to.Address, to.Port).String()
					}
				}
			}
		}
		if have[firewall.ProtocolUDP] != c.udp || have[firewall.ProtocolTCP] != c.tcp {
			t.Errorf("%s: UDP to %q and TCP to %q, want %q and %q", c.name, have[firewall.ProtocolUDP], have[firewall.ProtocolTCP], c.udp, c.tcp)
		}
		if is := plan.Record.Resolver.IsValid(); is != (c.udp+c.tcp != "") {
			t.Errorf("%s: the record has the resolver %v", c.name, plan.Record.Resolver)
		}
	}
}

// TestAskedWithin: the DNS proxy of names asks no server of the Spec that egressWithin refuses to the guest: questions
// and answers are a channel to that server, such as a tenant's own.
func TestAskedWithin(t *testing.T) {
	for _, c := range []struct{ server, within, refused string }{
		{"203.0.113.66", "allow 198.51.100.0/24", "dns.servers[0]"},
		{"203.0.113.66", "allow 203.0.113.66 53/udp", "53/tcp"},
		{"203.0.113.66", "allow 203.0.113.66 53/tcp", "53/udp"},
		{"203.0.113.66", "allow 203.0.113.66 53/udp, allow 203.0.113.66 53/tcp", ""},
		{"203.0.113.66", "allow resolvers", ""},
		{"10.244.1.9", "refuse nic-networks, allow 0.0.0.0/0", "dns.servers[0]"},
		{"::ffff:203.0.113.66", "allow 198.51.100.0/24", "dns.servers[0]"},
		{"2001:db8::53", "allow 198.51.100.0/24", "dns.servers[0]"},
		{"127.0.0.11", "allow 198.51.100.0/24", "dns.servers[0]"},
		{"127.0.0.11", "allow 127.0.0.11 53/udp, allow 127.0.0.11 53/tcp", ""},
		{"", "allow 198.51.100.0/24", ""},
	} {
		for _, spec := range []asked{masquerade(), routed()} {
			_, err := tryPlan(flannel(), withSpec(spec, func(s *asked) {
				s.Names, s.Egress = []infra.Name{{Name: "*.a.example", Ports: []infra.Ports{{First: 443}}}}, egressOf("refuse all")
				s.EgressWithin = egressOf(append([]string{"allow gateway 15353/udp", "allow gateway 15353/tcp"}, append(strings.Split(c.within, ", "), "refuse all")...)...)
				if s.DNS = nil; c.server != "" {
					s.DNS = &cache.DNS{Servers: []netip.Addr{ip(c.server)}}
				}
			}))
			var field *cache.FieldError
			switch {
			case c.refused == "" && err != nil:
				t.Errorf("%s within %q, %v: %v", c.server, c.within, spec.Binding, err)
			case c.refused != "" && (!errors.As(err, &field) || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("%s within %q, %v: %v, want %s", c.server, c.within, spec.Binding, err, c.refused)
			}
		}
	}
}
