package firewall

import (
	"reflect"
	"slices"
	"strings"
)

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

// Declaration is a set of an [Image], without its elements, a map of ports or destinations with them, or a flow table.
type Declaration struct {
	Name string `json:"name"`
	Head string `json:"head"` // [Set.Head], [PortMap.Head], [Destinations.Head] or [FlowTable.Head], then the properties that none of guestwire's has
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

// equalRules reports whether two chains have equal rules. Those of the plan, and of what Setup has made of it, are in
// one place in memory.
func equalRules(a, b []Rule) bool {
	return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0] || slices.EqualFunc(a, b, Rule.equal)
}
