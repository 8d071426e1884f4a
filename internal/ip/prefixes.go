package ip

import (
	"cmp"
	"iter"
	"net/netip"
)

// Compare orders networks by their addresses. A wider network comes before those in it.
func Compare(a, b netip.Prefix) int { return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits()) }

// LastOf returns the last address of a prefix.
func LastOf(p netip.Prefix) netip.Addr {
	octets := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(octets); i++ {
		octets[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(octets)
	return last
}

// Prefixes are values by their networks. The zero value has none.
type Prefixes[V any] struct {
	of      map[netip.Prefix]V
	lengths map[Version]*[129]bool // the prefix lengths of the networks
}

// PrefixesOf are the networks, for Contain.
func PrefixesOf(networks []netip.Prefix) (p Prefixes[bool]) {
	for _, n := range networks {
		p.Set(n, true)
	}
	return p
}

// Set gives the network a value.
func (p *Prefixes[V]) Set(network netip.Prefix, value V) {
	if p.of == nil {
		p.of, p.lengths = map[netip.Prefix]V{}, map[Version]*[129]bool{V4: {}, V6: {}}
	}
	p.of[network.Masked()] = value
	p.lengths[Of(network.Addr())][network.Bits()] = true
}

// Get returns the value of this very network.
func (p *Prefixes[V]) Get(network netip.Prefix) (V, bool) {
	value, is := p.of[network.Masked()]
	return value, is
}

// Around are the networks that contain the whole one, itself among them, from the most specific one on.
func (p *Prefixes[V]) Around(network netip.Prefix) iter.Seq2[netip.Prefix, V] {
	return func(yield func(netip.Prefix, V) bool) {
		lengths := p.lengths[Of(network.Addr())]
		for bits := network.Bits(); bits >= 0 && lengths != nil; bits-- {
			if !lengths[bits] {
				continue
			}
			wider := netip.PrefixFrom(network.Addr(), bits).Masked()
			if value, is := p.of[wider]; is && !yield(wider, value) {
				return
			}
		}
	}
}

// Longest is the value of the most specific network around the one, the longest-prefix search of routing.
func (p *Prefixes[V]) Longest(network netip.Prefix) (value V, is bool) {
	for _, value := range p.Around(network) {
		return value, true
	}
	return value, false
}

// Wider is the value of the most specific network around the one, itself left out.
func (p *Prefixes[V]) Wider(network netip.Prefix) (value V, is bool) {
	for wider, value := range p.Around(network) {
		if wider != network.Masked() {
			return value, true
		}
	}
	return value, false
}

// Contain reports whether the address lies in one of the networks.
func (p *Prefixes[V]) Contain(a netip.Addr) bool {
	_, is := p.Longest(netip.PrefixFrom(a, a.BitLen()))
	return is
}
