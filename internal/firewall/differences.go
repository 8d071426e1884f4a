package firewall

import (
	"fmt"
	"slices"
	"strings"
)

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
	lacks, extra := Without(w, h), Without(h, w)
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

// Without returns the values of the list that the other list does not have.
func Without[T comparable](list, other []T) []T {
	has := make(map[T]bool, len(other))
	for _, value := range other {
		has[value] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(value T) bool { return has[value] })
}

// shortened are the first words, and how many there are.
func shortened(words []string) string {
	const most = 5
	if len(words) <= most {
		return strings.Join(words, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(words[:most], "; "), len(words)-most)
}

// cut is the beginning of a rule. One that guestwire cannot read is hundreds of registers long.
func cut(rule string) string {
	const most = 120
	if text := fmt.Sprintf("%.*s", most, rule); text != rule {
		return text + "..."
	}
	return rule
}

func (c ChainImage) differences(want ChainImage) []string {
	var d []string
	if c.Head != want.Head {
		d = append(d, fmt.Sprintf("chain %s is %q, not %q", c.Name, c.Head, want.Head))
	}
	say := func(what string, rules []string) {
		if len(rules) == 0 {
			return
		}
		text := fmt.Sprintf("chain %s %s: %s", c.Name, what, cut(rules[0]))
		if n := len(rules) - 1; n > 0 { // a link that is gone takes its name from all rules: one of them says it
			text += fmt.Sprintf(" (and %d more)", n)
		}
		d = append(d, text)
	}
	say("lacks the rule", Without(want.Rules, c.Rules))
	say("has an extra rule", Without(c.Rules, want.Rules))
	if len(d) == 0 && !slices.Equal(c.Rules, want.Rules) {
		d = append(d, "chain "+c.Name+" has its rules in another order, or twice")
	}
	return d
}
