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
// names are the names of the NIC's wiring. sysctls are the paths to read, below /proc/sys, with slashes;
// the Snapshot leaves out a path that the kernel does not have.
//
// wanted returns the firewall tables of the plan; nil: there are none. The image of a table that is in the kernel as it
// is wanted is without texts (firewall.Table.Held). In other tables a rule gets the text of the wanted rule with the
// same expressions; every other rule gets a text that begins with firewall.Unknown. iptables are read only if wanted
// has a table of iptables.
//
// The first Snapshot after a transaction of [Namespace.Apply] does not read the tables back: it takes the tables of the
// Snapshot before, with those that were sent, for the kernel's. It reads them if anything else has changed the nftables
// of the namespace since. A later Snapshot, and every Snapshot of another n, reads them, but for what Expect says.
func (n *Namespace) Snapshot(names netstate.Names, sysctls []string, wanted func() []firewall.Table) (netstate.Snapshot, error) {
	return n.snapshot(names, sysctls, wanted, true)
}

// SnapshotForUndo is Snapshot without what the nftables tables hold, as they are deleted in whole.
func (n *Namespace) SnapshotForUndo(names netstate.Names, sysctls []string, wanted []firewall.Table) (netstate.Snapshot, error) {
	return n.snapshot(names, sysctls, func() []firewall.Table { return wanted }, false)
}

func (n *Namespace) snapshot(names netstate.Names, sysctls []string, wanted func() []firewall.Table, whole bool) (netstate.Snapshot, error) {
	var s netstate.Snapshot
	if wanted == nil {
		wanted = func() []firewall.Table { return nil }
	}
	var clock unix.Timespec // before the lifetimes are read, so that nothing is thought to live longer than it does
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock); err != nil {
		return s, fmt.Errorf("clock_gettime: %w", err)
	}
	s.UptimeMS = clock.Nano() / 1e6
	for _, step := range []struct {
		what string
		read func(*netlink.Socket, *netstate.Snapshot) error
	}{
		{"links", readLinks}, {"addresses", readAddresses}, {"routes", readRoutes}, {"rules", readRules}, {"neighbours", readNeighbours},
	} {
		if err := step.read(n.route, &s); err != nil {
			return netstate.Snapshot{}, fmt.Errorf("read the namespace's %s: %w", step.what, err)
		}
	}
	var taps []int
	for i, l := range s.Links {
		if l.Tap != nil && l.Name == names.Tap {
			if err := readOffloads(n.route, &s.Links[i]); err != nil {
				return netstate.Snapshot{}, err
			}
		}
		if l.Tap != nil && (l.Name == names.Tap || l.Name == names.Responder || l.Alias == netstate.Mark(names.NIC)) {
			taps = append(taps, l.Index)
		}
	}
	if err := readFilters(n.route, &s, taps); err != nil {
		return netstate.Snapshot{}, fmt.Errorf("read the filters of %s: %w", names.Tap, err)
	}
	if err := n.Tables.Read(&s, names, wanted, whole); err != nil {
		return netstate.Snapshot{}, fmt.Errorf("read the namespace's nftables: %w", err)
	}
	if !s.TablesStay {
		if err := readIPTables(&s, wanted()); err != nil {
			return netstate.Snapshot{}, fmt.Errorf("read the namespace's iptables: %w", err)
		}
	}
	if err := readSysctls(&s, sysctls); err != nil {
		return netstate.Snapshot{}, err
	}
	return s, nil
}
