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
)

// lockWait is for how many seconds another program may hold the lock of iptables.
const lockWait = 10

// program is one of iptables. Its processes start in the namespace of the calling thread.
type program struct {
	*iptables.IPTables
	family firewall.Family
}

func openProgram(f firewall.Family) (program, error) {
	proto := iptables.ProtocolIPv4
	if f.IPTables() == 6 {
		proto = iptables.ProtocolIPv6
	}
	p, err := iptables.New(iptables.IPFamily(proto), iptables.Path(string(f)), iptables.Timeout(lockWait))
	return program{p, f}, err
}

// HavePrograms says whether the programs are there that the tables need.
func HavePrograms(tables []firewall.Table) error {
	for _, t := range tables {
		if t.Family.IPTables() == 0 {
			continue
		}
		if _, err := exec.LookPath(string(t.Family)); err != nil {
			return fmt.Errorf("binding.masquerade.firewall: %w: install iptables, or want another one", err)
		}
	}
	return nil
}

// hasTable says whether the namespace has the table of iptables. To ask for one of the legacy kind makes it.
func (p program) hasTable(table string) (bool, error) {
	path := map[firewall.Family]string{
		firewall.IPTablesLegacy: "/proc/thread-self/net/ip_tables_names", firewall.IP6TablesLegacy: "/proc/thread-self/net/ip6_tables_names",
	}[p.family]
	if path == "" {
		return true, nil
	}
	names, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return false, nil
	}
	return slices.Contains(strings.Fields(string(names)), table), err
}

// chain is one of ours in a table of iptables.
type chain struct {
	table, name string
	rules       []string // as iptables -S prints them, without the chain
	from        []string // the chains that jump to it, as often as they do
}

// readChains reads those with the name, in the order of their tables.
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

// parseChains parses what iptables -S prints of a table, in which chains come before rules. It returns
// the chains with the name.
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

// wholeTable stands where List has a chain: without one, iptables -S prints them all, in one process. To
// wait for its lock it is told anyway.
const wholeTable = "--wait"

// readIPTables reads what there is of the tables that are wanted of iptables.
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

// setIPTables makes the chains. Those that are jumped to are complete before they are.
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

// deleteIPTables deletes our chains, and what jumps to them.
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
