package fib

import (
	"net/netip"

	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Ahead are the policy rules that come before the one for the table main, and refuse what is for an address behind the
// namespace, or send it elsewhere, or a part of it. All says that none of these packets is looked up in main: the last
// rule takes the rest, or no rule leads to main.
func Ahead(s netstate.Snapshot, vrf uint32, behind netip.Addr) (ahead []netstate.Rule, all bool) {
	own := make(map[netip.Addr]bool, len(s.Addresses))
	for _, a := range s.Addresses {
		own[a.Prefix.Addr()] = true
	}
	isOwn := func(p netip.Prefix) bool { return p.IsSingleIP() && own[p.Addr()] } // answers come from others
	to := netip.PrefixFrom(behind, behind.BitLen())
	rules := Rules(s, ip.Of(behind), vrf)
	looked := map[uint32]bool{}
	for _, r := range rules {
		looked[r.Table] = true
	}
	tables := networksOf(s, Source{IP: ip.Of(behind), VRF: vrf}, looked)
	some := map[uint32]bool{} // the tables with a route to the address for a TOS or a source
	for _, r := range s.Routes {
		if (r.TOS != 0 || r.Source.Bits() > 0) && r.Type != netstate.RouteThrow && r.Destination.Contains(behind) {
			some[r.Table] = true
		}
	}
	for _, r := range rules {
		isPlain := !r.Other && r.Source.Bits() <= 0 && r.TOS == 0 && r.Mask == 0 && r.In == ""
		switch {
		case isOwn(r.Source) || r.Destination.IsValid() && !r.Destination.Contains(behind):
		case r.Table == netstate.TableMain && isPlain:
			return ahead, false // also one that leaves default routes out, as wg-quick(8) adds
		case tables[r.Table].decides(to, r):
			ahead = append(ahead, r)
			if isPlain {
				return ahead, true
			}
		case some[r.Table], r.Table == 0: // it refuses packets, or asks other rules
			ahead = append(ahead, r)
		}
	}
	return ahead, true
}

// decides reports whether the table has a route for the whole destination that the rule accepts.
func (n *networks) decides(to netip.Prefix, rule netstate.Rule) bool {
	at, is := n.routes.Longest(to)
	return is && accepts(rule, at.list[0])
}
