package wiring_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// TestServersInTheGuestsNetwork: a server that the Spec names, and that lies in the guest's own network, is refused.
// The refusal names a field whose other value works. The gateway, and what lies elsewhere, are accepted.
func TestServersInTheGuestsNetwork(t *testing.T) {
	named := infra.Masquerade{IPv4: pfx("172.30.0.0/16"), IPv6: pfx("fd77::/64"), Guest: addresses("172.30.0.9", "fd77::9"), Gateway: addresses("172.30.0.8", "fd77::8")}
	const network = ", which lies in its own network "
	for _, c := range []struct {
		name              string
		binding           infra.Masquerade
		inside, elsewhere []netip.Addr
		words             string
		other             infra.Masquerade // the way out
	}{
		{"the default network", infra.Masquerade{}, addresses("10.0.2.10", "10.0.2.2", "10.0.2.255"), addresses("10.0.2.1", "10.0.3.1"),
			network + "10.0.2.0/24: network in use, choose another network in binding.masquerade.ipv4", infra.Masquerade{IPv4: pfx("192.168.77.0/24")}},
		{"the default network 6", infra.Masquerade{}, addresses("fd10:0:2::a", "fd10:0:2::2"), addresses("fd10:0:2::1", "fd10:0:2::1:0"),
			network + "fd10:0:2::/120: network in use, choose another network in binding.masquerade.ipv6", infra.Masquerade{IPv6: pfx("fd78::/64")}},
		{"a named network", named, addresses("172.30.7.7", "172.30.0.9"), addresses("172.30.0.8", "10.0.2.10"),
			network + "172.30.0.0/16: network in use, choose another network in binding.masquerade.ipv4", infra.Masquerade{IPv4: pfx("192.168.77.0/24")}},
		{"a named network 6", named, addresses("fd77::1:2:3", "fd77::9"), addresses("fd77::8", "fd10:0:2::10"),
			network + "fd77::/64: network in use, choose another network in binding.masquerade.ipv6", infra.Masquerade{IPv6: pfx("fd78::/64")}},
		{"the NIC's network", infra.Masquerade{IPv4: pfx("10.244.1.0/24"), Guest: addresses("10.244.1.3")}, addresses("10.244.1.3"), addresses("10.244.1.10", "10.244.1.1"),
			", which is its own address: network in use, choose another address for the guest", infra.Masquerade{IPv4: pfx("10.244.1.0/24"), Guest: addresses("10.244.1.4")}},
	} {
		for _, f := range []struct {
			name string
			set  func(s *asked, a netip.Addr)
			only int // the version of IP; 0: both
		}{
			{"dns.servers[1]", func(s *asked, a netip.Addr) { s.DNS = &cache.DNS{Servers: []netip.Addr{ip("192.0.2.1"), a}} }, 0},
			{"options.ntp[0]", func(s *asked, a netip.Addr) { s.Options.NTP = []netip.Addr{a} }, 0},
			{"options.tftpServer", func(s *asked, a netip.Addr) { s.Options.TFTPServer = a.String() }, 4},
			{"options.bootFileURL", func(s *asked, a netip.Addr) {
				s.Options.BootFileURL = fmt.Sprintf("tftp://%v/x", netip.AddrPortFrom(a, 69))
			}, 0},
			{"options.captivePortal", func(s *asked, a netip.Addr) {
				s.Options.CaptivePortal = fmt.Sprintf("https://%v/", netip.AddrPortFrom(a, 443))
			}, 0},
			{"egress[1]", func(s *asked, a netip.Addr) { s.Egress = allowing(a) }, 0},
			{"egressWithin[1]", func(s *asked, a netip.Addr) { s.EgressWithin = allowing(a) }, 0},
		} {
			try := func(b infra.Masquerade, a netip.Addr) error {
				_, err := tryPlan(flannel(), withSpec(masquerade(), func(s *asked) { s.Binding = b; f.set(s, a) }))
				return err
			}
			if f.only == 4 && c.inside[0].Is6() {
				continue // the option is one of DHCPv4
			}
			t.Run(c.name+"/"+f.name, func(t *testing.T) {
				for _, a := range c.inside {
					err := try(c.binding, a)
					if want := fmt.Sprintf("%s: the guest cannot reach %v%s", f.name, a, c.words); !errors.Is(err, infra.ErrCollision) || !strings.HasSuffix(err.Error(), want) {
						t.Errorf("%v: %v, want %s", a, err, want)
					}
					if err := try(c.other, a); err != nil {
						t.Errorf("%v, and the way out: %v", a, err)
					}
				}
				for _, a := range c.elsewhere {
					if err := try(c.binding, a); err != nil {
						t.Errorf("%v: %v", a, err)
					}
				}
			})
		}
	}
}

// allowing allows the address after a refusal of another one in the network, which takes nothing from the guest.
func allowing(a netip.Addr) []infra.Egress {
	return []infra.Egress{{Refuse: true, To: "10.0.2.77"}, {To: a.String()}, {Refuse: true, To: "all"}}
}

// TestEgressInTheGuestsNetwork: a network in the guest's own is as one address is. A wider one, and a list, are about
// other places too.
func TestEgressInTheGuestsNetwork(t *testing.T) {
	for to, refused := range map[string]bool{
		"10.0.2.0/24": true, "10.0.2.64/26": true, "10.0.2.0/23": false, "private": false, "all": false, "fd10:0:2::/120": true, "fd10:0:2::/64": false, "nic-networks": false,
	} {
		spec := withSpec(masquerade(), func(s *asked) { s.Egress = []infra.Egress{{To: to}, {Refuse: true, To: "all"}} })
		if to == "all" {
			spec.Egress = spec.Egress[:1]
		}
		if _, err := tryPlan(flannel(), spec); errors.Is(err, infra.ErrCollision) != refused || err != nil && !refused {
			t.Errorf("%s: %v", to, err)
		}
	}
	metadata := withSpec(masquerade(), func(s *asked) {
		s.Binding = infra.Masquerade{IPv4: pfx("169.254.169.252/30")} // a metadata service is 169.254.169.254
		s.Egress = []infra.Egress{{To: "metadata"}, {Refuse: true, To: "all"}}
	})
	if _, err := tryPlan(flannel(), metadata); err != nil {
		t.Errorf("a list: %v", err)
	}
}
