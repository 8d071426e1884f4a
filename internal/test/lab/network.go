package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NIC is the pod's link in every network.
const NIC = "eth0"

// nicMTU is that of the pod's NIC in every network.
const nicMTU = 1450

// User is a user, and a group, for a launcher. No account has this number on purpose.
const User = 64055

// The addresses of a pod, of its gateway, and of a host beyond the gateway.
var (
	Pod4, Pod6         = netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("fd00:244:1::7")
	Gateway4, Gateway6 = netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:244:1::1")
	Beyond4, Beyond6   = netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:9::9")
)

// World gives a namespace Beyond4 and Beyond6, and makes it forward. The networks connect a pod with such a world.
func (n Namespace) World() error {
	return n.Do(func() error {
		return errors.Join(
			setSysctl("ipv4/ip_forward", "1"),
			setSysctl("ipv6/conf/all/forwarding", "1"),
			withHandle(func(h *handle) error { return h.addresses("lo", host(Beyond4), host(Beyond6)) }),
		)
	})
}

// Veth connects a pod as CNI's bridge and ptp plugins do: a veth, a /24 and a /64, default routes by a gateway of the
// network. The world's end is called pod.
func Veth(pod, world Namespace) error {
	err := world.Do(func() error {
		return withHandle(func(h *handle) error {
			return errors.Join(h.veth("pod", "", pod), h.addresses("pod", netip.PrefixFrom(Gateway4, 24), netip.PrefixFrom(Gateway6, 64)))
		})
	})
	if err == nil {
		err = pod.Do(podOfNetwork)
	}
	return errors.Join(err, pod.Settle(NIC), world.Settle("pod"))
}

// podOfNetwork gives the calling thread's namespace the addresses and default routes of a /24 and a /64.
func podOfNetwork() error {
	return withHandle(func(h *handle) error {
		return errors.Join(
			h.addresses(NIC, netip.PrefixFrom(Pod4, 24), netip.PrefixFrom(Pod6, 64)),
			h.route(NIC, everything(Gateway4), Gateway4, 0),
			h.route(NIC, everything(Gateway6), Gateway6, 0),
		)
	})
}

// Calico connects a pod as Calico does: a veth, a /32 and a /128, default routes by gateways on the link. The world
// answers ARP for 169.254.1.1 by proxy_arp. The IPv6 gateway is the link-local address of the world's end, whose MAC is
// the same for all pods.
//
// docs.tigera.io/calico/latest/reference/faq
func Calico(pod, world Namespace) error {
	const end = "cali-pod"
	gateway4, gateway6 := netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")
	err := routed(pod, world, end, "ee:ee:ee:ee:ee:ee")
	if err == nil {
		err = world.Do(func() error {
			return errors.Join(
				setSysctl("ipv4/conf/"+end+"/proxy_arp", "1"),
				setSysctl("ipv4/neigh/"+end+"/proxy_delay", "0"),
				setSysctl("ipv6/conf/"+end+"/proxy_ndp", "1"),
				// The kernel answers for an address that it would send to another link, as a node's default route says.
				withHandle(func(h *handle) error { return h.route("lo", host(gateway4), netip.Addr{}, 0) }),
			)
		})
	}
	if err == nil {
		err = pod.Do(func() error {
			return withHandle(func(h *handle) error {
				return errors.Join(
					h.route(NIC, host(gateway4), netip.Addr{}, 0),
					h.route(NIC, everything(gateway4), gateway4, 0),
					h.route(NIC, everything(gateway6), gateway6, 0),
				)
			})
		})
	}
	return errors.Join(err, pod.Settle(NIC), world.Settle(end))
}

// Terway connects a pod as Terway does in its policy route mode: a veth, a /32 and a /128, default routes by gateways
// that are on the link by force, and whose MAC is a permanent neighbour of the pod. No station answers ARP for them.
func Terway(pod, world Namespace) error {
	const end, mac = "cali-pod", "ee:ff:ff:ff:ff:ff"
	err := routed(pod, world, end, mac)
	if err == nil {
		err = pod.Do(func() error {
			return withHandle(func(h *handle) error {
				var errs []error
				for _, gateway := range []netip.Addr{netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")} {
					errs = append(errs, h.route(NIC, everything(gateway), gateway, unix.RTNH_F_ONLINK), h.neighbour(NIC, gateway, mac))
				}
				return errors.Join(errs...)
			})
		})
	}
	return errors.Join(err, pod.Settle(NIC), world.Settle(end))
}

// routed makes a veth whose end in the world has a MAC, gives the pod a /32 and a /128, and the world routes to them.
func routed(pod, world Namespace, end, mac string) error {
	err := world.Do(func() error {
		return withHandle(func(h *handle) error {
			return errors.Join(
				h.veth(end, mac, pod),
				h.addresses(end),
				h.route(end, host(Pod4), netip.Addr{}, 0),
				h.route(end, host(Pod6), netip.Addr{}, 0),
			)
		})
	})
	if err != nil {
		return err
	}
	return pod.Do(func() error {
		return withHandle(func(h *handle) error { return h.addresses(NIC, host(Pod4), host(Pod6)) })
	})
}

// ErrNoKind means that the kernel has no links of a kind.
var ErrNoKind = errors.New("not in this kernel")

// Macvlan connects a pod as CNI's macvlan plugin does: a macvlan in mode bridge on a link of the world, a /24 and a
// /64, default routes by a gateway of the network. The gateway is at the other end of that link, which is called lan.
// The error is ErrNoKind if the kernel has no macvlan.
func Macvlan(pod, world Namespace) error {
	err := world.Do(func() error {
		// The link below has addresses of no use, and its solicitations would look like the pod's.
		if err := setSysctl("ipv6/conf/default/router_solicitations", "0"); err != nil {
			return err
		}
		return withHandle(func(h *handle) error {
			attributes := netlink.NewLinkAttrs()
			attributes.Name, attributes.MTU = "lan", nicMTU
			err := errors.Join(
				h.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "lower"}),
				h.addresses("lan", netip.PrefixFrom(Gateway4, 24), netip.PrefixFrom(Gateway6, 64)),
				h.addresses("lower"),
			)
			if err != nil {
				return err
			}
			lower, err := h.LinkByName("lower")
			if err != nil {
				return err
			}
			attributes = netlink.NewLinkAttrs()
			attributes.Name, attributes.ParentIndex, attributes.Namespace = NIC, lower.Attrs().Index, netlink.NsFd(pod.File.Fd())
			err = h.LinkAdd(&netlink.Macvlan{LinkAttrs: attributes, Mode: netlink.MACVLAN_MODE_BRIDGE})
			if errors.Is(err, unix.EOPNOTSUPP) {
				return fmt.Errorf("links of the kind macvlan: %w", ErrNoKind)
			}
			return err
		})
	})
	if err == nil {
		err = pod.Do(podOfNetwork)
	}
	return errors.Join(err, pod.Settle(NIC), world.Settle("lan"))
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// everything is the prefix of a default route in the address's family.
func everything(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// Settle waits until the kernel has noticed that a link has a carrier, has given it a link-local address, and uses all
// its addresses. The kernel takes up to a second.
func (n Namespace) Settle(name string) error {
	var last error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if last = n.inHandle(func(h *handle) error { return h.settled(name) }); last == nil {
			return nil
		}
	}
	return last
}

// inHandle calls f with a handle for the namespace.
func (n Namespace) inHandle(f func(*handle) error) error {
	return n.Do(func() error { return withHandle(f) })
}

// allSettled returns an error for an address that is checked for duplicates, and for a link on whose carrier the kernel
// has not acted yet. It acts up to a second later, and then adds link-local addresses and routes.
func (h *handle) allSettled() error {
	links, err := h.LinkList()
	if err != nil {
		return err
	}
	for _, link := range links {
		a := link.Attrs()
		if a.RawFlags&unix.IFF_LOWER_UP == 0 {
			continue
		}
		if a.OperState == netlink.OperDown || a.OperState == netlink.OperLowerLayerDown {
			return fmt.Errorf("link %s: state %v with a carrier", a.Name, a.OperState)
		}
		if _, err := h.checkAddresses(link); err != nil {
			return err
		}
		if err := h.checkLocal(link); err != nil {
			return err
		}
	}
	return nil
}

// errNoLocalRoute means that the kernel has not begun to receive for an address.
var errNoLocalRoute = errors.New("has no local route yet")

// checkLocal returns errNoLocalRoute for an IPv6 address of the link that is in use and has no route in the table
// local. The kernel adds that route later than the address: on a machine where other namespaces end, by a second and
// more.
func (h *handle) checkLocal(link netlink.Link) error {
	addresses, err := h.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return err
	}
	routes, err := h.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		local := func(r netlink.Route) bool { return r.Dst != nil && r.Dst.IP.Equal(a.IP) && r.Type == unix.RTN_LOCAL }
		if a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DEPRECATED) == 0 && !slices.ContainsFunc(routes, local) {
			return fmt.Errorf("link %s: address %v %w", link.Attrs().Name, a.IP, errNoLocalRoute)
		}
	}
	return nil
}

func (h *handle) settled(name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	// A tap never reports its state; a veth does, as soon as the kernel has noticed that it is up.
	state := link.Attrs().OperState
	if state != netlink.OperUp && (state != netlink.OperUnknown || link.Type() == "veth") {
		return fmt.Errorf("link %s: state %v", name, state)
	}
	local, err := h.checkAddresses(link)
	if err == nil && !local {
		err = fmt.Errorf("link %s: no link-local address", name)
	}
	return err
}

// checkAddresses returns an error for an address that the kernel still checks for duplicates, and whether there is a
// link-local one.
func (h *handle) checkAddresses(link netlink.Link) (local bool, err error) {
	list, err := h.AddrList(link, netlink.FAMILY_V6)
	for _, a := range list {
		if a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == unix.IFA_F_TENTATIVE {
			return false, fmt.Errorf("link %s: address %v is tentative", link.Attrs().Name, a.IP)
		}
		local = local || a.IP.IsLinkLocalUnicast()
	}
	return local, err
}

// veth makes one, whose other end is the NIC of the pod.
func (h *handle) veth(name, mac string, pod Namespace) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = name, nicMTU
	if mac != "" {
		var err error
		if attributes.HardwareAddr, err = net.ParseMAC(mac); err != nil {
			return err
		}
	}
	err := h.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: NIC, PeerNamespace: netlink.NsFd(pod.File.Fd())})
	if err != nil {
		return fmt.Errorf("ip link add %s type veth: %w", name, err)
	}
	return nil
}
