// Package firewall describes firewall tables as values, for nftables or iptables. The package is pure:
// internal/kernel applies the tables and reads them back as an [Image].
//
// The text of a [Table] can be loaded by nft(8) or iptables-restore(8).
package firewall

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Table is one nftables table of guestwire, or guestwire's chains in the tables of iptables. It is applied
// and replaced as a whole.
type Table struct {
	Family Family
	Name   string
	Sets   []Set
	Chains []Chain
}

// Family is the nftables family of a table, or the iptables program that holds the chains.
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
	Raw    = -300
	DstNAT = -100
	Filter = 0
	// AfterFilter is for chains that only see what iptables has let pass.
	AfterFilter = 10
	SrcNAT      = 100
)

// Rule applies Verdict to the packets for which all Matches hold.
type Rule struct {
	Matches []Match
	Verdict Verdict
}

func (r Rule) String() string {
	var words []string
	for _, m := range r.Matches {
		words = append(words, m.String())
	}
	return strings.Join(append(words, r.Verdict.String()), " ")
}

// Comment returns the rule's comment in the kernel, for a person who lists the rules: the project's name and
// a digest of the rule's text. It does not identify the rule: another program can replace the rule and keep
// the comment.
func (r Rule) Comment() string {
	sum := sha256.Sum256([]byte(r.String()))
	return "guestwire " + hex.EncodeToString(sum[:6])
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
	fmt.Fprintf(&b, "table %s %s {\n", t.Family, t.Name)
	for _, s := range t.Sets {
		fmt.Fprintf(&b, "\t%s\n", s)
	}
	for _, c := range t.Chains {
		fmt.Fprintf(&b, "\tchain %s {\n", c.Name)
		if c.Hook != "" {
			fmt.Fprintf(&b, "\t\t%s\n", c.Head())
		}
		for _, r := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s comment %q\n", r, r.Comment())
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// Resolve returns a copy of the table in which each [Fwd] has the index of its link. The receiver is unchanged.
func (t Table) Resolve(index func(link string) int) Table {
	chains := slices.Clone(t.Chains)
	for i, c := range chains {
		rules := slices.Clone(c.Rules)
		for j, r := range rules {
			if to, ok := r.Verdict.(Fwd); ok {
				to.Index = index(to.Device)
				rules[j].Verdict = to
			}
		}
		chains[i].Rules = rules
	}
	t.Chains = chains
	return t
}

// Image is the content of a table in the kernel, also of parts that this package cannot describe. It is for
// comparison, and for the journal.
type Image struct {
	Family Family `json:"family"`
	Name   string `json:"name"`
	// Flags are the NFT_TABLE_F_ flags; a guestwire table has none.
	Flags uint32 `json:"flags,omitempty"`
	// Sets and Chains are sorted by name.
	Sets   []SetImage   `json:"sets,omitempty"`
	Chains []ChainImage `json:"chains,omitempty"`
	// Others is the number of maps, objects and flowtables; a guestwire table has none.
	Others int `json:"others,omitempty"`
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
func (t Table) Image() Image {
	image := Image{Family: t.Family, Name: t.Name}
	for _, s := range t.Sets {
		image.Sets = append(image.Sets, SetImage{Name: s.Name, Head: s.Head()})
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
			if iptables {
				chain.Rules = append(chain.Rules, r.IPTables())
			} else {
				chain.Rules = append(chain.Rules, r.String())
			}
		}
		image.Chains = append(image.Chains, chain)
	}
	slices.SortFunc(image.Sets, func(a, b SetImage) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(image.Chains, func(a, b ChainImage) int { return strings.Compare(a.Name, b.Name) })
	return image
}

// dormant is NFT_TABLE_F_DORMANT (linux/netfilter/nf_tables.h): the table's chains are not in force.
const dormant = 1

// Differences describes how the image differs from the wanted one, a sentence each; none if they are equal.
func (i Image) Differences(want Image) []string {
	var d []string
	if i.Flags&dormant != 0 {
		d = append(d, "the table is dormant")
	}
	if f := i.Flags &^ dormant; f != want.Flags {
		d = append(d, fmt.Sprintf("the table has the flags %#x", f))
	}
	if i.Others != want.Others {
		d = append(d, fmt.Sprintf("the table has %d maps or objects of another program", i.Others))
	}
	for _, w := range want.Sets {
		at := slices.IndexFunc(i.Sets, func(s SetImage) bool { return s.Name == w.Name })
		if at < 0 {
			d = append(d, "set "+w.Name+" is gone")
		} else if i.Sets[at].Head != w.Head {
			d = append(d, fmt.Sprintf("set %s is %q, not %q", w.Name, i.Sets[at].Head, w.Head))
		}
	}
	for _, s := range i.Sets {
		if !slices.ContainsFunc(want.Sets, func(w SetImage) bool { return w.Name == s.Name }) {
			d = append(d, "set "+s.Name+" belongs to another program")
		}
	}
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
