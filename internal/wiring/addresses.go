package wiring

import "net/netip"

func addressesIn(prefixes []netip.Prefix) []netip.Addr {
	var list []netip.Addr
	for _, p := range prefixes {
		list = append(list, p.Addr())
	}
	return list
}
