// Package firewall describes firewall tables as values, for nftables or iptables. The package is pure:
// internal/kernel applies the tables and reads them back as an [Image].
//
// The text of a [Table] can be loaded by nft(8) or iptables-restore(8).
package firewall

import (
	"fmt"
	"reflect"
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

// String returns the table as nft -f or iptables-restore --noflush reads it.
func (t Table) String() string {
	if t.Family.IPTables() != 0 {
		return t.restoreText()
	}
	var b strings.Builder
	contexts := t.contexts()
	fmt.Fprintf(&b, "table %s {\n", t.Family.where(t.Name))
	for _, s := range t.Sets {
		fmt.Fprintf(&b, "\t%s\n", s)
	}
	for _, m := range t.Maps {
		fmt.Fprintf(&b, "\t%s\n", m)
	}
	for _, s := range t.Destinations {
		fmt.Fprintf(&b, "\t%s\n", s)
	}
	for _, f := range t.Flows {
		fmt.Fprintf(&b, "\t%s\n", f)
	}
	for _, c := range t.Chains {
		fmt.Fprintf(&b, "\tchain %s {\n", c.Name)
		if c.Hook != "" {
			fmt.Fprintf(&b, "\t\t%s\n", c.Head())
		}
		for _, r := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s", r)
			if comment := r.comment(contexts[c.Name]); comment != "" {
				b.WriteString(" # " + comment)
			}
			b.WriteByte('\n')
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
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

// Image is the content of a table in the kernel, also of parts that this package cannot describe. It is for
// comparison, and for the journal.
type Image struct {
	Family Family `json:"family"`
	Name   string `json:"name"`
	// Flags are the NFT_TABLE_F_ flags; a guestwire table has none.
	Flags uint32 `json:"flags,omitempty"`
	// Sets, Flows and Chains are sorted by Name. Sets has the maps of ports and the destinations as well.
	Sets   []Declaration `json:"sets,omitempty"`
	Flows  []Declaration `json:"flows,omitempty"`
	Chains []ChainImage  `json:"chains,omitempty"`
	// Others is the number of objects of other kinds; a guestwire table has none.
	Others int `json:"others,omitempty"`

	held *Table // not nil: the image is that of this table, and Sets, Flows and Chains are not written
}

// ChainImage is a chain of an [Image].
type ChainImage struct {
	Name string `json:"name"`
	Head string `json:"head"` // [Chain.Head], or [IPTablesHead]
	// Rules are the texts of the rules in order. The text of a rule that guestwire does not write begins
	// with Unknown.
	Rules []string `json:"rules,omitempty"`
}

// Unknown begins the text of a rule that guestwire does not write.
const Unknown = "not a rule of guestwire"

// Image returns what the kernel holds after the table is applied.
func (t Table) Image() Image { return t.image(true, true) }

// Outline returns the image without the rules.
func (t Table) Outline() Image { return t.image(false, true) }

// image leaves out the rules, or the boxes of destinations, which take long to write.
func (t Table) image(rules, boxes bool) Image {
	image := Image{Family: t.Family, Name: t.Name}
	for _, s := range t.Sets {
		image.Sets = append(image.Sets, Declaration{Name: s.Name, Head: s.Head()})
	}
	for _, m := range t.Maps {
		image.Sets = append(image.Sets, Declaration{Name: m.Name, Head: m.Head()})
	}
	for _, s := range t.Destinations {
		if !boxes {
			s.Boxes = nil
		}
		image.Sets = append(image.Sets, Declaration{Name: s.Name, Head: s.Head()})
	}
	for _, f := range t.Flows {
		image.Flows = append(image.Flows, Declaration{Name: f.Name, Head: f.Head()})
	}
	for _, c := range t.Chains {
		chain := ChainImage{Name: c.Name}
		iptables := t.Family.IPTables() != 0
		switch {
		case iptables && c.Hook != "":
			chain.Head = IPTablesHead(c.Type, c.Hook.BuiltIn())
		case iptables:
			chain.Head = IPTablesHead(c.Type)
		case c.Hook != "":
			chain.Head = c.Head()
		}
		for _, r := range c.Rules {
			switch {
			case !rules:
			case iptables:
				chain.Rules = append(chain.Rules, r.IPTables())
			default:
				chain.Rules = append(chain.Rules, r.String())
			}
		}
		image.Chains = append(image.Chains, chain)
	}
	slices.SortFunc(image.Sets, func(a, b Declaration) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(image.Flows, func(a, b Declaration) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(image.Chains, func(a, b ChainImage) int { return strings.Compare(a.Name, b.Name) })
	return image
}

// Held returns the image of the table without its texts, which only people and other tables need: [Image.WithTexts]
// writes them.
func (t Table) Held() Image { return Image{Family: t.Family, Name: t.Name, held: &t} }

// WithTexts returns the image with all texts.
func (i Image) WithTexts() Image {
	if i.held != nil {
		return i.held.Image()
	}
	return i
}

// Size is the number of chains, sets and other objects of the table, as the kernel counts them (NFTA_TABLE_USE).
func (i Image) Size() int {
	if t := i.held; t != nil {
		return len(t.Chains) + len(t.Sets) + len(t.Maps) + len(t.Destinations) + len(t.Flows)
	}
	return len(i.Chains) + len(i.Sets) + len(i.Flows) + i.Others
}

// Offloads reports whether the table has a flow table.
func (i Image) Offloads() bool { return len(i.Flows) > 0 || i.held != nil && len(i.held.Flows) > 0 }

// Equals reports whether the image is that of the table.
func (i Image) Equals(t Table) bool {
	if i.held != nil {
		return i.held.equal(t)
	}
	return reflect.DeepEqual(i, t.Image())
}

// equal reports whether two tables have equal sets, maps, flow tables, chains and rules, and so the same image.
func (t Table) equal(o Table) bool {
	return t.Family == o.Family && t.Name == o.Name &&
		slices.EqualFunc(t.Sets, o.Sets, func(a, b Set) bool {
			return a.Name == b.Name && a.Of == b.Of && a.Size == b.Size && a.Milliseconds == b.Milliseconds
		}) &&
		slices.EqualFunc(t.Maps, o.Maps, func(a, b PortMap) bool { return a.Name == b.Name && slices.Equal(a.Ranges, b.Ranges) }) &&
		slices.EqualFunc(t.Destinations, o.Destinations, func(a, b Destinations) bool {
			return a.Name == b.Name && a.Version == b.Version && a.AllPorts == b.AllPorts && slices.Equal(a.Boxes, b.Boxes)
		}) &&
		slices.EqualFunc(t.Flows, o.Flows, func(a, b FlowTable) bool { return a.Name == b.Name && a.Head() == b.Head() }) &&
		slices.EqualFunc(t.Chains, o.Chains, func(a, b Chain) bool {
			return a.Name == b.Name && a.Type == b.Type && a.Hook == b.Hook && a.Device == b.Device && a.Priority == b.Priority && a.Drops == b.Drops &&
				equalRules(a.Rules, b.Rules)
		})
}

// equalRules reports whether two chains have equal rules. Those of the plan, and of what Setup has made of it, are in
// one place in memory.
func equalRules(a, b []Rule) bool {
	return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0] || slices.EqualFunc(a, b, Rule.equal)
}

// equal reports whether two rules have equal matches and verdicts, and so one text.
func (r Rule) equal(o Rule) bool {
	if !slices.EqualFunc(r.Matches, o.Matches, func(a, b Match) bool { return reflect.DeepEqual(a, b) }) {
		return false
	}
	a, isFwd := r.Verdict.(Fwd)
	if b, is := o.Verdict.(Fwd); is && isFwd {
		return a.Device == b.Device // the text has no index
	}
	return r.Verdict == o.Verdict
}

// dormant is NFT_TABLE_F_DORMANT (linux/netfilter/nf_tables.h): the table's chains are not in force.
const dormant = 1

// Differences describes how the image differs from the wanted one, a sentence each; none if they are equal.
func (i Image) Differences(want Image) []string {
	i = i.WithTexts()
	var d []string
	if i.Flags&dormant != 0 {
		d = append(d, "the table is dormant")
	}
	if f := i.Flags &^ dormant; f != want.Flags {
		d = append(d, fmt.Sprintf("the table has the flags %#x", f))
	}
	if i.Others != want.Others {
		d = append(d, fmt.Sprintf("the table has %d objects of another program", i.Others))
	}
	d = append(d, differences("set", i.Sets, want.Sets)...)
	d = append(d, differences("flow table", i.Flows, want.Flows)...)
	for _, w := range want.Chains {
		at := slices.IndexFunc(i.Chains, func(c ChainImage) bool { return c.Name == w.Name })
		if at < 0 {
			d = append(d, "chain "+w.Name+" is gone")
			continue
		}
		d = append(d, i.Chains[at].differences(w)...)
	}
	for _, c := range i.Chains {
		if !slices.ContainsFunc(want.Chains, func(w ChainImage) bool { return w.Name == c.Name }) {
			d = append(d, "chain "+c.Name+" belongs to another program")
		}
	}
	return d
}

// differences describes how the declarations of a kind differ.
func differences(kind string, have, want []Declaration) []string {
	var d []string
	for _, w := range want {
		at := slices.IndexFunc(have, func(h Declaration) bool { return h.Name == w.Name })
		if at < 0 {
			d = append(d, kind+" "+w.Name+" is gone")
		} else if have[at].Head != w.Head {
			d = append(d, kind+" "+w.Name+" "+differing(have[at].Head, w.Head))
		}
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(w Declaration) bool { return w.Name == h.Name }) {
			d = append(d, kind+" "+h.Name+" belongs to another program")
		}
	}
	return d
}

// differing says how the head of a declaration differs. A long list of what a set holds is not written twice.
func differing(have, want string) string {
	const short = 8 // properties and elements of both
	h, w := strings.Split(strings.TrimSuffix(have, ";"), "; "), strings.Split(strings.TrimSuffix(want, ";"), "; ")
	lacks, extra := missing(w, h), missing(h, w)
	if len(h)+len(w) <= short || len(lacks)+len(extra) == 0 {
		return fmt.Sprintf("is %q, not %q", have, want)
	}
	var parts []string
	if len(lacks) > 0 {
		parts = append(parts, "lacks "+shortened(lacks))
	}
	if len(extra) > 0 {
		parts = append(parts, "has "+shortened(extra)+", which is not guestwire's")
	}
	return strings.Join(parts, ", and ")
}

// missing are the words of list that other lacks.
func missing(list, other []string) []string {
	in := map[string]bool{}
	for _, word := range other {
		in[word] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(word string) bool { return in[word] })
}

// shortened are the first words, and how many there are.
func shortened(words []string) string {
	const most = 5
	if len(words) <= most {
		return strings.Join(words, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(words[:most], "; "), len(words)-most)
}

func (c ChainImage) differences(want ChainImage) []string {
	var d []string
	if c.Head != want.Head {
		d = append(d, fmt.Sprintf("chain %s is %q, not %q", c.Name, c.Head, want.Head))
	}
	for _, r := range want.Rules {
		if !slices.Contains(c.Rules, r) {
			d = append(d, fmt.Sprintf("chain %s lacks the rule: %s", c.Name, r))
		}
	}
	for _, r := range c.Rules {
		if !slices.Contains(want.Rules, r) {
			d = append(d, fmt.Sprintf("chain %s has an extra rule: %s", c.Name, r))
		}
	}
	if len(d) == 0 && !slices.Equal(c.Rules, want.Rules) {
		d = append(d, "chain "+c.Name+" has its rules in another order, or twice")
	}
	return d
}
