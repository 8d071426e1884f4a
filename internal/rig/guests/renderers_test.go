package guests_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestconfig"
	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/records"
)

// render has cloud-init write each file of the directory for each renderer, into OUT/FILE/RENDERER. It prints the
// errors.
const render = `
import contextlib, glob, io, logging, os, re, shutil, sys
from cloudinit.cmd.devel import net_convert
from cloudinit.distros import debian
source, out, *renderers = sys.argv[1:]
for path in sorted(glob.glob(source + "/*.yaml")):
    macs = re.findall(r'"(\w+)":\n    match:\n      macaddress: "(\S+)"', open(path).read())
    for renderer in renderers:
        directory = os.path.join(out, os.path.basename(path)[:-5], renderer)
        os.makedirs(directory)
        distro = "debian" if renderer in ("eni", "netplan") else "rhel"
        args = ["-p", path, "-k", "yaml", "-d", directory, "-D", distro, "-O", renderer]
        args += [word for mac in macs for word in ("-m", ",".join(mac))]
        # Each call cuts an octet.
        debian.Distro.renderer_configs["netplan"]["netplan_path"] = "/etc/netplan/50-cloud-init.yaml"
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                net_convert.handle_args("net-convert", net_convert.get_parser().parse_args(args))
        except BaseException as e:
            print(os.path.basename(path), renderer, repr(e))
        if os.path.exists("/etc/netplan/50-cloud-init.yaml"): # by netplan's module, which Debian 13 has
            shutil.move("/etc/netplan/50-cloud-init.yaml", directory + "/etc/netplan")
`

// debian is a Debian with its cloud-init.
type debian struct {
	name    string // the version of cloud-init
	machine *machine.Machine
	python  string
}

// newDebians are Debian 12 and Debian 13.
func newDebians(t *testing.T) []debian {
	t.Helper()
	twelve := debian{"22.4", machine.New(t, nstest.New(t, "guest"), "managers", "cloudinit", "ifupdown", "net-tools"), "PYTHONHOME=/usr /usr/bin/python3.11"}
	thirteen := debian{"25.1", machine.NewDebian13(t, nstest.New(t, "guest")), "python3"}
	return []debian{twelve, thirteen}
}

// render writes the files of host's directory source below its directory out.
func (d debian) render(t *testing.T, source, out string, renderers ...string) {
	t.Helper()
	if err := d.machine.Write("/render.py", []byte(render)); err != nil {
		t.Fatal(err)
	}
	said, err := d.machine.Run(fmt.Sprintf("%s /render.py %s %s %s", d.python, source, out, strings.Join(renderers, " ")))
	if err != nil || said != "" {
		t.Errorf("cloud-init %s: %v\n%s", d.name, err, said)
	}
}

// TestRenderersGenerated: no renderer ends with an error at any two of these routes.
func TestRenderersGenerated(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	routes := func(family string, gateway, outside netip.Addr) []cache.StaticRoute {
		all, some := netip.MustParsePrefix(family), netip.PrefixFrom(outside.Prev(), 28).Masked()
		const main = 254
		return []cache.StaticRoute{
			{Destination: all, Table: main, Gateway: gateway, Metric: 1024},
			{Destination: all, Table: main, Gateway: gateway, Metric: 50},
			{Destination: all, Table: main, Gateway: outside, OnLink: true},
			{Destination: all, Table: 100, Gateway: gateway, Metric: 7},
			{Destination: all, Table: main},
			{Destination: some, Table: main, Gateway: gateway, MTU: 1400},
			{Destination: some, Table: main, Metric: 9},
			{Destination: some, Table: main, Type: "unreachable"},
		}
	}
	four := routes("0.0.0.0/0", netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("169.254.1.1"))
	all := append(four, routes("::/0", netip.MustParseAddr("fd00:244::1"), netip.MustParseAddr("fd00:1::1"))...)
	addresses := []cache.StaticAddress{{Address: netip.MustParsePrefix("10.244.1.7/24")}, {Address: netip.MustParsePrefix("fd00:244::7/64")}}
	dir := nstest.Dir(t)
	for i, first := range all {
		for j, second := range all {
			if i == j || (i+j)%2 == 0 && i > j || (i+j)%2 == 1 && i < j { // each two once, in one order or the other
				continue
			}
			static := cache.Static{Addresses: addresses, Routes: []cache.StaticRoute{first, second}}
			switch { // IPv6 alone, IPv4 alone
			case i >= len(four) && j >= len(four) && i%2 == 0:
				static.Addresses = addresses[1:]
			case i < len(four) && j < len(four) && i%2 == 0:
				static.Addresses = addresses[:1]
			}
			r := cache.Record{Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: 1, MAC: cache.MAC{2, 0, 0, 0, 0, 7}, MTU: 1450, Static: &static}
			files, err := guestconfig.NoCloud(guestconfig.Guest{Records: []cache.Record{r}}, guestconfig.Instance{ID: "i"})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(fmt.Sprintf("%s/%d-%d.yaml", dir, i, j), []byte(files.Contents["network-config"]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, d := range newDebians(t) {
		d.render(t, inMachine(dir), inMachine(dir)+"/"+d.name, "networkd", "network-manager", "sysconfig", "eni")
	}
}

// inMachine is a path of the host's temporary directory as a machine has it.
func inMachine(path string) string {
	return "/host" + strings.TrimPrefix(path, strings.TrimSuffix(os.TempDir(), "/"))
}

// networkConfigs writes the network-configs of records.Guests into the directory. It returns the warnings of each.
func networkConfigs(t *testing.T, dir string) (guests []string, warnings map[string]string) {
	t.Helper()
	warnings = map[string]string{}
	all := records.Guests()
	for _, guest := range slices.Sorted(maps.Keys(all)) {
		files, err := guestconfig.NoCloud(guestconfig.Guest{Records: all[guest], DNS: records.DNS()}, guestconfig.Instance{ID: "vm1"})
		if err != nil {
			t.Fatalf("%s: %v", guest, err)
		}
		if err := os.WriteFile(filepath.Join(dir, guest+".yaml"), []byte(files.Contents["network-config"]), 0o644); err != nil {
			t.Fatal(err)
		}
		guests = append(guests, guest)
		warnings[guest] = strings.Join(files.Warnings, "\n")
	}
	return guests, warnings
}

// TestRenderers: the cloud-init of Debian 12 and of Debian 13 writes each network-config of records.Guests for
// each renderer. networkd 252 and 257 and ifupdown read what is written for them, and the routes of the
// guest are compared with those that it has by netplan. The files for NetworkManager and ifcfg are compared as texts.
// testdata/renderers.txt has the differences; where there are any, a warning of guestconfig says so, and elsewhere
// none does.
func TestRenderers(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	dir := nstest.Dir(t)
	guests, warnings := networkConfigs(t, dir)
	debians := newDebians(t)
	for _, d := range debians {
		d.render(t, inMachine(dir), inMachine(dir)+"/"+d.name, "netplan", "networkd", "network-manager", "sysconfig", "eni")
	}
	var out strings.Builder
	for _, guest := range guests {
		fmt.Fprintf(&out, "==== %s\n", guest)
		said := map[string]bool{}
		var reference []string
		for _, d := range debians {
			at := filepath.Join(dir, d.name, guest)
			d.generate(t, at, "NetworkManager", strings.Contains(warnings[guest], "netplan refuses"))
			netplan := d.networkd(t, guest, d.generate(t, at, "networkd", false))
			if reference == nil {
				reference = netplan
				fmt.Fprintf(&out, "%s\n", strings.Join(netplan, "\n"))
			}
			for _, r := range []struct {
				name string
				has  []string
			}{
				{"netplan", netplan},
				{"networkd", d.networkd(t, guest, inMachine(at)+"/networkd/etc/systemd/network")},
				{"NetworkManager", byNetworkManager(t, at)},
				{"ifcfg", byIfcfg(t, at)},
				{"ifupdown", debians[0].ifupdown(t, guest, inMachine(at)+"/eni/etc/network/interfaces.d")},
			} {
				lines := differences(reference, r.has)
				if len(lines) > 0 {
					fmt.Fprintf(&out, "-- %s of cloud-init %s\n%s\n", r.name, d.name, strings.Join(lines, "\n"))
				}
				for _, line := range lines {
					wanted := warningsOf(r.name, d.name, line, guest != "ipv6-alone")
					// What is there instead of a line has the other line's warnings.
					if len(wanted) == 0 && !strings.HasPrefix(line, "+") {
						t.Errorf("%s, %s of cloud-init %s: %q, and nothing warns", guest, r.name, d.name, line)
					}
					for _, w := range wanted {
						said[w] = true
						if !strings.Contains(warnings[guest], w) {
							t.Errorf("%s, %s of cloud-init %s: %q, and no warning says %q", guest, r.name, d.name, line, w)
						}
					}
				}
			}
		}
		for _, w := range []string{warnRules, warnTables, warnSource, warnMTU, warnMetric, warnDefaults, warnType, warnZero, warnManager, warnIfupdown} {
			if strings.Contains(warnings[guest], w) && !said[w] {
				t.Errorf("%s: a warning says %q, and the guest lacks none", guest, w)
			}
		}
	}
	golden.Compare(t, "renderers.txt", out.String())
}

// Words of guestconfig's warnings of what a guest lacks for which cloud-init does not write for netplan.
const (
	warnRules    = "leaves out the policy rules"
	warnTables   = "writes the routes of other tables into the table main"
	warnSource   = "leaves out the source of routes"
	warnMTU      = "leaves out, except for NetworkManager, the MTU of routes"
	warnMetric   = "leaves out the metric of routes (in version 22.4)"
	warnDefaults = "gives, for ifcfg, the metric of the IPv6 default route to that of IPv4"
	warnType     = "makes a route on the link of a route of type blackhole"
	warnZero     = "writes ::/64 for the IPv6 default route (in version 22.4)"
	warnManager  = "leaves out, for NetworkManager, IPv6 routes (in version 22.4)"
	warnIfupdown = "leaves out, for ifupdown, the routes to ["
)

// warningsOf are the warnings that a difference between the guest by this renderer and the guest by netplan wants:
// one of each line. The guest has both families, or IPv6 alone.
func warningsOf(renderer, version, line string, both bool) []string {
	is := func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(line) }
	var all []string
	add := func(applies bool, warning string) {
		if applies {
			all = append(all, warning)
		}
	}
	add(is(`^- \d+: from `), warnRules)
	add(is(`^- .* table `), warnTables)
	add(is(`^- .* src `), warnSource)
	add(is(`^- .* mtu `) && renderer != "NetworkManager", warnMTU)
	add(is(`^- .* metric `) && !is(` table `) && version == "22.4", warnMetric)
	add(is(`^- default .* metric `) && renderer == "ifcfg" && version == "25.1", warnDefaults)
	add(is(`^- blackhole `), warnType)
	add(is(`^- default via \S*:`) && version == "22.4" && renderer != "ifupdown", warnZero)
	add(is(`^- .*::`) && !is(`address|from`) && renderer == "NetworkManager" && version == "22.4" && both, warnManager)
	add(is(`^- `) && !is(`address|from`) && renderer == "ifupdown", warnIfupdown)
	return all
}

// generate has netplan read what cloud-init has written, and write for a backend. It returns the directory of networkd.
func (d debian) generate(t *testing.T, at, backend string, refused bool) string {
	t.Helper()
	root := inMachine(at) + "/by-" + backend
	out, err := d.machine.Run("mkdir -p " + root + "/etc/netplan && cp " + inMachine(at) + "/netplan/etc/netplan/*.yaml " + root + "/etc/netplan && " +
		"echo '{network: {renderer: " + backend + "}}' >" + root + "/etc/netplan/99.yaml && chmod 600 " + root + "/etc/netplan/* && /usr/libexec/netplan/generate --root-dir " + root)
	if refused != (err != nil) || refused != (out != "") {
		t.Errorf("netplan of %s, %s: %v\n%s", at, backend, err, out)
	}
	return root + "/run/systemd/network"
}

// begin makes the NICs of a guest in a namespace of its own, with a /sys that a container has.
const begin = "unshare --net --mount sh -c 'mount -t sysfs -o ro sysfs /sys; sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0; ip link set lo up; " +
	"for n in 7 8; do ip link add nic$n address 02:00:00:00:00:0$n type veth peer name peer$n && ip link set peer$n up; done; ip link set nic7 name eth0; ip link set nic8 name net1; "

// end prints its addresses, its routes but for those that the kernel makes of the addresses, and its rules.
const end = "for f in -4 -6; do ip $f -o addr show scope global; ip $f route show table all | grep -Ev \"table local|proto kernel\"; ip $f rule | grep -Ev \"^(0|32766|32767):\"; done; true'"

// networkd returns what networkd makes of the files of the directory.
func (d debian) networkd(t *testing.T, guest, files string) []string {
	t.Helper()
	return d.show(t, guest, begin+"rm -rf /run/systemd /etc/systemd/network; mkdir -p /run/systemd/network; cp "+files+"/*.network /run/systemd/network; "+
		// A link without hardware has no permanent address. Cloud-init 22.4 leaves out accept-ra, and networkd would wait for
		// advertisements for 12 s.
		"chmod 644 /run/systemd/network/*; sed -i -e s/^Permanent// -e \"s/^.Network.$/&\\nIPv6AcceptRA=no/\" /run/systemd/network/*; "+
		"/lib/systemd/systemd-networkd >/run/log 2>&1 & "+
		"for i in $(seq 500); do sleep 0.1; test $(grep -lE \"^ADMIN_STATE=(configured|unmanaged)\" /run/systemd/netif/links/* 2>/dev/null | wc -l) = 5 && break; done; "+
		"test $i != 500 || { cat /run/log /run/systemd/network/* >&2; exit 1; }; "+end)
}

// ifupdown returns what ifup makes of the files of the directory.
func (d debian) ifupdown(t *testing.T, guest, files string) []string {
	t.Helper()
	return d.show(t, guest, begin+"rm -rf /etc/network /run/network; mkdir -p /run/network /etc/network/if-pre-up.d /etc/network/if-up.d; cp "+files+"/* /etc/network/interfaces; "+
		"ifup -a >/run/log 2>&1 || { cat /run/log >&2; exit 1; }; "+strings.Replace(end, "proto kernel\"", "proto kernel\" | sed \"s/metric 1 //\"", 1))
}

// show runs the command in the machine and returns the lines that it prints, in order.
func (d debian) show(t *testing.T, guest, command string) []string {
	t.Helper()
	out, err := d.machine.Run(command)
	if err != nil {
		t.Errorf("%s by cloud-init %s: %v", guest, d.name, err)
	}
	var lines []string
	address := regexp.MustCompile(`^\d+: (\w+) +inet6? (\S+) .*`)
	noise := regexp.MustCompile(` (proto \S+|scope link|pref medium|linkdown|onlink|metric 1024)\b`)
	for line := range strings.Lines(out) {
		line = address.ReplaceAllString(strings.TrimSpace(line), "address $2 dev $1")
		lines = append(lines, strings.Join(strings.Fields(noise.ReplaceAllString(line, "")), " "))
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// line is a route as ip(8) shows it.
func line(destination, gateway, nic, metric string) string {
	p := netip.MustParsePrefix(destination)
	text := destination
	switch {
	case p.Bits() == 0:
		text = "default"
	case p.IsSingleIP():
		text = p.Addr().String()
	}
	if a, err := netip.ParseAddr(gateway); err == nil && !a.IsUnspecified() {
		text += " via " + gateway
	}
	text += " dev " + nic
	if metric != "" && metric != "1024" {
		text += " metric " + metric
	}
	return text
}

// each returns the files of the pattern by the NIC that their names end with.
func each(t *testing.T, pattern string) map[string]string {
	t.Helper()
	files, _ := filepath.Glob(pattern)
	texts := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".nmconnection")
		texts[name[strings.LastIndexByte(name, '-')+1:]] = string(text)
	}
	return texts
}

// byNetworkManager are the addresses and routes of the keyfiles that cloud-init has written.
func byNetworkManager(t *testing.T, at string) []string {
	t.Helper()
	var lines []string
	for nic, text := range each(t, at+"/network-manager/etc/NetworkManager/system-connections/*.nmconnection") {
		for _, section := range strings.Split(text, "\n[") {
			family, _, _ := strings.Cut(section, "]")
			metric := ""
			if m := regexp.MustCompile(`(?m)^route-metric=(\d+)$`).FindStringSubmatch(section); m != nil {
				metric = m[1]
			}
			for _, m := range regexp.MustCompile(`(?m)^(address|route)(\d+)=([^,\n]+)(?:,([^,\n]*))?(?:,(\d+))?$`).FindAllStringSubmatch(section, -1) {
				if netip.MustParsePrefix(m[3]).Addr().Is4() != (family == "ipv4") {
					continue // NetworkManager ignores it
				}
				if m[1] == "address" {
					if !strings.HasPrefix(m[3], "fe80:") {
						lines = append(lines, "address "+m[3]+" dev "+nic)
					}
					continue
				}
				if strings.HasSuffix(m[3], "/0") && m[5] == "" {
					m[5] = metric
				}
				text := line(m[3], m[4], nic, m[5])
				if mtu := regexp.MustCompile(`(?m)^` + m[1] + m[2] + `_options=mtu=(\d+)$`).FindStringSubmatch(section); mtu != nil {
					text += " mtu " + mtu[1]
				}
				lines = append(lines, text)
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// byIfcfg are the addresses and routes of the ifcfg files that cloud-init has written.
func byIfcfg(t *testing.T, at string) []string {
	t.Helper()
	var lines []string
	scripts := at + "/sysconfig/etc/sysconfig/network-scripts/"
	values := func(text string) map[string]string {
		all := map[string]string{}
		for _, m := range regexp.MustCompile(`(?m)^(\w+)="?([^"\n]*)"?$`).FindAllStringSubmatch(text, -1) {
			all[m[1]] = m[2]
		}
		return all
	}
	length := func(mask string) string {
		bits := 0
		for _, b := range netip.MustParseAddr(mask).As4() {
			for ; b != 0; b <<= 1 {
				bits++
			}
		}
		return fmt.Sprint("/", bits)
	}
	for nic, text := range each(t, scripts+"ifcfg-*") {
		v := values(text)
		for _, n := range []string{"", "1", "2", "3"} {
			if a := v["IPADDR"+n]; a != "" {
				lines = append(lines, "address "+a+length(v["NETMASK"+n])+" dev "+nic)
			}
		}
		for _, a := range strings.Fields(v["IPV6ADDR"] + " " + v["IPV6ADDR_SECONDARIES"]) {
			if !strings.HasPrefix(a, "fe80:") { // netplan's is not shown
				lines = append(lines, "address "+a+" dev "+nic)
			}
		}
		if v["GATEWAY"] != "" {
			lines = append(lines, line("0.0.0.0/0", v["GATEWAY"], nic, v["IPV4_ROUTE_METRIC"]))
		}
		if v["IPV6_DEFAULTGW"] != "" {
			lines = append(lines, line("::/0", v["IPV6_DEFAULTGW"], nic, v["IPV6_ROUTE_METRIC"]))
		}
	}
	for nic, text := range each(t, scripts+"route-*") {
		v := values(text)
		for i := 0; v[fmt.Sprint("ADDRESS", i)] != ""; i++ {
			lines = append(lines, line(v[fmt.Sprint("ADDRESS", i)]+length(v[fmt.Sprint("NETMASK", i)]), v[fmt.Sprint("GATEWAY", i)], nic, v[fmt.Sprint("METRIC", i)]))
		}
	}
	for nic, text := range each(t, scripts+"route6-*") {
		for _, m := range regexp.MustCompile(`(?m)^(\S+/\d+) via (\S+)(?: metric (\d+))?`).FindAllStringSubmatch(text, -1) {
			lines = append(lines, line(m[1], m[2], nic, m[3]))
		}
	}
	slices.Sort(lines)
	return lines
}

// differences are the lines that only one of the two has.
func differences(want, have []string) []string {
	var lines []string
	for _, w := range want {
		if !slices.Contains(have, w) {
			lines = append(lines, "- "+w)
		}
	}
	for _, h := range have {
		if !slices.Contains(want, h) {
			lines = append(lines, "+ "+h)
		}
	}
	return lines
}
