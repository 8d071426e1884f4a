package infra_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/syntax"
)

func egress(t testing.TB, texts ...string) (list []infra.Egress) {
	t.Helper()
	for _, text := range texts {
		var e infra.Egress
		if err := e.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

func TestEgressText(t *testing.T) {
	for text, want := range map[string]infra.Egress{
		"refuse all":                                {Refuse: true, To: "all"},
		"allow 10.1.0.0/16 443/tcp":                 {To: "10.1.0.0/16", Ports: infra.Ports{Protocol: "tcp", First: 443}},
		"allow fd00::/8 1-99/udp":                   {To: "fd00::/8", Ports: infra.Ports{Protocol: "udp", First: 1, Last: 99}},
		"refuse nic-networks icmp":                  {Refuse: true, To: "nic-networks", Ports: infra.Ports{Protocol: "icmp"}},
		"allow fd00:ec2::254 tcp":                   {To: "fd00:ec2::254", Ports: infra.Ports{Protocol: "tcp"}},
		"divert all :15443":                         {To: "all", Divert: netip.AddrPortFrom(netip.Addr{}, 15443)},
		"divert 192.0.2.7 80-90/tcp 127.0.0.1:8080": {To: "192.0.2.7", Ports: infra.Ports{Protocol: "tcp", First: 80, Last: 90}, Divert: netip.MustParseAddrPort("127.0.0.1:8080")},
		"divert gateway udp [fd00::1]:53":           {To: "gateway", Ports: infra.Ports{Protocol: "udp"}, Divert: netip.MustParseAddrPort("[fd00::1]:53")},
		"refuse everything 80:81/no":                {Refuse: true, To: "everything", Ports: infra.Ports{Protocol: "no", First: 80, Guest: 81}}, // Validate refuses it
	} {
		var have infra.Egress
		if err := have.UnmarshalText([]byte(text)); err != nil || have != want {
			t.Errorf("%s: %+v, %v; want %+v", text, have, err, want)
		}
		if again := have.String(); again != text {
			t.Errorf("%s is written as %s", text, again)
		}
	}
	for _, text := range []string{"", "allow", "refuse", "deny all", "all", "allow all 80 90", "allow all 0", "allow all 70000/udp", "allow all 443/tcp,80", "Allow all",
		"divert", "divert all", "divert all 443", "divert :443", "divert all 80 90 :15443", "divert all 443 :0", "divert all 443 :65536", "divert all 443 :+1", "divert all 443 :01", "divert all 443 127.0.0.1:0", "divert all 443 127.0.0.1", "divert all 443 localhost:80", "allow all 443 :15443"} {
		var have infra.Egress
		if err := have.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: %+v, want an error", text, have)
		}
	}
}

// FuzzEgress: an entry that is read and written stays the same, and what Validate accepts has networks.
func FuzzEgress(f *testing.F) {
	for _, s := range []string{"refuse all", "allow 10.1.0.0/16 443/tcp", "allow ::ffff:10.0.0.1", "allow fe80::1%eth0 icmp", "allow 10.0.0.1/8 80:90", "divert all 443 :15443", "divert gateway udp 127.0.0.11:53"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var e, again infra.Egress
		if e.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(e.String())); err != nil || again != e && syntax.Ports(e.Ports).Full().Protocol != again.Ports.Protocol {
			t.Errorf("%q becomes %+v, then %+v, %v", text, e, again, err)
		}
		s := infra.Spec{Binding: infra.Routed{}, Owner: infra.Owner{UID: 107}, DNS: &cache.DNS{Servers: []netip.Addr{netip.IPv6Loopback()}}, Egress: append([]infra.Egress{e}, egress(t, "refuse all")...)}
		if s.Validate() == nil && len(syntax.Destinations(e.To)) == 0 && e.To != "nic-networks" && e.To != "resolvers" && e.To != "gateway" {
			t.Errorf("%q has no networks", text)
		}
	})
}

// TestEgressValidate: each refusal names the field and a way out, and so does the binding. Both lists are checked
// alike.
func TestEgressValidate(t *testing.T) {
	dns := &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}
	near := &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("10.96.0.10")}}
	long := make([]infra.Egress, 16385)
	for _, c := range []struct {
		spec  infra.Spec
		field string // empty: valid
		words string
	}{
		{infra.Spec{Binding: infra.Masquerade{}, Egress: egress(t, "refuse metadata", "allow all")}, "", ""},
		{infra.Spec{Binding: infra.Routed{}, DNS: dns, Egress: egress(t, "allow resolvers 53", "allow all icmp", "refuse all")}, "", ""},
		{infra.Spec{Binding: infra.Auto{}, Egress: egress(t, "refuse all")}, "", ""},
		{infra.Spec{Binding: infra.Auto{Order: []cache.Kind{"bridge", "masquerade"}}, Egress: egress(t, "refuse all")}, "", ""},
		{infra.Spec{Binding: infra.Auto{Order: []cache.Kind{"bridge", "redirect"}}, Egress: egress(t, "refuse all")}, "egress", "add routed or masquerade"},
		{infra.Spec{Binding: infra.Routed{}, Egress: []infra.Egress{}}, "egress", "an empty list"},
		{infra.Spec{Binding: infra.Bridge{}, Egress: egress(t, "allow all")}, "egress", "with the bridge binding"},
		{infra.Spec{Binding: infra.Redirect{}, Egress: egress(t, "allow all")}, "egress", "want the binding masquerade or routed"},
		{infra.Spec{Binding: infra.Passt{}, Egress: egress(t, "allow all")}, "egress", "with the passt binding"},
		{infra.Spec{Binding: infra.Routed{Sidecar: &infra.Sidecar{}}, Egress: egress(t, "refuse all")}, "egress", "binding.routed.sidecar"},
		{infra.Spec{Binding: infra.Masquerade{Sidecar: &infra.Sidecar{}}, Egress: egress(t, "refuse all")}, "egress", "binding.masquerade.sidecar"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow 10.0.0.0/8")}, "egress", `want "refuse all" or "allow all" at the end`},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow all 80")}, "egress", "leaves the rest open"},
		{infra.Spec{Binding: infra.Routed{}, Egress: append(long, egress(t, "refuse all")...)}, "egress", "at most 16384"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow 10.0.0.1/8", "refuse all")}, "egress[0]", "want 10.0.0.0/8"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow all", "allow ::ffff:10.0.0.1", "refuse all")}, "egress[1]", "is no network"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow fe80::1%eth0", "refuse all")}, "egress[0]", "is no network"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow internet", "refuse all")}, "egress[0]", "or all, private, link-local"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow resolvers", "refuse all")}, "egress[0]", "dns.servers"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow all gre", "refuse all")}, "egress[0]", "want tcp, udp, sctp or icmp"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow all https", "refuse all")}, "egress[0]", "or a port such as 443"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow all udp/53", "refuse all")}, "egress[0]", "or 53/udp"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow all 7/gre", "refuse all")}, "egress[0]", "want tcp, udp or sctp"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow all 7/icmp", "refuse all")}, "egress[0]", "icmp has no ports"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow all 80:81/tcp", "refuse all")}, "egress[0]", "leave :81 out"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow all 80-70/tcp", "refuse all")}, "egress[0]", "ends before it begins"},
		{infra.Spec{Binding: infra.Routed{}, Egress: append([]infra.Egress{{To: "all", Ports: infra.Ports{Last: 80}}}, egress(t, "refuse all")...)}, "egress[0]", "a port is 1 to 65535"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "refuse all", "allow all")}, "egress[1]", `"allow all" never decides, as "refuse all" comes before it`},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow 10.0.0.0/8", "refuse 10.9.9.9", "allow all")}, "egress[1]", `"refuse 10.9.9.9" never decides, as "allow 10.0.0.0/8" comes before it`},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow 10.9.0.0/16", "refuse 10.0.0.0/8", "refuse 10.9.9.9", "allow all")}, "egress[2]", `"refuse 10.9.9.9" never decides, as "allow 10.9.0.0/16" comes before it`},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "refuse private", "allow 10.0.0.1 443", "refuse all")}, "egress[1]", `"allow 10.0.0.1 443/tcp" never decides, as "refuse private" comes before it`},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow 2001:db8::/32 tcp", "refuse 2001:db8:1::/48 443", "allow all")}, "egress[1]", "never decides"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow 0.0.0.0/0", "allow ::/0", "refuse metadata", "refuse all")}, "egress[2]", "never decides"},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow private", "refuse private 80", "refuse all")}, "egress[1]", `as "allow private" comes before it`},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "allow all 80", "refuse private 80", "refuse all")}, "egress[1]", `as "allow all 80/tcp" comes before it`},
		{infra.Spec{Binding: infra.Routed{}, Egress: egress(t, "refuse private 80", "allow private", "refuse all")}, "", ""},
		{infra.Spec{Binding: infra.Routed{}, DNS: near, Egress: egress(t, "refuse link-local", "refuse private", "allow resolvers 53/udp", "refuse all")}, "egress[2]", `"allow resolvers 53/udp" never decides, as "refuse link-local" comes before it`},
		{infra.Spec{Binding: infra.Routed{}, DNS: near, Egress: egress(t, "allow resolvers", "refuse 10.96.0.10 53/udp", "refuse all")}, "egress[1]", `as "allow resolvers" comes before it`},
		{infra.Spec{Binding: infra.Routed{}, DNS: near, Egress: egress(t, "refuse link-local", "allow resolvers 53/udp", "refuse all")}, "", ""}, // 10.96.0.10
		{infra.Spec{Binding: infra.Routed{}, DNS: near, Egress: egress(t, "allow resolvers 53/udp", "refuse link-local", "refuse private", "refuse all")}, "", ""},
	} {
		c.spec.Owner.UID = 107
		alone, beside := c.spec, c.spec
		alone.Egress, alone.EgressWithin = nil, c.spec.Egress
		beside.EgressWithin = egress(t, "allow all")
		within := strings.Replace(c.field, "egress", "egressWithin", 1)
		for _, try := range []struct {
			spec  infra.Spec
			field string
		}{{c.spec, c.field}, {alone, within}, {beside, c.field}} {
			err := try.spec.Validate()
			var field *cache.FieldError
			switch {
			case c.field == "" && err != nil:
				t.Errorf("%v, within %v: %v", try.spec.Egress, try.spec.EgressWithin, err)
			case c.field != "" && (!errors.As(err, &field) || field.Field != try.field || !strings.Contains(err.Error(), c.words)):
				t.Errorf("%s: %v, want %q", try.field, err, c.words)
			}
		}
	}
}

// TestDivertValidate: what is wrong with a divert is an error that names a way out, and so is a target that the
// operator's list does not allow. That way out is taken.
func TestDivertValidate(t *testing.T) {
	list := func(texts ...string) []string { return texts }
	many := list()
	for port := 1; port <= 65; port++ {
		many = append(many, fmt.Sprintf("divert 192.0.2.7 %d :%[1]d", port))
	}
	for _, c := range []struct {
		egress, within []string
		field, words   string // empty: valid
	}{
		{list("divert all 443 :15443", "refuse all"), nil, "", ""},
		{list("divert all 127.0.0.1:8080"), nil, "", ""},
		{list("divert gateway 53/udp 127.0.0.11:53", "allow all"), nil, "", ""},
		{list("divert private tcp 10.244.1.9:80", "allow all"), nil, "", ""},
		{list("divert all 443 [fd00::9]:80", "divert all 443 :80", "allow all"), nil, "egress[1]", "never decides"},
		{list("divert all 443 :80", "divert all 443 :80", "allow all"), nil, "", ""},
		{list("allow all 443", "divert 10.0.0.1 443 :80", "allow all"), nil, "egress[1]", "never decides"},
		{list("divert all 80 :15443"), nil, "egress", "leaves the rest open"},
		{list("divert all :15443", "refuse all"), nil, "egress[1]", "never decides"},
		{list("divert all icmp :15443", "allow all"), nil, "egress[0]", "icmp has no ports"},
		{list("divert all [::1]:80", "allow all"), nil, "egress[0]", "want :80"},
		{list("divert all 0.0.0.0:80", "allow all"), nil, "egress[0]", "is no address of a namespace"},
		{list("divert all 224.0.0.1:80", "allow all"), nil, "egress[0]", "is no address of a namespace"},
		{list("divert all [fe80::1%eth0]:80", "allow all"), nil, "egress[0]", "is no address of a namespace"},
		{list("divert all [::ffff:127.0.0.1]:80", "allow all"), nil, "egress[0]", "is no address of a namespace"},
		{list("divert nowhere :80", "allow all"), nil, "egress[0]", "is no network"},
		{list("divert good.example 443 :80", "allow all"), nil, "egress[0]", "belongs in the list names"},
		{list("divert resolvers :80", "allow all"), nil, "egress[0]", "dns.servers"},
		{list("allow gateway 53", "allow all"), nil, "egress[0]", "guard.open"},
		{append(many, "allow all"), nil, "egress", "65 targets"},
		{append(many[:64:64], "allow all"), nil, "", ""},
		{nil, list("divert all 443 :15443", "allow all"), "", ""},
		{list("divert all 443 :15443", "refuse all"), list("allow all"), "egress[0]", `add "allow gateway 15443/tcp"`},
		{list("divert all 443 :15443", "refuse all"), list("allow gateway 15443/tcp", "refuse all"), "", ""},
		{list("divert all 443 :15443", "refuse all"), list("allow gateway 15000-16000", "refuse all"), "", ""},
		{list("divert all 443 :15443", "refuse all"), list("refuse gateway 15443", "allow gateway", "refuse all"), "egress[0]", "egressWithin"},
		{list("divert all 443 :15443", "refuse all"), list("allow gateway udp", "refuse all"), "egress[0]", "egressWithin"},
		{list("divert all :15443"), list("allow gateway 15443", "refuse all"), "egress[0]", `add "allow gateway 15443/udp"`},
		{list("divert all :15443"), list("allow gateway", "refuse all"), "", ""},
		{list("divert all 80 127.0.0.1:8080", "refuse all"), list("allow gateway", "allow all"), "egress[0]", `add "allow 127.0.0.1 8080/tcp"`},
		{list("divert all 80 127.0.0.1:8080", "refuse all"), list("allow 127.0.0.1 8080/tcp", "allow all"), "", ""},
		{list("divert all 80 127.0.0.1:8080", "refuse all"), list("allow 127.0.0.0/8", "allow all"), "", ""},
		{list("divert all 80 127.0.0.1:8080", "refuse all"), list("allow 0.0.0.0/0", "allow all"), "egress[0]", "egressWithin"},
		{list("divert all 80 10.244.1.9:80", "refuse all"), list("allow 10.0.0.0/8", "allow all"), "egress[0]", `add "allow 10.244.1.9 80/tcp"`},
		{list("divert all 80 10.244.1.9:80", "refuse all"), list("allow 10.244.1.9 80/tcp", "allow all"), "", ""},
		{list("refuse all"), list("refuse all 443", "allow gateway 443", "allow all"), "", ""},
		{list("divert all 443 :443", "refuse all"), list("refuse all 443", "allow gateway 443", "allow all"), "", ""},
	} {
		s := infra.Spec{Binding: infra.Routed{}, Owner: infra.Owner{UID: 107}}
		if c.egress != nil {
			s.Egress = egress(t, c.egress...)
		}
		if c.within != nil {
			s.EgressWithin = egress(t, c.within...)
		}
		err := s.Validate()
		var field *cache.FieldError
		switch {
		case c.field == "" && err != nil:
			t.Errorf("%q within %q: %v", c.egress, c.within, err)
		case c.field != "" && (!errors.As(err, &field) || field.Field != c.field || !strings.Contains(err.Error(), c.words)):
			t.Errorf("%q within %q: %v, want %s: %q", c.egress, c.within, err, c.field, c.words)
		}
		if _, after, is := strings.Cut(fmt.Sprint(err), `add "`); is && c.words != "egressWithin" {
			way, _, _ := strings.Cut(after, `"`)
			for tries := 0; tries < 3 && err != nil; tries++ { // a protocol at a time
				s.EgressWithin = append(egress(t, way), s.EgressWithin...)
				if err = s.Validate(); err != nil {
					_, after, _ = strings.Cut(err.Error(), `add "`)
					way, _, _ = strings.Cut(after, `"`)
				}
			}
			if err != nil {
				t.Errorf("%q within %q, the way out taken: %v", c.egress, c.within, err)
			}
		}
	}
}
