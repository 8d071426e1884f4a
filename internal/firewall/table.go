// Package firewall holds rules as values, for nftables, and for iptables where there are none. It is
// pure: internal/kernel sends them.
//
// The text of a table is what nft(8) or iptables-restore(8) reads.
package firewall

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Table is one nftables table of ours, or our chains in the tables of iptables. It is replaced as a
// whole.
type Table struct {
	Family Family
	Name   string
	Chains []Chain
}

// Family is where a table's chains hook in.
type Family string

// The families in use.
const (
	Inet   Family = "inet"
	Bridge Family = "bridge"
	NetDev Family = "netdev"
)

// Chain is a base chain, or, without a hook, one to go to.
type Chain struct {
	Name     string
	Type     string // "filter" or "nat"
	Hook     Hook   // "": none
	Device   string // of Ingress
	Priority int
	Drops    bool // the policy is drop, not accept
	Rules    []Rule
}

// Hook is the point in a packet's way.
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
	SrcNAT = 100
)

// Rule is matches, all of which must hold, and what is done then.
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

// Comment is what the rule carries in the kernel, for a reader there: the name of the project and a
// digest of the rule's text. It proves nothing, as a rule can be replaced under it.
func (r Rule) Comment() string {
	sum := sha256.Sum256([]byte(r.String()))
	return "guestwire " + hex.EncodeToString(sum[:6])
}

// Head is what a base chain is, without its rules.
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

// String is the table as nft -f or iptables-restore --noflush reads it.
func (t Table) String() string {
	if t.Family.IPTables() != 0 {
		return t.restore()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n", t.Family, t.Name)
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

// Resolve gives the links that frames are forwarded to their indices.
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

// Image is all that a table consists of, as it can be read back from the kernel: what this package
// has no words for included.
type Image struct {
	Family Family `json:"family"`
	Name   string `json:"name"`
	// Flags are the table's, 0 for one of ours.
	Flags uint32 `json:"flags,omitempty"`
	// Chains are in the order of their names.
	Chains []ChainImage `json:"chains,omitempty"`
	// Others is the number of sets, maps, objects and flowtables.
	Others int `json:"others,omitempty"`
}

// ChainImage is a chain of an Image.
type ChainImage struct {
	Name string `json:"name"`
	Head string `json:"head"` // as Chain.Head or IPTablesHead says it
	// Rules are the texts of those that this package knows, in order; others begin with Unknown.
	Rules []string `json:"rules,omitempty"`
}

// Unknown begins the text of a rule that is none of this package's.
const Unknown = "a rule that is not ours"

// Image is what the kernel shows once the table is in force.
func (t Table) Image() Image {
	image := Image{Family: t.Family, Name: t.Name}
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
	slices.SortFunc(image.Chains, func(a, b ChainImage) int { return strings.Compare(a.Name, b.Name) })
	return image
}

// Flags of a table (linux/netfilter/nf_tables.h).
const dormant = 1

// Differences says in words what of the image is not as in the one that is wanted.
func (i Image) Differences(want Image) []string {
	var d []string
	if i.Flags&dormant != 0 {
		d = append(d, "it is dormant")
	}
	if f := i.Flags &^ dormant; f != want.Flags {
		d = append(d, fmt.Sprintf("it has the flags %#x", f))
	}
	if i.Others != want.Others {
		d = append(d, fmt.Sprintf("it has %d sets, maps or objects of somebody", i.Others))
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
			d = append(d, "chain "+c.Name+" is somebody's")
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
			d = append(d, fmt.Sprintf("chain %s has besides: %s", c.Name, r))
		}
	}
	if len(d) == 0 && !slices.Equal(c.Rules, want.Rules) {
		d = append(d, "chain "+c.Name+" has its rules in another order or number")
	}
	return d
}
