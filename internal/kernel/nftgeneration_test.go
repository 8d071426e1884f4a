package kernel

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft"
	"github.com/guestwire/guestwire/internal/nft/nfttest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestOwnTables: the look after a transaction has the tables as the kernel has them, whether they are read back or
// not, and also what another program changes before or after the transaction. They are read back if it changes
// something, and in each later look.
func TestOwnTables(t *testing.T) {
	nstest.Need(t)
	tables := []firewall.Table{nfttest.Table, {Family: firewall.NetDev, Name: nfttest.Table.Name, Chains: []firewall.Chain{
		{Name: "guest", Type: "filter", Hook: firewall.Ingress, Device: "eth0", Priority: firewall.Filter, Rules: []firewall.Rule{
			{Matches: []firewall.Match{firewall.EtherType{Number: netstate.EthernetARP}}, Verdict: firewall.Drop{}},
		}},
	}}}
	names := netstate.Names{Table: nfttest.Table.Name}
	for _, c := range []struct {
		name          string
		before, after string // what another program does
		read          bool   // the first look after the transaction reads the tables
	}{
		{name: "nobody else"},
		{name: "a table before", before: "add table inet other", read: true},
		{name: "a rule", after: "add rule inet guestwire-eth0 forward accept", read: true},
		{name: "a flushed chain", after: "flush chain netdev guestwire-eth0 guest", read: true},
		{name: "a deleted table", after: "delete table netdev guestwire-eth0", read: true},
		{name: "another policy", after: "add chain inet guestwire-eth0 forward { policy accept; }", read: true},
	} {
		for _, change := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, change %t", c.name, change), func(t *testing.T) {
				pod := nstest.New(t, "pod")
				pod.IP("link add eth0 type veth peer name away")
				other := func(command string) {
					if command != "" {
						if out, err := exec.Command("ip", "netns", "exec", pod.Name, "nft", command).CombinedOutput(); err != nil {
							t.Errorf("nft %s: %v: %s", command, err, out) // t.Fatal is for the test's own goroutine
						}
					}
				}
				err := netns.Do(pod.File, func() error {
					n, err := Open()
					if err != nil {
						return err
					}
					defer n.Close()
					fresh, err := Open()
					if err != nil {
						return err
					}
					defer fresh.Close()
					var ops []netstate.Op
					for _, table := range tables {
						ops = append(ops, netstate.TableSet{Table: table})
					}
					if change { // of the second table, by a rule more, to that table
						more := tables[1]
						more.Chains = slices.Clone(more.Chains)
						more.Chains[0].Rules = slices.Repeat(more.Chains[0].Rules, 2)
						if err := fresh.Apply(context.Background(), []netstate.Op{ops[0], netstate.TableSet{Table: more}}); err != nil {
							return err
						}
						c, can := more.Held().ChangeTo(tables[1])
						if !can {
							return errors.New("there is no change")
						}
						ops = []netstate.Op{netstate.TableChange{Table: tables[1], Change: c}}
					}
					if _, err := n.Snapshot(names, nil, made(tables...)); err != nil {
						return err
					}
					other(c.before)
					if err := n.Apply(context.Background(), ops); err != nil {
						return err
					}
					other(c.after)
					for look := range 2 {
						asked := n.filter.Asked()
						have, err := n.Snapshot(names, nil, made(tables...))
						if err != nil {
							return err
						}
						want, err := fresh.Snapshot(names, nil, made(tables...))
						if err != nil {
							return err
						}
						if !reflect.DeepEqual(whole(have.Tables), whole(want.Tables)) {
							t.Errorf("look %d:\nhave %+v\nwant %+v", look+1, whole(have.Tables), whole(want.Tables))
						}
						if read := n.filter.Asked()-asked > 1; read != (c.read || look > 0) {
							t.Errorf("look %d: the tables were read: %v", look+1, read)
						}
					}
					return forUndo(t, fresh, names, tables)
				})
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// TestExpect: who sees what an earlier look saw takes the expected tables for those of the kernel, without a question
// for what they hold, and finds what the kernel has whatever another program has done meanwhile.
func TestExpect(t *testing.T) {
	nstest.Need(t)
	names := netstate.Names{NIC: "eth0", Tap: "eth0-tap", Table: nfttest.Table.Name}
	tables := []firewall.Table{nfttest.Table, nfttest.DeviceTable}
	for name, c := range map[string]struct {
		other []string // what another program does
		read  bool
	}{
		"nobody else":            {[]string{"true"}, false},
		"another table":          {[]string{"nft add table inet other"}, true},
		"a rule":                 {[]string{"nft add rule inet guestwire-eth0 plain accept"}, true},
		"a deleted table":        {[]string{"nft delete table netdev guestwire-eth0"}, true},
		"there and back":         {[]string{"nft add chain inet guestwire-eth0 x", "nft delete chain inet guestwire-eth0 x"}, true},
		"the tap made anew":      {[]string{"ip link del eth0-tap", "ip link add eth0-tap type veth peer name p2"}, true},
		"the tap with its index": {[]string{"I=$(cat /sys/class/net/eth0-tap/ifindex); ip link del eth0-tap; ip link add eth0-tap index $I type veth peer name p2"}, !nft.BindsNames()},
		"no tap":                 {[]string{"ip link del eth0-tap"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := nstest.New(t, "pod")
			pod.IP("link add eth0 type veth peer name p0")
			pod.IP("link add eth0-tap type veth peer name p1")
			look := func(f func(n *Namespace) error) {
				t.Helper()
				err := netns.Do(pod.File, func() error {
					n, err := Open()
					if err != nil {
						return err
					}
					defer n.Close()
					return f(n)
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			var seen nft.Sight
			look(func(n *Namespace) error {
				now, err := n.Snapshot(names, nil, nil)
				if err != nil {
					return err
				}
				var ops []netstate.Op
				for _, table := range tables {
					ops = append(ops, netstate.TableSet{Table: table.Resolve(func(name string) int { l, _ := now.Named(name); return l.Index })})
				}
				if err := n.Apply(context.Background(), ops); err != nil {
					return err
				}
				if n.Tables.Sight().Links != nil {
					t.Error("there is a sight after a transaction")
				}
				_, err = n.Snapshot(names, nil, made(tables...))
				seen = n.Tables.Sight()
				return err
			})
			for _, command := range c.other {
				pod.ExecWithSys("sh", "-c", command)
			}
			look(func(n *Namespace) error {
				n.Tables.Expect(seen, tables)
				asked := n.filter.Asked()
				have, err := n.Snapshot(names, nil, made(tables...))
				if err != nil {
					return err
				}
				if read := n.filter.Asked()-asked > 2; read != c.read { // the generation, and the list of tables
					t.Errorf("the tables were read: %v", read)
				}
				n.Tables.ExpectNothingNew(seen)
				want, err := n.Snapshot(names, nil, made(tables...))
				if want.TablesStay == c.read {
					t.Errorf("the tables stay: %v", want.TablesStay)
				}
				if err == nil && want.TablesStay {
					want, err = n.Snapshot(names, nil, made(tables...))
				}
				if !reflect.DeepEqual(whole(have.Tables), whole(want.Tables)) {
					t.Errorf("have %+v\nwant %+v", whole(have.Tables), whole(want.Tables))
				}
				return err
			})
		})
	}
}

// whole returns the images with all texts.
func whole(images []firewall.Image) (all []firewall.Image) {
	for _, i := range images {
		all = append(all, i.WithTexts())
	}
	return all
}

// TestHolds: a table is read as held only if nft has changed nothing of it. What a counter has counted and what is in a
// set is no change. If it is not held, a change in place, or else a new table, makes nft list what it listed before.
func TestHolds(t *testing.T) {
	nstest.Long(t)
	nstest.Need(t)
	names := netstate.Names{Table: nfttest.Table.Name}
	counted := nfttest.Table
	counted.Chains = append(slices.Clone(nfttest.Table.Chains), firewall.Chain{Name: "counted", Rules: []firewall.Rule{
		{Matches: []firewall.Match{firewall.IP{Version: 4}, firewall.Count{}}, Verdict: firewall.Drop{}},
		{Matches: []firewall.Match{firewall.IP{Version: 6}, firewall.Count{}}, Verdict: firewall.Drop{}},
	}})
	for command, holds := range map[string]bool{
		"list ruleset": true,
		"add element inet guestwire-eth0 hops { 10.0.0.1 }":                                                            true,
		"add rule inet guestwire-eth0 plain accept":                                                                    false,
		"insert rule inet guestwire-eth0 plain accept":                                                                 false,
		"flush chain inet guestwire-eth0 plain":                                                                        false,
		"flush chain inet guestwire-eth0 counted; add rule inet guestwire-eth0 counted meta nfproto ipv4 counter drop": false,
		"flush chain inet guestwire-eth0 counted; add rule inet guestwire-eth0 counted meta nfproto ipv4 counter packets 7 bytes 8 drop; add rule inet guestwire-eth0 counted meta nfproto ipv6 counter drop": true,
		"flush chain inet guestwire-eth0 counted; add rule inet guestwire-eth0 counted meta nfproto ipv6 counter drop; add rule inet guestwire-eth0 counted meta nfproto ipv4 counter drop":                   false,
		"add chain inet guestwire-eth0 other":                                                                                                       false,
		"add chain inet guestwire-eth0 other; add rule inet guestwire-eth0 other accept":                                                            false,
		"add set inet guestwire-eth0 other { type ipv4_addr; }":                                                                                     false,
		"delete element inet guestwire-eth0 ports { 80 }; add element inet guestwire-eth0 ports { 82 : 9092 }":                                      false,
		"delete element inet guestwire-eth0 ports { 80 }":                                                                                           false,
		"delete element inet guestwire-eth0 ports { 80 }; add element inet guestwire-eth0 ports { 80 : 22 }":                                        false,
		"delete element inet guestwire-eth0 ports { 80 }; add element inet guestwire-eth0 ports { 80 : 9090 }":                                      true,
		"add map inet guestwire-eth0 other { type inet_service : inet_service; }":                                                                   false,
		"add counter inet guestwire-eth0 other":                                                                                                     false,
		"add chain inet guestwire-eth0 forward { policy accept; }":                                                                                  false,
		"add table inet guestwire-eth0 { flags dormant; }":                                                                                          false,
		"delete chain inet guestwire-eth0 sets":                                                                                                     false,
		"flush chain inet guestwire-eth0 sets; delete set inet guestwire-eth0 hops":                                                                 false,
		"flush chain inet guestwire-eth0 to-guest; delete map inet guestwire-eth0 ports":                                                            false,
		"add rule inet guestwire-eth0 plain jump { drop; }":                                                                                         false,
		"add rule inet guestwire-eth0 plain ip saddr { 10.0.0.1, 10.0.0.2 } accept":                                                                 false,
		"add chain inet guestwire-eth0 other; add map inet guestwire-eth0 ways { type ipv4_addr : verdict; elements = { 10.0.0.1 : jump other }; }": false,
		"delete table inet guestwire-eth0":                                                                                                          false,
	} {
		t.Run(command, func(t *testing.T) {
			pod := nstest.New(t, "pod")
			err := netns.Do(pod.File, func() error {
				n, err := Open()
				if err != nil {
					return err
				}
				defer n.Close()
				if err := n.Apply(context.Background(), []netstate.Op{netstate.TableSet{Table: counted}}); err != nil {
					return err
				}
				listed := func() string { return sortedLines(pod.Exec("nft", "-s", "list", "ruleset")) }
				before := listed()
				if out, err := exec.Command("ip", "netns", "exec", pod.Name, "nft", command).CombinedOutput(); err != nil {
					return fmt.Errorf("nft %s: %w: %s", command, err, out) // t.Fatal is for the test's own goroutine
				}
				now, err := n.Snapshot(names, nil, made(counted))
				if err != nil {
					return err
				}
				if have := len(now.Tables) == 1 && now.Tables[0].Equals(counted); have != holds {
					t.Errorf("the table is held: %v\n%+v", have, whole(now.Tables))
				}
				ops := []netstate.Op{netstate.TableSet{Table: counted}}
				if len(now.Tables) == 1 {
					if c, can := now.Tables[0].ChangeTo(counted); can {
						ops[0] = netstate.TableChange{Table: counted, Change: c}
					} else {
						ops = append([]netstate.Op{netstate.TableDel{Family: counted.Family, Name: counted.Name}}, ops...)
					}
				}
				if holds {
					return nil
				}
				if err := n.Apply(context.Background(), ops); err != nil {
					return err
				}
				if after := listed(); after != before {
					t.Errorf("%T repairs it to\n%s\nand not to\n%s", ops[0], after, before)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func sortedLines(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

// TestForeignChains: what another program adds to a table makes the table differ, and neither a reason of Drops nor
// more memory than a bound.
func TestForeignChains(t *testing.T) {
	nstest.Need(t, "nft")
	table := nfttest.Table.Counted("eth0", false)
	table.Chains = append(slices.Clone(table.Chains), firewall.Chain{Name: "drop-mac-spoof", Rules: []firewall.Rule{{Matches: []firewall.Match{firewall.Count{}}, Verdict: firewall.Drop{}}}})
	var more strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&more, "add chain inet guestwire-eth0 drop-r%d\nadd rule inet guestwire-eth0 drop-r%[1]d counter drop\nadd rule inet guestwire-eth0 plain tcp dport %[1]d counter drop\n", i)
	}
	pod := nstest.New(t, "pod")
	look := func(f func(n *Namespace) error) {
		t.Helper()
		err := netns.Do(pod.File, func() error {
			n, err := Open()
			if err != nil {
				return err
			}
			defer n.Close()
			return f(n)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	look(func(n *Namespace) error {
		return n.Apply(context.Background(), []netstate.Op{netstate.TableSet{Table: table}})
	})
	pod.LoadRules(more.String())
	look(func(n *Namespace) error {
		counts, err := n.Tables.Counts(table.Name)
		if err != nil || len(counts.Drops) != 1 || counts.Drops[0].Reason != firewall.MACSpoof {
			t.Errorf("%d reasons, %v", len(counts.Drops), err)
		}
		now, err := n.Snapshot(netstate.Names{Table: table.Name}, nil, made(table))
		if err != nil {
			return err
		}
		if len(now.Tables) != 1 || now.Tables[0].Equals(table) {
			t.Errorf("%d tables, or the first is as wanted", len(now.Tables))
			return nil
		}
		rules := 0
		for _, c := range now.Tables[0].Chains {
			rules += len(c.Rules)
		}
		if chains := len(now.Tables[0].Chains); chains > nft.MostChains || rules > nft.MostForeign+100 {
			t.Errorf("the image has %d chains and %d rules", chains, rules)
		}
		return nil
	})
}

// forUndo wants a look for Undo to find the tables that the other look finds, without a question for what they hold.
func forUndo(t *testing.T, n *Namespace, names netstate.Names, tables []firewall.Table) error {
	s, err := n.Snapshot(names, nil, made(tables...))
	if err != nil {
		return err
	}
	var want []firewall.Image
	for _, i := range s.Tables {
		want = append(want, firewall.Image{Family: i.Family, Name: i.Name})
	}
	asked := n.filter.Asked()
	undo, err := n.SnapshotForUndo(names, nil, nil)
	if asked = n.filter.Asked() - asked; asked != 2 || !reflect.DeepEqual(undo.Tables, want) { // the generation, and the list
		t.Errorf("for Undo %d questions find %+v, want %+v", asked, undo.Tables, want)
	}
	return err
}

// TestChainThatGoesWithItsLink: a look that knows the tables shows that a link of theirs has gone, and the next one
// reads whether the kernel deleted the chain with it.
func TestChainThatGoesWithItsLink(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	pod.IP("link add eth0 type veth peer name away")
	names := netstate.Names{Table: nfttest.Table.Name}
	tables := []firewall.Table{{Family: firewall.NetDev, Name: nfttest.Table.Name, Chains: []firewall.Chain{
		{Name: "guest", Type: "filter", Hook: firewall.Ingress, Device: "eth0", Priority: firewall.Filter, Drops: true},
	}}}
	err := netns.Do(pod.File, func() error {
		n, err := Open()
		if err != nil {
			return err
		}
		defer n.Close()
		if _, err := n.Snapshot(names, nil, nil); err != nil {
			return err
		}
		if err := n.Apply(context.Background(), []netstate.Op{netstate.TableSet{Table: tables[0]}}); err != nil {
			return err
		}
		pod.IP("link del eth0")
		first, err := n.Snapshot(names, nil, made(tables...))
		if err != nil {
			return err
		}
		if _, there := first.Named("eth0"); there {
			t.Error("the link is there")
		}
		second, err := n.Snapshot(names, nil, made(tables...))
		if err != nil {
			return err
		}
		has := strings.Contains(pod.Exec("nft", "list", "ruleset"), "chain guest")
		if known := len(second.Tables) == 1 && len(whole(second.Tables)[0].Chains) == 1; known != has {
			t.Errorf("nft lists the chain: %v; the second look has %+v", has, second.Tables)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestOwnTablesOfRenamedLink: a chain that was sent with the present name of a link is read back, and one that was sent
// with the later name is as the kernel has it when the link is renamed.
func TestOwnTablesOfRenamedLink(t *testing.T) {
	nstest.Need(t)
	names := netstate.Names{Table: nfttest.Table.Name}
	before := nft.BindsNames
	t.Cleanup(func() { nft.BindsNames = before })
	for _, binds := range []bool{before(), false} {
		nft.BindsNames = func() bool { return binds }
		pod := nstest.New(t, "pod")
		pod.IP("link add eth0 type veth peer name away")
		err := netns.Do(pod.File, func() error {
			n, err := Open()
			if err != nil {
				return err
			}
			defer n.Close()
			first, err := n.Snapshot(names, nil, nil)
			if err != nil {
				return err
			}
			link, _ := first.Named("eth0")
			table := firewall.Table{Family: firewall.NetDev, Name: nfttest.Table.Name, Chains: []firewall.Chain{
				{Name: "in", Type: "filter", Hook: firewall.Ingress, Device: "eth0-nic", Link: link.Index, Priority: firewall.Filter},
			}}
			if err := n.Apply(context.Background(), []netstate.Op{netstate.TableSet{Table: table}}); err != nil {
				return err
			}
			pod.IP("link set eth0 name eth0-nic")
			asked := n.filter.Asked()
			have, err := n.Snapshot(names, nil, made(table))
			if err != nil {
				return err
			}
			if read := n.filter.Asked()-asked > 1; read == binds {
				t.Errorf("binds names: %v; the tables were read: %v", binds, read)
			}
			want, err := n.Snapshot(names, nil, made(table))
			if err != nil {
				return err
			}
			if !reflect.DeepEqual(whole(have.Tables), whole(want.Tables)) {
				t.Errorf("binds names: %v\nhave %+v\nwant %+v", binds, whole(have.Tables), whole(want.Tables))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func made(tables ...firewall.Table) func() []firewall.Table {
	return func() []firewall.Table { return tables }
}
