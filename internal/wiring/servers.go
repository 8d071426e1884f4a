package wiring

import (
	"fmt"
	"net/netip"
	"net/url"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

// A guest behind a masquerade asks its own link for each address of its own network, where only the gateway answers.
// The namespace reaches a server with such an address, by its default route.

// server is what the guest wants to reach: an address, or a network of egress.
type server struct {
	field   string
	network netip.Prefix
}

// namedServers are those that the Spec names by address.
func namedServers(spec infra.Spec) (list []server) {
	add := func(field string, a netip.Addr) {
		if a = a.Unmap().WithZone(""); a.IsValid() {
			list = append(list, server{field, firewall.HostPrefix(a)})
		}
	}
	parse := func(field, host string) {
		a, _ := netip.ParseAddr(host) // zero: a name
		add(field, a)
	}
	if spec.DNS != nil {
		for i, a := range spec.DNS.Servers {
			add(fmt.Sprintf("dns.servers[%d]", i), a)
		}
	}
	for i, a := range spec.Options.NTP {
		add(fmt.Sprintf("options.ntp[%d]", i), a)
	}
	parse("options.tftpServer", spec.Options.TFTPServer)
	if u, err := url.Parse(spec.Options.BootFileURL); err == nil {
		parse("options.bootFileURL", u.Hostname())
	}
	if u, err := url.Parse(spec.Options.CaptivePortal); err == nil {
		parse("options.captivePortal", u.Hostname())
	}
	for i, entries := range [][]infra.Egress{spec.Egress, spec.EgressWithin} {
		for j, e := range entries {
			// A list such as metadata is about more than one place.
			if to := syntax.Destinations(e.To); len(to) == 1 && !e.Refuse {
				list = append(list, server{fmt.Sprintf("%s[%d]", []string{"egress", "egressWithin"}[i], j), to[0]})
			}
		}
	}
	return list
}

// unreached are the addresses that a guest behind a masquerade looks for on its link in vain: those of its networks but
// the gateways. If the namespace reaches a network by other links too, so does the guest, except its own address.
func unreached(networks []inner) (ranges []ip.Range) {
	for _, n := range networks {
		if n.within {
			ranges = append(ranges, ip.Range{First: n.Guest, Last: n.Guest})
			continue
		}
		network := netip.PrefixFrom(n.Guest, n.bits).Masked()
		if network.Addr() != n.Gateway {
			ranges = append(ranges, ip.Range{First: network.Addr(), Last: n.Gateway.Prev()})
		}
		if last := ip.LastOf(network); last != n.Gateway {
			ranges = append(ranges, ip.Range{First: n.Gateway.Next(), Last: last})
		}
	}
	return ranges
}

// checkServers refuses a server in the guest's network, other than the gateway. If the namespace reaches that network
// by other links too, so does the guest, except its own address.
func checkServers(spec infra.Spec, n inner) error {
	network := netip.PrefixFrom(n.Guest, n.bits).Masked()
	without := network
	if n.within {
		without = firewall.HostPrefix(n.Guest)
	}
	for _, s := range namedServers(spec) {
		if s.network == firewall.HostPrefix(n.Gateway) || s.network.Bits() < without.Bits() || !without.Contains(s.network.Addr()) {
			continue
		}
		to := s.network.String()
		if s.network.IsSingleIP() {
			to = s.network.Addr().String()
		}
		if n.within {
			return fmt.Errorf("%s: the guest cannot reach %s, which is its own address: %w, choose another address for the guest", s.field, to, infra.ErrCollision)
		}
		return fmt.Errorf("%s: the guest cannot reach %s, which lies in its own network %v: %w, choose another network in binding.masquerade.ipv%d",
			s.field, to, network, infra.ErrCollision, ip.Of(n.Guest))
	}
	return nil
}
