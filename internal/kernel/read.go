package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
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

func (n *Namespace) rules(s *netstate.Snapshot) error {
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

// filters reads the ingress qdisc of a link and the u32 classifiers in it.
func (n *Namespace) filters(s *netstate.Snapshot, link int) error {
	ingress, filters := s.Ingress, s.Filters
	r := request(unix.RTM_GETQDISC, unix.NLM_F_DUMP, &nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(link)})
	err := n.route.dump(r, func() { s.Ingress, s.Filters = ingress, filters }, func(m []byte) error {
		if len(m) < nl.SizeofTcMsg || nl.DeserializeTcMsg(m).Parent != ingressParent || nl.DeserializeTcMsg(m).Ifindex != int32(link) {
			return nil
		}
		foreign, err := foreignQdisc(m)
		if foreign != "" {
			s.Filters = append(s.Filters, netstate.Filter{Link: link, Foreign: foreign})
		} else {
			s.Ingress = append(s.Ingress, link)
		}
		return err
	})
	if err != nil {
		return err
	}
	filters = s.Filters
	r = request(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, &nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(link), Parent: ingressHandle})
	return n.route.dump(r, func() { s.Filters = filters }, func(m []byte) error {
		f, whole, err := parseFilter(m)
		if whole {
			s.Filters = append(s.Filters, f)
		}
		return err
	})
}

// foreignQdisc says what a qdisc at the ingress is unless it is a link's own and plain.
func foreignQdisc(m []byte) (foreign string, err error) {
	err = attributes(m, nl.SizeofTcMsg, func(kind uint16, v []byte) error {
		switch name := unix.ByteSliceToString(v); {
		case kind == nl.TCA_KIND && name != "ingress":
			foreign = name + " qdisc"
		case kind == nl.TCA_INGRESS_BLOCK:
			foreign = "qdisc with a shared block"
		}
		return nil
	})
	return foreign, err
}

// parseFilter returns whole = false for the messages that stand for hash tables and not for a
// classifier. What it has that none of ours has makes it a foreign one.
func parseFilter(m []byte) (f netstate.Filter, whole bool, err error) {
	if len(m) < nl.SizeofTcMsg {
		return f, false, errors.New("netlink: a message was cut short")
	}
	head := nl.DeserializeTcMsg(m)
	f.Link = int(head.Ifindex)
	f.Priority = uint16(head.Info >> 16)
	f.Protocol = networkOrder16(uint16(head.Info))
	var options []byte
	err = attributes(m, nl.SizeofTcMsg, func(kind uint16, v []byte) error {
		switch kind {
		case nl.TCA_KIND:
			if name := unix.ByteSliceToString(v); name != "u32" {
				f.Foreign = name
			}
		case nl.TCA_CHAIN:
			if chain := u32(v); chain != 0 && f.Foreign == "" {
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
	return parseU32(options, f)
}

// parseU32 reads the options of a classifier.
func parseU32(options []byte, f netstate.Filter) (_ netstate.Filter, whole bool, err error) {
	redirects := false
	err = attributes(options, 0, func(kind uint16, v []byte) error {
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
			redirects, err = parseRedirect(v, &f)
			return err
		case nl.TCA_U32_CLASSID, nl.TCA_U32_LINK, nl.TCA_U32_POLICE, nl.TCA_U32_INDEV, nl.TCA_U32_MARK:
			f.Foreign = fmt.Sprintf("u32 with attribute %d", kind)
		}
		return nil
	})
	if !redirects && f.Foreign == "" {
		f.Foreign = "u32 that does not redirect"
	}
	return f, whole, err
}

// parseRedirect reads the actions, of which there must be one.
func parseRedirect(actions []byte, f *netstate.Filter) (redirects bool, err error) {
	count := 0
	err = attributes(actions, 0, func(_ uint16, action []byte) error {
		if count++; count > 1 {
			f.Foreign = "u32 with more actions"
		}
		return attributes(action, 0, func(kind uint16, v []byte) error {
			switch kind {
			case nl.TCA_ACT_KIND:
				if name := unix.ByteSliceToString(v); name != "mirred" {
					f.Foreign = "u32 with the action " + name
				}
			case nl.TCA_ACT_OPTIONS:
				return attributes(v, 0, func(kind uint16, v []byte) error {
					if kind == nl.TCA_MIRRED_PARMS && len(v) >= sizeofMirred && u32(v[mirredEaction:]) == redirectEgress && u32(v[mirredAction:]) == stolen {
						redirects, f.Target = true, int(u32(v[mirredIfindex:])) // 0: to a link that has gone
					}
					return nil
				})
			}
			return nil
		})
	})
	return redirects, err
}
