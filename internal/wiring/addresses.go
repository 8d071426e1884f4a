package wiring

import "net/netip"

func addressesIn(prefixes []netip.Prefix) []netip.Addr {
	var list []netip.Addr
	for _, p := range prefixes {
		list = append(list, p.Addr())
	}
	return list
}

func setOf(addresses []netip.Addr) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool, len(addresses))
	for _, a := range addresses {
		set[a] = true
	}
	return set
}
