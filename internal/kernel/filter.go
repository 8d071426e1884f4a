package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Handle and parent of an ingress or clsact qdisc, and the parents of its filters (linux/pkt_sched.h).
const (
	ingressHandle = 0xffff0000 // TC_H_MAKE(TC_H_INGRESS, 0)
	ingressParent = 0xfffffff1 // TC_H_INGRESS, TC_H_CLSACT
	atIngress     = 0xfffffff2 // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)
	atEgress      = 0xfffffff3 // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)
)

// What mirred does with a packet: redirect it to the egress or the ingress of a link, and end its way here. Or send a
// copy to the egress of a link, and let it go on.
const (
	redirectEgress  = 1 // TCA_EGRESS_REDIR, linux/tc_act/tc_mirred.h
	mirrorEgress    = 2 // TCA_EGRESS_MIRROR
	redirectIngress = 3 // TCA_INGRESS_REDIR
	passed          = 3 // TC_ACT_PIPE, linux/pkt_cls.h
	stolen          = 4 // TC_ACT_STOLEN
)

// How struct tc_vlan is set for a filter that clears checksums, and where (linux/tc_act/tc_vlan.h).
const (
	vlanAction  = 8
	vlanVaction = 20
	sizeofVLAN  = 24

	goOn       = 0xffffffff // TC_ACT_UNSPEC, linux/pkt_cls.h: the next filter looks
	modifyVLAN = 3          // TCA_VLAN_ACT_MODIFY
	someVLAN   = 1          // which no frame gets
)

// Offsets in struct tc_mirred and its size, in octets (linux/tc_act/tc_mirred.h). nl's struct has a wrong size
// of 30 octets.
const (
	mirredAction  = 8
	mirredEaction = 20
	mirredIfindex = 24
	sizeofMirred  = 28
)

// readFilters reads the root qdiscs of links, their ingress and clsact qdiscs, and the classifiers in these. The kernel
// lists the qdiscs of all links whatever link the question names, so one question serves. A link without an ingress or
// clsact qdisc has no classifiers.
func readFilters(route *netlink.Socket, s *netstate.Snapshot, links []int) error {
	if len(links) == 0 {
		return nil
	}
	ingress, clsact, filters := s.Ingress, s.Clsact, s.Filters
	type place struct {
		link   int
		parent uint32
	}
	var places []place
	r := netlink.NewRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP, &nl.TcMsg{Family: unix.AF_UNSPEC})
	again := func() {
		s.Ingress, s.Clsact, s.Filters, places = ingress, clsact, filters, nil
		for i := range s.Links {
			s.Links[i].Shape = netstate.Shape{}
		}
	}
	err := route.Dump(r, again, func(m []byte) error {
		q, err := parseQdisc(m)
		if err != nil || !slices.Contains(links, q.link) {
			return err
		}
		if q.parent == atRoot {
			at := slices.IndexFunc(s.Links, func(l netstate.Link) bool { return l.Index == q.link })
			s.Links[at].Shape, _, err = parseShape(m)
		}
		if q.parent != ingressParent {
			return err
		}
		places = append(places, place{q.link, atIngress})
		if q.foreign != "" {
			s.Filters = append(s.Filters, netstate.Filter{Link: q.link, Foreign: q.foreign})
		}
		switch {
		case q.clsact:
			s.Clsact = append(s.Clsact, q.link)
			places = append(places, place{q.link, atEgress})
		default:
			s.Ingress = append(s.Ingress, q.link)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, at := range places {
		filters := s.Filters
		r := netlink.NewRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, &nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(at.link), Parent: at.parent})
		err := route.Dump(r, func() { s.Filters = filters }, func(m []byte) error {
			f, whole, err := parseFilter(m)
			if whole {
				s.Filters = append(s.Filters, f)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// encodeIngressAdd adds an ingress or clsact qdisc (tc qdisc add ... ingress).
func encodeIngressAdd(o netstate.IngressAdd) *nl.NetlinkRequest {
	return netlink.NewRequest(unix.RTM_NEWQDISC, netlink.Create,
		&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(o.Index), Handle: ingressHandle, Parent: ingressParent},
		nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(netstate.QdiscKind(o.Clsact))))
}

// qdisc is the place of a queueing discipline, an index and a parent. foreign describes a qdisc that is no plain
// ingress or clsact qdisc, and is empty otherwise.
type qdisc struct {
	link    int
	parent  uint32
	clsact  bool
	foreign string
}

// parseQdisc parses struct tcmsg (linux/rtnetlink.h) and the attributes of a qdisc (TCA_*).
func parseQdisc(m []byte) (q qdisc, err error) {
	if len(m) < nl.SizeofTcMsg {
		return q, netlink.ErrCutShort
	}
	head := nl.DeserializeTcMsg(m)
	q.link, q.parent = int(head.Ifindex), head.Parent
	err = netlink.EachAttribute(m, nl.SizeofTcMsg, func(kind uint16, v []byte) error {
		switch name := unix.ByteSliceToString(v); {
		case kind == nl.TCA_KIND:
			if q.clsact = name == "clsact"; !q.clsact && name != "ingress" {
				q.foreign = name + " qdisc"
			}
		case kind == nl.TCA_INGRESS_BLOCK || kind == nl.TCA_EGRESS_BLOCK:
			q.foreign = "qdisc with a shared block"
		}
		return nil
	})
	return q, err
}

// filterHeader is struct tcmsg of a filter. Info is the priority, and the protocol in network order.
func filterHeader(f netstate.Filter) *nl.TcMsg {
	parent := uint32(atIngress)
	if f.Copies {
		parent = atEgress
	}
	return &nl.TcMsg{
		Family:  unix.AF_UNSPEC,
		Ifindex: int32(f.Link),
		Parent:  parent,
		Info:    uint32(f.Priority)<<16 | uint32(networkOrder16(f.Protocol)),
	}
}

// encodeFilterAdd adds a u32 classifier (tc-u32(8)) with one action, mirred or vlan (tc-mirred(8), tc-vlan(8)).
func encodeFilterAdd(o netstate.FilterAdd) *nl.NetlinkRequest {
	f := o.Filter
	selector := nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Nkeys: uint8(len(f.Keys))}
	for _, k := range f.Keys {
		selector.Keys = append(selector.Keys, nl.TcU32Key{Mask: networkOrder32(k.Mask), Val: networkOrder32(k.Value), Off: int32(k.Offset)})
	}
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_U32_SEL, selector.Serialize())
	action := options.AddRtAttr(nl.TCA_U32_ACT, nil).AddRtAttr(1, nil)
	if f.Clears {
		action.AddRtAttr(nl.TCA_ACT_KIND, nl.ZeroTerminated("vlan"))
		modify := make([]byte, sizeofVLAN)
		binary.NativeEndian.PutUint32(modify[vlanAction:], goOn)
		binary.NativeEndian.PutUint32(modify[vlanVaction:], modifyVLAN)
		options := action.AddRtAttr(nl.TCA_ACT_OPTIONS, nil)
		options.AddRtAttr(nl.TCA_VLAN_PARMS, modify)
		options.AddRtAttr(nl.TCA_VLAN_PUSH_VLAN_ID, nl.Uint16Attr(someVLAN))
	} else {
		action.AddRtAttr(nl.TCA_ACT_KIND, nl.ZeroTerminated("mirred"))
		redirect, verdict, how := make([]byte, sizeofMirred), uint32(stolen), redirection(f.Ingress)
		if f.Copies {
			verdict, how = passed, mirrorEgress
		}
		binary.NativeEndian.PutUint32(redirect[mirredAction:], verdict)
		binary.NativeEndian.PutUint32(redirect[mirredEaction:], how)
		binary.NativeEndian.PutUint32(redirect[mirredIfindex:], uint32(f.Target))
		action.AddRtAttr(nl.TCA_ACT_OPTIONS, nil).AddRtAttr(nl.TCA_MIRRED_PARMS, redirect)
	}
	return netlink.NewRequest(unix.RTM_NEWTFILTER, netlink.Create, filterHeader(f),
		nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("u32")), options)
}

// redirection is the action of mirred.
func redirection(ingress bool) uint32 {
	if ingress {
		return redirectIngress
	}
	return redirectEgress
}

// parseFilter parses struct tcmsg and the attributes of a classifier. whole is false for a message
// that stands for a hash table of u32.
//
// Foreign describes the first thing found that a classifier of encodeFilterAdd does not have.
func parseFilter(m []byte) (f netstate.Filter, whole bool, err error) {
	if len(m) < nl.SizeofTcMsg {
		return f, false, netlink.ErrCutShort
	}
	head := nl.DeserializeTcMsg(m)
	f.Link, f.Copies = int(head.Ifindex), head.Parent == atEgress
	f.Priority = uint16(head.Info >> 16)
	f.Protocol = networkOrder16(uint16(head.Info))
	var options []byte
	err = netlink.EachAttribute(m, nl.SizeofTcMsg, func(kind uint16, v []byte) error {
		switch kind {
		case nl.TCA_KIND:
			if name := unix.ByteSliceToString(v); name != "u32" {
				f.Foreign = name
			}
		case nl.TCA_CHAIN:
			if chain := netlink.U32(v); chain != 0 && f.Foreign == "" {
				f.Foreign = fmt.Sprintf("u32 in chain %d", chain)
			}
		case nl.TCA_OPTIONS:
			options = v
		}
		return nil
	})
	if err != nil || f.Foreign != "" {
		return f, f.Foreign != "", err
	}
	return parseU32Options(options, f)
}

// parseU32Options parses TCA_OPTIONS of a u32 classifier into a copy of f (linux/pkt_cls.h, TCA_U32_*).
func parseU32Options(options []byte, f netstate.Filter) (_ netstate.Filter, whole bool, err error) {
	acts := false
	err = netlink.EachAttribute(options, 0, func(kind uint16, v []byte) error {
		switch kind {
		case nl.TCA_U32_SEL:
			if len(v) < nl.SizeofTcU32Sel || len(v) < nl.SizeofTcU32Sel+int(v[2])*nl.SizeofTcU32Key {
				return errors.New("netlink: a classifier was cut short")
			}
			selector := nl.DeserializeTcU32Sel(v)
			whole = true
			if plain := (nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Nkeys: selector.Nkeys, Keys: selector.Keys}); !reflect.DeepEqual(*selector, plain) {
				f.Foreign = "u32 with another selector"
			}
			for _, k := range selector.Keys {
				f.Keys = append(f.Keys, netstate.Key{Offset: int(k.Off), Mask: networkOrder32(k.Mask), Value: networkOrder32(k.Val)})
				if k.OffMask != 0 {
					f.Foreign = "u32 with a moving offset"
				}
			}
		case nl.TCA_U32_ACT:
			acts, err = parseActions(v, &f)
			return err
		case nl.TCA_U32_CLASSID, nl.TCA_U32_LINK, nl.TCA_U32_POLICE, nl.TCA_U32_INDEV, nl.TCA_U32_MARK:
			f.Foreign = fmt.Sprintf("u32 with attribute %d", kind)
		}
		return nil
	})
	if !acts && f.Foreign == "" {
		f.Foreign = "u32 that does not redirect"
	}
	return f, whole, err
}

// parseActions parses the list of actions into f. acts is true for mirred that redirects, and for vlan as
// encodeFilterAdd has it. A second action makes f foreign.
func parseActions(actions []byte, f *netstate.Filter) (acts bool, err error) {
	count := 0
	err = netlink.EachAttribute(actions, 0, func(_ uint16, action []byte) error {
		if count++; count > 1 {
			f.Foreign = "u32 with more actions"
		}
		var name string
		var options []byte
		err := netlink.EachAttribute(action, 0, func(kind uint16, v []byte) error {
			switch kind {
			case nl.TCA_ACT_KIND:
				name = unix.ByteSliceToString(v)
			case nl.TCA_ACT_OPTIONS:
				options = v
			}
			return nil
		})
		if err != nil {
			return err
		}
		switch name {
		case "mirred":
			acts, err = parseRedirect(options, f)
		case "vlan":
			acts, err = parseVLAN(options, f)
		default:
			f.Foreign = "u32 with the action " + name
		}
		return err
	})
	return acts, err
}

// parseRedirect parses the options of mirred (TCA_MIRRED_*).
func parseRedirect(options []byte, f *netstate.Filter) (redirects bool, err error) {
	err = netlink.EachAttribute(options, 0, func(kind uint16, v []byte) error {
		if kind != nl.TCA_MIRRED_PARMS || len(v) < sizeofMirred {
			return nil
		}
		verdict, how := netlink.U32(v[mirredAction:]), netlink.U32(v[mirredEaction:])
		f.Target = int(netlink.U32(v[mirredIfindex:])) // 0: the target link is gone
		if f.Copies {
			redirects = verdict == passed && how == mirrorEgress
			return nil
		}
		f.Ingress = how == redirectIngress
		redirects = verdict == stolen && how == redirection(f.Ingress)
		return nil
	})
	return redirects, err
}

// parseVLAN parses the options of vlan (TCA_VLAN_*). The protocol and the priority of the tag that no frame gets are
// left out.
func parseVLAN(options []byte, f *netstate.Filter) (clears bool, err error) {
	modifies, id := false, uint16(0)
	err = netlink.EachAttribute(options, 0, func(kind uint16, v []byte) error {
		switch {
		case kind == nl.TCA_VLAN_PARMS && len(v) >= sizeofVLAN:
			modifies = netlink.U32(v[vlanAction:]) == goOn && netlink.U32(v[vlanVaction:]) == modifyVLAN
		case kind == nl.TCA_VLAN_PUSH_VLAN_ID && len(v) >= 2:
			id = binary.NativeEndian.Uint16(v)
		}
		return nil
	})
	f.Clears = modifies && id == someVLAN && !f.Copies
	return f.Clears, err
}

// networkOrder16 and networkOrder32 convert to network order and back (htons(3), htonl(3)).
func networkOrder16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func networkOrder32(v uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, v))
}
