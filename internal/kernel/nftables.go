package kernel

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
)

var families = map[firewall.Family]nftables.TableFamily{
	firewall.Inet:   nftables.TableFamilyINet,
	firewall.Bridge: nftables.TableFamilyBridge,
}

var hooks = map[firewall.Hook]*nftables.ChainHook{
	firewall.Input:       nftables.ChainHookInput,
	firewall.Prerouting:  nftables.ChainHookPrerouting,
	firewall.Postrouting: nftables.ChainHookPostrouting,
}

var errEncoded = errors.New("encoded")

// encodeTables returns the messages of one transaction, the frame around it included. The library's own Flush asks for one
// acknowledgement a message, which takes ten times as long as the commit itself; so it is used to
// encode, with a connection that keeps what it is given.
func encodeTables(ops []infra.Op) ([][]byte, error) {
	var encoded []netlink.Message
	c, err := nftables.New(nftables.WithTestDial(func(messages []netlink.Message) ([]netlink.Message, error) {
		encoded = append(encoded, messages...)
		return nil, errEncoded
	}))
	if err != nil {
		return nil, err
	}
	for _, op := range ops {
		switch o := op.(type) {
		case infra.TableSet:
			addTable(c, o.Table)
		case infra.TableDel:
			c.DelTable(&nftables.Table{Family: families[o.Family], Name: o.Name})
		}
	}
	if err := c.Flush(); !errors.Is(err, errEncoded) && len(encoded) == 0 {
		return nil, fmt.Errorf("encode nftables rules: %w", err)
	}
	var messages [][]byte
	for _, m := range encoded {
		m.Header.Flags &^= netlink.Acknowledge | netlink.Echo
		m.Header.Length = uint32(unix.NLMSG_HDRLEN + len(m.Data))
		raw, err := m.MarshalBinary()
		if err != nil {
			return nil, fmt.Errorf("encode nftables rules: %w", err)
		}
		messages = append(messages, raw)
	}
	return messages, nil
}

func addTable(c *nftables.Conn, table firewall.Table) {
	t := c.AddTable(&nftables.Table{Family: families[table.Family], Name: table.Name})
	accept := nftables.ChainPolicyAccept
	for _, chain := range table.Chains {
		priority := nftables.ChainPriority(int32(chain.Priority))
		ch := c.AddChain(&nftables.Chain{
			Table: t, Name: chain.Name, Type: nftables.ChainType(chain.Type),
			Hooknum: hooks[chain.Hook], Priority: &priority, Policy: &accept,
		})
		for _, rule := range chain.Rules {
			c.AddRule(&nftables.Rule{
				Table: t, Chain: ch, Exprs: ruleExpressions(rule),
				UserData: userdata.AppendString(nil, userdata.TypeComment, rule.Comment()),
			})
		}
	}
}

func ruleExpressions(r firewall.Rule) []expr.Any {
	var e []expr.Any
	for _, m := range r.Matches {
		switch m := m.(type) {
		case firewall.InInterface:
			e = append(e, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, compareName(m.Name, expr.CmpOpEq))
		case firewall.OutInterface:
			op := expr.CmpOpEq
			if m.Not {
				op = expr.CmpOpNeq
			}
			e = append(e, &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, compareName(m.Name, op))
		case firewall.IPv6:
			e = append(e,
				&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0x86, 0xdd}})
		case firewall.Destination:
			protocol, offset := byte(unix.NFPROTO_IPV4), uint32(16)
			if m.Address.Is6() {
				protocol, offset = unix.NFPROTO_IPV6, 24
			}
			e = append(e,
				&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(m.Address.BitLen() / 8)},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: m.Address.AsSlice()})
		}
	}
	switch v := r.Verdict.(type) {
	case firewall.Drop:
		e = append(e, &expr.Verdict{Kind: expr.VerdictDrop})
	case firewall.Masquerade:
		e = append(e, &expr.Masq{})
	case firewall.DNAT:
		e = append(e,
			&expr.Immediate{Register: 1, Data: v.Address.AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family(v.Address)), RegAddrMin: 1})
	}
	return e
}

func compareName(name string, op expr.CmpOp) *expr.Cmp {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return &expr.Cmp{Op: op, Register: 1, Data: padded}
}
