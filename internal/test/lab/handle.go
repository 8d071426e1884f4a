package lab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// handle speaks rtnetlink in one namespace.
type handle struct{ *netlink.Handle }

// withHandle calls f with a handle for the calling thread's namespace.
func withHandle(f func(*handle) error) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	return f(&handle{h})
}

func (h *handle) up(name string) error {
	link, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("ip link set %s up: %w", name, err)
	}
	return nil
}

// addresses sets a link up and adds addresses.
func (h *handle) addresses(name string, list ...netip.Prefix) error {
	if err := h.up(name); err != nil {
		return err
	}
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	for _, p := range list {
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
			return fmt.Errorf("ip addr add %v dev %s: %w", p, name, err)
		}
	}
	return nil
}

// route adds one. Without a gateway the destination is on the link.
func (h *handle) route(name string, to netip.Prefix, gateway netip.Addr, flags int) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Flags: flags}
	if gateway.IsValid() {
		r.Gw = gateway.AsSlice()
	} else if to.Addr().Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := h.RouteAdd(r); err != nil {
		return fmt.Errorf("ip route add %v via %v dev %s: %w", to, gateway, name, err)
	}
	return nil
}

// neighbour adds a permanent one.
func (h *handle) neighbour(name string, a netip.Addr, mac string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	address, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	err = h.NeighAdd(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: address})
	if err != nil {
		return fmt.Errorf("ip neigh add %v lladdr %s dev %s: %w", a, mac, name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
