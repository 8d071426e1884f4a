package kernel

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
)

// The kernel's own rules: 0 for table local, 32766 for main, 32767 for default.
var ownRules = map[uint32]uint32{0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN, 32767: unix.RT_TABLE_DEFAULT}

// Attributes of a rule (linux/fib_rules.h).
const (
	ruleSource         = 2
	rulePriority       = 6
	ruleSuppressPrefix = 14
	ruleTable          = 15
	rulePad            = 18
	ruleProtocol       = 21

	ruleInvert = 2 // FIB_RULE_INVERT
	ruleLookup = 1 // FR_ACT_TO_TBL
)

func (n *Namespace) readRules(s *netstate.Snapshot) error {
	r := request(unix.RTM_GETRULE, unix.NLM_F_DUMP, &nl.RtMsg{})
	main := map[bool]bool{}
	err := n.route.dump(r, func() { s.Rules = nil; clear(main) }, func(m []byte) error {
		if len(m) < unix.SizeofRtMsg {
			return errors.New("netlink: a message was cut short")
		}
		head := nl.DeserializeRtMsg(m)
		if head.Family != unix.AF_INET && head.Family != unix.AF_INET6 {
			return nil // those of multicast routing
		}
		rule := netstate.Rule{Table: uint32(head.Table), IPv6: head.Family == unix.AF_INET6}
		// struct fib_rule_hdr has the action where a route has its type.
		rule.Other = head.Type != ruleLookup || head.Flags&ruleInvert != 0 || head.Tos != 0 || head.Dst_len != 0
		err := attributes(m, unix.SizeofRtMsg, func(kind uint16, v []byte) error {
			switch kind {
			case rulePriority:
				rule.Priority = u32(v)
			case ruleTable:
				rule.Table = u32(v)
			case ruleSource:
				if a, ok := netip.AddrFromSlice(v); ok {
					rule.Source = netip.PrefixFrom(a, int(head.Src_len))
				}
			case ruleSuppressPrefix:
				rule.Other = rule.Other || int32(u32(v)) != -1
			case rulePad, ruleProtocol:
			default:
				rule.Other = true
			}
			return nil
		})
		table, own := ownRules[rule.Priority]
		if own = own && table == rule.Table && !rule.Other && !rule.Source.IsValid(); !own {
			s.Rules = append(s.Rules, rule)
		} else if table == unix.RT_TABLE_MAIN {
			main[rule.IPv6] = true
		}
		return err
	})
	s.NoMain = nil
	for version, there := range map[int]bool{4: main[false], 6: main[true]} {
		if !there {
			s.NoMain = append(s.NoMain, version)
		}
	}
	slices.Sort(s.NoMain)
	return err
}
