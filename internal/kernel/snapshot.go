package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Snapshot reads the state of the namespace that concerns the wiring of one NIC.
//
// names are the names of the NIC's wiring. sysctls are the paths to read, below /proc/sys, with slashes. The Snapshot
// leaves out a path that the kernel does not have. set are more paths, of sysctls that the caller may set: ReadOnly has
// those that it cannot.
//
// wanted returns the firewall tables of the plan; nil: there are none. The image of a table that is in the kernel as it
// is wanted is without texts (firewall.Table.Held). In other tables a rule gets the text of the wanted rule with the
// same expressions; every other rule gets a text that begins with firewall.Unknown. iptables are read only if wanted
// has a table of iptables.
//
// The first Snapshot after a transaction of [Namespace.Apply] does not read the tables back: it takes the tables of the
// Snapshot before, with those that were sent, for the kernel's. It reads them if anything else has changed the nftables
// of the namespace since. A later Snapshot, and every Snapshot of another n, reads them, but for what Expect says.
func (n *Namespace) Snapshot(names netstate.Names, sysctls []string, wanted func() []firewall.Table, set ...string) (netstate.Snapshot, error) {
	if wanted == nil {
		wanted = func() []firewall.Table { return nil }
	}
	s, err := n.readParts(links(sysctls), addresses, routes, rules, neighbours)
	if err != nil {
		return s, err
	}
	if err := readTaps(n.route, &s, names); err != nil {
		return netstate.Snapshot{}, err
	}
	if err := n.Tables.Read(&s, names, wanted, true); err != nil {
		return netstate.Snapshot{}, fmt.Errorf("read the namespace's nftables: %w", err)
	}
	if !s.TablesStay {
		if err := readIPTables(&s, wanted()); err != nil {
			return netstate.Snapshot{}, fmt.Errorf("read the namespace's iptables: %w", err)
		}
	}
	if err := readSysctls(&s, sysctls, set); err != nil {
		return netstate.Snapshot{}, err
	}
	return s, nil
}

// SnapshotForUndo is a Snapshot for the way back. It has no policy rules, no tc filters, and nothing of what the
// nftables tables hold, as these are deleted in whole. programs are the programs of iptables whose chains are read.
func (n *Namespace) SnapshotForUndo(names netstate.Names, sysctls []string, programs []firewall.Family, set ...string) (netstate.Snapshot, error) {
	s, err := n.readParts(links(sysctls), addresses, routes, neighbours)
	if err != nil {
		return s, err
	}
	if err := n.Tables.Read(&s, names, nil, false); err != nil {
		return netstate.Snapshot{}, fmt.Errorf("read the namespace's nftables: %w", err)
	}
	var tables []firewall.Table
	for _, f := range programs {
		tables = append(tables, firewall.Table{Family: f, Name: names.Chains()})
	}
	if err := readIPTables(&s, tables); err != nil {
		return netstate.Snapshot{}, fmt.Errorf("read the namespace's iptables: %w", err)
	}
	if err := readSysctls(&s, sysctls, set); err != nil {
		return netstate.Snapshot{}, err
	}
	return s, nil
}

// Addresses returns a Snapshot of the addresses, and of what they depend on: links and routes.
func (n *Namespace) Addresses() (netstate.Snapshot, error) {
	return n.readParts(links(nil), addresses, routes)
}

// part is what one dump of rtnetlink reads.
type part struct {
	what string
	read func(*netlink.Socket, *netstate.Snapshot) error
}

var (
	addresses  = part{"addresses", readAddresses}
	routes     = part{"routes", readRoutes}
	rules      = part{"rules", readRules}
	neighbours = part{"neighbours", readNeighbours}
)

// links are the links, with those of the sysctls that come with them.
func links(sysctls []string) part {
	return part{"links", func(route *netlink.Socket, s *netstate.Snapshot) error { return readLinksWith(route, s, sysctls) }}
}

// readParts reads the parts, and the clock before them, so that nothing is thought to live longer than it does.
func (n *Namespace) readParts(parts ...part) (s netstate.Snapshot, err error) {
	var clock unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock); err != nil {
		return s, fmt.Errorf("clock_gettime: %w", err)
	}
	s.UptimeMS = clock.Nano() / 1e6
	for _, p := range parts {
		if err := p.read(n.route, &s); err != nil {
			return netstate.Snapshot{}, fmt.Errorf("read the namespace's %s: %w", p.what, err)
		}
	}
	return s, nil
}

// readTaps reads what only the wiring's taps have: tc filters, and what a VMM has left at the guest's tap.
func readTaps(route *netlink.Socket, s *netstate.Snapshot, names netstate.Names) error {
	var taps []int
	for i, l := range s.Links {
		if l.Tap != nil && l.Name == names.Tap {
			if err := readOffloads(route, &s.Links[i]); err != nil {
				return err
			}
		}
		if l.Tap != nil && (l.Name == names.Tap || l.Name == names.Responder || l.Alias == netstate.Mark(names.NIC)) {
			taps = append(taps, l.Index)
		}
	}
	if err := readFilters(route, s, taps); err != nil {
		return fmt.Errorf("read the filters of %s: %w", names.Tap, err)
	}
	return nil
}
