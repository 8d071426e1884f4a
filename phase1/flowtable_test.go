package phase1_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

const offloaded = "[OFFLOAD]"

// connections are the lines of the namespace's connections that have all of the words, as Linux lists them.
func connections(n *nstest.Namespace, words ...string) (list []string) {
lines:
	for line := range strings.Lines(n.Exec("cat", "/proc/net/nf_conntrack")) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		list = append(list, line)
	}
	return list
}

// flowTables are those of the pod, as nft lists them.
func flowTables(n nstest.Network) string {
	return n.Pod.Exec("nft", "list", "flowtables", "inet")
}

// TestFlowTable: where the kernel has flow tables, the guest's TCP passes by one once it is open, in both directions
// and families, and leaves it when it ends. UDP passes by it if it goes on. A table that is made anew costs no
// connection.
func TestFlowTable(t *testing.T) {
	nstest.KernelDecides(t, "flow tables")
	if !nstest.HasFlowTables() {
		nstest.LeaveOut(t, "this kernel has no flow tables")
	}
	s := newScene(t)
	before := settled(t, s.Network)
	c := config(s.Network, infra.Masquerade{})
	c.Down.CutOff = true // the guest has the tap until the test ends
	s.wire(t, "guest", c)
	if list := flowTables(s.Network); !strings.Contains(list, "devices = { eth0, eth0-tap }") {
		t.Fatalf("no flow table:\n%s", list)
	}
	in, out := exchange{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"}, exchange{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"}
	s.serve(t, []exchange{in, out})
	for family, words := range []string{"ipv4", "ipv6"} {
		for _, e := range []exchange{in, out} {
			t.Run(fmt.Sprintf("%s, %v", words, e), func(t *testing.T) {
				q, err := s.question("tcp", family, e)
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				if answer, err := q.Answer(patience); err != nil || answer != s.wanted(e, family) {
					t.Fatalf("%q, %v", answer, err)
				}
				const size = 1 << 20 // in segments above the MTU too, which the kernel cuts late
				echo := func() {
					t.Helper()
					before := counters(t, c)
					if err := q.Echo(size, patience); err != nil {
						t.Error(err)
					}
					after := counters(t, c)
					if from, to := after.FromGuest.Bytes-before.FromGuest.Bytes, after.ToGuest.Bytes-before.ToGuest.Bytes; from < size || to < size || from > 2*size || to > 2*size {
						t.Errorf("%d octets from the guest and %d to it are counted, want %d and a little more", from, to, size)
					}
				}
				echo()
				this := fmt.Sprintf("dport=%d ", port(e.to))
				if list := connections(s.Pod, words, "tcp", this, offloaded); len(list) != 1 {
					t.Errorf("%d connections pass by the flow table, want 1:\n%s", len(list), s.Pod.Exec("cat", "/proc/net/nf_conntrack"))
				}
				echo() // what passes by the flow table is counted, too
				// The table is made anew, and the connection goes on, at first by the rules.
				s.Pod.Exec("nft", "flush", "chain", "inet", "guestwire-eth0", "through")
				s.Pod.Exec("nft", "delete", "flowtable", "inet", "guestwire-eth0", "established")
				if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "flow table established is gone") {
					t.Errorf("Check says %v of a flow table that is gone", err)
				}
				setup(t, c)
				echo()
				if list := connections(s.Pod, words, "tcp", this, offloaded); len(list) != 1 {
					t.Errorf("%d connections pass by the new flow table, want 1", len(list))
				}
				q.Close()
				nstest.Eventually(t, func() error {
					for _, state := range []string{offloaded, "ESTABLISHED"} {
						if list := connections(s.Pod, words, "tcp", this, state); len(list) != 0 {
							return fmt.Errorf("a connection that has ended:\n%s", list)
						}
					}
					return nil
				})
			})
		}
		t.Run(words+", UDP", func(t *testing.T) {
			to := netip.AddrPortFrom(s.addresses["beyond"][family], 9000)
			conn := dial(t, s.who["guest"], "udp", to)
			ask := func() {
				t.Helper()
				conn.SetDeadline(time.Now().Add(patience))
				if _, err := conn.Write([]byte("question")); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Read(make([]byte, 100)); err != nil {
					t.Fatal(err)
				}
			}
			ask()
			if list := connections(s.Pod, words, "udp", "dport=9000 ", offloaded); len(list) != 0 {
				t.Errorf("one question passes by the flow table:\n%s", list)
			}
			nstest.Eventually(t, func() error {
				ask()
				if list := connections(s.Pod, words, "udp", "dport=9000 ", offloaded); len(list) != 1 {
					return fmt.Errorf("%d connections pass by the flow table, want 1", len(list))
				}
				return nil
			})
			ask()
		})
	}
	check(t, c)
	teardown(t, s.Network, c, before)
}

// TestNoFlowTable: rules of other programs that see each forwarded packet see each, and iptables has
// no flow tables.
func TestNoFlowTable(t *testing.T) {
	nstest.KernelDecides(t, "flow tables")
	if !nstest.HasFlowTables() {
		nstest.LeaveOut(t, "this kernel has no flow tables")
	}
	for _, c := range []struct {
		name   string
		before string // what another program does
		change func(*wired.NIC)
		want   bool
	}{
		{name: "nobody else", want: true},
		{name: "NAT", before: "nft add table ip other; nft add chain ip other c '{ type nat hook prerouting priority 0; }'", want: true},
		{name: "input", before: "nft add table inet other; nft add chain inet other c '{ type filter hook input priority 0; }'", want: true},
		{name: "forward", before: "nft add table inet other; nft add chain inet other c '{ type filter hook forward priority 0; }'"},
		{name: "postrouting of IPv6", before: "nft add table ip6 other; nft add chain ip6 other c '{ type filter hook postrouting priority 0; }'"},
		{name: "a bridge", before: "nft add table bridge other; nft add chain bridge other c '{ type filter hook output priority 0; }'"},
		{name: "iptables-legacy, NAT", before: "iptables-legacy -t nat -A PREROUTING -j ACCEPT", want: true},
		{name: "iptables-legacy", before: "ip6tables-legacy -A FORWARD -j ACCEPT"},
		{name: "by iptables", change: func(c *wired.NIC) { c.Binding = infra.Masquerade{Firewall: cache.FirewallIPTablesNFT} }},
		{name: "a limit to the guest", change: func(c *wired.NIC) { c.Limits.ToGuest.BitsPerSecond = 1_000_000 }, want: true},
		{name: "a policy", change: func(c *wired.NIC) { c.Egress = policy(t, "allow all") }},
		{name: "a limit of the guest", change: func(c *wired.NIC) { c.Limits.FromGuest.PacketsPerSecond = 1000 }, want: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			if c.before != "" {
				n.Pod.Exec("sh", "-ec", c.before)
			}
			config := config(n, infra.Masquerade{})
			if c.change != nil {
				c.change(&config)
			}
			setup(t, config)
			if list := flowTables(n); strings.Contains(list, "established") != c.want {
				t.Errorf("the flow tables, want one: %t\n%s", c.want, list)
			}
			check(t, config)
			if !c.want {
				return
			}
			// Rules that come later see each packet after the next Setup.
			n.Pod.Exec("sh", "-ec", "nft add table inet later; nft add chain inet later c '{ type filter hook forward priority 0; }'")
			setup(t, config)
			if list := flowTables(n); strings.Contains(list, "established") {
				t.Errorf("the flow table is still there:\n%s", list)
			}
			check(t, config)
		})
	}
}

// TestCutOffloaded: a policy takes the flow table away, and CutRefused ends what passed by it, also before Linux 6.4,
// where the kernel forgets nothing that is in a flow table.
func TestCutOffloaded(t *testing.T) {
	nstest.KernelDecides(t, "before Linux 6.4 nothing of a flow table can be deleted")
	if !nstest.HasFlowTables() {
		nstest.LeaveOut(t, "this kernel has no flow tables")
	}
	s := newScene(t)
	c := config(s.Network, infra.Masquerade{})
	s.wire(t, "guest", c)
	e := exchange{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"}
	s.serve(t, []exchange{e})
	q, err := s.question("tcp", 0, e)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := q.Echo(1<<20, patience); err != nil {
		t.Fatal(err)
	}
	if list := connections(s.Pod, "ipv4", "tcp", "dport=9000 ", offloaded); len(list) != 1 {
		t.Fatalf("%d connections pass by the flow table, want 1", len(list))
	}
	c.Egress = policy(t, "refuse all")
	setup(t, c)
	cut(t, c, 1)
	if err := q.Echo(10, patience); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the cut: %v, want %v", err, syscall.ECONNRESET)
	}
	check(t, c)
}
