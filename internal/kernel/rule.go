package kernel

import (
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// ownRules are the tables of the kernel's own rules, by priority.
var ownRules = map[uint32]uint32{0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN, 32767: unix.RT_TABLE_DEFAULT}

// Attributes of a rule (linux/fib_rules.h, FRA_*), a flag and an action.
const (
	ruleDestination    = 1
	ruleSource         = 2
	ruleIn             = 3 // FRA_IIFNAME
	rulePriority       = 6
	ruleMark           = 10
	ruleSuppressPrefix = 14
	ruleTable          = 15
	ruleMask           = 16 // FRA_FWMASK
	rulePad            = 18
	ruleVRF            = 19 // FRA_L3MDEV
	ruleProtocol       = 21

	ruleInvert = 2 // FIB_RULE_INVERT
	ruleLookup = 1 // FR_ACT_TO_TBL
)

// readRules reads the policy rules without the kernel's own, and for which versions of IP the kernel's rule
// for table main is missing.
func readRules(route *netlink.Socket, s *netstate.Snapshot) error {
	r := netlink.NewRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP, &nl.RtMsg{})
	var main map[ip.Version]bool
	err := route.Dump(r, func() { s.Rules, main = nil, map[ip.Version]bool{} }, func(m []byte) error {
		rule, ofIP, err := parseRule(m)
		switch {
		case err != nil || !ofIP:
		case !isOwnRule(rule):
			s.Rules = append(s.Rules, rule)
		case rule.Table == unix.RT_TABLE_MAIN:
			main[rule.Version()] = true
		}
		return err
	})
	s.NoMain = nil
	for _, v := range ip.Both {
		if !main[v] {
			s.NoMain = append(s.NoMain, v)
		}
	}
	return err
}

// isOwnRule reports whether a rule is one of the kernel's three, unchanged.
func isOwnRule(r netstate.Rule) bool {
	table, own := ownRules[r.Priority]
	return own && r == netstate.Rule{Priority: r.Priority, Table: table, IPv6: r.IPv6}
}

// parseRule parses struct fib_rule_hdr (linux/fib_rules.h) and its attributes. ofIP is false for a
// rule of multicast routing, which has a family of its own.
func parseRule(m []byte) (rule netstate.Rule, ofIP bool, err error) {
	if len(m) < unix.SizeofRtMsg {
		return rule, false, netlink.ErrCutShort
	}
	head := nl.DeserializeRtMsg(m)
	if head.Family != unix.AF_INET && head.Family != unix.AF_INET6 {
		return rule, false, nil
	}
	rule = netstate.Rule{Table: uint32(head.Table), IPv6: head.Family == unix.AF_INET6}
	// struct fib_rule_hdr has the shape of struct rtmsg, with the action in the place of the type.
	rule.Other, rule.TOS = head.Type != ruleLookup || head.Flags&ruleInvert != 0, head.Tos
	err = netlink.EachAttribute(m, unix.SizeofRtMsg, func(kind uint16, v []byte) error {
		switch kind {
		case rulePriority:
			rule.Priority = netlink.U32(v)
		case ruleTable:
			rule.Table = netlink.U32(v)
		case ruleSource:
			if a, ok := netip.AddrFromSlice(v); ok {
				rule.Source = netip.PrefixFrom(a, int(head.Src_len))
			}
		case ruleDestination:
			if a, ok := netip.AddrFromSlice(v); ok {
				rule.Destination = netip.PrefixFrom(a, int(head.Dst_len))
			}
		case ruleIn:
			rule.In = unix.ByteSliceToString(v)
		case ruleMark:
			rule.Mark = netlink.U32(v)
		case ruleMask:
			rule.Mask = netlink.U32(v)
		case ruleSuppressPrefix:
			rule.Suppress = int(int32(netlink.U32(v))) + 1
		case ruleVRF:
			rule.VRF = true
		case rulePad, ruleProtocol:
		default:
			rule.Other = true
		}
		return nil
	})
	if head.Flags&ruleInvert != 0 {
		rule.Source, rule.Destination = netip.Prefix{}, netip.Prefix{} // it is for the packets of others
	}
	return rule, true, err
}
