package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Summary returns in one line how many rules the table has, what they look at, and what they do.
func (t Table) Summary() string {
	rules := 0
	var places, outward []string // what filters look at, where frames are forwarded to
	reasons := map[Reason]bool{}
	drops, translates, limits, leaves, completes := false, false, false, false, false
	for _, c := range t.Chains {
		rules += len(c.Rules)
		if c.Hook != "" && c.Type != "nat" {
			places = addNew(places, c.packets())
		}
		drops = drops || c.Drops
		if r, is := ReasonOf(c.Name); is {
			reasons[r] = true
		}
		for _, r := range c.Rules {
			switch v := r.Verdict.(type) {
			case Drop, Refuse:
				drops = true
			case DNAT, DNATMap, DNATRange, SNAT, Masquerade:
				translates = true
			case Up:
				leaves = true
			case CompleteChecksum:
				completes = true
			case Fwd:
				outward = addNew(outward, v.Device)
			}
			for _, m := range r.Matches {
				switch m := m.(type) {
				case Connections, Faster:
					limits = true
				case Rate:
					limits = limits || m.Over
				}
			}
		}
	}
	var does []string
	if drops {
		text := "filters packets " + joined(places)
		if len(reasons) > 0 {
			text += fmt.Sprintf(" (%s to drop)", count(len(reasons), "reason"))
		}
		does = append(does, text)
	}
	if translates {
		does = append(does, "translates addresses")
	}
	if limits {
		does = append(does, "limits rates or connections")
	}
	for _, s := range t.Destinations {
		if s.AllPorts || s.Name == DivertedSet(s.Version) {
			continue
		}
		text := fmt.Sprintf("holds where the guest may go by IPv%d", s.Version)
		if s.Name == PinnableSet(s.Version) {
			text = fmt.Sprintf("holds where pins may lead by IPv%d", s.Version)
		} else if target, is := t.targetOf(s.Name); is {
			text = fmt.Sprintf("diverts to %v", target)
		}
		does = append(does, fmt.Sprintf("%s (%s of addresses)", text, count(len(s.Boxes)+len(t.boxesOf(AllPortsSet(s.Name))), "range")))
	}
	if len(outward) > 0 {
		does = append(does, "forwards frames to "+joined(outward))
	}
	if leaves {
		does = append(does, "leaves frames to the namespace")
	}
	if completes {
		does = append(does, "completes checksums")
	}
	what := fmt.Sprintf("table %s %s", t.Family, t.Name)
	switch {
	case t.Family.IPTables() != 0:
		what = fmt.Sprintf("chains of %s %s", t.Family, t.Name)
	case t.Family.Shared():
		what = fmt.Sprintf("chain %s of table %s", t.Name, t.Family)
	}
	text := fmt.Sprintf("%s, %s", what, count(rules, "rule"))
	if len(does) > 0 {
		text += ": " + strings.Join(does, "; ")
	}
	return text
}

// targetOf returns where the table leads what the set has, if it leads that anywhere.
func (t Table) targetOf(set string) (target netip.AddrPort, is bool) {
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			if to, dnat := r.Verdict.(DNAT); dnat && slices.ContainsFunc(r.Matches, func(m Match) bool {
				in, looksUp := m.(InDestinations)
				return looksUp && in.Set == set
			}) {
				return netip.AddrPortFrom(to.Address, to.Port), true
			}
		}
	}
	return netip.AddrPort{}, false
}

// packets returns which packets a base chain looks at.
func (c Chain) packets() string {
	switch c.Hook {
	case Ingress:
		return "in at " + c.Device
	case Prerouting:
		return "arriving"
	case Input:
		return "to the namespace"
	case Output:
		return "from the namespace"
	case Forward:
		return "forwarded"
	}
	return "leaving"
}

// joined returns the texts as one: a, b and c.
func joined(texts []string) string {
	if last := len(texts) - 1; last > 0 {
		return strings.Join(texts[:last], ", ") + " and " + texts[last]
	}
	return strings.Join(texts, "")
}

func addNew(list []string, text string) []string {
	if slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
