package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/guestfilter"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// checkMTU refuses an MTU that the guest's link cannot have.
func (s *seen) checkMTU() error {
	mtu, nic := s.spec.MTU, s.nic
	refuse := func(format string, args ...any) error {
		return &cache.FieldError{Field: "mtu", Reason: fmt.Sprintf("%d, ", mtu) + fmt.Sprintf(format, args...)}
	}
	switch {
	case mtu == 0:
		return nil
	case mtu > nic.MTU:
		return refuse("but %s has %d: want at most that, or 0 for the same", nic.Name, nic.MTU)
	case mtu < minMTUIPv6 && len(s.v6) > 0:
		return refuse("but the guest gets IPv6 (%v), which needs %d: want at least that", s.v6[0], minMTUIPv6)
	case s.lowersMTU() && s.found.NoNFTables:
		return refuse("but this kernel has no nf_tables, without which longer packets of the guest pass: load them (modprobe nf_tables), or leave this field out")
	}
	return nil
}

// checkLimits refuses limits that this kernel cannot keep.
func (s *seen) checkLimits() error {
	switch l := s.spec.Limits; {
	case s.found.NoNFTables && l.FromGuest != (cache.Limit{}):
		return &cache.FieldError{Field: "limits.fromGuest", Reason: "this kernel has no nf_tables, which would count: load them (modprobe nf_tables), or leave this field out"}
	case s.found.NoShaper && l.ToGuest != (cache.Shape{}):
		return &cache.FieldError{Field: "limits.toGuest", Reason: "this kernel has no tbf, which would delay: load it (modprobe sch_tbf), or leave this field out"}
	}
	return nil
}

// checkMACs refuses a Guard.MACs entry that is the MAC of a link of the wiring, or the guest's own.
func (p *Plan) checkMACs() error {
	for i, m := range p.spec.Guard.MACs {
		at := slices.IndexFunc(p.wanted.Links, func(l netstate.Link) bool { return l.MAC == m })
		if at >= 0 || m == p.Record.MAC || m == p.Record.ResponderMAC {
			return &cache.FieldError{Field: fmt.Sprintf("guard.macs[%d]", i), Reason: fmt.Sprintf("%v is another link's of the wiring, or the guest's own already", m)}
		}
	}
	return nil
}

// addFilter adds the tables around the guest. The binding has set what only it knows of the guest.
func (p *Plan) addFilter(g guestfilter.Guest) error {
	if err := p.checkGuestMAC(); err != nil {
		return err
	}
	guard := p.spec.Guard
	if err := p.checkMACs(); err != nil {
		return err
	}
	p.Record.MACs = guard.MACs
	p.delegatePrefixes()
	if guard.MaxNeighbours != 0 && !p.traits().Routes {
		p.warn("guard.maxNeighbours limits nothing under %s: name masquerade or routed if it has to", p.spec.Binding.Kind())
	}
	switch {
	case p.found.NoNFTables && guard.Off:
		return nil
	case p.found.NoNFTables:
		return &cache.FieldError{Field: "guard", Reason: "this kernel has no nf_tables, without which no filter keeps the guest from sending with other addresses: " +
			"load them (modprobe nf_tables), or set guard.off if the guest may do that"}
	}
	t := p.traits()
	g.Names, g.NIC, g.Bridged, g.Routed = p.names, p.nic.Index, t.Bridged, t.Routes
	g.MAC, g.Served, g.Guard, g.Limit = p.Record.MAC, p.Record.ResponderTap != "", guard, p.spec.Limits.FromGuest
	for _, f := range p.wanted.Filters {
		if f.Link == compare.NewTap && f.Target == compare.NewResponder && !f.Copies {
			g.Asked = append(g.Asked, f)
		}
	}
	if p.lowersMTU() {
		g.MTU = p.mtu
	}
	for _, r := range p.on.Routes(ip.V6) {
		if r.Gateway.IsValid() {
			g.Gateways = append(g.Gateways, r.Gateway)
		}
	}
	p.described = append(p.described, g)
	return nil
}

// delegatePrefixes delegates to the guest those of Guard.Prefixes that lie beyond it, the widest first. Under
// masquerade and routed those have a route through the guest, else the network can route them to it. Networks on the
// link are the stations', and a route of the namespace into a prefix leads elsewhere.
func (p *Plan) delegatePrefixes() {
	v6 := p.Record.IPv6
	if v6 == nil {
		return
	}
	networks := slices.DeleteFunc(slices.Clone(p.spec.Guard.Prefixes), func(n netip.Prefix) bool {
		return n.Addr().Is4() || n.IsSingleIP() || n.Bits() < syntax.MinNetwork || slices.ContainsFunc(syntax.Destinations("link-local"), n.Overlaps)
	})
	slices.SortStableFunc(networks, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	all, onLink, elsewhere := ip.PrefixesOf(networks), ip.Prefixes[bool]{}, map[netip.Prefix]bool{}
	for _, o := range v6.OnLink {
		if syntax.IsDefault(o) {
			continue
		}
		onLink.Set(o, true)
		for n := range all.Around(o) {
			elsewhere[n] = true
		}
	}
	if v6.Router != nil {
		for _, r := range v6.Router.Routes {
			for n := range all.Around(r) {
				elsewhere[n] = true
			}
		}
	}
	var given ip.Prefixes[bool]
	for _, n := range networks {
		if !elsewhere[n] && !onLink.Contain(n.Addr()) && !given.Contain(n.Addr()) {
			given.Set(n, true)
			v6.Delegated = append(v6.Delegated, n)
		}
	}
}

// checkPolicy refuses a policy that no rule can keep. Another binding of infra.Auto may be able to.
func (s *seen) checkPolicy() error {
	switch {
	case !s.policy.IsSet():
		return nil
	case s.found.NoNFTables:
		return &cache.FieldError{Field: s.policy.Field(), Reason: "this kernel has no nf_tables, which would look up where the guest's connections go: load them (modprobe nf_tables), then take the NIC down if it is wired (Teardown), and call Setup; or leave this field out"}
	case !s.traits().Routes:
		return s.refuse("egress is about connections, and nobody tracks the guest's there")
	}
	return nil
}
