package kernel

import (
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Attributes of an address that unix does not name (linux/if_addr.h).
const (
	addrRoutePriority = 9  // IFA_RT_PRIORITY
	addrProto         = 11 // IFA_PROTO
)

// readAddresses reads all addresses of the namespace. Each is in OffStack too, until readRoutes finds its route; a
// duplicate gets none.
func readAddresses(route *netlink.Socket, s *netstate.Snapshot) error {
	r := netlink.NewRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP, nl.NewIfAddrmsg(unix.AF_UNSPEC))
	return route.Dump(r, func() { s.Addresses, s.OffStack = nil, nil }, func(m []byte) error {
		a, tentative, err := parseAddress(m)
		if err != nil {
			return err
		}
		s.Addresses = append(s.Addresses, a)
		if a.Duplicate {
			return nil
		}
		s.OffStack = append(s.OffStack, netstate.OffStack{Link: a.Link, Address: a.Prefix.Addr(), Tentative: tentative})
		return nil
	})
}

// encodeAddressAdd adds an address. An IPv6 address that exists gets the flags and lifetimes of the
// operation; an IPv4 address that exists is an error.
func encodeAddressAdd(o netstate.AddressAdd) *nl.NetlinkRequest {
	flags := netlink.Create
	if o.Address.Prefix.Addr().Is6() {
		flags = netlink.Put
	}
	return netlink.NewRequest(unix.RTM_NEWADDR, flags, addressParts(o.Address)...)
}

// addressParts are struct ifaddrmsg (linux/if_addr.h) and the attributes of an address. With a peer,
// IFA_ADDRESS and the prefix length are the peer's.
func addressParts(a netstate.Address) []nl.NetlinkRequestData {
	head := nl.NewIfAddrmsg(int(netlink.Family(a.Prefix.Addr())))
	head.Index = uint32(a.Link)
	head.Prefixlen = uint8(a.Prefix.Bits())
	head.Scope = a.Scope
	head.IfAddrmsg.Flags = uint8(a.Flags)
	local, peer := a.Prefix.Addr().AsSlice(), a.Prefix.Addr().AsSlice()
	if a.Peer.IsValid() {
		peer = a.Peer.Addr().AsSlice()
		head.Prefixlen = uint8(a.Peer.Bits())
	}
	parts := []nl.NetlinkRequestData{
		head,
		nl.NewRtAttr(unix.IFA_LOCAL, local),
		nl.NewRtAttr(unix.IFA_ADDRESS, peer),
		netlink.Attr32(unix.IFA_FLAGS, a.Flags),
	}
	if a.Broadcast.IsValid() {
		parts = append(parts, nl.NewRtAttr(unix.IFA_BROADCAST, a.Broadcast.AsSlice()))
	}
	if a.Label != "" {
		parts = append(parts, nl.NewRtAttr(unix.IFA_LABEL, nl.ZeroTerminated(a.Label)))
	}
	if a.Metric != 0 {
		parts = append(parts, netlink.Attr32(addrRoutePriority, a.Metric))
	}
	if a.Protocol != 0 {
		parts = append(parts, nl.NewRtAttr(addrProto, []byte{a.Protocol}))
	}
	if a.ValidSeconds != netstate.Forever || a.PreferredSeconds != netstate.Forever {
		info := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Prefered: a.PreferredSeconds, Valid: a.ValidSeconds}}
		parts = append(parts, nl.NewRtAttr(unix.IFA_CACHEINFO, info.Serialize()))
	}
	return parts
}

// parseAddress parses struct ifaddrmsg and its attributes. IPv6 has IFA_LOCAL only if the address
// has a peer; IPv4 always has IFA_LOCAL. tentative reports whether duplicate address detection is under way.
func parseAddress(m []byte) (a netstate.Address, tentative bool, err error) {
	if len(m) < unix.SizeofIfAddrmsg {
		return a, false, netlink.ErrCutShort
	}
	head := nl.DeserializeIfAddrmsg(m)
	a = netstate.Address{
		Link: int(head.Index), Scope: head.Scope, Flags: uint32(head.IfAddrmsg.Flags),
		ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever,
	}
	var local, other netip.Addr
	err = netlink.EachAttribute(m, unix.SizeofIfAddrmsg, func(kind uint16, v []byte) error {
		switch kind {
		case unix.IFA_LOCAL:
			local = netlink.Addr(v)
		case unix.IFA_ADDRESS:
			other = netlink.Addr(v)
		case unix.IFA_BROADCAST:
			a.Broadcast = netlink.Addr(v)
		case unix.IFA_LABEL:
			a.Label = unix.ByteSliceToString(v)
		case unix.IFA_FLAGS:
			a.Flags = netlink.U32(v)
		case addrRoutePriority:
			a.Metric = netlink.U32(v)
		case addrProto:
			a.Protocol = netlink.U8(v)
		case unix.IFA_CACHEINFO:
			a.PreferredSeconds, a.ValidSeconds = netlink.U32(v), netlink.U32(v[min(len(v), 4):])
		}
		return nil
	})
	tentative = a.Flags&unix.IFA_F_TENTATIVE != 0
	a.Temporary = a.Flags&unix.IFA_F_TEMPORARY != 0 && head.Family == unix.AF_INET6 // of IPv4, the bit is IFA_F_SECONDARY
	a.Duplicate = a.Flags&unix.IFA_F_DADFAILED != 0 && head.Family == unix.AF_INET6
	a.Flags &= netstate.AddrUserFlags
	if !local.IsValid() {
		local = other
	}
	a.Prefix = netip.PrefixFrom(local, int(head.Prefixlen))
	if local != other {
		a.Prefix = netip.PrefixFrom(local, local.BitLen())
		a.Peer = netip.PrefixFrom(other, int(head.Prefixlen))
	}
	return a, tentative, err
}
