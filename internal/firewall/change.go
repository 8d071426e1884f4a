package firewall

import (
	"fmt"
	"slices"
	"strings"
)

// Change makes another table of one in the kernel: rules of chains, ports of maps, and what is added or deleted. All
// else stays, with what its counters and sets hold.
type Change struct {
	// Flushed are the chains that are there and lose all rules.
	Flushed []string
	// Added are the sets, maps, flow tables and chains that are new, and the chains of Flushed that get rules. Changed
	// are the maps that are there and get other ports, Boxes the destinations that lose and get some boxes. Replaced
	// are destinations that are deleted first, and of Added: the kernel deletes a set faster than many of its boxes.
	Added    Table
	Changed  []PortMap
	Boxes    []BoxChange
	Replaced []string
	// GoneChains, GoneSets, GoneMaps and GoneFlows are deleted.
	GoneChains, GoneSets, GoneMaps, GoneFlows []string
}

// BoxChange is what a set loses and then gets.
type BoxChange struct{ Deleted, Added Destinations }

// ChangeTo returns the change that makes t of the table. Can is false if the table has to be replaced: if t is of
// iptables, if the head of a flow table, a set or a chain differs, or for most that another program has added.
func (i Image) ChangeTo(t Table) (c Change, can bool) {
	have, want := i, t.image(false, i.held == nil)
	if i.held != nil {
		have = i.held.image(false, false)
	}
	c.Added = Table{Family: t.Family, Name: t.Name}
	if t.Family.IPTables() != 0 || have.Flags != want.Flags || have.Others != want.Others {
		return c, false
	}
	headOf := func(list []Declaration, name string) (head string, there bool) {
		at := slices.IndexFunc(list, func(d Declaration) bool { return d.Name == name })
		if at < 0 {
			return "", false
		}
		return list[at].Head, true
	}
	for _, s := range t.Sets {
		head, there := headOf(have.Sets, s.Name)
		if there && head != s.Head() {
			return c, false
		}
		if !there {
			c.Added.Sets = append(c.Added.Sets, s)
		}
	}
	for _, m := range t.Maps {
		switch head, there := headOf(have.Sets, m.Name); {
		case !there:
			c.Added.Maps = append(c.Added.Maps, m)
		case head == m.Head():
		case strings.HasPrefix(head, PortMapHead(m.Size())):
			c.Changed = append(c.Changed, m)
		default:
			return c, false
		}
	}
	for _, d := range t.Destinations {
		switch head, there := headOf(have.Sets, d.Name); {
		case !there:
			c.Added.Destinations = append(c.Added.Destinations, d)
		case !strings.HasPrefix(head, d.Declaration()):
			return c, false
		case i.held != nil:
			c.changeBoxes(i.held.boxesOf(d.Name), d)
		case head != d.Head():
			c.replace(d)
		}
	}
	for _, f := range t.Flows {
		switch head, there := headOf(have.Flows, f.Name); {
		case !there:
			c.Added.Flows = append(c.Added.Flows, f)
		case head != f.Head():
			return c, false
		}
	}
	for _, d := range have.Flows {
		if _, wanted := headOf(want.Flows, d.Name); !wanted {
			c.GoneFlows = append(c.GoneFlows, d.Name)
		}
	}
	for _, d := range have.Sets {
		if _, wanted := headOf(want.Sets, d.Name); wanted {
			continue
		}
		switch {
		case !strings.HasSuffix(d.Head, ";"): // it has what none of guestwire's has
			return c, false
		case strings.HasPrefix(d.Head, portMapTypes):
			c.GoneMaps = append(c.GoneMaps, d.Name)
		default:
			c.GoneSets = append(c.GoneSets, d.Name)
		}
	}
	for _, chain := range t.Chains {
		at := slices.IndexFunc(have.Chains, func(h ChainImage) bool { return h.Name == chain.Name })
		switch {
		case at < 0 && chain.Link != 0: // the name of its link may be to come
			return c, false
		case at < 0:
			c.Added.Chains = append(c.Added.Chains, chain)
		case chain.Hook == "" && have.Chains[at].Head != "" || chain.Hook != "" && have.Chains[at].Head != chain.Head():
			return c, false
		case !i.hasRules(chain) || slices.ContainsFunc(c.Replaced, chain.looksUp):
			c.Flushed = append(c.Flushed, chain.Name)
			c.Added.Chains = append(c.Added.Chains, chain)
		}
	}
	for _, chain := range have.Chains {
		if !slices.ContainsFunc(t.Chains, func(w Chain) bool { return w.Name == chain.Name }) {
			if strings.HasPrefix(chain.Name, "__") { // the kernel has named it, and deletes it with a rule
				return c, false
			}
			c.Flushed = append(c.Flushed, chain.Name)
			c.GoneChains = append(c.GoneChains, chain.Name)
		}
	}
	return c, true
}

// changeBoxes makes the set of one with other boxes.
func (c *Change) changeBoxes(have []Box, d Destinations) {
	if slices.Equal(have, d.Boxes) {
		return
	}
	const deletion = 8 // additions take about as long
	deleted, added := d, d
	deleted.Boxes, added.Boxes = Without(have, d.Boxes), Without(d.Boxes, have)
	if deletion*len(deleted.Boxes)+len(added.Boxes) < len(d.Boxes) {
		c.Boxes = append(c.Boxes, BoxChange{deleted, added})
	} else {
		c.replace(d)
	}
}

func (c *Change) replace(d Destinations) {
	c.Replaced = append(c.Replaced, d.Name)
	c.Added.Destinations = append(c.Added.Destinations, d)
}

// hasRules reports whether the chain with the name has the chain's rules.
func (i Image) hasRules(c Chain) bool {
	if i.held != nil {
		return slices.ContainsFunc(i.held.Chains, func(h Chain) bool {
			return h.Name == c.Name && equalRules(h.Rules, c.Rules)
		})
	}
	return slices.ContainsFunc(i.Chains, func(h ChainImage) bool {
		return h.Name == c.Name && slices.EqualFunc(h.Rules, c.Rules, func(text string, r Rule) bool { return text == r.String() })
	})
}

// String returns the change as nft -f reads it.
func (c Change) String() string {
	var b strings.Builder
	each := func(command string, names []string) {
		for _, name := range names {
			fmt.Fprintf(&b, "%s %s %s\n", command, c.Added.Family.where(c.Added.Name), name)
		}
	}
	each("flush chain", c.Flushed)
	for _, m := range c.Changed {
		each("flush map", []string{m.Name})
		each("add element", []string{m.Name + " { " + m.elements() + " }"})
	}
	for _, b := range c.Boxes {
		if len(b.Deleted.Boxes) > 0 {
			each("delete element", []string{b.Deleted.elements()})
		}
		if len(b.Added.Boxes) > 0 {
			each("add element", []string{b.Added.elements()})
		}
	}
	each("delete set", c.Replaced)
	if a := c.Added; len(a.Sets)+len(a.Maps)+len(a.Destinations)+len(a.Flows)+len(a.Chains) > 0 {
		b.WriteString(c.Added.String())
	}
	each("delete chain", c.GoneChains)
	each("delete set", c.GoneSets)
	each("delete map", c.GoneMaps)
	each("delete flowtable", c.GoneFlows)
	return b.String()
}

// Summary returns in one line what the change is about.
func (c Change) Summary() string {
	var parts []string
	add := func(text string, names []string) {
		if len(names) > 0 {
			parts = append(parts, text+" "+strings.Join(names, ", "))
		}
	}
	var chains, maps, destinations []string
	for _, chain := range c.Added.Chains {
		chains = append(chains, chain.Name)
	}
	for _, m := range slices.Concat(c.Changed, c.Added.Maps) {
		maps = append(maps, m.Name)
	}
	for _, b := range c.Boxes {
		destinations = append(destinations, b.Added.Name)
	}
	for _, d := range c.Added.Destinations {
		destinations = append(destinations, d.Name)
	}
	add("new rules in", chains)
	add("new ports in", maps)
	add("new destinations in", destinations)
	add("without", slices.Concat(c.GoneChains, c.GoneSets, c.GoneMaps, c.GoneFlows))
	return fmt.Sprintf("table %s: %s", c.Added.Family.where(c.Added.Name), strings.Join(parts, "; "))
}

// boxesOf are those of the set with the name.
func (t Table) boxesOf(set string) []Box {
	at := slices.IndexFunc(t.Destinations, func(d Destinations) bool { return d.Name == set })
	if at < 0 {
		return nil
	}
	return t.Destinations[at].Boxes
}

// looksUp reports whether a rule of the chain looks the set up.
func (c Chain) looksUp(set string) bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool {
		return slices.ContainsFunc(r.Matches, func(m Match) bool {
			switch in := m.(type) {
			case InDestinations:
				return in.Set == set
			case FirstInDestinations:
				return in.Set == set
			}
			return false
		})
	})
}
