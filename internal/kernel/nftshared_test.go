package kernel

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// sharedTable is that of a NIC.
func sharedTable(f firewall.Family, nic string) firewall.Table {
	name := netstate.NamesFor(nic, "").Table
	return firewall.Table{Family: f, Name: name, Chains: []firewall.Chain{
		{Name: name, Type: "filter", Hook: firewall.Prerouting, Priority: firewall.BeforeDefrag, Rules: []firewall.Rule{
			{Matches: []firewall.Match{firewall.InInterface{Name: nic + "-tap"}}, Verdict: firewall.CompleteChecksum{}},
		}},
	}}
}

// inShared calls f in a new namespace whose kernel has the target, for each family of shared tables.
func inShared(t *testing.T, f func(t *testing.T, n *Namespace, family firewall.Family, nft func(command string) string)) {
	nstest.KernelDecides(t, "iptables' CHECKSUM")
	nstest.Need(t, "nft")
	for _, family := range []firewall.Family{firewall.Mangle4, firewall.Mangle6} {
		t.Run(string(family), func(t *testing.T) {
			pod := nstest.New(t, "pod")
			err := netns.Do(pod.File, func() error {
				n, err := Open()
				if err != nil {
					return err
				}
				defer n.Close()
				versions, err := n.Tables.CompletesChecksums()
				if err != nil {
					return err
				}
				if len(versions) < 2 {
					return errors.New("this kernel does not have xt_CHECKSUM for both versions of IP")
				}
				f(t, n, family, func(command string) string { return pod.Exec("nft", command) })
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// apply carries out the operations.
func apply(t *testing.T, n *Namespace, ops ...netstate.Op) {
	t.Helper()
	if err := n.Apply(context.Background(), ops); err != nil {
		t.Error(err)
	}
}

// image is what a new look finds of the NIC, of one table at most.
func image(t *testing.T, family firewall.Family, nic string) (i firewall.Image, there bool) {
	t.Helper()
	n, err := Open()
	if err != nil {
		t.Error(err)
		return i, false
	}
	defer n.Close()
	table := sharedTable(family, nic)
	for _, read := range []func() (netstate.Snapshot, error){
		func() (netstate.Snapshot, error) { return n.SnapshotForUndo(netstate.NamesFor(nic, ""), nil, nil) },
		func() (netstate.Snapshot, error) { return n.Snapshot(netstate.NamesFor(nic, ""), nil, made(table)) },
	} {
		s, err := read()
		if err != nil || len(s.Tables) > 1 {
			t.Errorf("tables %v, %v", s.Tables, err)
		}
		was := there
		if there = len(s.Tables) == 1; there {
			i = s.Tables[0]
		} else if was {
			t.Error("only the look for an undoing finds the table")
		}
	}
	return i, there
}

// TestSharedTable: a wiring has one chain in a table that is others', too. It reads, changes and deletes that chain
// alone, and the table as the last one in it.
func TestSharedTable(t *testing.T) {
	inShared(t, func(t *testing.T, n *Namespace, family firewall.Family, nft func(string) string) {
		table, other := sharedTable(family, "eth0"), sharedTable(family, "net1")
		missing := func(nic string) {
			t.Helper()
			if i, there := image(t, family, nic); there {
				t.Errorf("there is %v", i)
			}
		}
		wanted := func(table firewall.Table, nic string) {
			t.Helper()
			if i, there := image(t, family, nic); !there || !i.Equals(table) {
				t.Errorf("there is %v, want %v", i, table)
			}
		}
		deletion := func(of firewall.Table) netstate.Op { return netstate.TableDel{Family: of.Family, Name: of.Name} }
		where := string(family)
		missing("eth0")
		nft("add table " + strings.Fields(where)[0] + " guestwire-eth0") // not ours
		missing("eth0")
		nft("delete table " + strings.Fields(where)[0] + " guestwire-eth0")

		apply(t, n, netstate.TableSet{Table: table})
		wanted(table, "eth0")
		missing("net1")
		// nft 1.1 quotes the target's name, nft 1.0 does not.
		list := strings.ReplaceAll(nft("list table "+where), `"CHECKSUM"`, "CHECKSUM")
		if !strings.Contains(list, table.Chains[0].Rules[0].String()) || !strings.Contains(list, table.Chains[0].Head()[:40]) {
			t.Errorf("nft lists\n%s", list)
		}
		if watched, err := n.Tables.Watched(); watched || err != nil {
			t.Errorf("the chain is said to watch: %v, %v", watched, err)
		}
		names := netstate.NamesFor("eth0", "")
		if _, err := n.Snapshot(names, nil, made(table)); err != nil {
			t.Error(err)
		}
		seen := n.Tables.Sight()
		stays := func(want bool) {
			t.Helper()
			fresh, err := Open()
			if err != nil {
				t.Error(err)
				return
			}
			defer fresh.Close()
			fresh.Tables.ExpectNothingNew(seen)
			if s, err := fresh.Snapshot(names, nil, made(table)); s.TablesStay != want || err != nil {
				t.Errorf("the tables stay: %v, %v; want %v", s.TablesStay, err, want)
			}
		}
		stays(true)
		apply(t, n, netstate.TableSet{Table: other})
		stays(false)
		wanted(table, "eth0")
		wanted(other, "net1")

		for _, damage := range []string{
			"add rule %s guestwire-eth0 accept", "flush chain %s guestwire-eth0",
			"add table %s { flags dormant; }",
			"flush chain %s guestwire-eth0; delete chain %[1]s guestwire-eth0; add chain %[1]s guestwire-eth0 { type filter hook prerouting priority -300; }",
		} {
			nft(strings.ReplaceAll(strings.ReplaceAll(damage, "%s", where), "%[1]s", where))
			i, there := image(t, family, "eth0")
			if !there || i.Equals(table) || len(i.Differences(table.Image())) == 0 {
				t.Errorf("%s: there is %v, which differs by %q", damage, i, i.Differences(table.Image()))
			}
			if c, can := i.ChangeTo(table); can {
				apply(t, n, netstate.TableChange{Table: table, Change: c})
			} else {
				apply(t, n, deletion(table), netstate.TableSet{Table: table})
			}
			wanted(table, "eth0")
			wanted(other, "net1")
		}

		nft("add chain " + where + " PREROUTING { type filter hook prerouting priority mangle; }; add rule " + where + " PREROUTING counter")
		wanted(table, "eth0")
		if watched, err := n.Tables.Watched(); !watched || err != nil {
			t.Errorf("a chain of iptables is said not to watch: %v, %v", watched, err)
		}
		apply(t, n, deletion(table))
		missing("eth0")
		wanted(other, "net1")
		apply(t, n, deletion(other))
		missing("net1")
		if list := nft("list table " + where); !strings.Contains(list, "counter") || strings.Contains(list, "guestwire") {
			t.Errorf("what another program has is\n%s", list)
		}
		nft("delete chain " + where + " PREROUTING")
		apply(t, n, netstate.TableSet{Table: table}) // into an empty table
		wanted(table, "eth0")
		apply(t, n, deletion(table))
		if list := nft("list tables"); list != "" {
			t.Errorf("left is\n%s", list)
		}
	})
}
