package firewall

import (
	"fmt"
	"slices"
	"strings"
)

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

// restoreText returns what iptables-restore --noflush reads.
func (t Table) restoreText() string {
	var b strings.Builder
	for _, name := range IPTablesTables {
		var chains, rules, jumps []string
		for _, c := range t.Chains {
			if c.Type != name {
				continue
			}
			chains = append(chains, ":"+c.Name+" - [0:0]\n")
			for _, r := range c.Rules {
				rules = append(rules, "-A "+c.Name+" "+r.IPTables()+"\n")
			}
			if c.Hook != "" {
				jumps = append(jumps, fmt.Sprintf("-I %s 1 -j %s\n", c.Hook.BuiltIn(), c.Name))
			}
		}
		if len(chains) > 0 {
			b.WriteString("*" + name + "\n" + strings.Join(slices.Concat(chains, rules, jumps), "") + "COMMIT\n")
		}
	}
	return b.String()
}
