package kernel

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// setting is a setting of a bridge or of a bridge's port: its name in netstate.Settings, its netlink
// attribute, and the size of its value in octets, which is the same in requests and answers.
type setting struct {
	name      string
	attribute uint16
	size      int
}

// bridgeSettings are IFLA_BR_* and portSettings are IFLA_BRPORT_* (linux/if_link.h).
var (
	bridgeSettings = []setting{
		{"stp_state", nl.IFLA_BR_STP_STATE, 4},
		{"vlan_filtering", nl.IFLA_BR_VLAN_FILTERING, 1},
		{"group_fwd_mask", nl.IFLA_BR_GROUP_FWD_MASK, 2},
		{"mcast_snooping", nl.IFLA_BR_MCAST_SNOOPING, 1},
		{"mcast_querier", nl.IFLA_BR_MCAST_QUERIER, 1},
		{"mcast_router", nl.IFLA_BR_MCAST_ROUTER, 1},
		{"nf_call_iptables", nl.IFLA_BR_NF_CALL_IPTABLES, 1},
		{"nf_call_ip6tables", nl.IFLA_BR_NF_CALL_IP6TABLES, 1},
		{"nf_call_arptables", nl.IFLA_BR_NF_CALL_ARPTABLES, 1},
	}
	portSettings = []setting{
		{netstate.StateSetting, nl.IFLA_BRPORT_STATE, 1},
		{"hairpin", nl.IFLA_BRPORT_MODE, 1},
		{"guard", nl.IFLA_BRPORT_GUARD, 1},
		{"root_block", nl.IFLA_BRPORT_PROTECT, 1},
		{"fastleave", nl.IFLA_BRPORT_FAST_LEAVE, 1},
		{"learning", nl.IFLA_BRPORT_LEARNING, 1},
		{"flood", nl.IFLA_BRPORT_UNICAST_FLOOD, 1},
		{"proxy_arp", nl.IFLA_BRPORT_PROXYARP, 1},
		{"proxy_arp_wifi", nl.IFLA_BRPORT_PROXYARP_WIFI, 1},
		{"mcast_router", nl.IFLA_BRPORT_MULTICAST_ROUTER, 1},
		{"mcast_flood", nl.IFLA_BRPORT_MCAST_FLOOD, 1},
		{"mcast_to_unicast", nl.IFLA_BRPORT_MCAST_TO_UCAST, 1},
		{"vlan_tunnel", nl.IFLA_BRPORT_VLAN_TUNNEL, 1},
		{"bcast_flood", nl.IFLA_BRPORT_BCAST_FLOOD, 1},
		{"group_fwd_mask", nl.IFLA_BRPORT_GROUP_FWD_MASK, 2},
		{"neigh_suppress", nl.IFLA_BRPORT_NEIGH_SUPPRESS, 1},
		{"isolated", nl.IFLA_BRPORT_ISOLATED, 1},
		{"locked", nl.IFLA_BRPORT_LOCKED, 1},
		{"mab", nl.IFLA_BRPORT_MAB, 1},
	}
)

// encodeBridgeSet encodes the settings of a bridge (ip link set ... type bridge).
func encodeBridgeSet(o netstate.BridgeSet) (*nl.NetlinkRequest, error) {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	if err := encodeSettings(info.AddRtAttr(nl.IFLA_INFO_DATA, nil), bridgeSettings, o.Settings); err != nil {
		return nil, err
	}
	return netlink.NewRequest(unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, o.Index), info), nil
}

// encodeBridgePortSet encodes the settings of a bridge's port (bridge link set). The kernel takes them in
// IFLA_PROTINFO and reports them in IFLA_INFO_SLAVE_DATA.
func encodeBridgePortSet(o netstate.BridgePortSet) (*nl.NetlinkRequest, error) {
	protinfo := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	if err := encodeSettings(protinfo, portSettings, o.Settings); err != nil {
		return nil, err
	}
	return netlink.NewRequest(unix.RTM_SETLINK, 0, ifInfo(unix.AF_BRIDGE, o.Index), protinfo), nil
}

// encodeSettings adds the settings to an attribute, in the order of their names.
func encodeSettings(to *nl.RtAttr, known []setting, settings netstate.Settings) error {
	for _, name := range settings.Names() {
		at := slices.IndexFunc(known, func(s setting) bool { return s.name == name })
		if at < 0 {
			return fmt.Errorf("no netlink attribute for %s", name)
		}
		attribute, value := int(known[at].attribute), settings[name]
		switch known[at].size {
		case 1:
			to.AddRtAttr(attribute, []byte{byte(value)})
		case 2:
			to.AddRtAttr(attribute, nl.Uint16Attr(uint16(value)))
		default:
			to.AddRtAttr(attribute, nl.Uint32Attr(value))
		}
	}
	return nil
}

// parseSettings parses the attributes of a bridge or of a port. Attributes that are not known are left out.
func parseSettings(b []byte, known []setting) (netstate.Settings, error) {
	settings := netstate.Settings{}
	err := netlink.EachAttribute(b, 0, func(kind uint16, v []byte) error {
		at := slices.IndexFunc(known, func(s setting) bool { return s.attribute == kind })
		if at < 0 {
			return nil
		}
		s := known[at]
		if len(v) != s.size {
			return fmt.Errorf("netlink: setting %s has %d octets instead of %d", s.name, len(v), s.size)
		}
		switch s.size {
		case 1:
			settings[s.name] = uint32(netlink.U8(v))
		case 2:
			settings[s.name] = uint32(netlink.U16(v))
		default:
			settings[s.name] = netlink.U32(v)
		}
		return nil
	})
	return settings, err
}
