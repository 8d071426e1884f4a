package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/served"
	"github.com/guestwire/guestwire/internal/servers"
	"github.com/guestwire/guestwire/internal/syntax"
)

// A plan knows what the namespace reaches and the guest will not. Each such thing is a loss in the record. A binding
// with a grave loss is refused, and Auto takes the binding with the fewest losses. Which binding keeps a thing is known
// by a plan of that binding, and by nothing else.

// losses are what a guest lacks, in the order in which the record has them.
type losses []cache.Loss

func (l *losses) lose(kind, what, why string, args ...any) {
	*l = append(*l, cache.Loss{Kind: kind, What: what, Why: fmt.Sprintf(why, args...)})
}

// addLosses adds losses to the record.
func (p *Plan) addLosses(list ...cache.Loss) { p.Record.Losses = append(p.Record.Losses, list...) }

// isGrave reports whether a binding is refused for the loss.
func isGrave(l cache.Loss) bool { return l.Kind == "family" }

// grave are those for which the binding is refused.
func (l losses) grave() []cache.Loss {
	return slices.DeleteFunc(slices.Clone(l), func(l cache.Loss) bool { return !isGrave(l) })
}

// isTemporary reports whether a later Setup may give the guest what is lost, with the same binding.
func isTemporary(l cache.Loss) bool { return l.Kind == "gateway" }

// isOfClient reports whether the loss depends on the guest's DHCP client or on the Spec alone, and not on the binding.
func isOfClient(l cache.Loss) bool { return l.Kind == "option" }

// weight is a number that is higher for a guest that loses more; 0: nothing that Auto would choose by.
func (l losses) weight() int {
	const grave = 1 << 20 // more than any number of other losses
	weight := 0
	for _, one := range l {
		switch {
		case isGrave(one):
			weight += grave
		case !isTemporary(one) && !isOfClient(one):
			weight++
		}
	}
	return weight
}

// keys are the things that are lost.
func (l losses) keys() map[lossKey]bool {
	keys := map[lossKey]bool{}
	for _, one := range l {
		keys[lossKey{one.Kind, one.What}] = true
	}
	return keys
}

// losses are those of the record.
func (p *Plan) losses() losses { return p.Record.Losses }

// weigh is the losses' weight, and more for a masquerade: that it hides the NIC's address counts more than what else
// can be lost, except a family.
func (p *Plan) weigh() int {
	const hidden = 1 << 19
	if t := p.traits(); t.Routes && !t.OffStack {
		return p.losses().weight() + hidden
	}
	return p.losses().weight()
}

// furtherLosses are the addresses of a family but the first.
func furtherLosses(addresses []netip.Prefix, why string, args ...any) (list losses) {
	for _, a := range addresses[1:] {
		if a.Addr() == addresses[0].Addr() {
			continue // with another prefix length
		}
		list.lose("address", a.Addr().String(), why, args...)
	}
	return list
}

// unsentLosses are what the responder cannot send. What does not fit beside a resolv.conf is known to the responder
// alone, which warns of it.
func unsentLosses(r *cache.Record) losses {
	if r.ResponderTap == "" {
		return nil
	}
	var dns cache.DNS
	if r.DNS != nil {
		dns.Servers, _ = servers.Leased(r).Reachable(r.DNS.Servers) // serverLosses says what is left out
		dns.Search, _ = servers.Search(&r.Options, r.DNS.Search)    // Validate has refused a bad name
	}
	return slices.Concat(served.OtherFamily(r), served.TooLong4(r, dns.Servers, dns.Search), served.TooMany6(r))
}

// serverLosses are the Spec's resolvers and time servers that the responder does not offer. Those of a resolv.conf are
// known to Phase2 alone.
func serverLosses(r *cache.Record) (list losses) {
	if r.ResponderTap == "" {
		return nil
	}
	given := r.Options.NTP
	if r.DNS != nil {
		given = slices.Concat(r.DNS.Servers, given)
	}
	_, left := servers.Leased(r).Reachable(given)
	for _, l := range left {
		list.lose("server", l.What, "%s", l.Why)
	}
	return list
}

// namespaceLosses are what of the namespace no guest of the NIC can learn, whatever the binding's lease has. Before are
// the losses that the binding itself names.
func namespaceLosses(found netstate.Snapshot, nic netstate.Link, way ways, mtu int, before losses) (list losses) {
	on := lease.Of(found, nic)
	routes := way.traits.Routes // the namespace's rules and tables decide
	if !routes {
		list = policyLosses(found, on)
	}
	list = slices.Concat(list, familyLosses(found, nic, ip.V4), familyLosses(found, nic, ip.V6), way.losses(), sharedLosses(found, nic))
	if !routes {
		list = append(list, addressLosses(found, nic, slices.Concat(before, list))...)
		for _, r := range on.Routes(ip.V4) {
			if r.MTU >= syntax.MinMTU && r.MTU < mtu { // with routes the namespace says what fits
				list.lose("mtu", fmt.Sprintf("%d to %v", r.MTU, r.Destination), "the guest gets %d, as IPv6 needs that", mtu)
			}
		}
	}
	if nic.MTU > syntax.MaxMTU {
		list.lose("mtu", fmt.Sprint(nic.MTU), "the guest gets %d, as a tap has no more", syntax.MaxMTU)
	}
	return list
}

// policyLosses are the policy rules for some of the guest's packets, and the tables to which they lead.
func policyLosses(found netstate.Snapshot, on lease.NIC) (list losses) {
	type table struct {
		v      ip.Version
		number uint32
	}
	rules, some := 0, map[table]bool{}
	for _, v := range ip.Both {
		looked := on.Table(v).Looked
		for _, r := range on.Table(v).Rest {
			if len(on.AddressesOf(v)) > 0 && (!r.BySource() || !looked[r.Table]) {
				rules++
			}
			some[table{v, r.Table}] = !looked[r.Table]
		}
	}
	if rules > 0 {
		list.lose("policy-rule", fmt.Sprintf("rules of the namespace (%d)", rules), "a guest cannot learn policy rules by DHCP")
	}
	named := map[uint32]bool{}
	for _, r := range found.Routes {
		if r.Uses(on.Index) && some[table{ip.Of(r.Destination.Addr()), r.Table}] && !named[r.Table] {
			named[r.Table] = true
			list.lose("policy-rule", fmt.Sprintf("table %d", r.Table), "its routes through %s are not the guest's, as no policy rule sends all of the guest's packets there", on.Name)
		}
	}
	return list
}

// addressLosses are the addresses that the namespace has on a link without a way out, and at which it answers by the
// NIC (anycast, direct server return, BGP to the host). A namespace that the network does not reach any more answers
// nothing.
func addressLosses(found netstate.Snapshot, nic netstate.Link, before losses) (list losses) {
	v4, v6 := lease.Of(found, nic).Addresses()
	onNIC := setOf(addressesIn(slices.Concat(v4, v6)))
	lost, links := before.keys(), indexLinks(found)
	for _, a := range found.Addresses {
		own := a.Prefix.Addr()
		if lost[lossKey{"family", fmt.Sprintf("IPv%d", firewall.Version(own))}] || onNIC[own] {
			continue // that loss says it; the guest has the address
		}
		if link := links.at(a.Link); links.isBehind(nic, link) && !links.isWired(link) && own.IsGlobalUnicast() {
			list.lose("address", own.String(), "it is on %s, and the namespace answers nothing by %s any more: add it in the guest, and %v to guard.prefixes", link.Name, nic.Name, firewall.HostPrefix(own))
		}
	}
	return list
}

// sharedLosses are the NIC's addresses that another link has too, at which the namespace answers there.
func sharedLosses(found netstate.Snapshot, nic netstate.Link) (list losses) {
	with := map[netip.Addr][]int{} // links, by their addresses
	for _, a := range found.Addresses {
		if at := with[a.Prefix.Addr()]; a.Link != nic.Index && !slices.Contains(at[max(0, len(at)-1):], a.Link) {
			with[a.Prefix.Addr()] = append(at, a.Link)
		}
	}
	both := map[int][]netip.Addr{}
	for _, a := range found.Addresses {
		own := a.Prefix.Addr()
		if a.Link != nic.Index || own.Is6() && own.IsLinkLocalUnicast() {
			continue
		}
		for _, link := range with[own] {
			both[link] = append(both[link], own)
		}
		delete(with, own) // the NIC may have it with another prefix length, too
	}
	links := indexLinks(found)
	for _, other := range found.Links {
		if addresses := both[other.Index]; len(addresses) > 0 && !other.Loopback && !links.isWired(other) {
			list.lose("other-link", fmt.Sprintf("%s: %v", other.Name, addresses), "it has these addresses too, and packets that arrive there reach the namespace: wire it too")
		}
	}
	return list
}

// familyLosses are a family of which the NIC has no address, though the namespace sends by it: the addresses are
// another link's, such as the loopback's (unnumbered, BGP to the host).
func familyLosses(found netstate.Snapshot, nic netstate.Link, of ip.Version) (list losses) {
	on := lease.Of(found, nic)
	if len(on.AddressesOf(of)) > 0 || len(on.Routes(of)) == 0 {
		return nil
	}
	links := indexLinks(found)
	for _, a := range found.Addresses {
		link := links.at(a.Link)
		if links.isBehind(nic, link) && ip.Of(a.Prefix.Addr()) == of && a.Prefix.Addr().IsGlobalUnicast() {
			list.lose("family", fmt.Sprintf("IPv%d", of), "%s has no IPv%d address, and the namespace sends by it from %v of %s", nic.Name, of, a.Prefix.Addr(), link.Name)
			return list
		}
	}
	return nil
}

type lossKey struct{ kind, what string }
