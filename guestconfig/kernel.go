package guestconfig

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/syntax"
)

// KernelIP returns the argument ip= for the command line of a Linux guest, which has a kernel with CONFIG_IP_PNP, or an
// initramfs that reads the argument (initramfs-tools, dracut). Such as
// ip=10.244.1.7::10.244.1.1:255.255.255.0:vm1:eth0:off:10.96.0.10.
//
// The argument has one IPv4 address and one gateway. The warnings tell what else the guest is not told. device is the
// link's name in the guest, such as eth0; empty: the kernel takes the first link.
//
// The error is a [*FormatError] if the record has no IPv4 address, or if the gateway is not in the address's network:
// the kernel then adds no route.
//
// Source: the kernel's Documentation/admin-guide/nfs/nfsroot.rst.
func KernelIP(r cache.Record, dns cache.DNS, device string) (argument string, warnings []string, err error) {
	const format = "kernel"
	nics, err := Guest{Records: []cache.Record{r}, DNS: dns}.nics(format)
	if err != nil {
		return "", nil, err
	}
	n := nics[0]
	if device != "" && syntax.CheckLinkName(device) != nil {
		return "", nil, &FormatError{Format: format, NIC: n.Name, Reason: fmt.Sprintf("%q is no link's name", device)}
	}
	addresses := n.given()
	if len(addresses) == 0 || !addresses[0].Address.Addr().Is4() {
		return "", nil, &FormatError{Format: format, NIC: n.Name, Reason: "it has no IPv4 address, and ip= has no other"}
	}
	own := addresses[0]
	for _, a := range addresses[1:] {
		n.warn("the address %v is left out: ip= has one, %v", a.Address, own.Address)
	}
	gateway, reachable := netip.Addr{}, own.Address.Masked()
	// ptp, CNI's plugin, leads to the address's network by a gateway: that is another route than the kernel's.
	connected := func(r cache.StaticRoute) bool {
		return r.Destination == reachable && r.Table == cache.TableMain && r.Type == "" && !r.Gateway.IsValid() && len(r.Hops) == 0
	}
	for _, route := range n.was.Routes {
		left := "the route to %v of table %d is left out: ip= has a gateway alone"
		switch {
		case route.Table == cache.TableMain && route.Destination == netip.PrefixFrom(netip.IPv4Unspecified(), 0) && route.Gateway.Is4() && !gateway.IsValid():
			gateway = route.Gateway
			if route.MTU != 0 || route.Source.IsValid() && route.Source != own.Address.Addr() {
				n.warn("the MTU and the source of the default route are left out: ip= has neither")
			}
		case !connected(route):
			n.warn(left, route.Destination, route.Table)
		}
	}
	if gateway.IsValid() && (!reachable.Contains(gateway) || own.Peer.IsValid()) {
		return "", nil, &FormatError{Format: format, NIC: n.Name, Reason: fmt.Sprintf("the gateway %v is not in the network of %v, and the kernel then adds no route: use another format", gateway, own.Address)}
	}
	if own.NoPrefixRoute && !slices.ContainsFunc(n.was.Routes, connected) {
		n.warn("the guest gets a route to %v, which the namespace does not have", reachable)
	}
	if len(n.was.Rules) > 0 {
		n.warn("the %d policy rules are left out: ip= has none", len(n.was.Rules))
	}
	for _, o := range n.was.Neighbours {
		n.warn("the permanent neighbour %v (%v) is left out: %s", o.Address, o.MAC, n.answered(o.Address))
	}
	if n.MTU != 0 && n.MTU != 1500 {
		n.warn("the MTU %d is left out: let the VMM tell it (virtio-net, host_mtu)", n.MTU)
	}
	var servers []string
	for _, s := range n.servers() {
		if s.Is4() && len(servers) < 2 {
			servers = append(servers, s.String())
		} else {
			n.warn("the DNS server %v is left out: ip= has two of IPv4", s)
		}
	}
	if search := n.search(); len(search) > 0 {
		n.warn("the search domains %v are left out: ip= has none", search)
	}
	var ntp []string
	for _, s := range n.Options.NTP {
		if s.Is4() && len(ntp) == 0 {
			ntp = append(ntp, s.String())
		} else {
			n.warn("the time server %v is left out: ip= has one of IPv4", s)
		}
	}
	fields := []string{own.Address.Addr().String(), "", "", mask(own.Address.Bits()), n.Options.Hostname, device, "off", "", "", ""}
	if gateway.IsValid() {
		fields[2] = gateway.String()
	}
	copy(fields[7:9], servers)
	copy(fields[9:], ntp)
	return "ip=" + strings.TrimRight(strings.Join(fields, ":"), ":"), n.warns, nil
}

// mask is an IPv4 netmask.
func mask(bits int) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], ^uint32(0)<<(32-bits))
	return netip.AddrFrom4(b).String()
}
