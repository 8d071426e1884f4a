package wiring_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// salvage takes the wiring down by what the namespace shows.
func salvage(t *testing.T, k *fakeKernel, nic string, record *cache.Record) wiring.Journal {
	t.Helper()
	kind := ""
	if record != nil {
		kind = record.Binding
	}
	j := wiring.Salvage(k.snapshot(), nic, kind, record)
	plan, err := j.Plan()
	if err != nil {
		t.Fatal(err)
	}
	for range undoRounds {
		ops := mustUndo(t, plan, k)
		if len(ops) == 0 {
			break
		}
		mustApply(t, k, ops)
	}
	if ops := mustUndo(t, plan, k); len(ops) > 0 {
		t.Fatalf("taken down, and yet there is something to do:\n%s", netstate.Text(ops))
	}
	return j
}

// phrases say which lines of a namespace's text differ where a phrase of Lost begins with the words.
var phrases = []struct {
	words string
	lines []string
	// sure says that the phrase is wrong if no line differs. The others say "if" or "whether".
	sure bool
}{
	{"routes and permanent neighbours of ", []string{"route ", "neighbour "}, true},
	{"how ", []string{`link eth0`, "address eth0", "route eth0"}, false},
	{"whether eth0 was down", []string{"link eth0"}, false},
	{"whether eth0 had another MAC", []string{"link eth0"}, false},
	{"whether eth0 received all multicast", []string{"link eth0"}, false},
	{"addresses and routes that eth0 has lost", nil, false},
	{"sysctls, if ", []string{"sysctl net/bridge/", "sysctl net/ipv6/conf/default/disable_ipv6"}, false},
	{"the preferred source (src) of ", []string{"route eth0"}, false},
	{"for how long the address ", []string{"address eth0 128"}, true},
	{"the guest's networks", nil, false},
	{"net.ipv6.conf.eth0.accept_ra, if ", []string{"sysctl net/ipv6/conf/eth0/accept_ra"}, false},
}

// TestSalvage takes each wiring down without its journal. The golden file has what is lost, and how the namespace
// differs from the one that was found.
func TestSalvage(t *testing.T) {
	var golden strings.Builder
	for _, c := range cases {
		plan := newPlan(t, c.found, c.spec)
		for _, record := range []*cache.Record{nil, &plan.Record} {
			name := c.name
			if record != nil {
				name += ", with the record"
			}
			t.Run(name, func(t *testing.T) {
				k := wire(t, plan, c.found)
				j := salvage(t, k, c.spec.NIC, record)
				if j.Spec.Binding.Kind() != plan.Binding().Kind() {
					t.Errorf("the binding is %s, want %s", j.Spec.Binding.Kind(), plan.Binding().Kind())
				}
				if s := k.snapshot(); s.Bears(c.spec.NIC) {
					t.Errorf("marks are left:\n%s", text(t, s))
				}
				differs := diff(text(t, boot(c.found).s), text(t, k.s))
				if strings.HasPrefix(differs, "the same lines") {
					differs = ""
				}
				explain(t, c.spec.NIC, j.Lost, differs, plan.Record.IPv4 != nil || plan.Record.IPv6 != nil)
				fmt.Fprintf(&golden, "%s\n", name)
				for _, l := range j.Lost {
					fmt.Fprintf(&golden, "  lost: %s\n", l)
				}
				for line := range strings.Lines(differs) {
					fmt.Fprintf(&golden, "  %s", line)
				}
			})
		}
	}
	const path = "testdata/salvage.golden"
	if *update {
		if err := os.WriteFile(path, []byte(golden.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if golden.String() != string(want) {
		t.Errorf("%s differs (go test -update writes it anew):\n%s", path, diff(string(want), golden.String()))
	}
}

// explain wants each difference to be named, and each phrase to be known, and true if it is sure. Routed: the NIC had
// routes that the kernel does not add with an address.
func explain(t *testing.T, nic string, lost []string, differs string, routed bool) {
	t.Helper()
	named := map[string]bool{}
	for _, l := range lost {
		known := false
		for _, p := range phrases {
			words := strings.ReplaceAll(p.words, "eth0", nic)
			if !strings.HasPrefix(l, words) {
				continue
			}
			known = true
			found := false
			for line := range strings.Lines(differs) {
				for _, begin := range p.lines {
					if strings.HasPrefix(line[2:], strings.ReplaceAll(begin, "eth0", nic)) {
						named[line], found = true, true
					}
				}
			}
			if p.sure && !found && routed {
				t.Errorf("nothing differs of what is lost: %s", l)
			}
		}
		if !known {
			t.Errorf("no difference is known for %q", l)
		}
	}
	for line := range strings.Lines(differs) {
		if !named[line] {
			t.Errorf("not named in %q: %s", lost, line)
		}
	}
}

// TestSalvageDamaged: other programs have deleted a part of the wiring, or the NIC has gone.
func TestSalvageDamaged(t *testing.T) {
	del := func(names ...string) func(*testing.T, *fakeKernel) {
		return func(t *testing.T, k *fakeKernel) {
			for _, name := range names {
				l, ok := k.s.Named(name)
				if !ok {
					t.Fatalf("no link %s", name)
				}
				if err := k.delLink(l.Index); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	flush := func(t *testing.T, k *fakeKernel) { k.s.Tables = nil }
	for _, c := range []struct {
		name   string
		spec   infra.Spec
		damage func(*testing.T, *fakeKernel)
		record bool
		lost   string // begins a phrase
		mac    bool   // the NIC has its MAC back
	}{
		{"holder deleted", bridge(), del("eth0"), false, "MAC and addresses of eth0, as another program has deleted the link that kept them", false},
		{"holder deleted, with the record", bridge(), del("eth0"), true, "addresses of eth0, as another program has deleted the link that kept them; by the record: ip addr add 10.244.1.7/24 dev eth0, ip addr add fd00:244:1::7/64 dev eth0", true},
		{"all links deleted", bridge(), del("eth0", "eth0-br", "eth0-tap", "eth0-dhcp"), true, "addresses of eth0", true},
		{"bridge and rules deleted", bridge(), func(t *testing.T, k *fakeKernel) { del("eth0-br")(t, k); flush(t, k) }, false, "routes and permanent neighbours of eth0", true},
		{"rules flushed", masquerade(), flush, false, "whether eth0 forwarded before Setup", true},
		{"bridge deleted", masquerade(), del("eth0-br"), false, "the guest's networks", true},
		{"bridge deleted, with the record", masquerade(), del("eth0-br"), true, "", true},
		{"tap deleted", redirect(), del("eth0-tap"), false, "addresses and routes that eth0 has lost since Setup", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, flannel(), c.spec)
			k := wire(t, plan, flannel())
			c.damage(t, k)
			var record *cache.Record
			if c.record {
				record = &plan.Record
			}
			j := salvage(t, k, "eth0", record)
			if !slices.ContainsFunc(j.Lost, func(l string) bool { return strings.HasPrefix(l, c.lost) }) && c.lost != "" || c.lost == "" && len(j.Lost) > 0 {
				t.Errorf("lost are %q, want %q", j.Lost, c.lost)
			}
			s := k.snapshot()
			if n, ok := s.Named("eth0"); !ok || n.Index != nic || (n.MAC == podMAC) != c.mac {
				t.Errorf("eth0 is %+v", n)
			}
			if len(s.Links) != 2 || len(s.Tables) > 0 {
				t.Errorf("left are\n%s", text(t, s))
			}
		})
	}
}

// TestSalvageSeveralAddresses: the commands by the record add all IPv6 addresses that are lost.
func TestSalvageSeveralAddresses(t *testing.T) {
	found := flannelWith(func(s *netstate.Snapshot) {
		at := slices.IndexFunc(s.Addresses, func(a netstate.Address) bool { return a.Prefix.Addr().Is6() && !a.Prefix.Addr().IsLinkLocalUnicast() })
		s.Addresses = slices.Insert(s.Addresses, at+1, address("fd00:244:1::8/64"), address("fd00:244:2::9/128"))
	})
	plan := newPlan(t, found, bridge())
	k := wire(t, plan, found)
	holder, _ := k.s.Named("eth0")
	if err := k.delLink(holder.Index); err != nil {
		t.Fatal(err)
	}
	lost := salvage(t, k, "eth0", &plan.Record).Lost
	const want = "; by the record: ip addr add 10.244.1.7/24 dev eth0, ip addr add fd00:244:1::7/64 dev eth0, ip addr add fd00:244:1::8/64 dev eth0, ip addr add fd00:244:2::9/128 dev eth0"
	if !slices.ContainsFunc(lost, func(l string) bool { return strings.HasSuffix(l, want) }) {
		t.Errorf("lost are %q, want %q", lost, want)
	}
}

// TestSalvageStandby: a NIC that would take the guest's MAC at Activate has its own, and makes its link-local address of that
// again.
func TestSalvageStandby(t *testing.T) {
	spec := redirect()
	spec.Binding = infra.Redirect{MAC: mac(0x77)}
	plan := newPlan(t, flannel(), spec)
	setStandby(t, plan, true)
	for name, record := range map[string]*cache.Record{"without the record": nil, "with the record": &plan.Record} {
		t.Run(name, func(t *testing.T) {
			k := wire(t, plan, flannel())
			j := salvage(t, k, "eth0", record)
			for _, l := range j.Lost {
				if strings.Contains(l, "another MAC") {
					t.Errorf("lost is %s", l)
				}
			}
			was, _ := boot(flannel()).s.Named("eth0")
			if is, _ := k.s.Named("eth0"); is.MAC != was.MAC || is.AddrGen != was.AddrGen {
				t.Errorf("eth0 has %v, addrgen %d, and had %v, %d", is.MAC, is.AddrGen, was.MAC, was.AddrGen)
			}
		})
	}
}
