package podnet

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/guestconfig"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// furtherAddresses are those of severalAddresses that CNI does not know.
var furtherAddresses = []string{"10.22.0.8/24", "10.66.0.7/16", "fd00:22::8/64"}

// severalAddresses creates a pod with further addresses, one of them in another network.
func severalAddresses(t testing.TB) *Instance {
	l := static(`{"address": "10.22.0.7/24", "gateway": "10.22.0.1"}, {"address": "fd00:22::7/64", "gateway": "fd00:22::1"}`, `{"dst": "0.0.0.0/0"}, {"dst": "::/0"}`)(t)
	addAddresses(l.Pod, "eth0", furtherAddresses...)
	return l
}

// TestStatic configures Linux guests without DHCP, by the files of package guestconfig: real cloud-init reads a NoCloud
// disk, or systemd-networkd its files. The guest's addresses, routes of all tables, rules and permanent neighbours are
// those that the pod had, but for what the format says that it leaves out. The guest reaches the same stations as a
// process in the pod, and is reached by the same ones.
func TestStatic(t *testing.T) {
	uid, gid := vm.NeedGuest(t)
	named := func(name string) func(t testing.TB) *Instance {
		return Networks[slices.IndexFunc(Networks, func(n Network) bool { return n.Name == name })].Create
	}
	sbr, terway := named("two NICs, the second with sbr"), named("Terway ENI multi-IP, veth")
	for _, test := range []struct {
		name    string
		create  func(t testing.TB) *Instance
		binding infra.Binding
		boot    vm.Boot
		differs []string // what the guest has otherwise than the pod, as the warnings say
		warned  []string // words of the warnings
	}{
		{"sbr, cloud-init", sbr, infra.Bridge{}, vm.BootCloudInit, []string{
			"+ address inet 10.26.0.10/32 scope global", "+ address inet6 fd00:26::10/128 scope global",
			"+ route fd00:26::10 dev NIC metric 256", "+ route fe80::/64 dev NIC metric 256",
			"- address inet 10.26.0.10/24 brd 10.26.0.255 scope global", "- address inet6 fd00:26::10/64 scope global",
		}, []string{"no IPv4 route", "no IPv6 route", "written as 10.26.0.10/32", "written as fd00:26::10/128", "netplan"}},
		// The guest makes its link-local address, and the route to its network, by itself.
		{"sbr, networkd", sbr, infra.Redirect{}, vm.BootNetworkd, []string{"+ route fe80::/64 dev NIC metric 256"}, []string{"no IPv4 route", "no IPv6 route"}},
		{"several addresses, cloud-init", severalAddresses, infra.Redirect{}, vm.BootCloudInit, []string{ // version 2 has no broadcast addresses, and networkd makes them
			"+ address inet 10.22.0.8/24 brd 10.22.0.255 scope global secondary", "+ address inet 10.66.0.7/16 brd 10.66.255.255 scope global",
			"- address inet 10.22.0.8/24 scope global secondary", "- address inet 10.66.0.7/16 scope global",
		}, []string{"netplan"}},
		{"several addresses, networkd", severalAddresses, infra.Bridge{}, vm.BootNetworkd, nil, nil},
		{"Terway, cloud-init", terway, infra.Bridge{}, vm.BootCloudInit, []string{
			"+ route 169.254.1.1 dev NIC scope link", // for cloud-init without netplan
			"- neighbour 169.254.1.1 lladdr ee:ff:ff:ff:ff:14 PERMANENT", "- neighbour fe80::1 lladdr ee:ff:ff:ff:ff:14 PERMANENT",
		}, []string{"netplan", "neighbour 169.254.1.1", "neighbour fe80::1"}},
		{"Terway, networkd", terway, infra.Redirect{}, vm.BootNetworkd, nil, nil},
	} {
		// Each pod once, and each format.
		if *networks != "all" && !slices.Contains([]string{"sbr, cloud-init", "several addresses, networkd", "Terway, cloud-init"}, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := test.create(t)
			known := l.ready(t).askProcess(t, tcp).answeredBy("guest1")
			if l.NIC == "eth0" { // a process that binds no address
				for q := range known {
					if q.from == pod {
						src := regexp.MustCompile(` src (\S+)`).FindStringSubmatch(l.Pod.IP("-o route get " + q.at.Addr().String()))
						known[q] = q.to + " sees " + src[1]
					}
				}
			}
			before := configuration(t, l.NIC, func(command string) string { return l.Pod.Exec("sh", "-c", command) })
			const patience = 6 * time.Minute
			leak.Allow(patience)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			n := nstest.Network{Pod: l.Pod, State: nstest.Dir(t)}
			spec := infra.Spec{Binding: test.binding, State: n.State, Owner: infra.Owner{UID: uint32(uid), GID: uint32(gid)}}
			spec.Options.NoResponder = test.boot == vm.BootNetworkd
			record, err := phase1.NIC{NetNS: l.Pod.File, Name: l.NIC}.Setup(ctx, spec)
			if err != nil {
				t.Fatal(err)
			}
			guest := guestconfig.Guest{Records: []cache.Record{record}}
			cfg := vm.Config{NetNS: l.Pod.File, UID: uid, GID: gid, Name: "guest1", Boot: test.boot}
			var files guestconfig.Files
			if test.boot == vm.BootNetworkd {
				files, err = guestconfig.Networkd(guest)
				cfg.Networkd = files.Contents
			} else {
				n.Serve(t, uid) // answers for the neighbours that cloud-init cannot say
				files, err = guestconfig.NoCloud(guest, guestconfig.Instance{ID: "vm1", Hostname: "guest1"})
				cfg.Name, cfg.Seed = "unnamed", files.Contents
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(files.Warnings) != len(test.warned) {
				t.Errorf("warnings %q, want %q", files.Warnings, test.warned)
			}
			for i, w := range files.Warnings {
				if i < len(test.warned) && !strings.Contains(w, test.warned[i]) {
					t.Errorf("warning %q, want %q", w, test.warned[i])
				}
			}
			nic, err := qemu.NewNIC(&record, qemu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			g, err := vm.BootQEMU(ctx, cfg, nic)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if t.Failed() {
					out, err := g.Run(ctx, "cat /run/manager /run/cloud-init.out")
					t.Logf("%v\n%s\n%s", err, out, slices.Sorted(maps.Values(files.Contents)))
				}
				if err := g.Destroy(); err != nil {
					t.Error(err)
				}
			}()
			var differs []string
			for end := time.Now().Add(40 * time.Second); ; time.Sleep(200 * time.Millisecond) {
				after := configuration(t, "eth0", func(command string) string {
					out, err := g.Run(ctx, command)
					if err != nil {
						t.Fatal(err)
					}
					return out
				})
				if differs = differences(before, after); slices.Equal(differs, test.differs) || time.Now().After(end) {
					break
				}
			}
			if !slices.Equal(differs, test.differs) {
				t.Errorf("the guest differs from the pod:\n%s\nwant\n%s", strings.Join(differs, "\n"), strings.Join(test.differs, "\n"))
			}
			if l.NIC == "eth0" && l.IPv4.String() == "10.22.0.7" {
				for _, a := range furtherAddresses[:1] {
					known[question{protocol: tcp, from: "peer", to: pod, at: netip.AddrPortFrom(netip.MustParsePrefix(a).Addr(), vm.AnswerPort)}] = "guest1 sees " + l.Stations[2].IPv4.String()
				}
				known[question{protocol: tcp, from: "peer", to: pod, at: netip.AddrPortFrom(netip.MustParsePrefix(furtherAddresses[2]).Addr(), vm.AnswerPort)}] = "guest1 sees " + l.Stations[2].IPv6.String()
			}
			for q, want := range known {
				got, err := l.askStatic(ctx, g, q, want)
				for end := time.Now().Add(30 * time.Second); err != nil && want != "" && time.Now().Before(end); {
					got, err = l.askStatic(ctx, g, q, want)
				}
				if got != want {
					t.Errorf("%s to %s (%v): %q, %v; want %q", q.from, q.to, q.at, got, err, want)
				}
			}
		})
	}
}

// askStatic is askLinux, as the process in the pod asks: it binds the pod's address, as a policy rule can look at the
// source. busybox's nc cannot bind an address, so where the routes are for the pod's address alone, the guest pings: an
// echo that comes back has found both ways. Who answers at that address is asked in the other direction.
func (l *Instance) askStatic(ctx context.Context, g *vm.Guest, q question, want string) (string, error) {
	if q.from != pod || l.NIC == "eth0" {
		return l.askLinux(ctx, g, q)
	}
	program, own := "ping", l.IPv4
	if q.at.Addr().Is6() {
		program, own = "ping6", l.IPv6
	}
	if _, err := g.Run(ctx, fmt.Sprintf("%s -c 1 -W 3 -I %v %v", program, own, q.at.Addr())); err != nil {
		return "", err
	}
	return want, nil
}

// configuration is what ip(8) shows of the NIC, line by line. Left out are who made a route, how an address was added
// (nodad, noprefixroute: the routes show what came of it), the table local, which the kernel makes of the addresses,
// and the mark that a gateway in another table than main is on the link. The NIC is called NIC.
func configuration(t *testing.T, nic string, run func(string) string) []string {
	t.Helper()
	var lines []string
	add := func(kind, out string, keep func(string) bool) {
		for line := range strings.Lines(out) {
			line = regexp.MustCompile(`\b(proto \S+|pref medium|valid_lft \S+|preferred_lft \S+|linkdown|nodad|noprefixroute|`+nic+`\\)`).ReplaceAllString(line, "")
			if strings.Contains(line, " table ") {
				line = strings.ReplaceAll(line, "onlink", "")
			}
			line = strings.ReplaceAll(line, " "+nic, " NIC")
			line = strings.Join(strings.Fields(line), " ")
			if keep(line) {
				lines = append(lines, kind+" "+line)
			}
		}
	}
	inet := regexp.MustCompile(`^\d+: NIC `)
	add("address", run("ip -o addr show dev "+nic), func(line string) bool { return inet.MatchString(line) })
	for i := range lines {
		lines[i] = regexp.MustCompile(`^address \d+: NIC (.*?)( NIC)? ?\\?$`).ReplaceAllString(lines[i], "address $1")
	}
	ofNIC := func(line string) bool {
		return strings.Contains(line, "dev NIC") && !strings.Contains(line, "table local")
	}
	add("route", run("ip -4 route show table all"), ofNIC)
	add("route", run("ip -6 route show table all"), ofNIC)
	own := regexp.MustCompile(`^(0: from all lookup local|32766: from all lookup main|32767: from all lookup default)?$`)
	add("rule", run("ip -4 rule"), func(line string) bool { return !own.MatchString(line) })
	add("rule", run("ip -6 rule"), func(line string) bool { return !own.MatchString(line) })
	add("neighbour", run("ip neigh show nud permanent dev "+nic), func(line string) bool { return line != "" })
	add("mtu", run("cat /sys/class/net/"+nic+"/mtu"), func(line string) bool { return line != "" })
	slices.Sort(lines)
	return lines
}

// differences are the lines that only one of the two has, in order.
func differences(before, after []string) []string {
	var d []string
	for _, line := range before {
		if !slices.Contains(after, line) {
			d = append(d, "- "+line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			d = append(d, "+ "+line)
		}
	}
	slices.Sort(d)
	return d
}
