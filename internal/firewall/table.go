// Package firewall holds nftables rules as values. It is pure: internal/kernel sends them.
//
// The text of a table is what nft(8) reads.
package firewall

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
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

// Comment is what the rule carries in the kernel, so that one can tell there whether it is ours
// and unchanged: the name of the project and a digest of the rule's text.
func (r Rule) Comment() string {
	sum := sha256.Sum256([]byte(r.String()))
	return "guestwire " + hex.EncodeToString(sum[:6])
}

// String is the table as nft -f reads it.
func (t Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n", t.Family, t.Name)
	for _, c := range t.Chains {
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype %s hook %s priority %d; policy accept;\n", c.Name, c.Type, c.Hook, c.Priority)
		for _, r := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s comment %q\n", r, r.Comment())
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// Image is a table as it can be read back from the kernel: enough to tell whether it is the one
// that was sent.
type Image struct {
	Family Family `json:"family"`
	Name   string `json:"name"`
	// Rules are "CHAIN COMMENT", in the order of the chains' names and of the rules in a chain.
	Rules []string `json:"rules,omitempty"`
}

// Image is what the kernel shows once the table is in force. The chains' names must be in order.
func (t Table) Image() Image {
	image := Image{Family: t.Family, Name: t.Name}
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			image.Rules = append(image.Rules, c.Name+" "+r.Comment())
		}
	}
	return image
}
