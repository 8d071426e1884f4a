package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestBindings: a list of a bridge and guestwire, run as an engine runs it. The guest is served by an unprivileged
// launcher, which finds the records by the pod's UID. CHECK passes but under bridge, whose main plugin finds another
// link. After DEL neither an address, a record, a journal nor a link is left.
func TestBindings(t *testing.T) {
	t.Parallel()
	for _, binding := range []string{"bridge", "redirect", "masquerade", "routed", "auto", `{"binding": {"masquerade": {"ports": ["8000"]}}}`} {
		t.Run(binding, func(t *testing.T) {
			n := newNode(t)
			s := n.sandbox("7d5a0001")
			list := n.usual()
			rt := s.runtime("eth0", "guestwire/nic.eth0", binding, "guestwire/devices", "kvm")
			empty := s.ns.Settled()
			result, err := types100.GetResult(s.add(list, rt))
			if err != nil || len(result.IPs) != 2 {
				t.Fatalf("%+v, %v", result, err)
			}
			pod4, gateway4 := result.IPs[0].Address.IP, result.IPs[0].Gateway
			s.wired("eth0")

			launcher := s.ns.Start(nstest.LauncherUID, nstest.Program(t, "examples/guestwire-launcher"), "serve", "-state", filepath.Join(n.state, "pods", s.uid))
			g := s.boot("eth0")
			if _, err := g.Configure(t.Context(), guest.Families{IPv4: true, IPv6: true}); err != nil {
				t.Fatalf("%v\n%s", err, launcher.Output.String())
			}
			n.ns.Listen("node", ":8000")
			c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort(gateway4.String()+":8000"))
			if err != nil {
				t.Fatal(err)
			}
			if line, err := nstest.Answer(c); err != nil || !strings.HasPrefix(line, "node sees "+pod4.String()) {
				t.Errorf("the node says %q, %v", line, err)
			}
			c.Close()
			if line, err := n.ns.Ask(pod4.String() + ":8000"); err != nil || !strings.HasPrefix(line, "guest sees ") {
				t.Errorf("the guest says %q, %v", line, err)
			}

			if err := n.cni.CheckNetworkList(t.Context(), list, rt); (err == nil) == (binding == "bridge") || err != nil && !strings.Contains(err.Error(), "not of type veth") {
				t.Errorf("CHECK: %v", err)
			}
			before := s.ns.Settled()
			s.add2(list, rt)
			if err := nstest.Difference(nstest.Stable(before), nstest.Stable(s.ns.Settled())); err != nil {
				t.Errorf("a second ADD changed something: %v", err)
			}
			launcher.Stop(t)
			s.del(list, rt)
			n.clean()
			if err := nstest.Difference(empty, s.ns.Settled()); err != nil {
				t.Error(err)
			}
			if said := n.said(); said != "" {
				t.Errorf("guestwire said %s", said)
			}
		})
	}
}

// TestEgress: the guest of a pod reaches what the pod's egress and the list's own both allow, and is refused elsewhere.
func TestEgress(t *testing.T) {
	t.Parallel()
	for _, binding := range []string{"masquerade", "routed"} {
		t.Run(binding, func(t *testing.T) {
			n := newNode(t)
			for _, network := range []string{"192.0.2", "198.51.100", "203.0.113"} {
				n.ns.IP("addr add " + network + ".1/32 dev lo")
			}
			n.ns.Listen("node", ":8000")
			s := n.sandbox("u1")
			list := n.list("1.0.0", "podnet", n.flannel(), n.guestwire(owner(`, "egress": ["allow 192.0.2.0/24", "allow 198.51.100.0/24", "refuse all"]`)))
			rt := s.runtime("eth0", "guestwire/nic.eth0", `{"binding": {"`+binding+`": {}}, "egress": ["allow 198.51.100.0/24", "allow 203.0.113.0/24", "refuse all"]}`)
			s.add(list, rt)
			launcher := s.ns.Start(nstest.LauncherUID, nstest.Program(t, "examples/guestwire-launcher"), "serve", "-state", filepath.Join(n.state, "pods", "default_vm"))
			g := s.boot("eth0")
			if _, err := g.Configure(t.Context(), guest.Families{IPv4: true, IPv6: true}); err != nil {
				t.Fatalf("%v\n%s", err, launcher.Output.String())
			}
			for to, refused := range map[string]bool{"192.0.2.1": true, "198.51.100.1": false, "203.0.113.1": true} {
				c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort(to+":8000"))
				if err == nil {
					_, err = nstest.Answer(c)
					c.Close()
				}
				if errors.Is(err, syscall.ECONNREFUSED) != refused || !refused && err != nil {
					t.Errorf("%s: %v, want a refusal: %v", to, err, refused)
				}
			}
			launcher.Stop(t)
			s.del(list, rt)
			n.clean()
		})
	}
}

// TestDivert: what the guest of a pod opens arrives at a port of the pod which the list's egressWithin names. The list
// decides about all else as before.
func TestDivert(t *testing.T) {
	t.Parallel()
	for _, binding := range []string{"masquerade", "routed"} {
		t.Run(binding, func(t *testing.T) {
			n := newNode(t)
			n.ns.IP("addr add 198.51.100.1/32 dev lo")
			n.ns.Listen("node", ":8000")
			s := n.sandbox("u1")
			s.ns.IP("link set lo up")
			s.ns.Listen("pod", "127.0.0.1:8080")
			list := n.list("1.0.0", "podnet", n.flannel(), n.guestwire(owner(`, "egressWithin": ["allow 127.0.0.1 8080", "refuse 203.0.113.0/24", "allow all"]`)))
			rt := s.runtime("eth0", "guestwire/nic.eth0", `{"binding": {"`+binding+`": {}}, "egress": ["divert 192.0.2.1 8000 127.0.0.1:8080", "divert 203.0.113.1 8000 127.0.0.1:8080", "allow all"]}`)
			s.add(list, rt)
			launcher := s.ns.Start(nstest.LauncherUID, nstest.Program(t, "examples/guestwire-launcher"), "serve", "-state", filepath.Join(n.state, "pods", "default_vm"))
			g := s.boot("eth0")
			if _, err := g.Configure(t.Context(), guest.Families{IPv4: true, IPv6: true}); err != nil {
				t.Fatalf("%v\n%s", err, launcher.Output.String())
			}
			for to, want := range map[string]string{"192.0.2.1": "pod", "203.0.113.1": "pod", "198.51.100.1": "node"} {
				c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort(to+":8000"))
				answer := ""
				if err == nil {
					answer, err = nstest.Answer(c)
					c.Close()
				}
				if err != nil || !strings.HasPrefix(answer, want+" ") {
					t.Errorf("%s: %q, %v, want %s", to, answer, err, want)
				}
			}
			launcher.Stop(t)
			s.del(list, rt)
			n.clean()
		})
	}
}

// TestDeleteGivesBack: DEL of guestwire alone leaves the namespace as the plugins before it had made it, byte by byte.
func TestDeleteGivesBack(t *testing.T) {
	t.Parallel()
	for _, binding := range []string{"bridge", "redirect", "masquerade"} {
		t.Run(binding, func(t *testing.T) {
			n := newNode(t)
			s := n.sandbox("u1")
			plain, ours := n.list("1.0.0", "podnet", n.flannel()), n.list("1.0.0", "podnet", n.guestwire(owner("")))
			rt := s.runtime("eth0", "guestwire/nic.eth0", binding)
			result := s.add(plain, rt)
			before := s.ns.Settled()
			if out, err := n.guestwireCalled(s.configuration(ours.Plugins[0].Bytes, result, rt), s.environ("ADD", "eth0")...); err != nil {
				t.Fatalf("%s, %v", out, err)
			}
			s.wired("eth0")
			other := s.runtime("eth0", "guestwire/nic.eth0", "routed")
			way := "a NIC that guestwire has wired ends with a DEL: delete the pod; or on the node: guestwire-agent teardown -netns " + s.ns.Path() + " -nic eth0 -dir " + n.dir
			if out, err := n.guestwireCalled(s.configuration(ours.Plugins[0].Bytes, result, other), s.environ("ADD", "eth0")...); err == nil || !strings.Contains(err.Error(), way) {
				t.Errorf("ADD of another binding: %s, %v; want %s", out, err, way)
			}
			another := nstest.NewVeth(t)
			way = "take that NIC down first (guestwire-agent teardown -netns " + s.ns.Path() + " -nic eth0)"
			if out, err := n.guestwireCalled(s.configuration(ours.Plugins[0].Bytes, result, rt), append(s.environ("ADD", "eth0"), "CNI_NETNS="+another.Pod.Path())...); err == nil || !strings.HasSuffix(err.Error(), way) {
				t.Errorf("ADD of the same sandbox in another namespace: %s, %v; want %s at the end", out, err, way)
			}
			if out, err := n.guestwireCalled(s.configuration(ours.Plugins[0].Bytes, result, rt), s.environ("DEL", "eth0")...); err != nil || out != "" {
				t.Fatalf("%q, %v", out, err)
			}
			if err := nstest.Difference(before, s.ns.Settled()); err != nil {
				t.Error(err)
			}
			s.del(plain, rt)
			n.clean()
		})
	}
}

// TestWants: the annotation counts, else args.cni, else the list. Where nothing is wanted, guestwire leaves no trace.
func TestWants(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		entry       string // further members
		annotations []string
		args        string
		want        string // the binding; empty: nothing is wired
	}{
		"nothing":                    {owner(""), nil, "", ""},
		"another NIC's":              {owner(""), []string{"guestwire/nic.net1", "redirect"}, "", ""},
		"an annotation":              {owner(""), []string{"guestwire/nic.eth0", "masquerade"}, "", "masquerade"},
		"args":                       {owner(""), nil, `"masquerade"`, "masquerade"},
		"args as an object":          {owner(""), nil, `{"queues": 2}`, "redirect"},
		"the list":                   {owner(`, "binding": {"masquerade": {}}`), nil, "", "masquerade"},
		"args over the list":         {owner(`, "binding": {"masquerade": {}}`), nil, `"redirect"`, "redirect"},
		"an annotation over args":    {owner(`, "binding": {"redirect": {}}`), []string{"guestwire/nic.eth0", "masquerade"}, `"bridge"`, "masquerade"},
		"an unknown member":          {owner("") + `, "colour": "blue"`, []string{"guestwire/nic.eth0", "redirect"}, "", "redirect"},
		"none over the list":         {owner(`, "binding": {"redirect": {}}`), []string{"guestwire/nic.eth0", "none"}, "", ""},
		"none of args over the list": {owner(`, "binding": {"redirect": {}}`), nil, `"none"`, ""},
		"auto":                       {owner(""), []string{"guestwire/nic.eth0", "auto"}, "", "redirect"},
		"auto in the list's order":   {owner(`, "binding": {"auto": {"order": ["bridge"]}}`), []string{"guestwire/nic.eth0", "auto"}, "", "bridge"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			s := n.sandbox("u1")
			entry := c.entry
			if c.args != "" {
				entry += `, "args": {"cni": {"guestwire": ` + c.args + `, "ips": []}}`
			}
			list := n.list("1.0.0", "podnet", n.flannel(), n.guestwire(entry))
			rt := s.runtime("eth0", c.annotations...)
			n.said()
			s.add(list, rt)
			// What is annotated and not wired by this call, nor by an earlier one, is said.
			another := slices.Contains(c.annotations, "guestwire/nic.net1")
			if said := n.said(); strings.Contains(said, "NIC net1 of the annotation guestwire/nic.net1 is not wired by this call") != another || !another && strings.Contains(said, "wire") && c.want == "" {
				t.Errorf("ADD says %q", said)
			}
			if c.want != "" {
				if r := s.record("eth0"); r.Binding != cache.Kind(c.want) {
					t.Errorf("the binding is %s", r.Binding)
				}
			} else {
				for _, path := range []string{n.state, n.dir} {
					if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("%s: %v", path, err)
					}
				}
				if err := n.cni.CheckNetworkList(t.Context(), list, rt); err != nil {
					t.Error(err)
				}
			}
			s.del(list, rt)
			n.clean()
		})
	}
}

// TestNoAnnotations: an entry that can wire nothing says so, with a way out that works; but not if that is meant.
func TestNoAnnotations(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, c := range []struct {
		capabilities string
		says, wires  bool
	}{
		{"", true, false},
		{`, "capabilities": {"portMappings": true}`, true, false},
		{`, "capabilities": {"io.kubernetes.cri.pod-annotations": false}`, false, false},
		{`, "capabilities": {"io.kubernetes.cri.pod-annotations": true}`, false, true},
	} {
		s := n.sandbox("u1")
		list := n.list("1.0.0", "podnet", n.flannel(), fmt.Sprintf(`{"type": "guestwire", "state": %q, "dir": %q, %s%s}`, n.state, n.dir, owner(""), c.capabilities))
		rt := s.runtime("eth0", "guestwire/nic.eth0", "redirect")
		n.said()
		s.add(list, rt)
		if said := n.said(); strings.Contains(said, `wires nothing, as its spec names no binding, and it does not ask for the pod's annotations: give it "capabilities": {"io.kubernetes.cri.pod-annotations": true}`) != c.says {
			t.Errorf("an entry with %q says %q", c.capabilities, said)
		}
		if c.wires {
			s.wired("eth0")
		} else {
			s.wired()
		}
		s.del(list, rt)
		n.clean()
	}
}

// TestKubeVirt: Multus calls guestwire by itself for each interface with a network binding of KubeVirt,
// without a prevResult, and net1 is no NIC. The NIC is found by the network's name.
func TestKubeVirt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := n.sandbox("u1")
	first, second := n.list("1.0.0", "one", n.flannel()), n.list("1.0.0", "two", n.bridge("cni1", "10.23.0.0/16", "fd00:23::/64"))
	eth0, blue := s.runtime("eth0"), s.runtime("pod16477688c0e")
	s.add(first, eth0)
	s.add(second, blue)
	before := s.ns.Settled()
	networks := []struct{ name, ifName, nic, tap string }{{"default", "net1", "eth0", "tap0"}, {"blue", "net2", "pod16477688c0e", "tap16477688c0e"}}
	list := "guestwire"
	call := func(command, ifName, network, binding string) (string, *types.Error) {
		return n.guestwireCalled(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "type": "guestwire", "state": %q, "dir": %q, %s,
			"args": {"cni": {"logicNetworkName": %q}}}`, list, n.state, n.dir, owner(`, "binding": {"`+binding+`": {}}`), network), s.environ(command, ifName)...)
	}
	for range 2 {
		for _, c := range networks {
			if out, err := call("ADD", c.ifName, c.name, "redirect"); err != nil || !sameJSON(t, out, `{"cniVersion": "1.0.0"}`) {
				t.Fatalf("ADD for %s: %s, %v", c.name, out, err)
			}
		}
	}
	s.wired("eth0", "pod16477688c0e")
	for _, c := range networks {
		if r := s.record(c.nic); r.Tap != c.tap {
			t.Errorf("the tap of %s is %s", c.nic, r.Tap)
		}
		s.ns.IP("link show " + c.tap)
		if out, err := call("CHECK", c.ifName, c.name, "redirect"); err != nil {
			t.Errorf("CHECK of %s: %s, %v", c.name, out, err)
		}
	}
	const unnamed = "network dra has no NIC of its own, as one of a resourceClaim: NIC eth0 of sandbox "
	if out, err := call("ADD", "net3", "dra", "redirect"); err == nil || !strings.Contains(err.Error(), unnamed) {
		t.Errorf("ADD for a network whose NIC is none of Multus': %s, %v", out, err)
	}
	s.wired("eth0", "pod16477688c0e")
	for _, c := range networks {
		if out, err := call("DEL", c.ifName, c.name, "redirect"); err != nil || out != "" {
			t.Errorf("DEL of %s: %q, %v", c.name, out, err)
		}
	}
	if err := nstest.Difference(before, s.ns.Settled()); err != nil {
		t.Error(err)
	}
	const way = `write it into the binding's NetworkAttachmentDefinition: "spec": {"binding": {"`
	s.ns.IP("addr flush dev eth0")
	if out, err := call("ADD", "net1", "default", "masquerade"); err == nil || !strings.Contains(err.Error(), way) {
		t.Errorf("a NIC without addresses: %s, %v; want %s", out, err, way)
	}
	list = strings.Repeat("n", 5000) // which no note can have
	if out, err := call("ADD", "net1", "default", "redirect"); err == nil || !strings.Contains(err.Error(), "file name too long") || strings.Contains(err.Error(), "resourceClaim") {
		t.Errorf("a note that cannot be written: %s, %.300v", out, err)
	}
	s.del(second, blue)
	s.del(first, eth0)
	n.clean()
}

// TestDNS: a guest gets the DNS configuration of CNI's result by DHCP, whether the bridge plugin or host-local has it.
// What the list or args.cni say comes first. In a pod of Kubernetes it is the kubelet's resolv.conf, as for containers.
func TestDNS(t *testing.T) {
	t.Parallel()
	resolvConf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolvConf, []byte("nameserver 10.1.0.2\ndomain two.example\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const ofBridge = `, "dns": {"nameservers": ["10.1.0.1", "fd00:1::1"], "domain": "no.example", "search": ["one.example"]}}`
	const ofList = `, "dns": {"servers": ["10.1.0.3"]}`
	one := &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00:1::1")}, Search: []string{"one.example"}}
	two := &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.1.0.2")}, Search: []string{"two.example"}}
	three := &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.1.0.3")}}
	for name, c := range map[string]struct {
		bridge     string // the end of the bridge's entry
		spec, args string
		kubernetes bool
		want       *cache.DNS
	}{
		"bridge":                 {ofBridge, "", "", false, one},
		"host-local":             {"}", "", "", false, two},
		"bridge before its IPAM": {ofBridge, "", "", false, one},
		"the list":               {ofBridge, ofList, "", false, three},
		"args":                   {ofBridge, "", `, "args": {"cni": {"guestwire": {"dns": {"servers": ["10.1.0.3"]}}}}`, false, three},
		"Kubernetes":             {ofBridge, "", "", true, nil},
		"no server":              {`, "dns": {"nameservers": ["dns.example"]}}`, "", "", false, nil},
		"no responder":           {ofBridge, `, "options": {"noResponder": true}`, "", false, nil},
		"passt":                  {ofBridge, `, "binding": {"passt": {}}`, "", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			s := n.sandbox("u1")
			bridge := strings.TrimSuffix(n.flannel(), "}") + c.bridge
			if strings.Contains(name, "host-local") || strings.Contains(name, "IPAM") {
				bridge = strings.Replace(bridge, `"host-local"`, `"host-local", "resolvConf": "`+resolvConf+`"`, 1)
			}
			if name == "host-local" { // whose DNS the bridge plugin 1.1.1 loses
				bridge = strings.Replace(bridge, `"bridge"`, `"ptp"`, 1)
			}
			if !strings.Contains(c.spec, "binding") {
				c.spec += `, "binding": {"redirect": {}}`
			}
			list := n.list("1.0.0", "podnet", bridge, n.guestwire(owner(c.spec)+c.args))
			rt := s.runtime("eth0")
			if !c.kubernetes {
				rt.Args = nil
			}
			s.add(list, rt)
			if r := s.record("eth0"); !reflect.DeepEqual(r.DNS, c.want) {
				t.Errorf("the record has the DNS %+v, want %+v", r.DNS, c.want)
			}
			if said := n.said(); (name == "no server") != strings.Contains(said, `DNS server "dns.example" is left out`) {
				t.Errorf("guestwire said %q", said)
			}
			if name == "bridge" || name == "host-local" {
				launcher := s.ns.Start(nstest.LauncherUID, nstest.Program(t, "examples/guestwire-launcher"), "serve", "-state", s.dirOf())
				got, err := s.boot("eth0").Configure(t.Context(), guest.Families{IPv4: true, IPv6: true})
				if err != nil {
					t.Fatalf("%v\n%s", err, launcher.Output.String())
				}
				servers := slices.Concat(got.IPv4.DNS, got.IPv6.DNS)
				if !slices.Equal(servers, c.want.Servers) || !slices.Equal(got.IPv4.Search, c.want.Search) {
					t.Errorf("the guest gets the servers %v and the domains %v, want %+v", servers, got.IPv4.Search, c.want)
				}
				launcher.Stop(t)
			}
			s.del(list, rt)
			n.clean()
		})
	}
}

// TestMany: 20 pods at once. Each call is counted.
func TestMany(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	list := n.usual()
	var pods []*sandboxOf
	for i := range 20 {
		pods = append(pods, n.sandbox(fmt.Sprintf("u%d", i)))
	}
	each := func(what string, f func(*sandboxOf, *runtimeConf) error) {
		var working sync.WaitGroup
		for i, s := range pods {
			working.Go(func() {
				if err := f(s, s.runtime("eth0", "guestwire/nic.eth0", []string{"redirect", "masquerade", "bridge"}[i%3])); err != nil {
					t.Errorf("%s of pod %d: %v", what, i, err)
				}
			})
		}
		working.Wait()
	}
	each("ADD", func(s *sandboxOf, rt *runtimeConf) error {
		_, err := n.cni.AddNetworkList(t.Context(), list, rt)
		return err
	})
	for _, s := range pods {
		s.wired("eth0")
	}
	n.wantCounted("ADD", 0, 20)
	for range 2 { // the second one finds nothing to do
		each("DEL", func(s *sandboxOf, rt *runtimeConf) error { return n.cni.DelNetworkList(t.Context(), list, rt) })
	}
	n.wantCounted("DEL", 0, 20)
	n.clean()
}

// TestResult: the result of the plugins before guestwire goes through unchanged, in each version of the specification,
// with members that guestwire does not know.
func TestResult(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	out, err := n.guestwireCalled("", "CNI_COMMAND=VERSION")
	var versions struct{ SupportedVersions []string }
	if err != nil || json.Unmarshal([]byte(out), &versions) != nil || !reflect.DeepEqual(versions.SupportedVersions, []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}) {
		t.Fatalf("%s, %v", out, err)
	}
	s := n.sandbox("u1")
	s.ns.IP("link add eth0 type veth peer name v0")
	s.ns.IP("link set v0 up")
	s.ns.IP("link set eth0 up")
	s.ns.IP("addr add 10.31.0.2/24 dev eth0")
	for _, version := range versions.SupportedVersions {
		for _, binding := range []string{"none", "redirect"} {
			prev := fmt.Sprintf(`{"cniVersion": %q, "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/x", "theirs": 1.50}],
				"ips": [{"version": "4", "interface": 0, "address": "10.31.0.2/24"}], "routes": [{"dst": "0.0.0.0/0", "mtu": 1400}], "dns": {}, "other": [null, 12345678901234567890]}`, version)
			config := fmt.Sprintf(`{"cniVersion": %q, "name": "podnet", "type": "guestwire", "state": %q, "dir": %q, %s, "prevResult": %s,
				"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"guestwire/nic.eth0": %q}}}`, version, n.state, n.dir, owner(""), prev, binding)
			out, err := n.guestwireCalled(config, s.environ("ADD", "eth0")...)
			if err != nil || !sameJSON(t, out, prev) {
				t.Errorf("%s, %s: %v, %s\nwant %s", version, binding, err, out, prev)
			}
			out, err = n.guestwireCalled(config, s.environ("CHECK", "eth0")...)
			if (err != nil) != (version < "0.4.0") || out != "" { // which has no CHECK
				t.Errorf("CHECK of %s: %v, %s", version, err, out)
			}
			if out, err := n.guestwireCalled(config, s.environ("DEL", "eth0")...); err != nil || out != "" {
				t.Errorf("DEL of %s: %v, %s", version, err, out)
			}
			n.clean()
		}
	}
	older := fmt.Sprintf(`{"cniVersion": "0.2.0", "name": "podnet", "type": "guestwire", "state": %q, "dir": %q, "prevResult": {"cniVersion": "0.2.0", "ip4": {"ip": "10.31.0.2/24"}}}`, n.state, n.dir)
	if _, err := n.guestwireCalled(older, s.environ("ADD", "eth0")...); err == nil || err.Code != types.ErrIncompatibleCNIVersion || !strings.Contains(err.Details, `"0.2.0"`) || !strings.Contains(err.Details, "0.3.1") {
		t.Errorf("a list of version 0.2.0: %+v; want an error that names the versions", err)
	}
	for name, c := range map[string]struct{ prev, want string }{
		"without a version": {`{"ips": [{"address": "10.31.0.2/24"}]}`, `{"cniVersion": "1.0.0", "ips": [{"address": "10.31.0.2/24"}]}`},
		"of another one":    {`{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.31.0.2/24"}]}`, `{"cniVersion": "1.0.0", "ips": [{"address": "10.31.0.2/24"}]}`},
		"missing":           {"", "prevResult is missing"},
		"null":              {"null", "prevResult is missing"},
		"a list":            {"[]", "prevResult is missing"},
		"of no version":     {`{"cniVersion": "7"}`, "prevResult of version 7"},
		"of a number":       {`{"cniVersion": 7}`, "prevResult.cniVersion is no version"},
	} {
		config := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "type": "guestwire", "state": %q, "dir": %q`, n.state, n.dir)
		if c.prev != "" {
			config += `, "prevResult": ` + c.prev
		}
		out, err := n.guestwireCalled(config+"}", s.environ("ADD", "eth0")...)
		switch {
		case strings.HasPrefix(c.want, "{") && (err != nil || !sameJSON(t, out, c.want)):
			t.Errorf("%s: %v, %s\nwant %s", name, err, out, c.want)
		case !strings.HasPrefix(c.want, "{") && (err == nil || err.Code != types.ErrInvalidNetworkConfig || !strings.Contains(err.Msg, c.want)):
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// sameJSON compares numbers by their digits.
func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var values [2]any
	for i, text := range []string{a, b} {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&values[i]); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}
