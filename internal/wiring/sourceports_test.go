package wiring_test

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TestSourcePorts: the guest sends from ports that are forwarded to the guest, or that the namespace does not use, and
// never from one that the namespace's kernel may give to a client, unless it is one of UDP that is forwarded.
func TestSourcePorts(t *testing.T) {
	const portRange, reservedPorts = "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports"
	own := func(protocol string, port uint16) []netstate.LocalPort {
		return []netstate.LocalPort{{Protocol: protocol, Port: port}}
	}
	for _, c := range []struct {
		name     string
		ports    string // ip_local_port_range; empty: not known
		reserved string
		binding  infra.Masquerade
		open     []infra.Ports
		older    []netstate.LocalPort
		serving  []netstate.Listener
		want     string // of TCP: kept ranges, the range by the NIC, by other links
		reserves string
		udp      string // kept ranges of UDP; empty: not compared
	}{
		{name: "everything", ports: "32768 60999", want: "keeps 1-32767 61000-65535, else 1024-32767, else 61000-65535", udp: " 1-65535"},
		{name: "a range that is not known", want: "keeps 1-32767 61000-65535, else 1024-32767, else 61000-65535", udp: " 1-65535"},
		{name: "some ports", ports: "32768 60999", binding: infra.Masquerade{Ports: []infra.Ports{{First: 80}, {First: 8080, Last: 8081, Guest: 90}, {First: 32000, Last: 33000}, {Protocol: "udp", First: 53}}},
			want: "keeps 80 8080-8081 32000-32767, else 61000-65535", udp: " 53"},
		{name: "no ports", ports: "32768 60999", binding: infra.Masquerade{Ports: []infra.Ports{}}, want: "keeps, else 61000-65535", udp: "none"},
		{name: "excluded", ports: "32768 60999", binding: infra.Masquerade{Excluded: []infra.Ports{{First: 22}, {First: 2000}, {Protocol: "udp", First: 53}, {First: 65000}}},
			want: "keeps 1-21 23-1999 2001-32767 61000-64999 65001-65535, else 2001-32767, else 61000-64999", udp: " 1-52 54-65535"},
		{name: "proxies", ports: "32768 60999", binding: infra.Masquerade{Excluded: []infra.Ports{{First: 61001}}, Sidecar: &infra.Sidecar{}}, want: "keeps, else 61002-65535", udp: "none"},
		{name: "ports that are open", ports: "32768 60999", open: []infra.Ports{{First: 65535}}, want: "keeps 1-32767 61000-65535, else 1024-32767, else 61000-65534"},
		{name: "an older connection", ports: "32768 60999", older: own("tcp", 8080), want: "keeps 1-8079 8081-32767 61000-65535, else 8081-32767, else 61000-65535"},
		{name: "an older exchange of UDP", ports: "32768 60999", older: own("udp", 8080), want: "keeps 1-32767 61000-65535, else 1024-32767, else 61000-65535", udp: " 1-8079 8081-65535"},
		{name: "services", ports: "32768 60999", binding: infra.Masquerade{Ports: []infra.Ports{{First: 80}}},
			serving: []netstate.Listener{{Protocol: "tcp", Port: 62000}, {Protocol: "udp", Port: 63000}}, want: "keeps 80, else 62001-65535"},
		{name: "services everywhere above", ports: "32768 60999", binding: infra.Masquerade{Ports: []infra.Ports{{First: 80}}},
			older: []netstate.LocalPort{{Protocol: "tcp", Port: 61700}, {Protocol: "tcp", Port: 62500}, {Protocol: "tcp", Port: 63400}, {Protocol: "tcp", Port: 64300}, {Protocol: "tcp", Port: 65200}},
			want:  "keeps 80, else 1024-32767"},
		{name: "clients have all ports", ports: "1024 65535", reserved: "8080,9148", want: "keeps 1-1023 61000-65535, else 61000-65535", reserves: "8080,9148,61000-65535", udp: " 1-65535"},
		{name: "clients have nearly all ports", ports: "16384 65000", reserved: "60998-61005", want: "keeps 1-16383 61000-65535, else 1024-16383, else 61000-65535", reserves: "60998-65535"},
		{name: "ports of UDP", ports: "32768 60999", binding: infra.Masquerade{Ports: []infra.Ports{{Protocol: "udp", First: 30000, Last: 62000}}}, want: "keeps, else 61000-65535", udp: " 30000-62000"},
		{name: "clients have low ports", ports: "1024 4999", want: "keeps 1-1023 5000-65535, else 5000-65535"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := flannelWith(func(s *netstate.Snapshot) {
				if c.ports != "" {
					s.Sysctls[portRange], s.Sysctls[reservedPorts] = c.ports, c.reserved
				}
				s.Connections, s.Listeners = c.older, c.serving
			})
			plan := newPlan(t, found, withSpec(masquerade(), func(s *asked) { s.Binding, s.Guard.Open = c.binding, c.open }))
			var kept []string
			var others []string
			rule := regexp.MustCompile(`iifname "eth0-tap" (oifname "eth0" )?meta l4proto tcp (tcp sport (\S+) )?masquerade to :(\S+)`)
			for _, m := range rule.FindAllStringSubmatch(plan.String(), -1) {
				switch {
				case m[3] == "":
					others = append(others, ", else "+m[4])
				case m[3] != m[4]:
					t.Errorf("ports %s become %s", m[3], m[4])
				default:
					kept = append(kept, " "+m[3])
				}
			}
			if have := "keeps" + strings.Join(kept, "") + strings.Join(others, ""); have != c.want {
				t.Errorf("have %s\nwant %s", have, c.want)
			}
			var keptUDP string
			for _, m := range regexp.MustCompile(`meta l4proto udp udp sport (\S+) masquerade to :(\S+)`).FindAllStringSubmatch(plan.String(), -1) {
				if keptUDP += " " + m[1]; m[1] != m[2] {
					t.Errorf("ports %s become %s", m[1], m[2])
				}
			}
			if have := cmp.Or(keptUDP, "none"); c.udp != "" && have != c.udp {
				t.Errorf("of UDP it keeps%s, want%s", have, c.udp)
			}
			k := boot(found)
			k.s.Sysctls[reservedPorts] = "another"
			steps, err := plan.Steps(k.snapshot())
			if err != nil {
				t.Fatal(err)
			}
			undo := mustUndo(t, plan, k)
			written := func(ops []netstate.Op) string {
				for _, op := range ops {
					if o, is := op.(netstate.SysctlSet); is && o.Path == reservedPorts {
						return o.Value + "."
					}
				}
				return ""
			}
			wantUndo := ""
			if c.reserves != "" {
				c.reserves, wantUndo = c.reserves+".", c.reserved+"."
			}
			if written(steps) != c.reserves || written(undo) != wantUndo {
				t.Errorf("reserves %q, and undoes that by %q", written(steps), written(undo))
			}
			if len(c.reserves) > 0 != slices.Contains(plan.Made().Sysctls, reservedPorts) {
				t.Errorf("shared: %v", plan.Made().Sysctls)
			}
		})
	}
}

// TestHiddenBehind: where the NIC has several addresses, the guest is hidden behind the one that the default route names,
// if it names one that stays.
func TestHiddenBehind(t *testing.T) {
	const fixed = " snat ip to 10.244.1.8:"
	for _, c := range []struct {
		name  string
		edit  func(second *netstate.Address, route *netstate.Route)
		fixed bool
	}{
		{"named", func(_ *netstate.Address, r *netstate.Route) { r.PrefSrc = ip("10.244.1.8") }, true},
		{"not named", func(*netstate.Address, *netstate.Route) {}, false},
		{"named, and it ends", func(a *netstate.Address, r *netstate.Route) { a.ValidSeconds, r.PrefSrc = 3600, ip("10.244.1.8") }, false},
	} {
		plan := newPlan(t, lan4With(func(s *netstate.Snapshot) {
			second := address("10.244.1.8/24")
			at := slices.IndexFunc(s.Routes, func(r netstate.Route) bool { return r.Destination.Bits() == 0 })
			c.edit(&second, &s.Routes[at])
			s.Addresses = append(s.Addresses, second)
		}), masquerade())
		if have := strings.Contains(plan.String(), fixed); have != c.fixed {
			t.Errorf("%s:%s is there: %t, want %t", c.name, fixed, have, c.fixed)
		}
	}
}
