// Package firewall holds nftables rules as values. It is pure: internal/kernel sends them.
//
// The text of a table is what nft(8) reads.
package firewall

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Table is one nftables table of ours. It is replaced as a whole.
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
)

// Chain is a base chain with the policy accept.
type Chain struct {
	Name     string
	Type     string // "filter" or "nat"
	Hook     Hook
	Priority int
	Rules    []Rule
}

// Hook is the point in a packet's way.
type Hook string

// The hooks in use.
const (
	Input       Hook = "input"
	Prerouting  Hook = "prerouting"
	Postrouting Hook = "postrouting"
)

// Priorities of nftables (nft(8), "standard priority names").
const (
	DstNAT = -100
	Filter = 0
	SrcNAT = 100
)

// Rule is matches, all of which must hold, and what is done then.
type Rule struct {
	Matches []Match
	Verdict Verdict
}

// Match is one of InInterface, OutInterface, Destination, IPv6.
type Match interface {
	fmt.Stringer
	match()
}

// InInterface is the name of the link that a packet came from.
type InInterface struct{ Name string }

// OutInterface is the name of the link that a packet leaves by; with Not it is any other.
type OutInterface struct {
	Name string
	Not  bool
}

// Destination is a packet's destination address.
type Destination struct{ Address netip.Addr }

// IPv6 is every IPv6 packet, for tables of the family bridge.
type IPv6 struct{}

func (InInterface) match()  {}
func (OutInterface) match() {}
func (Destination) match()  {}
func (IPv6) match()         {}

func (m InInterface) String() string { return fmt.Sprintf("iifname %q", m.Name) }

func (m OutInterface) String() string {
	if m.Not {
		return fmt.Sprintf("oifname != %q", m.Name)
	}
	return fmt.Sprintf("oifname %q", m.Name)
}

func (m Destination) String() string { return family(m.Address) + " daddr " + m.Address.String() }

// Verdict is one of Drop, DNAT, Masquerade.
type Verdict interface {
	fmt.Stringer
	verdict()
}

// Drop ends the packet.
type Drop struct{}

// DNAT sends a connection to another address.
type DNAT struct{ Address netip.Addr }

// Masquerade gives a connection the source address of the link that it leaves by.
type Masquerade struct{}

func (Drop) verdict()       {}
func (DNAT) verdict()       {}
func (Masquerade) verdict() {}

func (Drop) String() string       { return "drop" }
func (v DNAT) String() string     { return "dnat " + family(v.Address) + " to " + v.Address.String() }
func (Masquerade) String() string { return "masquerade" }

func family(a netip.Addr) string {
	if a.Is4() {
		return "ip"
	}
	return "ip6"
}

func (IPv6) String() string { return "ether type ip6" }

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

// Head is what a chain is, without its rules.
func (c Chain) Head() string {
	return fmt.Sprintf("type %s hook %s priority %d; policy accept;", c.Type, c.Hook, c.Priority)
}

// String is the table as nft -f reads it.
func (t Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n", t.Family, t.Name)
	for _, c := range t.Chains {
		fmt.Fprintf(&b, "\tchain %s {\n\t\t%s\n", c.Name, c.Head())
		for _, r := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s comment %q\n", r, r.Comment())
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
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
	Head string `json:"head"` // as Chain.Head says it
	// Rules are the texts of those that this package knows, in order; others begin with Unknown.
	Rules []string `json:"rules,omitempty"`
}

// Unknown begins the text of a rule that is none of this package's.
const Unknown = "a rule that is not ours"

// Image is what the kernel shows once the table is in force.
func (t Table) Image() Image {
	image := Image{Family: t.Family, Name: t.Name}
	for _, c := range t.Chains {
		chain := ChainImage{Name: c.Name, Head: c.Head()}
		for _, r := range c.Rules {
			chain.Rules = append(chain.Rules, r.String())
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
			d = append(d, fmt.Sprintf("chain %s lacks the rule %q", c.Name, r))
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
