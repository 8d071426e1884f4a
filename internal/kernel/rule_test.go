package kernel

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// ruleReport is the kernel's message of a policy rule, without a source if source is not valid.
func ruleReport(family uint8, priority, table uint32, source netip.Prefix, more ...*nl.RtAttr) []byte {
	head := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Table: uint8(table), Type: ruleLookup}}
	parts := []*nl.RtAttr{netlink.Attr32(ruleTable, table), netlink.Attr32(ruleSuppressPrefix, 1<<32-1), nl.NewRtAttr(ruleProtocol, []byte{2})}
	if priority != 0 {
		parts = append(parts, netlink.Attr32(rulePriority, priority))
	}
	if source.IsValid() {
		head.Src_len = uint8(source.Bits())
		parts = append(parts, nl.NewRtAttr(ruleSource, source.Addr().AsSlice()))
	}
	b := head.Serialize()
	for _, p := range append(parts, more...) {
		b = append(b, p.Serialize()...)
	}
	return b
}

func TestParseRule(t *testing.T) {
	source := netip.MustParsePrefix("10.0.0.2/32")
	for _, c := range []struct {
		message []byte
		want    netstate.Rule
		own     bool
	}{
		{ruleReport(unix.AF_INET, 0, 255, netip.Prefix{}), netstate.Rule{Table: 255}, true},
		{ruleReport(unix.AF_INET6, 32766, 254, netip.Prefix{}), netstate.Rule{Priority: 32766, Table: 254, IPv6: true}, true},
		{ruleReport(unix.AF_INET, 32766, 253, netip.Prefix{}), netstate.Rule{Priority: 32766, Table: 253}, false},
		{ruleReport(unix.AF_INET, 100, 1000, source), netstate.Rule{Priority: 100, Table: 1000, Source: source}, false},
		{
			ruleReport(unix.AF_INET, 32766, 254, netip.Prefix{}, nl.NewRtAttr(ruleIn, nl.ZeroTerminated("eth0"))),
			netstate.Rule{Priority: 32766, Table: 254, In: "eth0"}, false,
		},
		{
			ruleReport(unix.AF_INET, 32766, 254, netip.Prefix{}, netlink.Attr32(ruleSuppressPrefix, 0)),
			netstate.Rule{Priority: 32766, Table: 254, Suppress: 1}, false,
		},
		{
			ruleReport(unix.AF_INET, 32766, 254, netip.Prefix{}, netlink.Attr32(ruleMark, 0x10), netlink.Attr32(ruleMask, 0xff)),
			netstate.Rule{Priority: 32766, Table: 254, Mark: 0x10, Mask: 0xff}, false,
		},
		{ruleReport(unix.AF_INET, 1000, 0, netip.Prefix{}, nl.NewRtAttr(ruleVRF, []byte{1})), netstate.Rule{Priority: 1000, VRF: true}, false},
	} {
		have, ofIP, err := parseRule(c.message)
		if err != nil || !ofIP || have != c.want || isOwnRule(have) != c.own {
			t.Errorf("have %+v, %t, %v\nwant %+v, the kernel's own: %t", have, ofIP, err, c.want, c.own)
		}
	}
	toNetwork := ruleReport(unix.AF_INET, 32766, 254, netip.Prefix{}, nl.NewRtAttr(ruleDestination, []byte{10, 1, 0, 0}))
	toNetwork[1], toNetwork[3] = 16, 0x10
	want := netstate.Rule{Priority: 32766, Table: 254, Destination: netip.MustParsePrefix("10.1.0.0/16"), TOS: 0x10}
	if have, _, err := parseRule(toNetwork); err != nil || have != want || isOwnRule(have) {
		t.Errorf("have %+v, %v\nwant %+v", have, err, want)
	}
	copy(toNetwork[8:], nl.Uint32Attr(ruleInvert))
	want.Destination, want.Other = netip.Prefix{}, true
	if have, _, err := parseRule(toNetwork); err != nil || have != want {
		t.Errorf("inverted: have %+v, %v\nwant %+v", have, err, want)
	}
	const multicast = 128 // RTNL_FAMILY_IPMR
	if _, ofIP, err := parseRule(ruleReport(multicast, 32767, 253, netip.Prefix{})); err != nil || ofIP {
		t.Errorf("a rule of multicast routing: %t, %v", ofIP, err)
	}
}

// TestParseOtherRule: a rule that asks for what a Rule has no field for, or does more than look up a table, is Other.
func TestParseOtherRule(t *testing.T) {
	// Octets of struct fib_rule_hdr.
	for what, change := range map[string]func(header []byte){
		"action": func(h []byte) { h[7] = 6 }, // FR_ACT_BLACKHOLE
		"not":    func(h []byte) { copy(h[8:], nl.Uint32Attr(ruleInvert)) },
	} {
		message := ruleReport(unix.AF_INET, 32766, 254, netip.Prefix{})
		change(message)
		if rule, ofIP, err := parseRule(message); err != nil || !ofIP || !rule.Other || isOwnRule(rule) {
			t.Errorf("%s: have %+v, %t, %v", what, rule, ofIP, err)
		}
	}
}
