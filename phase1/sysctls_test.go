package phase1_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// under is a pod with sysctls, and what it could do before Setup.
type under struct {
	nstest.Network
	could map[string]bool
}

// newUnder sets the sysctls, and wants the pod to lose what they take from it, and nothing else.
func newUnder(t *testing.T, list []setting, lost []string) (u under, fault error) {
	t.Helper()
	u.Network = nstest.NewNetwork(t)
	u.World.Serve("world", "tcp", netip.AddrPortFrom(nstest.Gateway4, 8000), netip.AddrPortFrom(nstest.Gateway6, 8000), netip.AddrPortFrom(nstest.Beyond4, 8000), netip.AddrPortFrom(nstest.Beyond6, 8000))
	u.World.Serve("world", "udp", netip.AddrPortFrom(nstest.Gateway4, 8001), netip.AddrPortFrom(nstest.Gateway6, 8001), netip.AddrPortFrom(nstest.Beyond4, 8001), netip.AddrPortFrom(nstest.Beyond6, 8001))
	write(u.Pod, list)
	pod := station{u.Pod, "pod"}
	defer serveAt(t, pod, nstest.Pod4, nstest.Pod6)()
	isLost := func(heard string) bool {
		return slices.ContainsFunc(lost, func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(heard) })
	}
	u.could = talksOf(t, u.Network, pod, func(heard string) bool { return !isLost(heard) }, 3*patience)
	for _, k := range talks {
		for family := range 2 {
			if heard := k.heard(family); !isLost(heard) && !u.could[heard] {
				fault = errors.Join(fault, fmt.Errorf("the pod itself loses %s: put the sysctl into the table of those that are tried alone", heard))
			}
		}
	}
	if len(lost) > 0 {
		// What the pod still sends of the talks before, such as the end of a connection, asks for the world's address,
		// and so tells the world the pod's. The world forgets it, but may be told again right afterwards.
		var kept error
		for end := time.Now().Add(patience); time.Now().Before(end); {
			kept = nil
			for heard := range talksOf(t, u.Network, pod, isLost, 300*time.Millisecond) {
				kept = errors.Join(kept, fmt.Errorf("the pod does not lose %s", heard))
			}
			if kept == nil {
				break
			}
		}
		fault = errors.Join(fault, kept)
	}
	return u, fault
}

// compare wants the guest to do what the pod could.
func (u under) compare(t *testing.T, kind cache.Kind, patience time.Duration) (fault error) {
	t.Helper()
	asked := func(heard string) bool { return u.could[heard] && (routes(kind) || !strings.HasPrefix(heard, "own")) }
	got := talksOf(t, u.Network, guestOf(t, u.Network), asked, patience)
	for heard := range u.could {
		if asked(heard) && !got[heard] {
			fault = errors.Join(fault, fmt.Errorf("the guest loses %s", heard))
		}
	}
	return fault
}

// before has Setup find the sysctls. The guest can do what the pod could, and Teardown gives everything back.
func before(t *testing.T, b infra.Binding, list []setting) (fault error) {
	t.Helper()
	u, fault := newUnder(t, list, nil)
	if fault != nil {
		return fault
	}
	found := steady(settled(t, u.Network))
	c := config(u.Network, b)
	if _, err := c.Setup(t.Context()); err != nil {
		return err
	}
	fault = errors.Join(u.compare(t, b.Kind(), 3*patience), c.Check(t.Context()))
	c.Down.CutOff = true
	if err := c.Teardown(t.Context()); err != nil {
		return errors.Join(fault, err)
	}
	var left error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if left = difference(found, steady(u.Pod.Dump())); left == nil {
			break
		}
	}
	return errors.Join(fault, left)
}

// after has the sysctls change after Setup. The guest can do what it could, or Check says what differs. After another
// Setup it can.
func after(t *testing.T, b infra.Binding, list []setting) (fault error) {
	t.Helper()
	u, fault := newUnder(t, nil, nil)
	if fault != nil {
		return fault
	}
	c := config(u.Network, b)
	if _, err := c.Setup(t.Context()); err != nil {
		return err
	}
	write(u.Pod, list)
	var drift *phase1.DriftError
	if err := c.Check(t.Context()); errors.As(err, &drift) {
		if _, err := c.Setup(t.Context()); err != nil {
			return err
		}
		fault = c.Check(t.Context())
	} else {
		fault = err
	}
	return errors.Join(fault, u.compare(t, b.Kind(), 3*patience))
}

// TestSysctls sets the sysctls that a namespace has to small and large values, at all links, at those to come and at
// the NIC, before Setup and after it. Most are set together, and the guest can do what the pod could. With -crash all,
// each is set alone.
func TestSysctls(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	nstest.Need(t)
	nstest.NeedTaps(t)
	withConntrack(t)
	var here []string
	for _, path := range sysctlsOf(t, nstest.NewNetwork(t).Pod) {
		if decision(path).tried {
			here = append(here, path)
		}
	}
	var bundles [][]setting
	for _, value := range []string{"0", "1", "2", "3", "8", "2147483647"} {
		for _, place := range []string{"all", "default", "eth0"} {
			var list []setting
			for _, path := range here {
				if at, of := strings.Replace(path, "/*/", "/"+place+"/", 1), strings.Contains(path, "/*/"); of || place == "all" {
					list = append(list, setting{at, value})
				}
			}
			bundles = append(bundles, list)
		}
	}
	if *crash == "all" {
		var each [][]setting
		for _, bundle := range bundles {
			for _, s := range bundle {
				each = append(each, []setting{s})
			}
		}
		bundles = each
	}
	for name, judge := range map[string]func(*testing.T, infra.Binding, []setting) error{"before Setup": before, "after Setup": after} {
		t.Run(name, func(t *testing.T) {
			eachBinding(t, func(t *testing.T, b infra.Binding) {
				t.Parallel()
				for _, bundle := range bundles {
					// Subtests end what a judge begins.
					fault := func(list []setting) (fault error) {
						if !t.Run(fmt.Sprint(list[0], " and ", len(list)-1), func(t *testing.T) { fault = judge(t, b, list) }) {
							return errors.New("the subtest failed")
						}
						return fault
					}
					if err := fault(bundle); err != nil {
						t.Errorf("%v: %v", smallest(bundle, fault), err)
					}
				}
			})
		})
	}
}

// smallest is the smallest part of the list that is at fault, if a half of it is.
func smallest(list []setting, fault func([]setting) error) []setting {
	for len(list) > 1 {
		half := len(list) / 2
		switch {
		case fault(list[:half]) != nil:
			list = list[:half]
		case fault(list[half:]) != nil:
			list = list[half:]
		default:
			return list
		}
	}
	return list
}

// withConntrack has the kernel load connection tracking, which comes with sysctls for each namespace.
func withConntrack(t *testing.T) {
	t.Helper()
	nstest.New(t, "tracking").Exec("nft", "add table inet t; add chain inet t c; add rule inet t c ct state new")
}

// sysctlsOf are the sysctls that a namespace has, with * for the names of its links, once each.
func sysctlsOf(t *testing.T, n *nstest.Namespace) (list []string) {
	t.Helper()
	err := netns.Do(n.File, func() error {
		return filepath.WalkDir("/proc/sys/net", func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				list = append(list, ofLink.ReplaceAllString(strings.TrimPrefix(path, "/proc/sys/net/"), "$1/*/"))
			}
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

var ofLink = regexp.MustCompile(`^(ipv[46]/(?:conf|neigh))/[^/]+/`)

// TestSysctlsDecided: each sysctl of a namespace stands in the table.
func TestSysctlsDecided(t *testing.T) {
	nstest.KernelDecides(t, "which sysctls there are")
	t.Parallel()
	withConntrack(t)
	for _, path := range sysctlsOf(t, nstest.NewNetwork(t).Pod) {
		if decision(path).why == "" {
			t.Errorf("net/%s is undecided: does the guest depend on it? Try it, and put it into the table", path)
		}
	}
}

// TestSysctlsRefused are values with which no guest can work under some bindings, or with which the pod itself loses
// something. A refusal names the sysctl. What it says to do works, and so do the binding that it names and auto.
func TestSysctlsRefused(t *testing.T) {
	nstest.Long(t)
	nstest.KernelDecides(t, "what a sysctl does")
	t.Parallel()
	withConntrack(t)
	both, none := []cache.Kind{cache.BindingMasquerade, cache.BindingRouted}, []cache.Kind{}
	const in4, in6, fragments4, fragments6 = "^in .* IPv4", "IPv6", "udp 4000 IPv4", "udp 4000 IPv6"
	zero := func(names string) (list []setting) {
		for _, name := range strings.Fields(names) {
			list = append(list, setting{name, "0"})
		}
		return list
	}
	for _, c := range []struct {
		set     []setting
		lost    []string
		refused []cache.Kind
	}{
		{[]setting{{"ipv4/conf/all/arp_ignore", "2"}}, nil, []cache.Kind{cache.BindingRouted}},
		{[]setting{{"ipv4/conf/all/arp_ignore", "8"}}, []string{in4}, both},
		{[]setting{{"ipv4/conf/default/arp_ignore", "2"}}, nil, none},
		{[]setting{{"ipv4/conf/default/arp_ignore", "8"}}, nil, none},
		{[]setting{{"ipv4/conf/eth0/arp_ignore", "2"}}, nil, none},
		{[]setting{{"ipv6/conf/eth0/disable_ipv6", "1"}}, []string{in6}, none},
		{zero("ipv4/ipfrag_low_thresh ipv4/ipfrag_high_thresh"), []string{fragments4}, both},
		{zero("ipv6/ip6frag_low_thresh ipv6/ip6frag_high_thresh"), []string{fragments6}, none},
		{zero("netfilter/nf_conntrack_frag6_low_thresh netfilter/nf_conntrack_frag6_high_thresh"), nil, both},
		{zero("netfilter/nf_conntrack_udp_timeout"), nil, both},
		{zero("netfilter/nf_conntrack_tcp_timeout_established netfilter/nf_conntrack_generic_timeout netfilter/nf_conntrack_icmp_timeout"), nil, both},
	} {
		t.Run(fmt.Sprint(c.set), func(t *testing.T) {
			t.Parallel()
			eachBinding(t, func(t *testing.T, b infra.Binding) {
				u, fault := newUnder(t, c.set, c.lost)
				if fault != nil {
					t.Fatal(fault)
				}
				nic := config(u.Network, b)
				_, err := nic.Setup(t.Context())
				var refused *infra.RefusedError
				if wants := slices.Contains(c.refused, b.Kind()); errors.As(err, &refused) != wants || !wants && err != nil {
					t.Fatalf("Setup says %v, want a refusal: %v", err, wants)
				}
				if err != nil {
					for _, s := range c.set {
						if name := strings.ReplaceAll(s.path, "/", "."); !strings.HasSuffix(name, "low_thresh") && !strings.Contains(refused.Reason, "net."+name+" is "+s.value) {
							t.Errorf("the refusal does not name %s: %v", name, err)
						}
					}
					other := nic
					other.Binding = infra.Auto{Order: []cache.Kind{b.Kind(), refused.Instead}}
					if r, err := other.Setup(t.Context()); err != nil || r.Binding != refused.Instead {
						t.Fatalf("auto becomes %s, %v, want %s", r.Binding, err, refused.Instead)
					}
					if err := u.compare(t, refused.Instead, 3*patience); err != nil {
						t.Errorf("%s: %v", refused.Instead, err)
					}
					return
				}
				if err := u.compare(t, b.Kind(), 3*patience); err != nil {
					t.Error(err)
				}
			})
			for _, kind := range c.refused { // what the refusal says to do
				t.Run("the way out of "+string(kind), func(t *testing.T) {
					u, fault := newUnder(t, c.set, c.lost)
					if fault != nil {
						t.Fatal(fault)
					}
					nic := config(u.Network, bindings[slices.IndexFunc(bindings, func(b infra.Binding) bool { return b.Kind() == kind })])
					_, err := nic.Setup(t.Context())
					if err == nil {
						t.Fatal("no refusal")
					}
					for _, command := range regexp.MustCompile(`sysctl -w (\S+=\w+)`).FindAllStringSubmatch(err.Error(), -1) {
						u.Pod.Exec("sysctl", "-qw", command[1])
					}
					setup(t, nic)
					if err := u.compare(t, kind, 3*patience); err != nil {
						t.Error(err)
					}
					// The value comes back while the guest is wired: Check and Setup name it.
					write(u.Pod, c.set)
					last := c.set[len(c.set)-1]
					name := "net." + strings.ReplaceAll(last.path, "/", ".") + " is " + last.value
					for verb, err := range map[string]error{"check": nic.Check(t.Context()), "setup": setupAlone(t.Context(), nic)} {
						if err == nil || !strings.Contains(err.Error(), name) {
							t.Errorf("%s says %v, want %q", verb, err, name)
						}
					}
				})
			}
		})
	}
}

// TestHiddenNexthop: the kernel does not show by which link a route of a nexthop object leads. Under masquerade the
// guest has the namespace's routes; the other bindings are refused, and what they say to do works.
func TestHiddenNexthop(t *testing.T) {
	nstest.KernelDecides(t, "what the kernel shows of a nexthop object")
	t.Parallel()
	const hides = "ipv4/nexthop_compat_mode"
	pod := func(t *testing.T) under {
		u, fault := newUnder(t, nil, nil)
		if fault != nil {
			t.Fatal(fault)
		}
		u.Pod.IP("route del default")
		u.Pod.IP("nexthop add id 1 via 10.244.1.1 dev eth0")
		u.Pod.IP("route add default nhid 1")
		write(u.Pod, []setting{{hides, "0"}})
		return u
	}
	for _, b := range []infra.Binding{infra.Redirect{}, infra.Masquerade{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			u := pod(t)
			c := config(u.Network, b)
			_, err := c.Setup(t.Context())
			if refused := new(infra.RefusedError); b.Kind() == cache.BindingMasquerade {
				if err != nil {
					t.Fatal(err)
				}
			} else if !errors.As(err, &refused) || refused.Instead != cache.BindingMasquerade || !strings.Contains(refused.Reason, "sysctl -w net.ipv4.nexthop_compat_mode=1") {
				t.Fatalf("%v, want a refusal that names %s and masquerade", err, hides)
			} else {
				write(u.Pod, []setting{{hides, "1"}})
				setup(t, c)
			}
			if err := u.compare(t, b.Kind(), 3*patience); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestModeWithoutSecret: what the page of limits says of addr_gen_mode.
func TestModeWithoutSecret(t *testing.T) {
	nstest.KernelDecides(t, "which modes a link takes")
	t.Parallel()
	n := nstest.NewNetwork(t)
	write(n.Pod, []setting{{"ipv6/conf/all/addr_gen_mode", "2"}})
	c := config(n, infra.Bridge{})
	setup(t, c)
	if err := c.Teardown(t.Context()); err == nil || !strings.Contains(err.Error(), "addrgenmode") {
		t.Errorf("Teardown says %v, want the mode: has the kernel changed?", err)
	}
	write(n.Pod, []setting{{"ipv6/conf/eth0/stable_secret", "2001:db8::1"}})
	unwire(t, c)
	n.Pod.IP("link set eth0 addrgenmode eui64")
	setup(t, c)
	unwire(t, c)
}
