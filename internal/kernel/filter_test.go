package kernel

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/netlinktest"
)

var testFilter = netstate.Filter{
	Link: 7, Priority: 3, Protocol: netstate.EthernetIPv4, Target: 9, Keys: []netstate.Key{
		{Offset: 8, Mask: 0x00ff0000, Value: 0x00110000},
		{Offset: -4, Mask: 0xffff, Value: 67},
	},
}

var clearingFilter = netstate.Filter{Link: 7, Priority: 3, Protocol: netstate.EthernetIPv4, Keys: []netstate.Key{{}}, Clears: true}

func TestFilterRoundTrip(t *testing.T) {
	for _, want := range []netstate.Filter{testFilter, clearingFilter, {Link: 7, Priority: 1, Protocol: netstate.EthernetAll, Target: 9}, {Link: 7, Priority: 1, Protocol: netstate.EthernetAll, Target: 9, Ingress: true}, {Link: 7, Priority: 1, Protocol: netstate.EthernetARP, Target: 9, Copies: true}} {
		have, whole, err := parseFilter(body(t, netstate.FilterAdd{Filter: want}))
		if err != nil || !whole || !reflect.DeepEqual(have, want) {
			t.Errorf("have %+v, %t, %v\nwant %+v", have, whole, err, want)
		}
	}
}

// TestForeignFilter: a filter that encodeFilterAdd would not make is foreign.
func TestForeignFilter(t *testing.T) {
	attribute := func(kind int, value []byte) []byte { return nl.NewRtAttr(kind, value).Serialize() }
	header := func(kind string) []byte {
		return append(filterHeader(netstate.Filter{Link: 7, Priority: 1}).Serialize(), attribute(nl.TCA_KIND, nl.ZeroTerminated(kind))...)
	}
	options := netlinktest.Inside(t, body(t, netstate.FilterAdd{Filter: testFilter}), nl.SizeofTcMsg, nl.TCA_OPTIONS)
	selector := netlinktest.Inside(t, options, 0, nl.TCA_U32_SEL)
	action := netlinktest.Inside(t, options, 0, nl.TCA_U32_ACT)
	other := slices.Clone(selector)
	other[0] = 0 // not terminal
	moving := slices.Clone(selector)
	copy(moving[nl.SizeofTcU32Sel+12:], nl.Uint32Attr(1)) // off_mask of the first key
	for want, message := range map[string][]byte{
		"flower":                     header("flower"),
		"u32 in chain 1":             slices.Concat(header("u32"), attribute(nl.TCA_CHAIN, nl.Uint32Attr(1)), attribute(nl.TCA_OPTIONS, options)),
		"u32 with attribute 6":       slices.Concat(header("u32"), attribute(nl.TCA_OPTIONS, slices.Concat(options, attribute(nl.TCA_U32_POLICE, nil)))),
		"u32 that does not redirect": slices.Concat(header("u32"), attribute(nl.TCA_OPTIONS, attribute(nl.TCA_U32_SEL, selector))),
		"u32 with another selector":  slices.Concat(header("u32"), attribute(nl.TCA_OPTIONS, slices.Concat(attribute(nl.TCA_U32_SEL, other), attribute(nl.TCA_U32_ACT, action)))),
		"u32 with a moving offset":   slices.Concat(header("u32"), attribute(nl.TCA_OPTIONS, slices.Concat(attribute(nl.TCA_U32_SEL, moving), attribute(nl.TCA_U32_ACT, action)))),
		"u32 with more actions":      slices.Concat(header("u32"), attribute(nl.TCA_OPTIONS, slices.Concat(attribute(nl.TCA_U32_SEL, selector), attribute(nl.TCA_U32_ACT, slices.Concat(action, action))))),
	} {
		if f, whole, err := parseFilter(message); err != nil || !whole || f.Foreign != want {
			t.Errorf("have %q, %t, %v; want %q", f.Foreign, whole, err, want)
		}
	}
	for _, mirror := range []uint32{2, 4} { // TCA_EGRESS_MIRROR, TCA_INGRESS_MIRROR
		target := nl.Uint32Attr(9)
		at := bytes.LastIndex(action, slices.Concat(nl.Uint32Attr(redirectEgress), target))
		mirrors := slices.Concat(action[:at], nl.Uint32Attr(mirror), action[at+4:])
		message := slices.Concat(header("u32"), attribute(nl.TCA_OPTIONS, slices.Concat(attribute(nl.TCA_U32_SEL, selector), attribute(nl.TCA_U32_ACT, mirrors))))
		if f, whole, err := parseFilter(message); err != nil || !whole || f.Foreign != "u32 that does not redirect" {
			t.Errorf("mirror %d: have %q, %t, %v", mirror, f.Foreign, whole, err)
		}
	}
	clears := netlinktest.Inside(t, netlinktest.Inside(t, body(t, netstate.FilterAdd{Filter: clearingFilter}), nl.SizeofTcMsg, nl.TCA_OPTIONS), 0, nl.TCA_U32_ACT)
	for name, change := range map[string][2][]byte{
		"ends the frame's way": {nl.Uint32Attr(goOn), nl.Uint32Attr(stolen)},
		"takes tags off":       {nl.Uint32Attr(modifyVLAN), nl.Uint32Attr(1)},
		"another tag":          {attribute(nl.TCA_VLAN_PUSH_VLAN_ID, nl.Uint16Attr(someVLAN)), attribute(nl.TCA_VLAN_PUSH_VLAN_ID, nl.Uint16Attr(2))},
	} {
		at := bytes.LastIndex(clears, change[0])
		other := slices.Concat(clears[:at], change[1], clears[at+len(change[1]):])
		message := slices.Concat(header("u32"), attribute(nl.TCA_OPTIONS, slices.Concat(attribute(nl.TCA_U32_SEL, selector), attribute(nl.TCA_U32_ACT, other))))
		if f, whole, err := parseFilter(message); err != nil || !whole || f.Foreign != "u32 that does not redirect" {
			t.Errorf("%s: have %+v, %t, %v", name, f, whole, err)
		}
	}
	if _, whole, err := parseFilter(header("u32")); err != nil || whole {
		t.Errorf("a message that stands for a hash table: %t, %v", whole, err)
	}
}

func TestQdiscRoundTrip(t *testing.T) {
	m := body(t, netstate.IngressAdd{Index: 7})
	if have, err := parseQdisc(m); err != nil || have != (qdisc{link: 7, parent: ingressParent}) {
		t.Errorf("have %+v, %v", have, err)
	}
	for _, block := range []int{nl.TCA_INGRESS_BLOCK, nl.TCA_EGRESS_BLOCK} {
		shared := slices.Concat(m, netlink.Attr32(block, 1).Serialize())
		if have, err := parseQdisc(shared); err != nil || have.foreign != "qdisc with a shared block" {
			t.Errorf("have %+v, %v", have, err)
		}
	}
	if have, err := parseQdisc(body(t, netstate.IngressAdd{Index: 7, Clsact: true})); err != nil || have != (qdisc{link: 7, parent: ingressParent, clsact: true}) {
		t.Errorf("have %+v, %v", have, err)
	}
	other := append((&nl.TcMsg{Ifindex: 7, Parent: ingressParent}).Serialize(), nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("other")).Serialize()...)
	if have, err := parseQdisc(other); err != nil || have.foreign != "other qdisc" {
		t.Errorf("have %+v, %v", have, err)
	}
}
