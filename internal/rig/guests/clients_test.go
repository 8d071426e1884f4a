package guests_test

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// clients says how many of the clients that take long run: networkd, connman, ifupdown, cloud-init and firmware.
var clients = flag.String("clients", "few", "run the slow clients on a few of the networks, or all")

// program is one DHCP client, started as its users start it, but in the foreground.
type program struct {
	packages []string // Debian packages of the machine
	start    string   // command, for the links in $LINKS
	// Texts that the program prints each time it has got or renewed a lease. Empty: it does not ask for that family's.
	bound4, bound6 string
	renew          string // command; empty: the program renews by itself, after half of the lease
	dump           string // command that prints what DHCPv4 alone has brought; empty: see /etc/resolv.conf
	resolv         string // command that prints the DNS configuration in the form of resolv.conf; empty: the file has it
	log            string // command that prints the program's output; empty: the file that start's output is written to
	// second is a command that prints the DNS servers that the link eth1 has brought. Empty: the program runs on one link.
	second string

	setsHostname bool
	// simple: the program does not know option 121.
	simple bool
	// first: the program does not know option 119, and takes the first search domain alone.
	first bool
	// short: the program does not announce that it takes messages of more than 576 octets. Such a
	// message has no room for a long search list.
	short bool
	// identifies: the program sends a client identifier of some twenty octets, which the answer has as well.
	identifies bool
}

// system is the set of programs that configures a guest.
type system struct {
	name string
	// Each program has a machine of its own, as each writes the whole /etc/resolv.conf.
	programs []program
	// kernel: the kernel handles router advertisements. Otherwise a program does.
	kernel bool
	// advertised: a program that handles router advertisements knows their routes (RFC 4191).
	advertised bool
	// hosts: the programs add routes to the gateway and to the DNS server.
	hosts bool
	// single: the programs take one IPv6 address alone, and give it the length of the prefix on the link. They take a
	// deprecated one if there is one.
	single bool
	// anySource: of several IPv6 addresses, the guest sends from another one than the first.
	anySource bool
	// both: the programs send no DHCPv6 message where there is no DHCPv4.
	both bool
	// slow: the system renews late. It runs only in the network whose gateway is outside of the guest's, unless all
	// clients are wanted; networkd also where no client renews.
	slow  bool
	lease uint32 // seconds; 0: infinite
	// debian13: the programs are Debian 13's. Else they are Debian 12's.
	debian13 bool
	// once: the programs end when they have their leases, and renew none.
	once bool
	// cuts: the programs lose what follows a domain of more than 63 octets.
	cuts bool
}

var systems = []system{
	{
		name:   "udhcpc",
		kernel: true,
		programs: []program{{
			packages: []string{"busybox", "udhcpc"},
			start:    "for link in $LINKS; do " + udhcpc + " -s /etc/udhcpc/classless.script -O staticroutes -O search & done; wait",
			bound4:   "lease of ",
			renew:    "kill -USR1 $(cat /run/udhcpc.*.pid)",
			second:   "sed -n '/^nameserver/p' /run/resolv4.eth1",
			short:    true,
		}},
	},
	{
		// udhcpc with Debian's script.
		name:   "udhcpc-debian",
		kernel: true,
		programs: []program{{
			packages: []string{"busybox", "udhcpc"},
			start:    "for link in $LINKS; do " + udhcpc + " & done; wait",
			bound4:   "lease of ",
			renew:    "kill -USR1 $(cat /run/udhcpc.*.pid)",
			simple:   true,
			first:    true,
		}},
	},
	{
		name:   "dhclient",
		kernel: true,
		lease:  8,
		programs: []program{{
			packages: []string{"dhclient"},
			// The lease is made long, and only the renewal time stays short. When a short lease
			// ends on a busy machine, the routes go too, and Debian's script does not add them
			// again with the next lease.
			start: "echo 'supersede dhcp-lease-time 3600; supersede dhcp-rebinding-time 3000; " +
				"initial-interval 1; backoff-cutoff 2;' >>/etc/dhcp/dhclient.conf; dhclient -4 -d $LINKS",
			bound4:       "bound to ",
			second:       "awk '/interface/ { link = $2 } /domain-name-servers/ && link ~ /eth1/' /var/lib/dhcp/dhclient.leases",
			setsHostname: true,
			short:        true,
		}, {
			packages: []string{"dhclient"},
			start:    "dhclient -6 -d $LINKS",
			bound6:   "RCV: Reply",
			second:   "awk '/interface/ { link = $2 } /name-servers/ && link ~ /eth1/' /var/lib/dhcp/dhclient6.leases",
		}},
	},
	{
		name: "dhcpcd",
		programs: []program{{
			packages: []string{"dhcpcd"},
			// The package's installation creates the user; the machine has the files alone.
			start: "useradd --system --home /usr/lib/dhcpcd --shell /bin/false dhcpcd; " +
				"echo nodelay >>/etc/dhcpcd.conf; dhcpcd --nobackground --nodev --debug $LINKS",
			bound4: "eth0: leased 10.",
			bound6: "REPLY6 received",
			// dhcpcd loses a signal that arrives while one of its scripts runs.
			renew: "taken() { grep -c SIGUSR1 /run/log; }; before=$(taken); " +
				"until test $(taken) -gt $before; do dhcpcd --renew eth0; sleep 0.5; done",
			second:       "cat /run/dhcpcd/hook-state/resolv.conf/eth1.* 2>/dev/null | sed -n '/^nameserver/p'",
			dump:         "cat /run/dhcpcd/hook-state/resolv.conf/eth0.dhcp",
			setsHostname: true,
		}},
	},
}

const (
	// startNetworkd starts it as in a container: where /sys is read-only, it does without udev.
	startNetworkd = "mkdir -p /run/systemd; mount -o remount,bind,ro /sys; SYSTEMD_LOG_LEVEL=debug SYSTEMD_LOG_TARGET=console /lib/systemd/systemd-networkd"
	// networkdResolv prints what networkd reports to systemd-resolved, as it writes no resolv.conf. Servers and domains
	// come by DHCPv4, DHCPv6 and advertisements.
	networkdResolv = "cd /run/systemd/netif/links; sed -n 's/^DNS=//p' * | tr ' ' '\\n' | awk '!seen[$0]++' | sed 's/^/nameserver /'; " +
		"echo search $(sed -n 's/^DOMAINS=//p' * | tr ' ' '\\n' | awk '!seen[$0]++')"
	// startBus starts a D-Bus without rules.
	startBus = "mkdir -p /run/dbus; printf '<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><policy context=\"default\">" +
		"<allow send_destination=\"*\"/><allow receive_sender=\"*\"/><allow own=\"*\"/><allow user=\"*\"/></policy></busconfig>' >/run/dbus.conf; " +
		"dbus-daemon --config-file=/run/dbus.conf --fork; "
	// startResolved starts systemd-resolved, which takes what networkd has learned. networkd makes its identifiers of the
	// machine's.
	startResolved = "mkdir -p /run/systemd; " + startBus + "systemd-id128 new >/etc/machine-id; /lib/systemd/systemd-resolved & "
	// overrides are the protocols for cloud-init's networkd, with all that networkd takes.
	overrides = "dhcp4: true, dhcp6: true, dhcp4-overrides: {use-domains: true, use-mtu: true}, dhcp6-overrides: {use-domains: true}"
	// longer makes dhclient renew soon, but not lose the lease on a busy machine.
	longer = "echo 'supersede dhcp-lease-time 3600; supersede dhcp-rebinding-time 3000; initial-interval 1; backoff-cutoff 2;' >>/etc/dhcp/dhclient.conf; "
)

// startCloudInit runs cloud-init by a Python. It writes the configuration for the renderer.
func startCloudInit(python, renderer, protocols string) string {
	return "mkdir -p /var/lib/cloud/seed/nocloud /run/network; cd /var/lib/cloud/seed/nocloud; echo 'instance-id: guest1' >meta-data; echo '#cloud-config' >user-data; " +
		"printf 'version: 2\\nethernets: {eth0: {" + protocols + "}}\\n' >network-config; " +
		"printf 'datasource_list: [NoCloud]\\nsystem_info: {distro: debian, network: {renderers: [" + renderer + "]}}\\n' >/etc/cloud/cloud.cfg.d/99-test.cfg; " +
		python + " -m cloudinit.cmd.main init --local; cat /etc/network/interfaces.d/* /etc/systemd/network/*; "
}

func init() {
	networkd := program{
		packages: []string{"managers"},
		start: "mkdir -p /run/systemd/network; printf \"[Match]\\nName=$LINKS\\n[Network]\\nDHCP=yes\\n[DHCPv4]\\nUseDomains=yes\\nUseMTU=yes\\n[DHCPv6]\\nUseDomains=yes\\n\" " +
			">/run/systemd/network/10-eth0.network; " + startNetworkd,
		bound4: "DHCPv4 client: ACK",
		bound6: "DHCPv6 client: State changed: ",
		resolv: networkdResolv,
		second: "sed -n 's/^DNS=//p' /run/systemd/netif/links/$(cat /sys/class/net/eth1/ifindex)",
	}
	byCloudInit := networkd
	byCloudInit.packages, byCloudInit.second = []string{"managers", "cloudinit"}, ""
	const python12 = "PYTHONHOME=/usr /usr/bin/python3.11"
	byCloudInit.start = startCloudInit(python12, "networkd", overrides) + startNetworkd
	ifupdown := func(family string) program {
		p := program{packages: []string{"dhclient", "ifupdown"}, log: "cat /var/lib/dhcp/*.leases"}
		if family == "inet" {
			p.bound4, p.setsHostname, p.short, p.identifies = "lease {", true, true, true
		} else {
			p.bound6 = "lease6 {"
		}
		p.start = longer + "mkdir -p /run/network; echo 'iface eth0 " + family + " dhcp' >/etc/network/interfaces; ifup -v eth0"
		return p
	}
	eni := func(family, protocol string) program {
		p := ifupdown(family)
		p.packages = append(p.packages, "cloudinit")
		p.start = longer + "mkdir -p /etc/network; echo 'source /etc/network/interfaces.d/*' >/etc/network/interfaces; " +
			startCloudInit(python12, "eni", protocol+": true") + "ifup -v eth0"
		return p
	}
	systems = append(systems,
		system{name: "networkd", slow: true, advertised: true, hosts: true, anySource: true, lease: 12, programs: []program{networkd}},
		system{name: "cloud-init-networkd", slow: true, advertised: true, hosts: true, anySource: true, lease: 12, programs: []program{byCloudInit}},
		system{name: "ifupdown", slow: true, kernel: true, lease: 8, programs: []program{ifupdown("inet"), ifupdown("inet6")}},
		system{name: "cloud-init-ifupdown", slow: true, kernel: true, lease: 8, programs: []program{eni("inet", "dhcp4"), eni("inet6", "dhcp6")}},
		system{name: "connman", slow: true, both: true, hosts: true, single: true, lease: 12, programs: []program{{
			packages: []string{"connman"},
			start:    "mount -o remount,bind,ro /sys; " + startBus + "connmand --nodaemon --nodnsproxy --device=eth0 -d",
			bound4:   "Lease available",
			bound6:   "dad_reply() DAD succeed",
			simple:   true,
			first:    true,
		}}},
	)
	systems = append(systems, debian13(networkd)...)
}

// debian13 returns the systems of Debian 13. networkd is that of Debian 12.
func debian13(networkd program) []system {
	// As systemd-resolved has it.
	networkd.resolv, networkd.second = "cat /run/systemd/resolve/resolv.conf", "resolvectl dns eth1 | sed 's/.*)://'"
	byCloudInit := networkd
	byCloudInit.second = ""
	byCloudInit.start = startCloudInit("/usr/bin/python3", "networkd", overrides) + startResolved + startNetworkd
	networkd.start = startResolved + networkd.start
	var list []system
	for _, sys := range systems {
		switch sys.name {
		case "udhcpc":
		case "udhcpc-debian":
			sys.programs = slices.Clone(sys.programs)
			sys.programs[0].first, sys.programs[0].short = false, true
		case "dhcpcd":
			sys.programs = slices.Clone(sys.programs)
			sys.programs[0].start = "dhcpcd --nobackground --nodev --debug $LINKS"
		case "networkd":
			sys.programs = []program{networkd}
		case "cloud-init-networkd":
			sys.programs = []program{byCloudInit}
		default:
			continue
		}
		sys.name, sys.debian13 = sys.name+"-13", true
		list = append(list, sys)
	}
	return append(list, system{name: "ipconfig-13", debian13: true, kernel: true, once: true, cuts: true, programs: []program{{
		start:  "for link in $LINKS; do /usr/lib/klibc/bin/ipconfig -d $link; cat /run/net-$link.conf; done",
		bound4: "DEVICE=",
		short:  true,
		second: "sed -n 's/IPV4DNS.=//p' /run/net-eth1.conf | grep -v \"'0.0.0.0'\" || :",
		resolv: ". /run/net-eth0.conf; echo nameserver $IPV4DNS0; echo search ${DOMAINSEARCH:-$DNSDOMAIN}",
	}}})
}

// udhcpc sends its first requests fast, and does not give up.
const udhcpc = "udhcpc -f -i $link -p /run/udhcpc.$link.pid -t 20 -T 1 -A 1 -O mtu"

// network is a pod's network, and what the guest must get from it.
type network struct {
	name    string
	binding infra.Binding
	create  func(t *testing.T) nstest.Network

	address4, address6 string
	others6            []string // further addresses of the NIC, which the guest gets as well
	// Lines of ip route, without links, protocols and metrics.
	routes4, routes6 []string
	// What a program gets instead that does not know option 121; empty: the same without further routes.
	simple4       string
	simpleRoutes4 []string
	search        []string
	subdomain     string // makes a further search domain, which comes first
	// Further hosts that must answer, in addition to nstest's Beyond4 and Beyond6.
	beyond []string
	// long: the routes are more than a message of 576 octets has room for.
	long bool
	// full: the routes fit into such a message, and the names do not.
	full bool
	// deprecated is a further IPv6 address of the guest, from which it must not send.
	deprecated string
	// second: the guest has a second NIC, eth1, without a gateway.
	second bool
	// lost is what the launcher's log says of routes or search domains that are too long; empty: nothing.
	lost string
	// once: the clients start there and do not renew their leases, which are infinite.
	once bool
}

const router = "ROUTER" // stands in routes6 for the link-local address of the guest's router

var networks = []network{
	{
		name: "bridge", binding: infra.Bridge{}, create: createWithRoutes,
		address4: "10.244.1.7/24", address6: "fd00:244:1::7/128", others6: []string{"fd00:244:1::17", "fd00:244:1::27", floating6},
		routes4: []string{"10.244.1.0/24", "203.0.113.0/24 via 10.244.1.254", "default via 10.244.1.1"},
		routes6: []string{"fd00:244:1::/64", "2001:db8:7::/64 via " + router, "default via " + router},
		search:  longSearch,
		lost:    "DHCPv4 option 119 (search domains) is left out: its 283 octets do not fit into the answer to dhclient, udhcpc, Windows",
		beyond:  []string{"203.0.113.9", "2001:db8:7::9"},
	},
	{
		name: "bridge-on-link", binding: infra.Bridge{}, create: createOnLink,
		address4: "10.244.1.7/32", address6: "fd00:244:1::7/128",
		routes4: []string{"169.254.1.1", "default via 169.254.1.1"},
		simple4: "10.244.1.7/31", simpleRoutes4: []string{"10.244.1.6/31", "default via 10.244.1.6"},
		routes6: []string{"default via " + router},
		search:  []string{"ns.svc.cluster.example", "svc.cluster.example", "cluster.example"},
	},
	{
		name: "bridge-next-hops", binding: infra.Bridge{}, create: createNextHops,
		address4: "10.244.1.7/32", address6: "fd00:244:1::7/128",
		routes4: []string{"169.254.75.2", "default via 169.254.75.2"},
		simple4: "10.244.1.7/31", simpleRoutes4: []string{"10.244.1.6/31", "default via 10.244.1.6"},
		routes6: []string{"default"},
		search:  []string{"pod.example"},
	},
	{
		name: "masquerade", binding: infra.Masquerade{}, create: func(t *testing.T) nstest.Network { return nstest.NewNetwork(t) },
		address4: "10.0.2.2/24", address6: "fd10:0:2::2/128",
		routes4: []string{"10.0.2.0/24", "default via 10.0.2.1"},
		routes6: []string{"fd10:0:2::/120", "default via " + router},
		search:  []string{"pod.example"}, subdomain: "vms",
	},
}

// in returns the system as it runs in a network: the programs that get something there.
func (s system) in(n network) system {
	var run []program
	for _, p := range s.programs {
		if n.address4 == "" {
			p.bound4 = ""
		}
		if n.address6 == "" {
			p.bound6 = ""
		}
		if p.bound4 == "" && s.both || s.single && n.deprecated != "" {
			continue
		}
		if (p.bound4 != "" || p.bound6 != "") && (!n.second || p.second != "") {
			run = append(run, p)
		}
	}
	s.programs = run
	return s
}

// longSearch is longer than one DHCPv4 option, and than one option of a router advertisement.
var longSearch = []string{
	strings.Repeat("a", 60) + ".example", strings.Repeat("b", 60) + ".example", strings.Repeat("c", 60) + ".example",
	strings.Repeat("d", 60) + ".example", "pod.example",
}

// floating6 is an address that a station has for others, and does not send from, as keepalived adds it.
const floating6 = "fd00:244:2::aaaa"

// createWithRoutes returns a network with an IPv4 route through a second gateway, an IPv6 route in addition to the
// default route, three IPv6 addresses, and one that is deprecated.
func createWithRoutes(t *testing.T) nstest.Network {
	n := nstest.NewNetwork(t)
	n.World.IP("addr add 203.0.113.9/32 dev lo")
	n.World.IP("addr add 2001:db8:7::9/128 dev lo nodad")
	n.World.IP("addr add 10.244.1.254/24 dev pod")
	n.Pod.IP("route add 203.0.113.0/24 via 10.244.1.254")
	n.Pod.IP("route add 2001:db8:7::/64 via fd00:244:1::1")
	n.Pod.IP("addr add fd00:244:1::17/64 dev eth0 nodad")
	n.Pod.IP("addr add fd00:244:1::27/64 dev eth0 nodad")
	n.Pod.IP("addr add " + floating6 + "/128 dev eth0 nodad preferred_lft 0")
	n.World.IP("route add " + floating6 + " dev pod")
	return n
}

// createOnLink returns a network like Calico's: /32 and /128 addresses, an IPv4 gateway that a route puts on
// the link, and a link-local IPv6 gateway.
func createOnLink(t *testing.T) nstest.Network {
	n := nstest.NewWorld(t)
	n.World.IP("link add pod type veth peer name eth0 netns " + n.Pod.Name)
	n.World.IP("link set pod mtu 1450 up")
	n.World.IP("addr add 169.254.1.1/32 dev pod")
	n.World.IP("route add 10.244.1.7/32 dev pod")
	n.World.IP("route add fd00:244:1::7/128 dev pod")
	n.Pod.IP("link set eth0 mtu 1450 up")
	n.Pod.IP("addr add 10.244.1.7/32 dev eth0")
	n.Pod.IP("addr add fd00:244:1::7/128 dev eth0")
	n.Pod.IP("route add 169.254.1.1 dev eth0 scope link")
	n.Pod.IP("route add default via 169.254.1.1")
	n.Pod.Settle("eth0")
	n.World.Settle("pod")
	n.Pod.IP("route add default dev eth0 via " + linkLocal(n.World, "pod"))
	return n
}

// createNextHops returns a network whose IPv4 gateway is an IPv6 address (RFC 8950), and whose IPv6 default route is on
// the link: the world answers neighbour solicitations for all that it knows.
func createNextHops(t *testing.T) nstest.Network {
	n := nstest.NewWorld(t)
	n.World.IP("link add pod type veth peer name eth0 netns " + n.Pod.Name)
	n.World.IP("link set pod mtu 1450 up")
	n.World.IP("route add 10.244.1.7/32 dev pod")
	n.World.IP("route add fd00:244:1::7/128 dev pod")
	n.World.Exec("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.pod.proxy_ndp=1")
	n.World.IP("neigh add proxy " + nstest.Beyond6.String() + " dev pod")
	n.Pod.IP("link set eth0 mtu 1450 up")
	n.Pod.IP("addr add 10.244.1.7/32 dev eth0")
	n.Pod.IP("addr add fd00:244:1::7/128 dev eth0")
	n.Pod.Settle("eth0")
	n.World.Settle("pod")
	n.Pod.IP("-4 route add default via inet6 " + linkLocal(n.World, "pod") + " dev eth0")
	n.Pod.IP("-6 route add default dev eth0")
	return n
}

func linkLocal(n *nstest.Namespace, link string) string {
	// NAME UP fe80::1/64
	words := strings.Fields(n.IP("-br -6 addr show scope link dev " + link))
	return strings.TrimSuffix(words[len(words)-1], "/64")
}

// TestClients runs real DHCP clients in each network. It checks the result with ip(8), by the files that the
// clients write, and by who answers; again after a renewal, and after a restart of the launcher.
func TestClients(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	launcher := nstest.Program(t, "examples/launcher")
	for _, sys := range systems {
		t.Run(sys.name, func(t *testing.T) {
			t.Parallel()
			for _, n := range slices.Concat(networks, pods) {
				sys := sys.in(n)
				if len(sys.programs) == 0 {
					continue
				}
				few := !sys.slow || n.name == "bridge-on-link" || n.once && strings.HasPrefix(sys.name, "networkd")
				if !few && *clients != "all" || sys.cuts && len(n.search[0]) > 63 {
					continue
				}
				t.Run(n.name, func(t *testing.T) {
					t.Parallel()
					s := newScene(t, sys, n)
					s.serve(t, launcher)
					s.boot(t)
					s.check(t)
					if n.once {
						return
					}
					s.renew(t)

					s.launcher.Stop(t)
					nstest.Eventually(t, s.hasNoRouter)
					s.serve(t, launcher)
					s.renew(t)
					s.check(t)
					if out := s.launcher.Output.String(); sys.lease == 0 && strings.Contains(out, "leased") {
						t.Errorf("a program asked for a new lease instead of renewing its own:\n%s", out)
					}
				})
			}
		})
	}
}

// scene is a network with a guest.
type scene struct {
	nstest.Network
	network network
	system  system
	// resolvConf is the pod's resolv.conf.
	resolvConf string
	launcher   *nstest.Process
	guest      *nstest.Namespace
	clients    []client
}

// client is a running program.
type client struct {
	program
	machine *machine.Machine
}

const dns4, dns6 = "192.0.2.53", "2001:db8::53"

func newScene(t *testing.T, sys system, n network) *scene {
	t.Helper()
	s := &scene{Network: n.create(t), network: n, system: sys}
	s.resolvConf = filepath.Join(nstest.Dir(t), "resolv.conf")
	text := fmt.Sprintf("nameserver %s\nnameserver %s\nsearch %s\n", dns4, dns6, strings.Join(n.search, " "))
	if err := os.WriteFile(s.resolvConf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	lease := sys.lease
	if n.once {
		lease = 0
	}
	for _, nic := range s.nics() {
		_, err := (phase1.NIC{NetNS: s.Pod.File, Name: nic}).Setup(t.Context(), infra.Spec{
			Binding: n.binding, State: s.State,
			Owner:   nstest.Owner(),
			Options: cache.Options{Hostname: "alice", Subdomain: n.subdomain, LeaseSeconds: lease},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.World.Listen("world", ":7")
	return s
}

// nics returns the names of the guest's NICs, which are those of the pod's.
func (s *scene) nics() []string {
	if s.network.second {
		return []string{"eth0", "eth1"}
	}
	return []string{"eth0"}
}

// serve starts a launcher and waits until it serves.
func (s *scene) serve(t *testing.T, program string) {
	t.Helper()
	p := s.Pod.Start(nstest.LauncherUID, program, "serve", "-state", s.State, "-resolv-conf", s.resolvConf)
	s.launcher = p
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("launcher:\n%s", p.Output.String())
		}
	})
	nstest.Eventually(t, func() error { return checkOutput(p, "serving") })
}

func checkOutput(p *nstest.Process, text string) error {
	if out := p.Output.String(); !strings.Contains(out, text) {
		return fmt.Errorf("the launcher does not say %q:\n%s", text, out)
	}
	return nil
}

// boot creates the guest and starts its programs. A program that handles router advertisements itself also
// sets the link up.
func (s *scene) boot(t *testing.T) {
	t.Helper()
	vm, err := phase2.Open(s.State)
	if err != nil {
		t.Fatal(err)
	}
	s.guest = s.Guest(t, vm.Records()[0])
	if s.network.second {
		s.Attach(t, s.guest, "eth1", vm.Records()[1])
	}
	s.guest.Listen("guest", ":7")
	for _, nic := range s.nics() {
		if s.system.kernel {
			s.guest.Exec("sysctl", "-qw", "net.ipv6.conf."+nic+".accept_ra_rt_info_max_plen=128")
			s.guest.IP("link set " + nic + " up")
			s.guest.Settle(nic)
		}
	}
	for _, p := range s.system.programs {
		s.start(t, p)
	}
}

// start starts a program and waits until it has its leases.
func (s *scene) start(t *testing.T, p program) {
	t.Helper()
	c := client{program: p}
	if s.system.debian13 {
		c.machine = machine.NewDebian13(t, s.guest)
	} else {
		c.machine = machine.New(t, s.guest, p.packages...)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		out, err := c.machine.Run("cat /run/log; ip addr; ip route; ip -6 route; cat /etc/resolv.conf")
		t.Logf("%s: %v\n%s", c.start, err, out)
	})
	script, err := os.ReadFile("../vm/guest/udhcpc-script")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.machine.Write("/etc/udhcpc/classless.script", script); err != nil {
		t.Fatal(err)
	}
	if _, err := c.machine.Run("export LINKS='" + strings.Join(s.nics(), " ") + "'; :>/run/log; (" + c.start + ") >>/run/log 2>&1 &"); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, c.hasLeases(leases{}))
	s.clients = append(s.clients, c)
}

// leases counts how often a program has printed bound4 and bound6.
type leases struct{ ipv4, ipv6 int }

func (c client) leases() (leases, error) {
	command := c.log
	if command == "" {
		command = "cat /run/log"
	}
	log, err := c.machine.Run(command)
	return leases{strings.Count(log, c.bound4), strings.Count(log, c.bound6)}, err
}

// hasLeases returns a check that each count of leases is higher than before.
func (c client) hasLeases(before leases) func() error {
	return func() error {
		now, err := c.leases()
		switch {
		case err != nil:
			return err
		case c.bound4 != "" && now.ipv4 <= before.ipv4:
			return fmt.Errorf("%s does not say %q for the %dth time", c.start, c.bound4, before.ipv4+1)
		case c.bound6 != "" && now.ipv6 <= before.ipv6:
			return fmt.Errorf("%s does not say %q for the %dth time", c.start, c.bound6, before.ipv6+1)
		}
		return nil
	}
}

// renew makes the programs renew their leases, or waits until they do. Both the programs' output and the
// launcher's log must show the renewal.
func (s *scene) renew(t *testing.T) {
	t.Helper()
	if s.system.once {
		return
	}
	for _, c := range s.clients {
		before, err := c.leases()
		if err != nil {
			t.Fatal(err)
		}
		if c.program.renew != "" {
			if _, err := c.machine.Run(c.program.renew); err != nil {
				t.Fatal(err)
			}
		}
		nstest.Eventually(t, c.hasLeases(before))
		if c.bound4 != "" {
			nstest.Eventually(t, func() error { return checkOutput(s.launcher, "DHCPv4 lease renewed") })
		}
		if c.bound6 != "" {
			nstest.Eventually(t, func() error { return checkOutput(s.launcher, "DHCPv6 lease renewed") })
		}
	}
	for line := range strings.Lines(s.launcher.Output.String()) {
		if known := s.network.lost != "" && strings.Contains(line, s.network.lost); strings.Contains(line, "level=WARN") && !known {
			t.Errorf("launcher: %s", line)
		}
	}
}

// check checks what the guest has got, and who answers whom.
func (s *scene) check(t *testing.T) {
	t.Helper()
	nstest.Eventually(t, func() error { return checkOutput(s.launcher, s.network.lost) })
	nstest.Eventually(t, s.hasRouter)
	for _, c := range s.clients {
		nstest.Eventually(t, func() error { return errors.Join(s.hasName(c), s.hasDNS(c), s.hasSecond(c)) })
		if c.bound4 != "" {
			nstest.Eventually(t, func() error { return s.has4(c) })
			s.traffic(t, nstest.Pod4)
		}
		if c.bound6 != "" {
			nstest.Eventually(t, s.has6)
			s.traffic(t, nstest.Pod6)
			for _, a := range s.others6() {
				checkAnswer(t, s.World, netip.MustParseAddr(a), "guest sees ")
			}
		}
	}
}

// hasRouter checks what only router advertisements have: the IPv6 routes and the MTU.
func (s *scene) hasRouter() error {
	if s.network.address6 == "" {
		return nil
	}
	address := linkLocal(s.World, "pod")
	if s.network.binding.Kind() == cache.BindingMasquerade {
		address = linkLocal(s.Pod, "eth0-tap")
	}
	out := s.guest.IP("-6 route show dev eth0")
	for _, want := range s.network.routes6 {
		if !s.system.kernel && !s.system.advertised && strings.HasPrefix(want, "2001:db8:") {
			continue
		}
		if want = strings.ReplaceAll(want, router, address); !slices.Contains(routes(out), want) {
			return fmt.Errorf("no route %q:\n%s", want, out)
		}
	}
	// The kernel sets the link's IPv6 MTU; dhcpcd sets the MTU of the routes.
	if mtu := s.guest.Exec("sysctl", "net.ipv6.conf.eth0.mtu"); !strings.Contains(mtu, " 1450\n") && !strings.Contains(out, " mtu 1450 ") {
		return fmt.Errorf("not the MTU 1450: %s%s", mtu, out)
	}
	return nil
}

// hasNoRouter checks that the launcher has withdrawn the router at its end. A default route on the link is a prefix,
// which stays.
func (s *scene) hasNoRouter() error {
	if out := s.guest.IP("-6 route show default"); strings.Contains(out, "via") {
		return fmt.Errorf("still a default route:\n%s", out)
	}
	return nil
}

func (s *scene) has4(c client) error {
	address, want := s.network.address4, s.network.routes4
	switch {
	case c.simple && s.network.simple4 != "":
		address, want = s.network.simple4, s.network.simpleRoutes4
	case c.simple, c.short && (s.network.long || s.network.full && c.identifies):
		want = slices.DeleteFunc(slices.Clone(want), func(r string) bool { return strings.Contains(r, "/24 via ") })
	}
	got := routes(s.guest.IP("-4 route show dev eth0"))
	if s.system.hosts {
		got = slices.DeleteFunc(got, func(r string) bool { return strings.HasPrefix(r, dns4) || isHost(r) && !slices.Contains(want, r) })
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("routes %q, want %q", got, want)
	}
	if out := s.guest.IP("-4 addr show dev eth0"); !strings.Contains(out, " "+address+" ") {
		return fmt.Errorf("not the address %s:\n%s", address, out)
	}
	// dhcpcd sets the MTU of the routes, not that of the link.
	if out := s.guest.IP("link show dev eth0") + s.guest.IP("route show default"); !strings.Contains(out, " mtu 1450 ") {
		return fmt.Errorf("not the MTU 1450:\n%s", out)
	}
	return nil
}

// others6 are the further IPv6 addresses that the guest takes.
func (s *scene) others6() []string {
	if s.system.single {
		return nil
	}
	return s.network.others6
}

func (s *scene) has6() error {
	want := netip.MustParsePrefix(s.network.address6)
	for _, route := range s.network.routes6 {
		if p, err := netip.ParsePrefix(route); err == nil && s.system.single && p.Contains(want.Addr()) {
			want = netip.PrefixFrom(want.Addr(), p.Bits())
		}
	}
	out := s.guest.IP("-6 addr show dev eth0")
	if !strings.Contains(out, fmt.Sprintf(" %v ", want)) {
		return fmt.Errorf("not the address %v:\n%s", want, out)
	}
	for _, a := range s.others6() {
		if !strings.Contains(out, " "+a+"/128 ") {
			return fmt.Errorf("not the address %s:\n%s", a, out)
		}
	}
	if a := s.network.deprecated; a != "" && !deprecated(out, a) {
		return fmt.Errorf("not the deprecated address %s:\n%s", a, out)
	}
	if deprecated(out, want.Addr().String()) {
		return fmt.Errorf("%v is deprecated:\n%s", want, out)
	}
	return nil
}

// deprecated reports whether ip address shows the address as deprecated: it answers, and no connection begins there.
func deprecated(text, address string) bool {
	for line := range strings.Lines(text) {
		if strings.Contains(line, " "+address+"/") {
			return strings.Contains(line, " deprecated ")
		}
	}
	return false
}

// hasSecond checks the link eth1: it has an address of its own network, and nothing of the rest leads there.
func (s *scene) hasSecond(c client) error {
	if !s.network.second {
		return nil
	}
	if c.bound4 != "" {
		got, want := routes(s.guest.IP("-4 route show dev eth1")), []string{"192.168.50.0/24"}
		// The DHCP server has an address of its own on each link.
		got = slices.DeleteFunc(got, func(r string) bool { return strings.HasPrefix(r, "169.254.75.") })
		if !slices.Equal(got, want) {
			return fmt.Errorf("routes of eth1 %q, want %q", got, want)
		}
		if out := s.guest.IP("-4 addr show dev eth1"); !strings.Contains(out, " 192.168.50.7/24 ") {
			return fmt.Errorf("not the address of eth1:\n%s", out)
		}
	}
	if c.bound6 != "" {
		if out := s.guest.IP("-6 addr show dev eth1"); !strings.Contains(out, " fd00:50::7/128 ") {
			return fmt.Errorf("not the address of eth1:\n%s", out)
		}
	}
	if got := routes(s.guest.IP("-6 route show dev eth1")); !slices.Contains(got, "fd00:50::/64") || slices.ContainsFunc(got, func(r string) bool { return strings.Contains(r, " via ") }) {
		return fmt.Errorf("routes of eth1 %q, want fd00:50::/64, and none by a router", got)
	}
	if out, err := c.machine.Run(c.second); err != nil || strings.TrimSpace(out) != "" {
		return fmt.Errorf("DNS servers of eth1 %q, %v; want none, as no route of eth1 leads there", out, err)
	}
	return nil
}

// routes returns the destination and next hop of each line of ip route, sorted.
func routes(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) > 2 && words[1] == "nhid" { // networkd 257 has objects for its next hops
			words = slices.Delete(words, 1, 3)
		}
		if len(words) > 2 && words[1] == "via" {
			list = append(list, strings.Join(words[:3], " "))
		} else {
			list = append(list, words[0])
		}
	}
	slices.Sort(list)
	return list
}

// isHost reports whether the line of routes is that of one host on the link.
func isHost(route string) bool {
	_, err := netip.ParseAddr(route)
	return err == nil
}

// hasName checks the machine's host name. dhcpcd appends the domain.
func (s *scene) hasName(c client) error {
	if c.short && s.network.full {
		return nil
	}
	if out, err := c.machine.Run("hostname"); c.setsHostname && c.bound4 != "" && (err != nil || !strings.HasPrefix(out, "alice")) {
		return fmt.Errorf("host name %q, %v; want alice", out, err)
	}
	return nil
}

func (s *scene) hasDNS(c client) error {
	command := c.resolv
	if command == "" {
		command = "cat /etc/resolv.conf"
	}
	out, err := c.machine.Run(command)
	if err != nil {
		return err
	}
	var servers, search []string
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			servers = append(servers, words[1])
		case "search", "domain":
			search = words[1:]
		}
	}
	for i, name := range search {
		search[i] = strings.TrimSuffix(name, ".")
	}
	var want []string
	if c.bound4 != "" {
		want = append(want, dns4)
	}
	if c.bound6 != "" {
		want = append(want, dns6)
	}
	if !slices.Equal(servers, want) {
		return fmt.Errorf("DNS servers %v, want %v:\n%s", servers, want, out)
	}
	if c.short && s.network.full {
		return nil
	}
	want = s.network.search
	if s.network.subdomain != "" {
		want = append([]string{s.network.subdomain + "." + want[0]}, want...)
	}
	if c.first || c.short && len(strings.Join(want, " ")) > 255 {
		want = want[:1]
	}
	if strings.Contains(s.system.name, "networkd") && s.network.address6 == "" && len(strings.Join(want, " ")) > 255 {
		want = slices.Concat(want[:1], want[3:]) // the domain of option 15, and the last part of 119
	}
	if !slices.Equal(search, want) {
		return fmt.Errorf("search list %v, want %v:\n%s", search, want, out)
	}
	if c.dump == "" || c.bound4 == "" {
		return nil
	}
	if out, err = c.machine.Run(c.dump); err != nil || !strings.Contains(out, strings.Join(want, " ")) {
		return fmt.Errorf("%s: %v, want the search list %v:\n%s", c.dump, err, want, out)
	}
	return nil
}

// traffic connects from the guest to hosts, which must see the pod's address, and from a host to the pod's
// address, where the guest must answer.
func (s *scene) traffic(t *testing.T, pod netip.Addr) {
	t.Helper()
	hosts := []netip.Addr{nstest.Beyond4, nstest.Beyond6}
	for _, a := range s.network.beyond {
		hosts = append(hosts, netip.MustParseAddr(a))
	}
	for _, to := range hosts {
		if to.Is4() == pod.Is4() {
			sees := "world sees " + strings.TrimSuffix(netip.AddrPortFrom(pod, 0).String(), "0")
			if s.system.anySource && to.Is6() && len(s.network.others6) > 0 {
				sees = "world sees [" + strings.TrimSuffix(pod.String(), "7") // the others end with 17 and 27
			}
			checkAnswer(t, s.guest, to, sees)
		}
	}
	checkAnswer(t, s.World, pod, "guest sees ")
}

func checkAnswer(t *testing.T, from *nstest.Namespace, to netip.Addr, want string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		answer, err := from.Ask(netip.AddrPortFrom(to, 7).String())
		if err != nil || !strings.HasPrefix(answer, want) {
			return fmt.Errorf("%s to %v: %q, %v; want %q", from.Name, to, answer, err, want)
		}
		return nil
	})
}
