package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
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

// openProgram looks for the program that has the name of the family, and asks for its version. A first Setup has called
// HavePrograms.
func openProgram(f firewall.Family) (program, error) {
	proto := iptables.ProtocolIPv4
	if f.IPTables() == 6 {
		proto = iptables.ProtocolIPv6
	}
	p, err := iptables.New(iptables.IPFamily(proto), iptables.Path(string(f)), iptables.Timeout(lockWait))
	return program{p, f}, gone(err)
}

// HavePrograms returns an error if a program of iptables is missing that the tables need.
func HavePrograms(tables []firewall.Table) error {
	for _, t := range tables {
		if t.Family.IPTables() == 0 {
			continue
		}
		for _, program := range []string{string(t.Family), restorer(t.Family)} {
			if _, err := exec.LookPath(program); err != nil {
				return fmt.Errorf("binding.masquerade.firewall: %w: install iptables, or choose another firewall", err)
			}
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
	index := map[string]int{}
	for _, line := range lines {
		command, rest, _ := strings.Cut(line, " ")
		in, rule, _ := strings.Cut(rest, " ")
		if command == "-N" && firewall.OfIPTables(in, name) {
			index[in] = len(ours)
			ours = append(ours, chain{table: table, name: in})
		}
		if command != "-A" {
			continue
		}
		to, _ := strings.CutPrefix(rule, "-j ")
		if at, is := index[in]; is {
			ours[at].rules = append(ours[at].rules, rule)
		} else if at, is := index[to]; is {
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

// deleteIPTables deletes the chains of the firewall table with the name, and the jumps to them, by one process for each
// table of iptables: each process reads all chains, and another program can have added any number of them.
func deleteIPTables(f firewall.Family, name string) error {
	p, err := openProgram(f)
	if err != nil {
		return err
	}
	chains, err := p.readChains(name)
	if err != nil {
		return err
	}
	for _, table := range firewall.IPTablesTables {
		var jumps, rules, empty strings.Builder
		for _, c := range chains {
			if c.table != table {
				continue
			}
			for _, from := range c.from {
				fmt.Fprintf(&jumps, "-D %s -j %s\n", restoreWord(from), restoreWord(c.name))
			}
			fmt.Fprintf(&rules, "-F %s\n", restoreWord(c.name))
			fmt.Fprintf(&empty, "-X %s\n", restoreWord(c.name))
		}
		if rules.Len() == 0 {
			continue
		}
		if err := p.restore("*" + table + "\n" + jumps.String() + rules.String() + empty.String() + "COMMIT\n"); err != nil {
			return err
		}
	}
	return nil
}

// restorer is the name of the program that carries out many commands.
func restorer(f firewall.Family) string { return string(f) + "-restore" }

// restoreWord quotes the name of a chain, which another program may have given, as iptables-restore reads it.
func restoreWord(name string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(name) + `"`
}

// restore carries out the commands, all or none.
func (p program) restore(commands string) error {
	c := exec.Command(restorer(p.family), "--noflush", "--wait", strconv.Itoa(lockWait))
	c.Stdin = strings.NewReader(commands)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", restorer(p.family), gone(err), bytes.TrimSpace(out))
	}
	return nil
}

// gone adds the way out to the error of a program that was there when the NIC was wired.
func gone(err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w: install it again: the NIC was wired with it", err)
	}
	return err
}
