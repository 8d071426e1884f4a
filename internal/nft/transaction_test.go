package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestDumpBesideTransactions: what transactions about something else interrupt is read nevertheless, and whole.
func TestDumpBesideTransactions(t *testing.T) {
	nstest.Need(t)
	const many = 5000
	pod := nstest.New(t, "pod")
	text := "add table inet a\nadd chain inet a many\nadd set inet a pins-4 { type ipv4_addr . inet_proto . inet_service; }\n" +
		strings.Repeat("add rule inet a many ip daddr 10.9.9.9 accept\n", many)
	pod.LoadRules(text)
	ctx, stop := context.WithCancel(t.Context())
	begun, ended := make(chan bool), make(chan error, 1)
	go func() {
		ended <- within(pod, func(n *Tables) error {
			pins := []firewall.Element{{Key: appendKey(nil, netip.MustParseAddr("10.9.9.9"), 6, 443)}}
			err := n.sendPins("a", map[ip.Version]*pinSet{4: {name: "pins-4", added: pins}}, 0)
			close(begun)
			for err == nil && ctx.Err() == nil {
				err = n.sendPins("a", map[ip.Version]*pinSet{4: {name: "pins-4", renewed: pins, added: pins}}, 0)
			}
			return err
		})
	}()
	<-begun
	err := within(pod, func(n *Tables) error {
		for range 5 {
			read := 0
			rules := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, netlink.Netfilter(unix.NFPROTO_INET))
			err := n.filter.Dump(rules, func() { read = 0 }, func([]byte) error {
				read++
				return nil
			})
			if err != nil || read != many {
				return fmt.Errorf("read %d rules of %d, %w", read, many, err)
			}
		}
		return nil
	})
	stop()
	if other := <-ended; err != nil || other != nil {
		t.Fatal(err, other)
	}
}

// TestTablesWithoutPatience: a caller that waits no more gets no transaction.
func TestTablesWithoutPatience(t *testing.T) {
	nstest.Need(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	pod := nstest.New(t, "pod")
	err := within(pod, func(n *Tables) error {
		_, err := n.Send(ctx, []netstate.Op{netstate.TableSet{Table: firewall.Table{Family: firewall.Inet, Name: "a"}}})
		return err
	})
	if tables := pod.Exec("nft", "list", "tables"); !errors.Is(err, context.Canceled) || tables != "" {
		t.Errorf("%v, and tables %q", err, tables)
	}
}

// TestDumpOfShiftingList: a list of all tables in which another program's chain comes and goes is read whole, or not at
// all. The chains after that one take other places.
func TestDumpOfShiftingList(t *testing.T) {
	nstest.Need(t)
	const many = 3000
	pod := nstest.New(t, "pod")
	text := "add table inet a\nadd table inet b\n"
	for i := range many {
		text += fmt.Sprintf("add chain inet b c%d\n", i)
	}
	pod.LoadRules(text)
	ctx, stop := context.WithCancel(t.Context())
	begun, ended := make(chan bool), make(chan error, 1)
	go func() {
		ended <- within(pod, func(n *Tables) error {
			for first := true; ctx.Err() == nil; first = false {
				for _, op := range []netstate.Op{
					netstate.TableSet{Table: firewall.Table{Family: firewall.Inet, Name: "a", Chains: []firewall.Chain{{Name: "another"}}}},
					netstate.TableChange{Change: firewall.Change{Added: firewall.Table{Family: firewall.Inet, Name: "a"}, GoneChains: []string{"another"}}},
				} {
					if failures, _, err := n.transact([]netstate.Op{op}, 0); err != nil || len(failures) > 0 {
						return fmt.Errorf("%v: %v, %w", op, failures, err)
					}
				}
				if first {
					close(begun)
				}
			}
			return nil
		})
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatal(err)
	}
	err := within(pod, func(n *Tables) error {
		for range 100 {
			chains := map[string]bool{}
			list := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, netlink.Netfilter(unix.NFPROTO_INET))
			err := n.filter.Dump(list, func() { clear(chains) }, func(m []byte) error {
				chain, table, err := parseChain(m)
				if table == "b" {
					chains[chain.Name] = true
				}
				return err
			})
			if err == nil && len(chains) != many {
				return fmt.Errorf("read %d chains of %d", len(chains), many)
			}
		}
		return nil
	})
	stop()
	if other := <-ended; err != nil || other != nil {
		t.Fatal(err, other)
	}
}

// within calls f with the nftables of the pod's namespace.
func within(pod *nstest.Namespace, f func(*Tables) error) error {
	return netns.Do(pod.File, func() error {
		filter, err := netlink.Open(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		route, err := netlink.Open(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer route.Close()
		n := New(filter, route)
		defer n.Close()
		return f(n)
	})
}

// TestLastInShared: what another program adds to the table before the last chain is deleted stays.
func TestLastInShared(t *testing.T) {
	nstest.KernelDecides(t, "iptables' CHECKSUM")
	nstest.Need(t, "nft")
	for _, family := range []firewall.Family{firewall.Mangle4, firewall.Mangle6} {
		t.Run(string(family), func(t *testing.T) {
			pod := nstest.New(t, "pod")
			err := within(pod, func(n *Tables) error {
				const name = "guestwire-eth0"
				table := firewall.Table{Family: family, Name: name, Chains: []firewall.Chain{
					{Name: name, Type: "filter", Hook: firewall.Prerouting, Priority: firewall.BeforeDefrag, Rules: []firewall.Rule{
						{Matches: []firewall.Match{firewall.InInterface{Name: "eth0-tap"}}, Verdict: firewall.CompleteChecksum{}},
					}},
				}}
				send := func(ops ...netstate.Op) {
					t.Helper()
					if failures, err := n.Send(t.Context(), ops); err != nil || len(failures) > 0 {
						t.Errorf("%v, %v", failures, err)
					}
				}
				send(netstate.TableSet{Table: table})
				ops := []netstate.Op{netstate.TableDel{Family: family, Name: table.Name}}
				kept, generation, err := n.keepElements(ops)
				if err != nil {
					return err
				}
				if _, is := kept[0].(lastDel); !is || generation == 0 {
					t.Errorf("in generation %d: %T", generation, kept[0])
				}
				pod.Exec("nft", "add chain "+string(family)+" PREROUTING { type filter hook prerouting priority mangle; }")
				for g, want := range map[uint32]unix.Errno{generation: unix.ERESTART, 0: unix.EBUSY} {
					if failures, err := n.sendKept(kept, g); err != nil || len(failures) != 1 || !netlink.Answers(failures[0].Err, want) {
						t.Errorf("in generation %d: %v, %v; want %v", g, failures, err, want)
					}
					if list := pod.Exec("nft", "list table "+string(family)); !strings.Contains(list, "chain "+name) {
						t.Errorf("the chain is gone: %s", list)
					}
				}
				send(ops...)
				if list := pod.Exec("nft", "list table "+string(family)); !strings.Contains(list, "PREROUTING") || strings.Contains(list, "guestwire") {
					t.Errorf("left is\n%s", list)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
