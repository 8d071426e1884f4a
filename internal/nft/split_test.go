package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft/nfttest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// manyBoxes returns a table with that many ranges of destinations.
func manyBoxes(boxes int) firewall.Table {
	set := firewall.Destinations{Name: "egress-4", Version: 4}
	for i := range boxes {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
		set.Boxes = append(set.Boxes, firewall.Box{First: a, Last: a.Next(), FirstProtocol: 6, LastProtocol: 6, FirstPort: uint16(i), LastPort: uint16(i)})
	}
	return firewall.Table{Family: firewall.Inet, Name: nfttest.Table.Name, Destinations: []firewall.Destinations{set}, Chains: []firewall.Chain{
		{Name: "forward", Type: "filter", Hook: firewall.Forward, Rules: []firewall.Rule{{Matches: []firewall.Match{set.Lookup()}, Verdict: firewall.Accept{}}, {Verdict: firewall.Drop{}}}},
	}}
}

// send sends the operations, and returns all failures.
func send(n *Tables, ops ...netstate.Op) error {
	failures, err := n.Send(context.Background(), ops)
	for _, f := range failures {
		err = errors.Join(err, f.Err)
	}
	return err
}

// TestSplitTransaction: a process whose send buffer takes no whole transaction sends new sets before the chains, and
// the kernel has the same tables then.
func TestSplitTransaction(t *testing.T) {
	nstest.Need(t)
	const most = 70 << 10
	many, without := manyBoxes(3000), manyBoxes(0)
	without.Destinations = nil
	without.Chains[0].Rules = without.Chains[0].Rules[1:]
	change := func(from, to firewall.Table) netstate.Op {
		c, can := from.Held().ChangeTo(to)
		if !can {
			t.Fatal("no change")
		}
		return netstate.TableChange{Table: to, Change: c}
	}
	for name, ops := range map[string][]netstate.Op{
		"ports":         {netstate.TableSet{Table: nfttest.Table}},
		"destinations":  {netstate.TableSet{Table: many}},
		"with a device": {netstate.TableSet{Table: nfttest.DeviceTable}, netstate.TableSet{Table: many}},
		"a new set":     {netstate.TableSet{Table: without}, change(without, many)},
	} {
		t.Run(name, func(t *testing.T) {
			list := func(most int) string {
				pod := nstest.New(t, "pod")
				pod.IP("link add eth0 type veth peer name away")
				err := within(pod, func(n *Tables) error {
					n.filter.Most = most
					if name != "a new set" {
						return send(n, ops...)
					}
					for _, op := range ops { // two transactions
						if err := send(n, op); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatalf("with %d octets: %v", most, err)
				}
				lines := strings.FieldsFunc(pod.Exec("nft", "list", "ruleset"), func(r rune) bool { return strings.ContainsRune(",\n", r) })
				return strings.Join(slices.Sorted(slices.Values(lines)), "\n")
			}
			if whole, split := list(0), list(most); whole != split {
				t.Errorf("in several transactions the tables differ: %v", nstest.Difference(whole, split))
			}
		})
	}
}

// TestSplitAgain: after a try that ended before its last transaction, the next one has the same result.
func TestSplitAgain(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	many := manyBoxes(3000)
	broken := many
	broken.Chains = []firewall.Chain{{Name: "forward", Rules: []firewall.Rule{{Verdict: firewall.Jump{Chain: "none"}}}}}
	err := within(pod, func(n *Tables) error {
		n.filter.Most = 70 << 10
		if err := send(n, netstate.TableSet{Table: broken}); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%v, want ENOENT", err)
		}
		if list := pod.Exec("nft", "list", "ruleset"); strings.Contains(list, "chain") || !strings.Contains(list, "set egress-4") {
			t.Errorf("after a try:\n%.500s", list)
		}
		return send(n, netstate.TableSet{Table: many})
	})
	if err != nil {
		t.Fatal(err)
	}
	if list := pod.Exec("nft", "list", "ruleset"); strings.Count(list, "chain") != 1 || strings.Count(list, " tcp ") != 3000 {
		t.Errorf("%.500s", list)
	}
}

// TestNoSplit: what a running guest has is changed in one transaction or not at all. The error says what helps.
func TestNoSplit(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	many := manyBoxes(3000)
	err := within(pod, func(n *Tables) error {
		if err := send(n, netstate.TableSet{Table: many}); err != nil {
			return err
		}
		before := pod.Exec("nft", "list", "ruleset")
		n.filter.Most = 70 << 10
		replaced := []netstate.Op{netstate.TableDel{Family: many.Family, Name: many.Name}, netstate.TableSet{Table: many}}
		size := len(bytesOf(t, replaced)) + 8 // of the generation in which the elements to keep were read
		err := send(n, replaced...)
		if want := fmt.Sprintf("sysctl -w net.core.wmem_max=%d", (size+33)/2); !errors.Is(err, unix.EMSGSIZE) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v; want EMSGSIZE and %s", err, want)
		}
		if after := pod.Exec("nft", "list", "ruleset"); after != before {
			t.Errorf("the tables differ: %v", nstest.Difference(before, after))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// bytesOf are the octets of a transaction.
func bytesOf(t *testing.T, ops []netstate.Op) []byte {
	t.Helper()
	messages, err := Encode(ops)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(messages...)
}
