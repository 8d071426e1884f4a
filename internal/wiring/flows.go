package wiring

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/policy"
)

// addFlows wants the sysctls of a log of connections, as far as the namespace has them. It refuses a binding where
// nobody tracks the guest's. Another binding of infra.Auto may do so.
func (p *Plan) addFlows() error {
	if !p.spec.Flows {
		return nil
	}
	if !p.traits().Routes {
		return p.refuse("flows are connections, and nobody tracks the guest's there")
	}
	for _, path := range netstate.OfFlows() {
		if _, has := p.found.Sysctls[path]; has {
			p.wanted.Sysctls[path] = "1"
		}
	}
	return nil
}

// warnFlows warns of the sysctls of a log of connections that the namespace does not have.
func (p *Plan) warnFlows() error {
	var lacking []string
	for _, path := range netstate.OfFlows() {
		if p.spec.Flows && p.wanted.Sysctls[path] == "" {
			lacking = append(lacking, strings.ReplaceAll(path, "/", "."))
		}
	}
	if len(lacking) > 0 {
		p.warn("the log of flows lacks octets, times or ends, as this kernel keeps them from the namespace (no sysctl %s here): a newer kernel gives them to each user namespace", strings.Join(lacking, ", "))
	}
	return nil
}

// Flows distinguishes the guest's connections from others, and finds the entry that decides of each.
type Flows struct {
	guests, own ip.Prefixes[bool]
	local       map[netip.Addr]bool // the namespace's addresses
	index       *policy.Index
}

// Flows returns nil if nobody tracks the guest's connections. It looks at the namespace's present addresses: what was
// found at the first Setup can be the address of another routed guest, or can lack some.
func (p *Plan) Flows(now netstate.Snapshot) *Flows {
	if !p.traits().Routes {
		return nil
	}
	f := &Flows{ip.PrefixesOf(p.guests), ip.PrefixesOf(slices.Concat(p.guests, p.spec.Guard.Prefixes)), addressesOf(now), p.policy.Index()}
	for _, a := range p.wanted.Addresses {
		f.local[a.Prefix.Addr()] = true
	}
	for _, o := range p.wanted.OffStack {
		delete(f.local, o.Address)
	}
	return f
}

// Has reports whether the guest is an end of a connection, of which these are the sources of the first packet and of
// the answers, and whether the guest has opened it. What a guest without a guard sends from addresses of others is not
// recognized. Guard.Prefixes without a route through the guest, such as 0.0.0.0/0, are also addresses of others: what
// these open to the guest is theirs, and what they open elsewhere counts as the guest's.
func (f *Flows) Has(first, answers netip.Addr) (has, opened bool) {
	if f.guests.Contain(first) && !f.local[first] {
		return true, true
	}
	if f.guests.Contain(answers) && !f.local[answers] {
		return true, false
	}
	opened = f.own.Contain(first) && !f.local[first]
	return opened, opened
}

// Decide returns what the lists say now of a connection of the guest: where its first packet went, and To, where that
// is after translation. The zero value: what the guest opens to the namespace without a divert, or to itself, the lists
// do not decide.
func (f *Flows) Decide(first, to netip.AddrPort, protocol uint8) policy.Decision {
	if d := f.index.Decide(first, protocol); d.Target.IsValid() && d.Target == to {
		return d
	}
	if a := to.Addr(); f.local[a] || a.IsLoopback() || f.guests.Contain(a) {
		return policy.Decision{}
	}
	return f.index.Decide(to, protocol)
}
