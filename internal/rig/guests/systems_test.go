package guests_test

import (
	"slices"
)

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
