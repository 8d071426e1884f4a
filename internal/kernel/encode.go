package kernel

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
)

func ingressAdd(o netstate.IngressAdd) *nl.NetlinkRequest {
	return request(unix.RTM_NEWQDISC, create,
		&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(o.Index), Handle: ingressHandle, Parent: ingressParent},
		nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("ingress")))
}

func ingressDel(o netstate.IngressDel) *nl.NetlinkRequest {
	return request(unix.RTM_DELQDISC, 0, &nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(o.Index), Parent: ingressParent})
}

func filterDel(f netstate.Filter) *nl.NetlinkRequest {
	return request(unix.RTM_DELTFILTER, 0, tcFilter(f), nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("u32")))
}

// The ingress qdisc (linux/pkt_sched.h).
const (
	ingressHandle = 0xffff0000 // TC_H_MAKE(TC_H_INGRESS, 0)
	ingressParent = 0xfffffff1 // TC_H_INGRESS
)

// networkOrder16 and networkOrder32 are htons(3) and htonl(3), and their own reverse.
func networkOrder16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func networkOrder32(v uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, v))
}

func tcFilter(f netstate.Filter) *nl.TcMsg {
	return &nl.TcMsg{
		Family:  unix.AF_UNSPEC,
		Ifindex: int32(f.Link),
		Parent:  ingressHandle,
		Info:    uint32(f.Priority)<<16 | uint32(networkOrder16(f.Protocol)),
	}
}

// filterAdd is a u32 classifier (tc-u32(8)) with one action, mirred (tc-mirred(8)).
func filterAdd(f netstate.Filter) *nl.NetlinkRequest {
	selector := nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Nkeys: uint8(len(f.Keys))}
	for _, k := range f.Keys {
		selector.Keys = append(selector.Keys, nl.TcU32Key{Mask: networkOrder32(k.Mask), Val: networkOrder32(k.Value), Off: int32(k.Offset)})
	}
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_U32_SEL, selector.Serialize())
	action := options.AddRtAttr(nl.TCA_U32_ACT, nil).AddRtAttr(1, nil)
	action.AddRtAttr(nl.TCA_ACT_KIND, nl.ZeroTerminated("mirred"))
	redirect := make([]byte, sizeofMirred)
	binary.NativeEndian.PutUint32(redirect[mirredAction:], stolen)
	binary.NativeEndian.PutUint32(redirect[mirredEaction:], redirectEgress)
	binary.NativeEndian.PutUint32(redirect[mirredIfindex:], uint32(f.Target))
	action.AddRtAttr(nl.TCA_ACT_OPTIONS, nil).AddRtAttr(nl.TCA_MIRRED_PARMS, redirect)
	return request(unix.RTM_NEWTFILTER, create, tcFilter(f),
		nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("u32")), options)
}

const (
	redirectEgress = 1 // TCA_EGRESS_REDIR, linux/tc_act/tc_mirred.h
	stolen         = 4 // TC_ACT_STOLEN, linux/pkt_cls.h
)

// struct tc_mirred (linux/tc_act/tc_mirred.h); nl's has a size of 30 octets.
const (
	mirredAction  = 8
	mirredEaction = 20
	mirredIfindex = 24
	sizeofMirred  = 28
)
