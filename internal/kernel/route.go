package kernel

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

const userHZ = 100 // USER_HZ: ticks of rta_cacheinfo in a second

// readRoutes reads all routes, without cached routes and without the local routes that the kernel makes of
// addresses. It leaves the addresses in OffStack that have no such local route.
func readRoutes(route *netlink.Socket, s *netstate.Snapshot) error {
	r := netlink.NewRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP, &nl.RtMsg{})
	onStack := map[netstate.OffStack]bool{}
	err := route.Dump(r, func() { s.Routes = nil; clear(onStack) }, func(m []byte) error {
		route, err := parseRoute(m)
		ofAddress := route.Table == netstate.TableLocal && route.Protocol == netstate.ProtocolKernel
		if ofAddress && route.Type == netstate.RouteLocal {
			onStack[netstate.OffStack{Link: route.Link, Address: route.Destination.Addr()}] = true
		}
		if err != nil || ofAddress || !route.Destination.IsValid() {
			return err
		}
		s.Routes = append(s.Routes, route)
		return nil
	})
	// A link that is down has no such IPv6 routes.
	up := map[int]bool{}
	for _, l := range s.Links {
		up[l.Index] = l.Up
	}
	s.OffStack = slices.DeleteFunc(s.OffStack, func(o netstate.OffStack) bool {
		return o.Address.Is6() && !up[o.Link] || onStack[netstate.OffStack{Link: o.Link, Address: o.Address}]
	})
	return err
}

// routeParts are struct rtmsg (linux/rtnetlink.h) and the attributes of a route. The metrics are in
// Route.Other, so Route.MTU is not encoded.
func routeParts(r netstate.Route) []nl.NetlinkRequestData {
	head := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family:   netlink.Family(r.Destination.Addr()),
		Dst_len:  uint8(r.Destination.Bits()),
		Tos:      r.TOS,
		Table:    uint8(min(r.Table, unix.RT_TABLE_UNSPEC+255)),
		Protocol: r.Protocol,
		Scope:    r.Scope,
		Type:     r.Type,
	}}
	if r.Table > 255 {
		head.Table = unix.RT_TABLE_UNSPEC
	}
	if r.OnLink {
		head.Flags |= unix.RTNH_F_ONLINK
	}
	parts := []nl.NetlinkRequestData{head, netlink.Attr32(unix.RTA_TABLE, r.Table)}
	if r.Destination.Bits() > 0 {
		parts = append(parts, nl.NewRtAttr(unix.RTA_DST, r.Destination.Addr().AsSlice()))
	}
	if r.Source.IsValid() {
		head.Src_len = uint8(r.Source.Bits())
		parts = append(parts, nl.NewRtAttr(unix.RTA_SRC, r.Source.Addr().AsSlice()))
	}
	if r.Gateway.IsValid() {
		parts = append(parts, encodeGateway(r.Gateway, head.Family))
	}
	if r.Link != 0 && len(r.Hops) == 0 {
		parts = append(parts, netlink.Attr32(unix.RTA_OIF, uint32(r.Link)))
	}
	if r.PrefSrc.IsValid() {
		parts = append(parts, nl.NewRtAttr(unix.RTA_PREFSRC, r.PrefSrc.AsSlice()))
	}
	if r.Metric != 0 {
		parts = append(parts, netlink.Attr32(unix.RTA_PRIORITY, r.Metric))
	}
	if len(r.Hops) > 0 {
		parts = append(parts, nl.NewRtAttr(unix.RTA_MULTIPATH, encodeHops(r.Hops, head.Family)))
	}
	if r.ExpiresSeconds != 0 {
		parts = append(parts, netlink.Attr32(unix.RTA_EXPIRES, r.ExpiresSeconds))
	}
	for _, o := range r.Other {
		parts = append(parts, nl.NewRtAttr(int(o.Type), o.Data))
	}
	return parts
}

// encodeGateway encodes a gateway as RTA_GATEWAY, or as RTA_VIA if its family is not the route's (RFC 5549).
func encodeGateway(gateway netip.Addr, routeFamily uint8) *nl.RtAttr {
	f := netlink.Family(gateway)
	if f == routeFamily {
		return nl.NewRtAttr(unix.RTA_GATEWAY, gateway.AsSlice())
	}
	via := append(nl.Uint16Attr(uint16(f)), gateway.AsSlice()...)
	return nl.NewRtAttr(unix.RTA_VIA, via)
}

// parseRoute parses struct rtmsg and its attributes. The destination is not valid for routes of MPLS and
// of multicast routing, and for cached routes.
func parseRoute(m []byte) (netstate.Route, error) {
	if len(m) < unix.SizeofRtMsg {
		return netstate.Route{}, netlink.ErrCutShort
	}
	head := nl.DeserializeRtMsg(m)
	if (head.Family != unix.AF_INET && head.Family != unix.AF_INET6) || head.Flags&unix.RTM_F_CLONED != 0 {
		return netstate.Route{}, nil
	}
	r := netstate.Route{
		Table: uint32(head.Table), Type: head.Type, Scope: head.Scope, Protocol: head.Protocol, TOS: head.Tos,
		OnLink: head.Flags&unix.RTNH_F_ONLINK != 0,
	}
	zero := netip.IPv4Unspecified()
	if head.Family == unix.AF_INET6 {
		zero = netip.IPv6Unspecified()
	}
	r.Destination = netip.PrefixFrom(zero, int(head.Dst_len))
	err := netlink.EachAttribute(m, unix.SizeofRtMsg, func(kind uint16, v []byte) error {
		switch kind {
		case unix.RTA_DST:
			r.Destination = netip.PrefixFrom(netlink.Addr(v), int(head.Dst_len))
		case unix.RTA_SRC:
			r.Source = netip.PrefixFrom(netlink.Addr(v), int(head.Src_len))
		case unix.RTA_GATEWAY:
			r.Gateway = netlink.Addr(v)
		case unix.RTA_VIA:
			r.Gateway = netlink.Addr(v[min(len(v), 2):])
		case unix.RTA_OIF:
			r.Link = int(netlink.U32(v))
		case unix.RTA_PREFSRC:
			r.PrefSrc = netlink.Addr(v)
		case unix.RTA_PRIORITY:
			r.Metric = netlink.U32(v)
		case unix.RTA_TABLE:
			r.Table = netlink.U32(v)
		case unix.RTA_MULTIPATH:
			return parseHops(v, &r)
		case unix.RTA_CACHEINFO: // struct rta_cacheinfo: clntref, lastuse, expires in 1/100 s, ...; 4 octets each
			if ticks := int32(netlink.U32(v[min(len(v), 8):])); ticks > 0 {
				r.ExpiresSeconds = uint32(ticks+userHZ-1) / userHZ
			}
		default:
			r.Other = append(r.Other, netstate.Attribute{Type: kind, Data: append([]byte(nil), v...)})
			if kind == unix.RTA_METRICS {
				return parseMetrics(v, &r)
			}
		}
		return nil
	})
	return r, err
}

// parseMetrics parses RTA_METRICS into r, which has a field for the MTU alone.
func parseMetrics(b []byte, r *netstate.Route) error {
	return netlink.EachAttribute(b, 0, func(kind uint16, v []byte) error {
		if kind == unix.RTAX_MTU {
			r.MTU = int(netlink.U32(v))
		}
		return nil
	})
}

// encodeHops encodes the value of RTA_MULTIPATH: struct rtnexthop (linux/rtnetlink.h) and attributes for each
// next hop.
func encodeHops(hops []netstate.Hop, routeFamily uint8) (b []byte) {
	for _, h := range hops {
		hop := nl.RtNexthop{RtNexthop: unix.RtNexthop{Hops: h.Weight, Ifindex: int32(h.Link)}}
		if h.OnLink {
			hop.Flags |= unix.RTNH_F_ONLINK
		}
		if h.Gateway.IsValid() {
			hop.Children = append(hop.Children, encodeGateway(h.Gateway, routeFamily))
		}
		b = append(b, hop.Serialize()...)
	}
	return b
}

// parseHops parses the value of RTA_MULTIPATH into r.
func parseHops(b []byte, r *netstate.Route) error {
	for len(b) >= unix.SizeofRtNexthop {
		head := nl.DeserializeRtNexthop(b)
		size := int(head.RtNexthop.Len)
		if size < unix.SizeofRtNexthop || size > len(b) {
			return errors.New("netlink: a next hop was cut short")
		}
		hop := netstate.Hop{Link: int(head.Ifindex), Weight: head.Hops, OnLink: head.Flags&unix.RTNH_F_ONLINK != 0}
		err := netlink.EachAttribute(b[:size], unix.SizeofRtNexthop, func(kind uint16, v []byte) error {
			switch kind {
			case unix.RTA_GATEWAY:
				hop.Gateway = netlink.Addr(v)
			case unix.RTA_VIA:
				hop.Gateway = netlink.Addr(v[min(len(v), 2):])
			}
			return nil
		})
		if err != nil {
			return err
		}
		r.Hops = append(r.Hops, hop)
		b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return nil
}
