package kernel

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft"
)

// lockWait is how long iptables waits for its lock while another program holds it, in seconds.
const lockWait = 10

// program is iptables or ip6tables, by nft or legacy. Its processes start in the namespace of the calling
// thread.
type program struct {
	*iptables.IPTables
	family firewall.Family
}

// openProgram looks for the program that has the name of the family, and asks for its version.
func openProgram(f firewall.Family) (program, error) {
	proto := iptables.ProtocolIPv4
	if f.IPTables() == 6 {
		proto = iptables.ProtocolIPv6
	}
	p, err := iptables.New(iptables.IPFamily(proto), iptables.Path(string(f)), iptables.Timeout(lockWait))
	return program{p, f}, err
}

// HavePrograms returns an error if a program of iptables is missing that the tables need.
func HavePrograms(tables []firewall.Table) error {
	for _, t := range tables {
		if t.Family.IPTables() == 0 {
			continue
		}
		if _, err := exec.LookPath(string(t.Family)); err != nil {
			return fmt.Errorf("binding.masquerade.firewall: %w: install iptables, or choose another firewall", err)
		}
	}
	return nil
}

// hasTable reports whether the namespace has a table of iptables. hasTable reads /proc for iptables-legacy, because
// iptables-legacy would make the table when asked. iptables-nft does not make a table.
func (p program) hasTable(table string) (bool, error) {
	path := nft.LegacyTables[p.family]
	if path == "" {
		return true, nil
	}
	names, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return false, nil
	}
	return slices.Contains(strings.Fields(string(names)), table), err
}

// chain is a chain of guestwire in a table of iptables.
type chain struct {
	table, name string
	rules       []string // as iptables -S prints them, without the chain
	from        []string // the chains that jump to this chain, once for each jump
}

// readChains reads the chains of the firewall table with the name, in the order of iptables' tables.
func (p program) readChains(name string) ([]chain, error) {
	var list []chain
	for _, table := range firewall.IPTablesTables {
		if there, err := p.hasTable(table); err != nil {
			return nil, err
		} else if !there {
			continue
		}
		lines, err := p.List(table, wholeTable)
		if err != nil {
			return nil, err
		}
		list = append(list, parseChains(lines, table, name)...)
	}
	return list, nil
}

// parseChains parses the output of iptables -S for one table, and returns the chains of the firewall table with
// the name. iptables prints all chains before all rules.
func parseChains(lines []string, table, name string) []chain {
	var ours []chain
	find := func(name string) int {
		return slices.IndexFunc(ours, func(c chain) bool { return c.name == name })
	}
	for _, line := range lines {
		command, rest, _ := strings.Cut(line, " ")
		in, rule, _ := strings.Cut(rest, " ")
		if command == "-N" && firewall.OfIPTables(in, name) {
			ours = append(ours, chain{table: table, name: in})
		}
		if command != "-A" {
			continue
		}
		to, _ := strings.CutPrefix(rule, "-j ")
		if at := find(in); at >= 0 {
			ours[at].rules = append(ours[at].rules, rule)
		} else if at := find(to); at >= 0 {
			ours[at].from = append(ours[at].from, in)
		}
	}
	return ours
}

// wholeTable is passed to List instead of a chain. Without a chain, iptables -S prints the whole table, so one
// process does for all chains; but List insists on an argument. --wait changes nothing, as iptables gets
// the option in any case.
const wholeTable = "--wait"

// readIPTables reads the images of those wanted tables that are tables of iptables. A table without any chain
// is left out.
func readIPTables(s *netstate.Snapshot, wanted []firewall.Table) error {
	for _, t := range wanted {
		if t.Family.IPTables() == 0 {
			continue
		}
		p, err := openProgram(t.Family)
		if err != nil {
			return err
		}
		chains, err := p.readChains(t.Name)
		if err != nil {
			return err
		}
		if len(chains) == 0 {
			continue
		}
		known := map[string]bool{}
		for _, c := range t.Image().Chains {
			for _, r := range c.Rules {
				known[r] = true
			}
		}
		image := firewall.Image{Family: t.Family, Name: t.Name}
		for _, c := range chains {
			ci := firewall.ChainImage{Name: c.name, Head: firewall.IPTablesHead(c.table, c.from...)}
			for _, r := range c.rules {
				if !known[r] {
					r = firewall.Unknown + ": " + r
				}
				ci.Rules = append(ci.Rules, r)
			}
			image.Chains = append(image.Chains, ci)
		}
		slices.SortFunc(image.Chains, func(a, b firewall.ChainImage) int { return strings.Compare(a.Name, b.Name) })
		s.Tables = append(s.Tables, image)
	}
	return nil
}

// setIPTables makes the chains of a table. The jumps from the built-in chains come last, so that no packet meets
// half of the rules.
func setIPTables(t firewall.Table) error {
	p, err := openProgram(t.Family)
	if err != nil {
		return err
	}
	for _, c := range t.Chains {
		if err := p.ClearChain(c.Type, c.Name); err != nil {
			return err
		}
	}
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			if err := p.Append(c.Type, c.Name, strings.Fields(r.IPTables())...); err != nil {
				return err
			}
		}
	}
	for _, c := range t.Chains {
		if c.Hook != "" {
			if err := p.Insert(c.Type, c.Hook.BuiltIn(), 1, "-j", c.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteIPTables deletes the chains of the firewall table with the name, and the jumps to them.
func deleteIPTables(f firewall.Family, name string) error {
	p, err := openProgram(f)
	if err != nil {
		return err
	}
	chains, err := p.readChains(name)
	if err != nil {
		return err
	}
	for _, c := range chains {
		for _, from := range c.from {
			if err := p.Delete(c.table, from, "-j", c.name); err != nil {
				return err
			}
		}
	}
	for _, c := range chains {
		if err := p.ClearChain(c.table, c.name); err != nil {
			return err
		}
	}
	for _, c := range chains {
		if err := p.DeleteChain(c.table, c.name); err != nil {
			return err
		}
	}
	return nil
}
