package guestfilter

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// EtherTypes of VLAN tags. The others have no standard, and switches know them.
const (
	tag8021Q  = 0x8100
	tag8021ad = 0x88a8
	tagQinQ   = 0x9100
	tagQinQ2  = 0x9200
	tagQinQ3  = 0x9300
)

var tags = []uint16{tag8021Q, tag8021ad, tagQinQ, tagQinQ2, tagQinQ3}

func etherType(kind uint16) firewall.Match {
	return firewall.Bytes{Header: firewall.Ethernet, Offset: 12, Value: binary.BigEndian.AppendUint16(nil, kind)}
}

// vlan matches the frames with an 802.1Q tag of a VLAN, or of a block of VLANs whose IDs agree in the bits of mask.
// With kinds, the frame after the tag has that EtherType.
func vlan(id, mask uint16, kind ...uint16) firewall.Match {
	m := firewall.Bytes{Header: firewall.Ethernet, Offset: 12}
	m.Value = binary.BigEndian.AppendUint16([]byte{tag8021Q >> 8, tag8021Q & 0xff}, id)
	m.Mask = binary.BigEndian.AppendUint16([]byte{0xff, 0xff}, mask)
	for _, k := range kind {
		m.Value, m.Mask = binary.BigEndian.AppendUint16(m.Value, k), append(m.Mask, 0xff, 0xff)
	}
	return m
}

// passVLANs lets the frames of the guard's VLANs pass, except for frames with a second tag, for whose drop hop is the
// reason: the first switch could remove the outer tag, and the inner one names any VLAN.
func (g guest) passVLANs(pass firewall.Verdict, hop firewall.Reason) []firewall.Rule {
	blocks := vlanBlocks(g.Guard.VLANs)
	if len(blocks) == 0 {
		return nil
	}
	var rules []firewall.Rule
	for _, inner := range tags {
		rules = append(rules, rule(drop(hop), vlan(0, 0, inner)))
	}
	for _, b := range blocks {
		rules = append(rules, rule(pass, vlan(b.id, b.mask)))
	}
	return rules
}

// passPriority sends the frames with a priority tag, which is a tag of VLAN 0, the way of the frames without a tag:
// hosts ignore such a tag. Of are the rules for one of the EtherTypes that the filter knows, after the match of the
// tag.
func (g guest) passPriority(pass firewall.Verdict, of func(kind uint16) []firewall.Rule) []firewall.Rule {
	if !slices.Contains(g.Guard.VLANs, 0) {
		return nil
	}
	var rules []firewall.Rule
	for _, kind := range []uint16{netstate.EthernetIPv4, netstate.EthernetIPv6, netstate.EthernetARP} {
		for _, r := range of(kind) {
			r.Matches = append([]firewall.Match{vlan(0, maskVLAN, kind)}, r.Matches...)
			rules = append(rules, r)
		}
	}
	for _, e := range g.Guard.EtherTypes {
		rules = append(rules, rule(pass, vlan(0, maskVLAN, uint16(e))))
	}
	return rules
}

// priorityToResponder sends to the responder what tc sends there of the frames without a tag. The classifier of tc
// cannot read the VLAN of a tag.
func (g guest) priorityToResponder() []firewall.Rule {
	if !slices.Contains(g.Guard.VLANs, 0) {
		return nil
	}
	var rules []firewall.Rule
	for _, f := range g.Asked {
		matches := []firewall.Match{vlan(0, maskVLAN, f.Protocol)}
		for _, k := range f.Keys {
			m := firewall.Bytes{Header: firewall.Network, Offset: k.Offset, Value: binary.BigEndian.AppendUint32(nil, k.Value)}
			if k.Mask != math.MaxUint32 {
				m.Mask = binary.BigEndian.AppendUint32(nil, k.Mask)
			}
			matches = append(matches, m)
		}
		rules = append(rules, rule(firewall.Fwd{Device: g.Names.Responder}, matches...))
	}
	return rules
}

// onlyVLANs are the rules for a guest that receives all frames without a tag: of those with a tag, the guard's alone.
func (g guest) onlyVLANs(pass firewall.Verdict) []firewall.Rule {
	if len(g.Guard.VLANs) == 0 {
		return nil
	}
	any := func(uint16) []firewall.Rule { return []firewall.Rule{rule(pass)} }
	rules := append(g.passVLANs(pass, firewall.NetworkFrame), g.passPriority(pass, any)...)
	for _, tag := range tags {
		rules = append(rules, rule(drop(firewall.NetworkFrame), etherType(tag)))
	}
	return rules
}

// passTypes lets the frames of the guard's EtherTypes pass.
func (g guest) passTypes(pass firewall.Verdict) []firewall.Rule {
	var rules []firewall.Rule
	for _, e := range g.Guard.EtherTypes {
		rules = append(rules, rule(pass, etherType(uint16(e))))
	}
	return rules
}

// maskVLAN is the mask of the VLAN's ID in a tag; the other bits are the priority.
const maskVLAN = 0x0fff

// vlanBlock are the VLANs whose IDs agree with id in the bits of mask.
type vlanBlock struct{ id, mask uint16 }

// vlanBlocks returns the fewest blocks that hold these VLANs and no other, without VLAN 0, which is a priority tag. All
// VLANs of a trunk become 22 blocks, and so 22 rules.
func vlanBlocks(ids []uint16) []vlanBlock {
	var has [maskVLAN + 1]bool
	for _, id := range ids {
		has[id] = id != 0
	}
	var blocks []vlanBlock
	for id := 0; id < len(has); {
		if !has[id] {
			id++
			continue
		}
		size := 1
		for id%(2*size) == 0 && !slices.Contains(has[id+size:id+2*size], false) {
			size *= 2
		}
		blocks = append(blocks, vlanBlock{uint16(id), maskVLAN &^ uint16(size-1)})
		id += size
	}
	return blocks
}
