// Package firewall describes firewall tables as values, for nftables or iptables. It is pure: internal/nft sends the
// tables to nftables and reads them back, and internal/kernel does so for iptables.
//
//   - A [Table] has sets, maps, flow tables and chains of rules. A [Rule] has matches and a [Verdict].
//   - [Table.String] is its text, which nft(8) or iptables-restore(8) can load. [Table.Summary] is for people.
//   - [Table.IPTables] returns the same rules for iptables.
//   - [Table.Counted] adds the chains that count what is dropped, by [Reason].
//   - An [Image] is a table as the kernel holds it. [Image.Equals] compares it with the wanted table,
//     [Image.Differences] says how they differ, and [Image.ChangeTo] returns the [Change] between them.
package firewall

import (
	"fmt"
	"slices"
	"strings"
)

// Table is one nftables table of guestwire, or one chain in a table of others ([Family.Shared]), or guestwire's chains
// in the tables of iptables. It is applied and replaced as a whole.
type Table struct {
	Family Family
	Name   string
	Sets   []Set
	Maps   []PortMap
	Flows  []FlowTable
	Chains []Chain
	// Destinations are sets, too.
	Destinations []Destinations
}

// Family is the nftables family of a table, with the table that others share if it is one, or the iptables program that
// holds the chains.
type Family string

// The families in use.
const (
	Inet   Family = "inet"
	Bridge Family = "bridge"
	NetDev Family = "netdev"
)

// Chain is a base chain, or, without a Hook, a chain that [Jump] and [Goto] name.
type Chain struct {
	Name     string
	Type     string // "filter" or "nat"; in iptables: the table
	Hook     Hook   // empty: no base chain
	Device   string // the link of an Ingress hook
	Link     int    // the link's index, if it may get the name Device after the chain is made; 0: it has the name
	Priority int
	Drops    bool // policy drop; otherwise accept
	Rules    []Rule
}

// Hook is a netfilter hook, by its name in nft(8).
type Hook string

// The hooks in use.
const (
	Ingress     Hook = "ingress"
	Input       Hook = "input"
	Forward     Hook = "forward"
	Output      Hook = "output"
	Prerouting  Hook = "prerouting"
	Postrouting Hook = "postrouting"
)

// Priorities of nftables (nft(8), "standard priority names").
const (
	// BeforeDefrag is before connection tracking puts fragments together (-400, NF_IP_PRI_CONNTRACK_DEFRAG).
	BeforeDefrag = -450
	Raw          = -300
	DstNAT       = -100
	Filter       = 0
	// AfterFilter is for chains that only see what iptables has let pass.
	AfterFilter = 10
	SrcNAT      = 100
	// Last is after the chains of all programs that keep to these names.
	Last = 1000
)

// Rule applies Verdict to the packets for which all Matches hold.
type Rule struct {
	Matches []Match
	Verdict Verdict
}

func (r Rule) String() string {
	var room [8]string // few rules have more words, and each rule is written several times in a Setup
	words := room[:0]
	for _, m := range r.Matches {
		words = append(words, m.String())
	}
	return strings.Join(append(words, r.Verdict.String()), " ")
}

// Head returns the declaration of a base chain in nft's words, without the rules.
func (c Chain) Head() string {
	device, policy := "", "accept"
	if c.Device != "" {
		device = fmt.Sprintf(" device %q", c.Device)
	}
	if c.Drops {
		policy = "drop"
	}
	return fmt.Sprintf("type %s hook %s%s priority %d; policy %s;", c.Type, c.Hook, device, c.Priority, policy)
}

// Resolve returns a copy of the table in which each [Fwd] has the index of its link. The receiver is unchanged. Chains
// without a Fwd are the receiver's.
func (t Table) Resolve(index func(link string) int) Table {
	t.Chains = slices.Clone(t.Chains)
	for i, c := range t.Chains {
		cloned := false
		for j, r := range c.Rules {
			to, ok := r.Verdict.(Fwd)
			if !ok {
				continue
			}
			if !cloned {
				c.Rules, cloned = slices.Clone(c.Rules), true
			}
			to.Index = index(to.Device)
			c.Rules[j].Verdict = to
		}
		t.Chains[i].Rules = c.Rules
	}
	return t
}
