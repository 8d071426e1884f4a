package wiring_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/undo"
)

// salvage takes the wiring down by what the namespace shows.
func salvage(t *testing.T, k *fakeKernel, nic string, record *cache.Record) undo.Salvaged {
	t.Helper()
	kind := ""
	if record != nil {
		kind = string(record.Binding)
	}
	s := undo.Salvage(k.snapshot(), nic, cache.Kind(kind), record)
	steps := func() []netstate.Op {
		ops, err := undo.Steps(s.Found, k.snapshot(), s.Made)
		if err != nil {
			t.Fatal(err)
		}
		return ops
	}
	for range rounds {
		ops := steps()
		if len(ops) == 0 {
			break
		}
		k.applyAll(ops)
	}
	if ops := steps(); len(ops) > 0 {
		t.Fatalf("taken down, and yet there is something to do:\n%s", netstate.Text(ops))
	}
	return s
}

// phrases are how those of Lost begin, and how the lines of a namespace's text begin that may differ then.
var phrases = map[string][]string{
	"routes, permanent neighbours and the state, up or down, of ": {"route ", "neighbour "},
	"what the record has of ":                                     nil,
	"whether eth0 was wired by ":                                  nil,
	"whether eth0 made IPv6 addresses of its MAC":                 {"link eth0", "address eth0", "route eth0"},
	"whether eth0 received all multicast":                         {"link eth0"},
	"addresses and routes that eth0 has lost":                     nil,
	"the preferred source (src) of routes":                        {"route eth0", "address eth0 128"},
	sysctlsStay:                                                   nil, // giveSysctls
}

const sysctlsStay = "sysctls that Setup may have changed, and that stay as they are: "

// giveSysctls gives back the sysctls that the list lost names.
func giveSysctls(k *fakeKernel, found netstate.Snapshot, nic string, lost []string) {
	for _, l := range lost {
		list, _ := strings.CutPrefix(l, sysctlsStay)
		for sysctl := range strings.SplitSeq(list, ", ") {
			name, _, _ := strings.Cut(sysctl, " = ")
			if name == "net.ipv4.conf."+nic+".forwarding" {
				was, _ := found.Named(nic)
				k.s.Links[slices.IndexFunc(k.s.Links, func(l netstate.Link) bool { return l.Name == nic })].Forwarding4 = was.Forwarding4
			}
			path := strings.ReplaceAll(name, ".", "/")
			if value, known := found.Sysctls[path]; known {
				k.s.Sysctls[path] = value
			} else {
				delete(k.s.Sysctls, path)
			}
		}
	}
}

// TestSalvage takes each wiring down without its journal. Each difference from the namespace as it was found is lost in
// words.
func TestSalvage(t *testing.T) {
	for _, c := range cases {
		plan := newPlan(t, c.found, c.spec)
		for how, record := range map[string]*cache.Record{"": nil, ", with the record": &plan.Record} {
			t.Run(c.name+how, func(t *testing.T) {
				k := wire(t, plan, c.found)
				j := salvage(t, k, c.spec.NIC, record)
				if j.Kind != plan.Binding().Kind() {
					t.Errorf("the binding is %s, want %s", j.Kind, plan.Binding().Kind())
				}
				if s := k.snapshot(); s.Bears(c.spec.NIC) {
					t.Errorf("marks are left:\n%s", text(t, s))
				}
				giveSysctls(k, c.found, c.spec.NIC, j.Lost)
				if differs := golden.Diff(text(t, boot(c.found).s), text(t, k.s)); !strings.HasPrefix(differs, "the same lines") {
					explain(t, c.spec.NIC, j.Lost, differs)
				}
			})
		}
	}
}

// explain wants each line that differs to be lost in words.
func explain(t *testing.T, nic string, lost []string, differs string) {
	t.Helper()
	var begins []string
	for words, lines := range phrases {
		words = strings.ReplaceAll(words, "eth0", nic)
		if slices.ContainsFunc(lost, func(l string) bool { return strings.HasPrefix(l, words) }) {
			begins = append(begins, lines...)
		}
	}
	for line := range strings.Lines(differs) {
		if !slices.ContainsFunc(begins, func(b string) bool { return strings.HasPrefix(line[2:], strings.ReplaceAll(b, "eth0", nic)) }) {
			t.Errorf("not named in %q: %s", lost, line)
		}
	}
}

// TestSalvageStandby: a NIC that would take the guest's MAC at Activate has its own, and makes its link-local address
// of that again.
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
				if strings.Contains(l, "MAC") {
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

// TestSalvageMACWithoutIPv6: no address says which MAC a NIC without IPv6 had before it got the guest's, so it is lost
// in words.
func TestSalvageMACWithoutIPv6(t *testing.T) {
	found := flannelWith(func(s *netstate.Snapshot) {
		s.Links[1].MTU, s.Links[1].AddrGen = 1200, netstate.AddrGenNoIPv6
		s.Addresses = slices.DeleteFunc(s.Addresses, func(a netstate.Address) bool { return a.Prefix.Addr().Is6() })
		s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return r.Destination.Addr().Is6() })
	})
	spec := redirect()
	spec.Binding = infra.Redirect{MAC: mac(0x77)}
	j := salvage(t, wire(t, newPlan(t, found, spec), found), "eth0", nil)
	if !slices.ContainsFunc(j.Lost, func(l string) bool { return strings.Contains(l, "address MAC") }) {
		t.Errorf("the guest's MAC stays, and lost is %q", j.Lost)
	}
}

// TestSalvageLostAddress: of what the NIC has lost since Setup the record says the commands, also of one thing alone.
func TestSalvageLostAddress(t *testing.T) {
	for _, lost := range []string{"ip addr add 10.244.1.7/24 broadcast 10.244.1.255 dev eth0", "ip addr replace fd00:244:1::7/64 dev eth0"} {
		plan := newPlan(t, flannel(), redirect())
		k := wire(t, plan, flannel())
		k.s.Addresses = slices.DeleteFunc(k.s.Addresses, func(a netstate.Address) bool { return strings.Contains(lost, a.Prefix.String()) })
		s := undo.Salvage(k.snapshot(), "eth0", "redirect", &plan.Record)
		for _, want := range []string{"addresses and routes that eth0 has lost since Setup", "what the record has of eth0: " + lost} {
			if !slices.ContainsFunc(s.Lost, func(l string) bool { return strings.HasPrefix(l, want) }) {
				t.Errorf("lost is %q, want %s", s.Lost, want)
			}
		}
	}
}
