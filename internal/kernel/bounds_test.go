package kernel

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft/nfttest"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/statements"
)

var names = netstate.NamesFor("eth0", "")

// sized are the inputs of programs that add objects to a namespace: what begins, each object, and what ends.
var sized = map[string]struct {
	program, begins string
	each            func(i int) string
	ends            string
}{
	"links": {"ip -batch -", "", func(i int) string { return fmt.Sprintf("link add one%d group 7 type veth peer name two%[1]d\n", i) }, ""},
	"addresses": {"ip -batch -", "", func(i int) string {
		return fmt.Sprintf("addr add %v/32 dev eth0\naddr add fd00::1:%x/128 dev eth0 nodad\n", numbered(10, i), i)
	}, ""},
	"routes": {"ip -batch -", "", func(i int) string {
		return fmt.Sprintf("route add %v via 10.0.0.1\nroute add 2001:db8:%x::/48 dev eth0\n", numbered(100, i), i)
	}, ""},
	"next hops": {"ip -batch -", "", func(i int) string {
		return fmt.Sprintf("route add %v nexthop via 10.0.0.3 dev eth0 nexthop via 10.0.0.4 dev eth0\n", numbered(100, i))
	}, ""},
	"IPv6 next hops": {"ip -batch -", "", func(i int) string { return fmt.Sprintf("route append 2001:db8::/64 via fd00::1:%x dev eth0\n", i) }, ""},
	"nexthop objects": {"ip -batch -", "", func(i int) string {
		return fmt.Sprintf("nexthop add id %d via 10.0.0.1 dev eth0\nroute add %v nhid %[1]d\n", 1+i, numbered(100, i))
	}, ""},
	"rules": {"ip -batch -", "", func(i int) string {
		return fmt.Sprintf("rule add pref %d from %v table 100\n", 1000+i, numbered(10, i))
	}, ""},
	"neighbours": {"ip -batch -", "", func(i int) string {
		return fmt.Sprintf("neigh add %v lladdr 02:00:00:00:00:07 nud permanent dev eth0\n", numbered(10, i))
	}, ""},
	"forwarding entries": {"bridge -batch -", "", func(i int) string {
		return fmt.Sprintf("fdb add 02:00:00:01:%02x:%02x dev port master static\n", i>>8, i&255)
	}, ""},
	"filters": {"tc -batch -", "", func(i int) string {
		return fmt.Sprintf("filter add dev eth0-tap ingress protocol ip prio %d u32 match u32 0 0 action mirred egress redirect dev eth0\n", 1+i)
	}, ""},
	"chains": {"nft -f -", "", func(i int) string { return fmt.Sprintf("add chain inet guestwire-eth0 drop-%d\n", i) }, ""},
	"rules of chains": {"nft -f -", "", func(i int) string {
		return fmt.Sprintf("add rule inet guestwire-eth0 plain ip saddr %v counter drop\n", numbered(10, i))
	}, ""},
	"sets": {"nft -f -", "", func(i int) string { return fmt.Sprintf("add set inet guestwire-eth0 set%d { type ipv4_addr; }\n", i) }, ""},
	"elements": {"nft -f -", "", func(i int) string {
		return fmt.Sprintf("add element inet guestwire-eth0 egress-4 { %v . tcp . %d }\nadd element inet guestwire-eth0 hops { %[1]v }\n", numbered(10, i), 1+i)
	}, ""},
	"tables": {"nft -f -", "", func(i int) string {
		return fmt.Sprintf("add table inet other%d { chain input { type filter hook input priority 0; }; }\n", i)
	}, ""},
	"chains of iptables": {"iptables-nft-restore --noflush", "*filter\n", func(i int) string {
		return fmt.Sprintf(":%s-%d - [0:0]\n-A %[1]s-%[2]d -j ACCEPT\n-A FORWARD -j %[1]s-%[2]d\n", names.Chains(), i)
	}, "COMMIT\n"},
	"connections": {"cat", "", func(int) string { return "" }, ""}, // sendDatagrams
}

func numbered(first byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{first, 1, byte(i >> 8), byte(i)})
}

// TestBounds: the work on a kernel does not grow with the square of anything that the namespace holds.
func TestBounds(t *testing.T) {
	nstest.Long(t)
	nstest.Need(t, "ip", "bridge", "tc", "nft", "iptables-nft-restore")
	nstest.NeedTaps(t)
	statements.Bound(t, "TestBoundsWork", slices.Sorted(maps.Keys(sized)), 200, "github.com/guestwire/guestwire/internal/...", "github.com/vishvananda/netlink/nl", "slices")
}

// TestBoundsWork is what TestBounds counts: all that this package and package nft do with a namespace that has the
// objects.
func TestBoundsWork(t *testing.T) {
	kind, objects := statements.Asked(t, "links")
	nstest.Need(t, "ip", "nft")
	nstest.NeedTaps(t)
	pod, err := lab.New() // without a name, which the other processes have too
	if err != nil {
		t.Fatal(err)
	}
	defer pod.File.Close()
	run := func(input, program string) {
		t.Helper()
		if _, err := pod.Run("sh", "-c", program+" <<.\n"+input+"\n.\n"); err != nil {
			t.Fatal(err)
		}
	}
	inPod := func(f func(*Namespace) error) {
		t.Helper()
		if err := inPod(&nstest.Namespace{Namespace: pod}, f); err != nil {
			t.Fatal(err)
		}
	}
	run("link set lo up\nlink add eth0 type veth peer name away\nlink set away up\nlink set eth0 up\naddr add 10.0.0.2/24 dev eth0\naddr add fd00::2/64 dev eth0 nodad\n"+
		"link add bridge type bridge\nlink add port master bridge type veth peer name port2\ntuntap add eth0-tap mode tap\n", "ip -batch -")
	run("qdisc add dev eth0-tap ingress\n", "tc -batch -")
	table := nfttest.Table
	table.Sets = append(slices.Clone(table.Sets[:2]), firewall.NewPinSet(4), firewall.NewPinSet(6))
	table.Sets[0].Size = 1 << 12
	table.Destinations = firewall.DestinationsOf("egress-4", 4, nil)
	inPod(func(n *Namespace) error { return n.Apply(t.Context(), []netstate.Op{netstate.TableSet{Table: table}}) })
	if s := sized[kind]; objects > 0 {
		var input strings.Builder
		for i := range objects {
			input.WriteString(s.each(i))
		}
		run(s.begins+input.String()+s.ends, s.program)
	}
	if err := pod.Settle("eth0"); err != nil {
		t.Fatal(err)
	}
	inPod(func(n *Namespace) error {
		if kind == "connections" {
			for i := range objects {
				c, err := net.Dial("udp", fmt.Sprintf("10.0.0.2:%d", 1000+i))
				if err != nil {
					return err
				}
				defer c.Close()
				if _, err := c.Write([]byte("question")); err != nil {
					return err
				}
			}
		}
		return workOn(t, n, table, objects)
	})
}

func workOn(t *testing.T, n *Namespace, table firewall.Table, objects int) error {
	programs := []firewall.Family{firewall.IPTablesNFT}
	wanted := func() []firewall.Table { return []firewall.Table{table, {Family: programs[0], Name: names.Chains()}} }
	now, err := n.Snapshot(names, nil, wanted)
	if err != nil {
		return err
	}
	_, undoErr := n.SnapshotForUndo(names, nil, programs)
	_, linksErr := n.Links()
	_, listenersErr := n.Listeners()
	_, portsErr := n.LocalPorts()
	_, watchedErr := n.Tables.Watched()
	_, countsErr := n.Tables.Counts(names.Table)
	_, boxesErr := n.Tables.Boxes(names.Table, table.Destinations[0])
	setsErr := n.Tables.CheckSets(names.Table, table.Destinations)
	if err := errors.Join(undoErr, linksErr, listenersErr, portsErr, watchedErr, countsErr, boxesErr, setsErr); err != nil {
		return err
	}
	// What is there already, what is not there, what cannot be, and what goes.
	var there, failing, forget []netstate.Op
	for _, a := range now.Addresses {
		there = append(there, netstate.AddressAdd{Link: "eth0", Address: a})
		forget = append(forget, netstate.ConnectionsDel{OrigSrc: netip.PrefixFrom(a.Prefix.Addr(), a.Prefix.Addr().BitLen()), ReplySrc: netip.MustParsePrefix("192.0.2.1/32")})
	}
	for i := range objects {
		failing = append(failing, netstate.AddressDel{Link: "none", Address: netstate.Address{Link: 9999, Prefix: netip.PrefixFrom(numbered(10, i), 32)}})
	}
	if err := n.Apply(t.Context(), slices.Concat(there, forget)); err != nil {
		return err
	}
	if err := n.Apply(t.Context(), failing); (err == nil) != (objects == 0) {
		return fmt.Errorf("addresses of a link that is not there: %v", err)
	}
	if tracks() {
		cut, err := n.CutConnections(t.Context(), func(Connection) bool { return true }, func(f func() error) error { return f() })
		if err != nil || cut < objects/2 {
			return fmt.Errorf("%d connections are cut, %v", cut, err)
		}
	}
	var wrong []forgotten
	for i := range objects {
		wrong = append(wrong, forgotten{encodeConnectionDel(connection{family: unix.AF_INET}), i})
	}
	if failures, err := deleteConnections(n.filter, wrong); err != nil || len(failures) != objects {
		return fmt.Errorf("%d deletions of no connection fail, %v", len(failures), err)
	}
	ops := []netstate.Op{netstate.TableDel{Family: table.Family, Name: table.Name}, netstate.TableSet{Table: table}, netstate.TableDel{Family: programs[0], Name: names.Chains()}}
	if at := slices.IndexFunc(now.Tables, func(i firewall.Image) bool { return i.Family == table.Family }); at >= 0 {
		if change, can := now.Tables[at].ChangeTo(table); can {
			ops = slices.Insert(ops, 0, netstate.Op(netstate.TableChange{Table: table, Change: change}))
		}
	}
	if err := n.Apply(t.Context(), append(ops, netstate.GroupDel{Group: 7})); err != nil {
		var step *infra.StepError
		if errors.As(err, &step) {
			return fmt.Errorf("%s: %w", step.Kind, err)
		}
		return err
	}
	return nil
}
