package wiring

import "net/netip"

func version(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func addressesIn(prefixes []netip.Prefix) []netip.Addr {
	var list []netip.Addr
	for _, p := range prefixes {
		list = append(list, p.Addr())
	}
	return list
}
