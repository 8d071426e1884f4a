package kernel

import (
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// detecting returns the MAC of a gateway that cannot answer yet: the link at the other end of the veth that has the
// address and still detects duplicates of it (RFC 4862 section 5.4). That takes one to two seconds, for example after a
// bridge got its first port. The link is the veth's other end itself, or the bridge whose port that is.
//
// The second result is false if there is no such link, and if the caller lacks CAP_NET_ADMIN where the link is.
func detecting(route *netlink.Socket, veth int, address netip.Addr) (cache.MAC, bool) {
	namespace, index, ok := otherEnd(route, veth)
	if !ok || !address.Is6() {
		return cache.MAC{}, false
	}
	end, err := linkIn(route, namespace, index)
	if err != nil || detectsIn(route, namespace, index, address) {
		return end.MAC, err == nil
	}
	bridge, err := linkIn(route, namespace, end.Master)
	return bridge.MAC, err == nil && bridge.Kind == "bridge" && detectsIn(route, namespace, end.Master, address)
}

// otherEnd returns the number that the namespace of a veth's other end has in this one, and the index of that end
// there.
func otherEnd(route *netlink.Socket, veth int) (namespace uint32, index int, ok bool) {
	r := netlink.NewRequest(unix.RTM_GETLINK, 0, ifInfo(unix.AF_UNSPEC, veth), netlink.Attr32(unix.IFLA_EXT_MASK, skipStatistics))
	err := route.Dump(r, func() {}, func(m []byte) error {
		l, err := parseLink(m)
		if err != nil || l.Kind != "veth" {
			return err
		}
		return netlink.EachAttribute(m, unix.SizeofIfInfomsg, func(kind uint16, v []byte) error {
			switch kind {
			case unix.IFLA_LINK:
				index = int(netlink.U32(v))
			case unix.IFLA_LINK_NETNSID:
				namespace, ok = netlink.U32(v), true
			}
			return nil
		})
	})
	return namespace, index, ok && err == nil
}

// linkIn returns a link of the namespace with a number.
func linkIn(route *netlink.Socket, namespace uint32, index int) (l netstate.Link, err error) {
	r := netlink.NewRequest(unix.RTM_GETLINK, 0, ifInfo(unix.AF_UNSPEC, index), netlink.Attr32(unix.IFLA_EXT_MASK, skipStatistics), netlink.Attr32(unix.IFLA_TARGET_NETNSID, namespace))
	err = route.Dump(r, func() {}, func(m []byte) error {
		l, err = parseLink(m)
		return err
	})
	return l, err
}

// detectsIn reports whether a link of the namespace with a number has the address and still detects duplicates of it.
func detectsIn(route *netlink.Socket, namespace uint32, link int, address netip.Addr) (detects bool) {
	// The kernel takes the number, and the index, from a strict question alone.
	if unix.SetsockoptInt(route.Descriptor(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1) != nil {
		return false
	}
	defer unix.SetsockoptInt(route.Descriptor(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 0)
	head := nl.NewIfAddrmsg(unix.AF_INET6)
	head.Index = uint32(link)
	r := netlink.NewRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP, head, netlink.Attr32(unix.IFA_TARGET_NETNSID, namespace))
	err := route.Dump(r, func() { detects = false }, func(m []byte) error {
		a, tentative, err := parseAddress(m)
		if err == nil && a.Prefix.Addr() == address {
			detects = tentative && !a.Duplicate
		}
		return err
	})
	return detects && err == nil
}
