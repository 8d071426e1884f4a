package guest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Addresses returns the guest's addresses with their prefix lengths, sorted.
func (g *Guest) Addresses() []netip.Prefix {
	var addresses []netip.Prefix
	for _, a := range g.nic().addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			addresses = append(addresses, p)
		}
	}
	slices.SortFunc(addresses, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return addresses
}

// MTU returns the MTU of the guest's link, in octets of IP.
func (g *Guest) MTU() int { return g.nic().mtu }

type nic struct {
	mtu       int
	addresses []net.Addr
}

// nic is zero for a guest that was closed.
func (g *Guest) nic() (n nic) {
	_ = g.Do(func() error {
		link, err := net.InterfaceByName(NIC)
		if err != nil {
			return err
		}
		n.mtu = link.MTU
		n.addresses, err = link.Addrs()
		return err
	})
	return n
}

// Routes returns the guest's routes, in ip(8)'s order; none for a guest that was closed.
func (g *Guest) Routes() []Route {
	var routes []Route
	for family, everything := range map[string]string{"-4": "0.0.0.0/0", "-6": "::/0"} {
		out, err := g.Run("ip", "-j", family, "route", "show", "dev", NIC)
		var list []struct{ Dst, Gateway string }
		if err != nil || json.Unmarshal([]byte(out), &list) != nil {
			continue
		}
		for _, l := range list {
			if l.Dst == "default" {
				l.Dst = everything
			}
			p, err := netip.ParsePrefix(l.Dst)
			if a, failed := netip.ParseAddr(l.Dst); failed == nil {
				p, err = netip.PrefixFrom(a, a.BitLen()), nil
			}
			if err != nil {
				panic(fmt.Sprintf("ip route: %q", l.Dst))
			}
			gateway, _ := netip.ParseAddr(l.Gateway) // zero if there is none
			routes = append(routes, Route{p, gateway})
		}
	}
	return routes
}
