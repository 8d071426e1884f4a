package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

const operUp = 6 // IF_OPER_UP, linux/if.h: the link has a carrier

// macvlanModes are the names of MACVLAN_MODE_* (linux/if_link.h), as ip(8) prints them.
var macvlanModes = map[uint32]string{1: "private", 2: "vepa", 4: "bridge", 8: "passthru", 16: "source"}

const skipStatistics = 1 << 3 // RTEXT_FILTER_SKIP_STATS, linux/rtnetlink.h

// Attributes of a link's address families that unix does not name (linux/if_link.h), and indices of
// settings in them. inetConf counts settings from 1, inet6Conf from 0.
const (
	inetConf             = 1  // IFLA_INET_CONF
	inet6Conf            = 2  // IFLA_INET6_CONF
	addrGenMode          = 8  // IFLA_INET6_ADDR_GEN_MODE
	devconfMTU6          = 2  // DEVCONF_MTU6, linux/ipv6.h
	devconfNoIPv6        = 26 // DEVCONF_DISABLE_IPV6, linux/ipv6.h
	devconfForwarding6   = 59 // DEVCONF_FORCE_FORWARDING, since Linux 6.17
	devconfForwarding    = 1  // IPV4_DEVCONF_FORWARDING, linux/ip.h
	devconfProxyARP      = 3  // IPV4_DEVCONF_PROXY_ARP
	devconfSourceRoute   = 9  // IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE
	devconfARPIgnore     = 19 // IPV4_DEVCONF_ARP_IGNORE
	devconfAcceptLocal   = 23 // IPV4_DEVCONF_ACCEPT_LOCAL
	devconfRouteLocalnet = 26 // IPV4_DEVCONF_ROUTE_LOCALNET
)

// ifInfo is the header of a link's message, struct ifinfomsg (linux/rtnetlink.h).
func ifInfo(family, index int) *nl.IfInfomsg {
	m := nl.NewIfInfomsg(family)
	m.Index = int32(index)
	return m
}

// readLinks reads all links, without their counters, which would be most of the answer.
func readLinks(route *netlink.Socket, s *netstate.Snapshot) error {
	return readLinksWith(route, s, nil)
}

// readLinksWith is readLinks, and adds those of the sysctls that the kernel sends with the links.
func readLinksWith(route *netlink.Socket, s *netstate.Snapshot, sysctls []string) error {
	r := netlink.NewRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP, ifInfo(unix.AF_UNSPEC, 0), netlink.Attr32(unix.IFLA_EXT_MASK, skipStatistics))
	return route.Dump(r, func() { s.Links, s.Sysctls = nil, nil }, func(m []byte) error {
		l, err := parseLink(m)
		s.Links = append(s.Links, l)
		addSettings6(s, l.Name, m, sysctls)
		return err
	})
}

// Links returns all links of the namespace.
func (n *Namespace) Links() ([]netstate.Link, error) {
	var s netstate.Snapshot
	if err := readLinks(n.route, &s); err != nil {
		return nil, fmt.Errorf("read the namespace's links: %w", err)
	}
	return s.Links, nil
}

// encodeLinkAdd asks for a link with a certain index, so that later operations of the same batch can
// name the link.
func encodeLinkAdd(o netstate.LinkAdd) *nl.NetlinkRequest {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(o.Kind))
	if o.Kind == "bridge" {
		info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_BR_MCAST_SNOOPING, []byte{0})
	}
	return netlink.NewRequest(unix.RTM_NEWLINK, netlink.Create, ifInfo(unix.AF_UNSPEC, o.Index),
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(o.Name)),
		nl.NewRtAttr(unix.IFLA_ADDRESS, o.MAC[:]),
		netlink.Attr32(unix.IFLA_MTU, uint32(o.MTU)),
		netlink.Attr32(unix.IFLA_GROUP, o.Group),
		info)
}

// linkAttributes encode the properties of a link that are no flags.
var linkAttributes = map[string]func(netstate.Link) *nl.RtAttr{
	"name":       func(l netstate.Link) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(l.Name)) },
	"mac":        func(l netstate.Link) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_ADDRESS, l.MAC[:]) },
	"mtu":        func(l netstate.Link) *nl.RtAttr { return netlink.Attr32(unix.IFLA_MTU, uint32(l.MTU)) },
	"txqueuelen": func(l netstate.Link) *nl.RtAttr { return netlink.Attr32(unix.IFLA_TXQLEN, uint32(l.QueueLength)) },
	"group":      func(l netstate.Link) *nl.RtAttr { return netlink.Attr32(unix.IFLA_GROUP, l.Group) },
	"alias":      func(l netstate.Link) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(l.Alias)) },
	"master":     func(l netstate.Link) *nl.RtAttr { return netlink.Attr32(unix.IFLA_MASTER, uint32(l.Master)) },
	"addrgenmode": func(l netstate.Link) *nl.RtAttr {
		spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(addrGenMode, []byte{byte(l.AddrGen)})
		return spec
	},
}

// flagsOf are the flags that an operation can set.
func flagsOf(l netstate.Link) (flags uint32) {
	for flag, on := range map[uint32]bool{unix.IFF_UP: l.Up, unix.IFF_NOARP: l.NoARP, unix.IFF_ALLMULTI: l.AllMulticast} {
		if on {
			flags |= flag
		}
	}
	return flags
}

func encodeLinkSet(o netstate.LinkSet) *nl.NetlinkRequest {
	head := ifInfo(unix.AF_UNSPEC, o.Want.Index)
	head.Change = flagsOf(o.Have) ^ flagsOf(o.Want)
	head.Flags = flagsOf(o.Want) & head.Change
	parts := []nl.NetlinkRequestData{head}
	for _, p := range o.Properties() {
		if encode, is := linkAttributes[p.Kind]; is {
			parts = append(parts, encode(o.Want))
		}
	}
	return netlink.NewRequest(unix.RTM_SETLINK, 0, parts...)
}

func encodeGroupDel(o netstate.GroupDel) *nl.NetlinkRequest {
	return netlink.NewRequest(unix.RTM_DELLINK, 0, ifInfo(unix.AF_UNSPEC, 0), netlink.Attr32(unix.IFLA_GROUP, o.Group))
}

// encodeConfSet encodes an IPv4 setting of a link. By rtnetlink the setting is part of the batch; a write below
// /proc/sys would be a call of its own.
func encodeConfSet(o netstate.ConfSet) (*nl.NetlinkRequest, error) {
	number, ok := map[string]int{
		"forwarding": devconfForwarding, "route_localnet": devconfRouteLocalnet, "accept_local": devconfAcceptLocal, "proxy_arp": devconfProxyARP,
		"accept_source_route": devconfSourceRoute, "arp_ignore": devconfARPIgnore,
	}[o.Name]
	if !ok {
		return nil, fmt.Errorf("no netlink attribute for %s", o.Name)
	}
	conf := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	var value uint32
	if o.On {
		value = 1
	}
	conf.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(number, nl.Uint32Attr(value))
	return netlink.NewRequest(unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, o.Index), conf), nil
}

// parseLink parses struct ifinfomsg and its attributes (linux/if_link.h, IFLA_*).
func parseLink(m []byte) (netstate.Link, error) {
	if len(m) < unix.SizeofIfInfomsg {
		return netstate.Link{}, netlink.ErrCutShort
	}
	head := nl.DeserializeIfInfomsg(m)
	l := netstate.Link{
		Index:     int(head.Index),
		Up:        head.Flags&unix.IFF_UP != 0,
		NoCarrier: head.Flags&(unix.IFF_UP|unix.IFF_RUNNING) == unix.IFF_UP,
		Loopback:  head.Flags&unix.IFF_LOOPBACK != 0,
		NoARP:     head.Flags&unix.IFF_NOARP != 0,
		Ethernet:  head.Type == unix.ARPHRD_ETHER,

		AllMulticast: head.Flags&unix.IFF_ALLMULTI != 0,
		AddrGen:      netstate.AddrGenNoIPv6,
	}
	hasCarrier, queue := false, 0
	var parent, bus string
	parentElsewhere := false
	err := netlink.EachAttribute(m, unix.SizeofIfInfomsg, func(kind uint16, v []byte) error {
		switch kind {
		case unix.IFLA_OPERSTATE:
			hasCarrier = netlink.U8(v) == operUp
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(v)
		case unix.IFLA_ADDRESS:
			if len(v) == len(l.MAC) {
				l.MAC = cache.MAC(v)
			}
		case unix.IFLA_MTU:
			l.MTU = int(netlink.U32(v))
		case unix.IFLA_TXQLEN:
			queue = int(netlink.U32(v))
		case unix.IFLA_MASTER:
			l.Master = int(netlink.U32(v))
		case unix.IFLA_LINK:
			l.Parent = int(netlink.U32(v))
		case unix.IFLA_LINK_NETNSID:
			parentElsewhere = true
		case unix.IFLA_IFALIAS:
			l.Alias = unix.ByteSliceToString(v)
		case unix.IFLA_GROUP:
			l.Group = netlink.U32(v)
		case unix.IFLA_PROP_LIST:
			return netlink.EachAttribute(v, 0, func(kind uint16, v []byte) error {
				if kind == unix.IFLA_ALT_IFNAME {
					l.AltNames = append(l.AltNames, unix.ByteSliceToString(v))
				}
				return nil
			})
		case unix.IFLA_PARENT_DEV_NAME:
			parent = unix.ByteSliceToString(v)
		case unix.IFLA_PARENT_DEV_BUS_NAME:
			bus = unix.ByteSliceToString(v)
		case unix.IFLA_LINKINFO:
			return parseLinkInfo(v, &l)
		case unix.IFLA_AF_SPEC:
			return parseFamilies(v, &l)
		}
		return nil
	})
	if !hasCarrier {
		delete(l.BridgePort, netstate.StateSetting)
	}
	// The kernel names a veth's peer in the place of the parent.
	if parentElsewhere || l.Kind == "veth" {
		l.Parent = 0
	}
	if l.Tap != nil {
		l.QueueLength = queue
	}
	if bus == "pci" {
		l.PCI = parent
	}
	return l, err
}

// parseLinkInfo parses IFLA_LINKINFO into l: the link's kind, what belongs to the kind, and the settings of a
// bridge's port.
func parseLinkInfo(b []byte, l *netstate.Link) error {
	var data, portData []byte
	var portKind string
	err := netlink.EachAttribute(b, 0, func(kind uint16, v []byte) error {
		switch kind {
		case nl.IFLA_INFO_KIND:
			l.Kind = unix.ByteSliceToString(v)
		case nl.IFLA_INFO_DATA:
			data = v
		case nl.IFLA_INFO_SLAVE_KIND:
			portKind = unix.ByteSliceToString(v)
		case nl.IFLA_INFO_SLAVE_DATA:
			portData = v
		}
		return nil
	})
	if err != nil {
		return err
	}
	if portKind == "bridge" {
		if l.BridgePort, err = parseSettings(portData, portSettings); err != nil {
			return err
		}
	}
	switch l.Kind {
	case "bridge":
		l.Bridge, err = parseSettings(data, bridgeSettings)
		return err
	case "macvlan", "macvtap":
		return netlink.EachAttribute(data, 0, func(kind uint16, v []byte) error {
			if kind == nl.IFLA_MACVLAN_MODE {
				l.Mode = macvlanModes[netlink.U32(v)]
			}
			return nil
		})
	case "bond":
		return parseBond(data, l)
	case "hsr":
		const first, second, interlink = 1, 2, 8 // IFLA_HSR_SLAVE1 and 2, and since Linux 6.10 IFLA_HSR_INTERLINK
		return netlink.EachAttribute(data, 0, func(kind uint16, v []byte) error {
			if kind == first || kind == second || kind == interlink {
				l.Ports = append(l.Ports, int(netlink.U32(v)))
			}
			return nil
		})
	case "vrf":
		return netlink.EachAttribute(data, 0, func(kind uint16, v []byte) error {
			if kind == nl.IFLA_VRF_TABLE {
				l.VRF = netlink.U32(v)
			}
			return nil
		})
	case "tun":
		return parseTap(data, l)
	}
	return nil
}

// parseBond parses the attributes of a bond that decide about MACs. Only the mode active-backup uses fail_over_mac.
func parseBond(b []byte, l *netstate.Link) error {
	const activeBackup, tlb, alb = 1, 5, 6 // BOND_MODE_*, linux/if_bonding.h
	var mode, failOver uint8
	err := netlink.EachAttribute(b, 0, func(kind uint16, v []byte) error {
		switch kind {
		case nl.IFLA_BOND_MODE:
			mode = netlink.U8(v)
		case nl.IFLA_BOND_FAIL_OVER_MAC:
			failOver = netlink.U8(v)
		}
		return nil
	})
	switch {
	case mode == tlb:
		l.Mode = netstate.ModeTLB
	case mode == alb:
		l.Mode = netstate.ModeALB
	case mode == activeBackup && failOver == 1:
		l.Mode = netstate.ModeActive
	case mode == activeBackup && failOver == 2:
		l.Mode = netstate.ModeFollow
	}
	return err
}

// parseFamilies parses IFLA_AF_SPEC into l. The settings of a family are an array of 4 octets each; a setting
// that the array does not reach is off.
func parseFamilies(b []byte, l *netstate.Link) error {
	return netlink.EachAttribute(b, 0, func(family uint16, spec []byte) error {
		switch family {
		case unix.AF_INET:
			return netlink.EachAttribute(spec, 0, func(kind uint16, v []byte) error {
				if kind == inetConf {
					l.Forwarding4 = netlink.U32(v[min(len(v), 4*(devconfForwarding-1)):]) != 0
					l.ProxyARP = netlink.U32(v[min(len(v), 4*(devconfProxyARP-1)):]) != 0
					l.NoSourceRoutes = netlink.U32(v[min(len(v), 4*(devconfSourceRoute-1)):]) == 0
					l.IgnoresARP = netlink.U32(v[min(len(v), 4*(devconfARPIgnore-1)):]) != 0
					l.AcceptLocal = netlink.U32(v[min(len(v), 4*(devconfAcceptLocal-1)):]) != 0
					l.RouteLocalnet = netlink.U32(v[min(len(v), 4*(devconfRouteLocalnet-1)):]) != 0
				}
				return nil
			})
		case unix.AF_INET6:
			return netlink.EachAttribute(spec, 0, func(kind uint16, v []byte) error {
				switch kind {
				case addrGenMode:
					l.AddrGen = int(netlink.U8(v))
				case inet6Conf:
					l.NoIPv6 = netlink.U32(v[min(len(v), 4*devconfNoIPv6):]) != 0
					l.Forwarding6 = netlink.U32(v[min(len(v), 4*devconfForwarding6):]) != 0
					l.MTU6 = int(netlink.U32(v[min(len(v), 4*devconfMTU6):]))
				}
				return nil
			})
		}
		return nil
	})
}

// HasDummy reports whether the kernel has the link kind dummy. The kernel loads the module for the question.
//
// HasDummy asks for a dummy link with an impossible number of queues. A kernel with dummy refuses the
// number (EINVAL), a kernel without dummy refuses the kind (EOPNOTSUPP). No link is made.
func (n *Namespace) HasDummy() (bool, error) {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("dummy"))
	probe := netlink.NewRequest(unix.RTM_NEWLINK, netlink.Create, ifInfo(unix.AF_UNSPEC, 0),
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("guestwire-probe")),
		netlink.Attr32(unix.IFLA_NUM_TX_QUEUES, 1<<16), info)
	err := n.route.Ask(probe)
	switch {
	case netlink.Answers(err, unix.EINVAL):
		return true, nil
	case netlink.Answers(err, unix.EOPNOTSUPP):
		return false, nil
	case err == nil:
		err = errors.New("the kernel made an impossible link")
	}
	return false, fmt.Errorf("ask for the link kind dummy: %w", err)
}
