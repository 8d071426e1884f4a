package wiring_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

func ipv6Only(s *asked) { s.Options.IPv6OnlySeconds = 1800 }

// TestRefused: every refusal names the object and the way out, and can be distinguished from the others.
func TestRefused(t *testing.T) {
	field := func(name string) func(error) bool {
		return func(err error) bool {
			var f *cache.FieldError
			return errors.As(err, &f) && f.Field == name
		}
	}
	is := func(targets ...error) func(error) bool {
		return func(err error) bool {
			for _, target := range targets {
				if !errors.Is(err, target) {
					return false
				}
			}
			return true
		}
	}
	refused := func(binding, instead cache.Kind) func(error) bool {
		return func(err error) bool {
			var r *infra.RefusedError
			return errors.As(err, &r) && r.NIC == "eth0" && r.Binding == binding && r.Instead == instead
		}
	}
	nicWith := func(edit func(*netstate.Link)) netstate.Snapshot {
		return flannelWith(func(s *netstate.Snapshot) { edit(&s.Links[1]) })
	}
	beside := func(l netstate.Link) netstate.Snapshot {
		return flannelWith(func(s *netstate.Snapshot) { s.Links = append(s.Links, l) })
	}
	portOf := func(master netstate.Link) netstate.Snapshot {
		master.Index, master.Name, master.MAC, master.MTU, master.Ethernet = 7, "up7", mac(9), 1500, true
		return flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Master = 7
			s.Links = append(s.Links, master)
		})
	}
	vlan := func(up bool) netstate.Link {
		return netstate.Link{Index: 7, Name: "eth0.5", Kind: "vlan", Parent: nic, MAC: podMAC, Up: up}
	}
	bondWith := func(mode string) netstate.Snapshot {
		return nicWith(func(l *netstate.Link) { l.Kind, l.Mode = "bond", mode })
	}
	networks := func(v4, v6 string) asked {
		return withSpec(masquerade(), func(s *asked) {
			var b infra.Masquerade
			if v4 != "" {
				b.IPv4 = pfx(v4)
			}
			if v6 != "" {
				b.IPv6 = pfx(v6)
			}
			s.Binding = b
		})
	}
	translatedBy := func(firewall cache.Firewall) asked {
		return withSpec(masquerade(), func(s *asked) {
			s.Binding, s.Guard.Off = infra.Masquerade{Firewall: firewall}, true
		})
	}
	const in4, in6 = "binding.masquerade.ipv4", "binding.masquerade.ipv6"

	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		spec  asked
		is    func(error) bool
		words string // separated by |; the text has them all
	}{
		{"no binding", flannel(), withSpec(bridge(), func(s *asked) { s.Binding = nil }), field("binding"), "bridge|masquerade"},
		{"queues below", flannel(), withSpec(bridge(), func(s *asked) { s.Queues = -1 }), field("queues"), "-1|1 to 256"},
		{"queues above", flannel(), withSpec(bridge(), func(s *asked) { s.Queues = 257 }), field("queues"), "257|1 to 256"},
		{"MTU above the NIC's", flannel(), withSpec(redirect(), func(s *asked) { s.MTU = 1451 }), field("mtu"), "1451|eth0 has 1450|at most"},
		{"MTU too small for IPv6", flannel(), withSpec(bridge(), func(s *asked) { s.MTU = 1279 }), field("mtu"), "1279|fd00:244:1::7|1280"},
		{"MTU too small for IPv6, masquerade", flannel(), withSpec(masquerade(), func(s *asked) { s.MTU = 1279 }), field("mtu"), "1279|1280"},
		{"IPv6 alone wanted, without IPv6", lan4(), withSpec(bridge(), ipv6Only), field("options.ipv6OnlySeconds"), "1800|no IPv6 address|leave this field out"},
		{"IPv6 alone wanted, without IPv6, masquerade", lan4(), withSpec(masquerade(), ipv6Only), field("options.ipv6OnlySeconds"), "1800|no IPv6 address"},
		{"IPv6 alone wanted, without IPv6, auto", lan4(), withSpec(bridge(), func(s *asked) { s.Binding = infra.Auto{}; ipv6Only(s) }),
			field("options.ipv6OnlySeconds"), "1800|no IPv6 address"},
		{"MTU without nf_tables", flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), withSpec(masquerade(), func(s *asked) { s.MTU, s.Guard.Off = 1400, true }),
			field("mtu"), "1400|nf_tables|modprobe"},
		{"limits without nf_tables", flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), withSpec(masquerade(), func(s *asked) { limited(s); s.Guard.Off = true }),
			field("limits.fromGuest"), "nf_tables|modprobe"},
		{"limits without tbf", flannelWith(func(s *netstate.Snapshot) { s.NoShaper = true }), withSpec(bridge(), limited), field("limits.toGuest"), "tbf|modprobe sch_tbf"},
		{"empty resolver", flannel(), withSpec(bridge(), func(s *asked) { s.DNS = &cache.DNS{Servers: []netip.Addr{ip("10.0.0.1"), {}}} }), field("dns.servers[1]"), "no address"},
		{"bad option", flannel(), withSpec(bridge(), func(s *asked) { s.Options.Hostname = "a\nb" }), field("options.hostname"), "control characters"},
		{"bad device", flannel(), withSpec(bridge(), func(s *asked) { s.Device.ROM = "somewhere" }), field("device.rom"), `"somewhere"|on, off`},

		{"no such NIC", flannel(), withSpec(bridge(), func(s *asked) { s.NIC = "eth9" }), is(infra.ErrNoNIC, fs.ErrNotExist), "lo, eth0"},
		{"the NIC's altname", nicWith(func(l *netstate.Link) { l.AltNames = []string{"enp1s0"} }), withSpec(bridge(), func(s *asked) { s.NIC = "enp1s0" }), is(infra.ErrNoNIC), "no such link; enp1s0 is an altname of eth0: name eth0"},
		{"empty namespace", netstate.Snapshot{}, bridge(), is(infra.ErrNoNIC), "no links"},
		{"loopback", flannel(), withSpec(bridge(), func(s *asked) { s.NIC = "lo" }), field("nic"), "lo|loopback|eth0"},

		{"wired", nicWith(func(l *netstate.Link) { l.Alias = netstate.Mark("eth0") }), bridge(), is(infra.ErrWired, fs.ErrExist), `"guestwire eth0"|Teardown`},
		{"another bridge's port", flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Master = 7
			s.Links = append(s.Links, netstate.Link{Index: 7, Name: "br7", Kind: "bridge"})
		}), bridge(), is(infra.ErrWired), "br7|ip link set eth0 nomaster|or name br7"},
		{"a bond's port", portOf(netstate.Link{Kind: "bond"}), masquerade(), is(infra.ErrWired), "a port of up7: name up7 in its place"},
		{"a team's port", portOf(netstate.Link{Kind: "team"}), redirect(), is(infra.ErrWired), "a port of up7: name up7 in its place"},
		{"a port of a driver's failover", portOf(netstate.Link{}), bridge(), is(infra.ErrWired), "a port of up7: name up7 in its place"},
		{"a port of batman-adv", portOf(netstate.Link{Kind: "batadv"}), bridge(), is(infra.ErrWired), "ip link set eth0 nomaster|or name up7"},
		{"a port of an hsr", beside(netstate.Link{Index: 7, Name: "up7", Kind: "hsr", Ports: []int{8, nic}}), masquerade(), is(infra.ErrWired), "a port of up7: name up7 in its place"},
		{"a port of Open vSwitch", portOf(netstate.Link{Kind: "openvswitch"}), bridge(), is(infra.ErrWired), "Open vSwitch|ovs-vsctl del-port eth0"},
		{"a VRF", portOf(netstate.Link{Kind: "vrf", VRF: 10}), withSpec(redirect(), func(s *asked) { s.NIC = "up7" }), field("nic"), "up7 is a VRF|name a link in it, of eth0"},
		{"a VRF without a link", flannelWith(func(s *netstate.Snapshot) {
			s.Links = append(s.Links, netstate.Link{Index: 7, Name: "up7", Kind: "vrf", VRF: 10, Up: true})
		}), withSpec(redirect(), func(s *asked) { s.NIC = "up7" }), field("nic"), "no link is in it|ip link set NIC master up7"},
		{"bridge in a VRF", portOf(netstate.Link{Kind: "vrf", VRF: 10}), bridge(), refused("bridge", "redirect"), "VRF up7|redirect would work"},
		{"routed in a VRF", portOf(netstate.Link{Kind: "vrf", VRF: 10}), routed(), refused("routed", "redirect"), "VRF up7|table main|redirect would work"},
		{"masquerade in a VRF", portOf(netstate.Link{Kind: "vrf", VRF: 10}), masquerade(), refused("masquerade", "redirect"), "VRF up7|table main|redirect would work"},
		{"passt in a VRF", portOf(netstate.Link{Kind: "vrf", VRF: 10}), direct(infra.Passt{}), refused("passt", "redirect"), "VRF up7|redirect would work"},
		{"bridge on a bond with the MAC of its active port", bondWith(netstate.ModeActive), bridge(), refused("bridge", "masquerade"), "fail_over_mac active|masquerade would work"},
		{"redirect on such a bond", bondWith(netstate.ModeActive), redirect(), refused("redirect", "masquerade"), "fail_over_mac active|masquerade would work"},
		{"routed on such a bond", bondWith(netstate.ModeActive), routed(), refused("routed", "masquerade"), "fail_over_mac active|masquerade would work"},
		{"bridge on a bond that gives its MAC to its ports", bondWith(netstate.ModeFollow), bridge(), refused("bridge", "redirect"), "fail_over_mac follow|redirect would work"},
		{"bridge on an hsr", nicWith(func(l *netstate.Link) { l.Kind = "hsr" }), bridge(), refused("bridge", "redirect"), "hsr|redirect would work"},
		{"redirect of an hsr with a MAC", nicWith(func(l *netstate.Link) { l.Kind = "hsr" }), withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(7)} }),
			refused("redirect", "masquerade"), "hsr|masquerade would work"},
		{"bridge on a bond whose ports have MACs of their own", bondWith(netstate.ModeTLB), bridge(), refused("bridge", "redirect"), "balance-tlb|redirect would work"},
		{"a MAC for the guest at such a bond, by its ports' MACs", bondWith(netstate.ModeTLB), withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(7)} }),
			refused("redirect", "masquerade"), "balance-tlb|masquerade would work"},
		{"a MAC for the guest at a bond that gives its MAC to its ports", bondWith(netstate.ModeFollow), withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(7)} }),
			refused("redirect", "masquerade"), "fail_over_mac follow|masquerade would work"},
		{"a wired NIC by its new name", flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Name, s.Links[1].Master = "eth0-nic", 7
			s.Links = append(s.Links, netstate.Link{Index: 7, Name: "eth0-br", Kind: "bridge", Alias: netstate.Mark("eth0")})
		}), withSpec(bridge(), func(s *asked) { s.NIC = "eth0-nic" }), is(infra.ErrWired), "wired NIC eth0|name eth0"},
		{"an address of the NIC's network in the prefixes", flannel(), withSpec(routed(), func(s *asked) {
			s.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.1.99/32")}
		}), is(infra.ErrCollision), "guard.prefixes[0]|leave the prefix out, or choose the binding bridge or redirect"},
		{"moved name taken", beside(netstate.Link{Index: 7, Name: "eth0-nic"}), bridge(), is(infra.ErrWired), "eth0-nic is another NIC: rename it first, in this namespace (ip link set eth0-nic down; ip link set eth0-nic name NAME)"},
		{"bridge name taken", beside(netstate.Link{Index: 7, Name: "eth0-br", Kind: "bridge"}), masquerade(), is(infra.ErrWired), "eth0-br is another program's bridge: rename or delete it first, in this namespace (ip link del eth0-br)"},
		{"moved name an altname", beside(netstate.Link{Index: 7, Name: "v0", AltNames: []string{"other", "eth0-nic"}}), bridge(), is(infra.ErrWired), "eth0-nic is an altname of v0|ip link property del dev v0 altname eth0-nic"},
		{"tap name the NIC's altname", nicWith(func(l *netstate.Link) { l.AltNames = []string{"eth0-tap"} }), masquerade(), is(infra.ErrWired), "altname of eth0"},
		{"another tap name taken", beside(netstate.Link{Index: 7, Name: "tap0"}), withSpec(masquerade(), func(s *asked) { s.Tap = "tap0" }), is(infra.ErrWired), "tap0|rename|or name another one in tap"},
		{"tap of the NIC's name", flannel(), withSpec(redirect(), func(s *asked) { s.Tap = "eth0" }), field("tap"), "eth0|another link"},
		{"tap of the responder's name", flannel(), withSpec(redirect(), func(s *asked) { s.Tap = "eth0-dhcp" }), field("tap"), "eth0-dhcp|another link"},
		{"tap name taken", beside(netstate.Link{Index: 7, Name: "eth0-tap", Alias: "guestwire net1"}), masquerade(), is(infra.ErrWired), "eth0-tap is a link of the wiring of net1: take that NIC down first|guestwire-agent teardown -nic net1"},
		{"port name taken", beside(netstate.Link{Index: 7, Name: "v0", AltNames: []string{"eth0-dhcp"}}), bridge(), is(infra.ErrWired), "eth0-dhcp is an altname of v0: |ip link property del dev v0 altname eth0-dhcp"},
		{"table there", flannelWith(func(s *netstate.Snapshot) {
			s.Tables = []firewall.Image{{Family: firewall.Inet, Name: "guestwire-eth0"}}
		}), masquerade(), is(infra.ErrWired), "inet guestwire-eth0|Teardown|delete"},

		{"masquerade of what is routed by its source", sourceRouted(), masquerade(), refused("masquerade", "redirect"), "policy rules|10.244.1.7|redirect would work"},
		{"masquerade of what a rule before main routes", flannelWith(func(s *netstate.Snapshot) {
			s.Rules = []netstate.Rule{{Priority: 1000, Table: 100}}
			s.Routes = append(s.Routes, withRoute(via("0.0.0.0/0", "10.244.1.9"), func(r *netstate.Route) { r.Table = 100 }))
		}), masquerade(), refused("masquerade", "redirect"), "preference 1000|table 100|redirect would work"},
		{"masquerade without the table main", flannelWith(func(s *netstate.Snapshot) { s.NoMain = versions{4} }), masquerade(), refused("masquerade", "redirect"), "IPv4|table main|redirect would work"},
		{"masquerade without the table main, and a rule that refuses", flannelWith(func(s *netstate.Snapshot) {
			s.NoMain, s.Rules = versions{4}, []netstate.Rule{{Priority: 100, Other: true}}
		}), masquerade(), refused("masquerade", "routed"), "no policy rule leads to the table main"},
		{"bridge on NOARP", nicWith(func(l *netstate.Link) { l.NoARP = true }), bridge(), refused("bridge", "redirect"), "ARP|redirect would work"},
		{"bridge on tun", nicWith(func(l *netstate.Link) { l.Kind, l.Ethernet, l.NoARP = "tun", false, true }), bridge(), refused("bridge", "routed"), "Ethernet|routed would work"},
		{"bridge on tun where routed's address is in use", flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Kind, s.Links[1].Ethernet, s.Links[1].NoARP = "tun", false, true
			s.Addresses = append(s.Addresses, netstate.Address{Link: 1, Prefix: pfx("169.254.75.1/32"), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever})
		}), bridge(), refused("bridge", "masquerade"), "Ethernet|masquerade would work"},
		{"bridge on tun without nf_tables", flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Kind, s.Links[1].Ethernet, s.Links[1].NoARP, s.NoNFTables = "tun", false, true, true
		}), bridge(), refused("bridge", ""), "nf_tables|modprobe|masquerade with guard.off"},
		{"bridge on IPoIB", nicWith(infiniband), bridge(), refused("bridge", "masquerade"), "Ethernet|masquerade would work"},
		{"redirect of IPoIB", nicWith(infiniband), redirect(), refused("redirect", "masquerade"), "Ethernet|masquerade would work"},
		{"routed on IPoIB", nicWith(infiniband), routed(), refused("routed", "masquerade"), "ARP|Ethernet|masquerade would work"},
		{"masquerade of IPoIB with the NIC's MAC", nicWith(infiniband), withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{NICMAC: true} }), field("binding.masquerade.nicMAC"), "eth0 has no MAC"},
		{"macvtap of IPoIB", nicWith(infiniband), direct(infra.Macvtap{}), refused("macvtap", "masquerade"), "card of the machine|masquerade would work"},
		{"function of IPoIB", nicWith(func(l *netstate.Link) { infiniband(l); l.PCI = "0000:03:10.1" }), direct(infra.SRIOV{}), field("binding.sriov.mac"), "eth0 has none of six octets"},
		{"bridge on ipvlan", nicWith(func(l *netstate.Link) { l.Kind = "ipvlan" }), bridge(), refused("bridge", "redirect"), "ipvlan|redirect would work"},
		{"bridge on ipvtap", nicWith(func(l *netstate.Link) { l.Kind = "ipvtap" }), bridge(), refused("bridge", "redirect"), "ipvtap|redirect would work"},
		{"redirect of an ipvtap with a MAC", nicWith(func(l *netstate.Link) { l.Kind = "ipvtap" }), withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(7)} }),
			refused("redirect", "masquerade"), "ipvtap|shares the MAC|masquerade would work"},
		{"bridge on macvlan", nicWith(func(l *netstate.Link) { l.Kind, l.Mode = "macvlan", "private" }), bridge(), refused("bridge", "redirect"), "macvlan|private|redirect would work"},
		{"bridge on bridge", nicWith(func(l *netstate.Link) { l.Kind = "bridge" }), bridge(), refused("bridge", "redirect"), "redirect would work"},
		{"bridge with a nexthop object", flannelWith(func(s *netstate.Snapshot) {
			s.Routes[1].Other = []netstate.Attribute{{Type: 30, Data: []byte{7, 0, 0, 0}}}
		}),
			bridge(), refused("bridge", "redirect"), "10.244.0.0/16|nexthop object|redirect would work"},
		{"bridge on a NIC that is down and in a multipath route", flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Up = false
			s.Routes = []netstate.Route{{Table: netstate.TableMain, Type: netstate.RouteUnicast, Destination: pfx("192.0.2.0/24"), Hops: []netstate.Hop{{Link: 2, Gateway: ip("10.244.1.1")}, {Link: 7}}}}
		}), bridge(), refused("bridge", "routed"), "192.0.2.0/24|down|routed would work"},
		{"bridge with a gateway that is the namespace's own", flannelWith(func(s *netstate.Snapshot) {
			s.Routes = append(s.Routes, netstate.Route{Link: 2, Table: netstate.TableMain, Type: 2, Scope: 254, Destination: pfx("10.244.1.0/25")})
		}), bridge(), refused("bridge", "redirect"), "10.244.1.1|itself|redirect would work"},
		{"bridge with sysctls read-only", sysctlsReadOnly(nil), bridge(), refused("bridge", "redirect"), "--sysctl net.bridge.bridge-nf-call-arptables=0 --sysctl net.bridge.bridge-nf-call-ip6tables=0 --sysctl net.bridge.bridge-nf-call-iptables=0;|redirect would work"},
		{"masquerade with sysctls read-only", sysctlsReadOnly(nil), masquerade(), refused("masquerade", "redirect"), "start the container with --sysctl net.ipv6.conf.all.forwarding=1;|redirect would work"},
		{"masquerade of what is routed by its source, sysctls read-only", readOnly(sourceRouted()), masquerade(), refused("masquerade", "redirect"), "policy rules|redirect would work"},
		{"bridge with sysctls read-only, where redirect cannot either", sysctlsReadOnly(func(s *netstate.Snapshot) {
			s.Links[1].Kind, s.Links[1].Mode = "bond", netstate.ModeALB
		}), bridge(), refused("bridge", ""), "--sysctl"},
		{"redirect on tun, sysctls read-only", readOnly(nicWith(func(l *netstate.Link) { l.Kind, l.Ethernet, l.NoARP = "tun", false, true })), redirect(), refused("redirect", ""), "Ethernet"},
		{"auto with sysctls read-only, where redirect cannot either", sysctlsReadOnly(func(s *netstate.Snapshot) {
			s.Links[1].Kind, s.Links[1].Mode = "bond", netstate.ModeALB
		}), auto(), refused("auto", ""), "--sysctl net.ipv6.conf.all.forwarding=1|bridge: it needs|redirect: it gives stations"},
		{"passt with sysctls read-only", sysctlsReadOnly(func(s *netstate.Snapshot) {
			s.Sysctls = map[string]string{netstate.PortStart: "1024", netstate.PingGroups: "1 0"}
			s.ReadOnly = []string{netstate.PortStart, netstate.PingGroups}
		}), eth0(infra.Spec{Binding: infra.Passt{}}), refused("passt", "redirect"), `--sysctl "net.ipv4.ping_group_range=0 2147483647"`},
		{"redirect on tun", nicWith(func(l *netstate.Link) { l.Kind, l.Ethernet, l.NoARP = "tun", false, true }), redirect(), refused("redirect", "routed"), "Ethernet|routed would work"},
		{"redirect on tun where routed's address is in use", flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Kind, s.Links[1].Ethernet, s.Links[1].NoARP = "tun", false, true
			s.Addresses = append(s.Addresses, netstate.Address{Link: 1, Prefix: pfx("169.254.75.1/32"), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever})
		}), redirect(), refused("redirect", "masquerade"), "Ethernet|masquerade would work"},
		{"redirect on tun without nf_tables", flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Kind, s.Links[1].Ethernet, s.Links[1].NoARP, s.NoNFTables = "tun", false, true, true
		}), redirect(), refused("redirect", ""), "nf_tables|modprobe|masquerade with guard.off"},
		{"redirect without MAC", nicWith(func(l *netstate.Link) { l.MAC = cache.MAC{} }), redirect(), refused("redirect", "routed"), "MAC|routed would work"},
		{"priority tags without fwd", flannelWith(func(s *netstate.Snapshot) { s.NoFwd = true }), withSpec(bridge(), func(s *asked) { s.Guard.VLANs = []uint16{0, 5} }), refused("bridge", ""), "modprobe nft_fwd_netdev"},
		{"redirect without fwd", flannelWith(func(s *netstate.Snapshot) { s.NoFwd = true }), redirect(), refused("redirect", "bridge"), "modprobe nft_fwd_netdev|bridge would work"},
		{"redirect without nf_tables", flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), redirect(), refused("redirect", ""), "nf_tables|modprobe|masquerade with guard.off"},
		{"auto, other frames on a NIC for masquerade alone", nicWith(func(l *netstate.Link) { l.Ethernet = false }), withSpec(auto(), framesPass), refused("auto", ""), "guard.etherTypes"},
		{"auto, and nothing works", flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Kind, s.Links[1].Ethernet, s.Addresses = "tun", false, nil
		}), withSpec(bridge(), func(s *asked) { s.Binding = infra.Auto{} }), refused("auto", ""), "no address|bridge: |redirect: "},
		{"auto of redirect alone, and bridge would work", nicWith(func(l *netstate.Link) { l.Kind, l.Ethernet, l.NoARP = "tun", false, true }),
			withSpec(auto(), func(s *asked) { s.Binding = infra.Auto{Order: []cache.Kind{"redirect"}} }), refused("auto", ""), "carries no Ethernet"},
		{"masquerade of an ipvlan without address", flannelWith(func(s *netstate.Snapshot) { s.Links[1].Kind, s.Addresses = "ipvlan", nil }), masquerade(), refused("masquerade", "redirect"), "no address|redirect would work"},
		{"bridge below a macvlan", beside(netstate.Link{Index: 7, Name: "child", Kind: "macvlan", Parent: 2}), bridge(), refused("bridge", "routed"), "child|routed would work"},
		{"redirect below a VLAN", beside(vlan(true)), redirect(), refused("redirect", "routed"), "eth0.5|routed would work"},
		{"bridge below a VLAN", beside(vlan(true)), bridge(), refused("bridge", "routed"), "eth0.5|go down|MAC|routed would work"},
		{"bridge below a VLAN that is down", beside(vlan(false)), bridge(), refused("bridge", "routed"), "eth0.5|come up|MAC|routed would work"},
		{"redirect below a VLAN, of a NIC that is down", flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Up = false
			s.Links = append(s.Links, vlan(false))
		}), redirect(), refused("redirect", "routed"), "eth0.5|routed would work"},
		{"bridge without MAC", nicWith(func(l *netstate.Link) { l.MAC = cache.MAC{} }), bridge(), refused("bridge", "routed"), "MAC|routed would work"},
		{"routed without address", flannelWith(func(s *netstate.Snapshot) { s.Addresses = s.Addresses[2:] }), routed(), refused("routed", "redirect"), "no address|redirect would work"},
		{"routed without nf_tables", flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), routed(), refused("routed", ""), "nf_tables|modprobe|masquerade with guard.off"},
		{"routed of IPv6 with a small MTU", flannelWith(func(s *netstate.Snapshot) { s.Links[1].MTU = 1200 }), routed(), refused("routed", "redirect"), "1200|redirect would work"},
		{"routed where its address is in use", flannelWith(func(s *netstate.Snapshot) {
			s.Addresses = append(s.Addresses, netstate.Address{Link: 1, Prefix: pfx("169.254.75.1/32"), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever})
		}), routed(), refused("routed", "redirect"), "169.254.75.1|lo|redirect would work"},
		{"routed with sysctls read-only", sysctlsReadOnly(nil), routed(), refused("routed", "redirect"), "net.ipv6.conf.all.forwarding=1|redirect would work"},
		{"a proxy of a family that is missing", lan4(), withSpec(routed(), func(s *asked) {
			s.Binding = infra.Routed{Sidecar: &infra.Sidecar{Sources: []netip.Addr{netip.MustParseAddr("::6")}}}
		}), field("binding.routed.sidecar.sources[0]"), "::6|eth0"},
		{"masquerade without address", flannelWith(func(s *netstate.Snapshot) { s.Addresses = s.Addresses[2:] }), masquerade(), refused("masquerade", "redirect"), "no address|redirect would work"},
		{"masquerade of IPv6 with a small MTU", flannelWith(func(s *netstate.Snapshot) { s.Links[1].MTU = 1200 }), masquerade(), refused("masquerade", "redirect"), "1200|redirect would work"},
		{"bridge without nf_tables", flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), bridge(), refused("bridge", ""), "nf_tables|modprobe|masquerade with guard.off"},
		{"guard without nf_tables", flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), masquerade(), field("guard"), "nf_tables|guard.off"},
		{"nftables without nf_tables", flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), translatedBy("nftables"), field("binding.masquerade.firewall"), "nftables|iptables-legacy"},
		{"iptables-nft without nf_tables", flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), translatedBy("iptables-nft"), field("binding.masquerade.firewall"), "iptables-nft|iptables-legacy"},
		{"unknown firewall", flannel(), translatedBy("pf"), field("binding.masquerade.firewall"), `"pf"|"nftables"|"iptables-nft"|"iptables-legacy"`},

		{"redirect of an ipvlan with a MAC", nicWith(func(l *netstate.Link) { l.Kind = "ipvlan" }), withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(7)} }),
			refused("redirect", "masquerade"), "ipvlan|02:00:00:00:00:07|shares the MAC|masquerade would work"},
		{"redirect of a macvlan with a MAC", nicWith(func(l *netstate.Link) { l.Kind, l.Mode = "macvlan", "bridge" }), withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(7)} }),
			refused("redirect", "masquerade"), "macvlan|0a:58:0a:f4:01:07|02:00:00:00:00:07|masquerade would work"},
		{"redirect of a macvlan in mode passthru with a MAC", nicWith(func(l *netstate.Link) { l.Kind, l.Mode = "macvlan", "passthru" }), withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(7)} }),
			refused("redirect", "bridge"), "macvlan|bridge would work"},
		{"redirect of a macvtap with a MAC", nicWith(func(l *netstate.Link) { l.Kind, l.Mode = "macvtap", "bridge" }), withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(7)} }),
			refused("redirect", "masquerade"), "macvtap|02:00:00:00:00:07"},
		{"auto with a MAC that no kind can give", nicWith(func(l *netstate.Link) { l.Kind = "ipvlan" }), withSpec(auto(), func(s *asked) { s.Binding = infra.Auto{MAC: mac(7), Order: []cache.Kind{"bridge", "redirect"}} }),
			refused("auto", ""), "shares the MAC|bridge: an ipvlan can be no bridge's port"},
		{"group MAC under bridge", flannel(), withSpec(bridge(), func(s *asked) { s.Binding = infra.Bridge{MAC: cache.MAC{1}} }), field("binding.bridge.mac"), "01:00:00:00:00:00"},
		{"group MAC of the gateway", flannel(), withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{GatewayMAC: cache.MAC{1}} }), field("binding.masquerade.gatewayMAC"), "01:00:00:00:00:00"},
		{"the gateway's MAC for the guest", flannel(), withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{MAC: mac(0)} }), field("binding.masquerade.mac"), "02:00:00:00:00:00|gatewayMAC"},
		{"the MAC of a NIC that has none", nicWith(func(l *netstate.Link) { l.Kind, l.Ethernet, l.MAC = "tun", false, cache.MAC{} }),
			withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{NICMAC: true} }), field("binding.masquerade.nicMAC"), "eth0 has no MAC|leave this field out"},
		{"the gateway's MAC of a NIC", nicWith(func(l *netstate.Link) { l.MAC = mac(0) }),
			withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{NICMAC: true} }), field("binding.masquerade.mac"), "02:00:00:00:00:00|gatewayMAC"},
		{"the gateway's MAC for guard.macs", flannel(), withSpec(masquerade(), func(s *asked) { s.Guard.MACs = []cache.MAC{mac(0)} }), field("guard.macs[0]"), "02:00:00:00:00:00|another link's"},
		{"group MAC", flannel(), withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{MAC: cache.MAC{1}} }), field("binding.masquerade.mac"), "01:00:00:00:00:00"},
		{"IPv6 for IPv4", flannel(), networks("fd77::/64", ""), field(in4), "fd77::/64|another family|10.0.2.0/24"},
		{"IPv4 for IPv6", lan4(), networks("", "10.1.0.0/16"), field(in6), "10.1.0.0/16|another family|fd10:0:2::/120"},
		{"mapped IPv4", lan4(), networks("", "::ffff:10.1.0.0/112"), field(in6), "another family"},
		{"host bits 4", flannel(), networks("10.7.0.1/24", ""), field(in4), "10.7.0.1/24|10.7.0.0/24"},
		{"host bits 6", lan4(), networks("", "fd77::1/64"), field(in6), "fd77::1/64|fd77::/64"},
		{"small 4, with host bits", flannel(), networks("10.9.0.5/31", ""), field(in4), "10.9.0.5/31|too small|broadcast|/30"},
		{"small 6", lan4(), networks("", "fd77::/127"), field(in6), "fd77::/127|too small|anycast|/126"},
		{"too large", flannel(), networks("10.0.0.0/7", ""), field(in4), "10.0.0.0/7"},
		{"multicast 4", flannel(), networks("224.0.0.0/24", ""), field(in4), "224.0.0.0/24|no network for hosts"},
		{"multicast 6", lan4(), networks("", "ff02::/64"), field(in6), "ff02::/64|no network for hosts"},
		{"loopback 4", flannel(), networks("127.0.0.0/24", ""), field(in4), "127.0.0.0/24|no network for hosts"},
		{"link-local 6", lan4(), networks("", "fe80::/64"), field(in6), "fe80::/64|no network for hosts"},
		{"everything", flannel(), networks("0.0.0.0/8", ""), field(in4), "0.0.0.0/8|no network for hosts"},
		{"a route's network", flannel(), networks("10.244.128.0/24", ""), is(infra.ErrCollision), in4 + "|10.244.128.0/24|10.244.0.0/16|choose another"},
		{"a route within", flannel(), networks("10.0.0.0/8", ""), is(infra.ErrCollision), in4 + "|10.0.0.0/8|choose another"},
		{"a route's network 6", flannel(), networks("", "fd00:244:1::/120"), is(infra.ErrCollision), in6 + "|fd00:244:1::/64|choose another"},
		{"the default network taken", lan4With(func(s *netstate.Snapshot) {
			s.Routes = append(s.Routes, via("10.0.0.0/8", "10.244.1.1"))
		}), masquerade(), is(infra.ErrCollision), in4 + "|10.0.2.0/24|10.0.0.0/8"},
		{"an address's network", lan4With(func(s *netstate.Snapshot) {
			s.Addresses = append(s.Addresses, address("10.0.2.9/32"))
		}), masquerade(), is(infra.ErrCollision), in4 + "|10.0.2.0/24|10.0.2.9"},
		{"a route's network, and how to have it", flannel(), networks("10.244.1.0/24", ""), is(infra.ErrCollision), in4 + "|10.244.1.0/24|or name the guest's address in binding.masquerade.guest"},
		{"the NIC's own address", flannel(), masqueradeWithin("10.244.1.0/24", "10.244.1.7"), is(infra.ErrCollision), in4 + "|10.244.1.7|choose another address"},
		{"the broadcast address of the NIC's network", flannel(), masqueradeWithin("10.244.0.0/16", "10.244.1.255"), is(infra.ErrCollision), in4 + "|10.244.1.7|choose another"},
		{"the NIC's next hop", flannel(), masqueradeWithin("10.244.1.0/24", "10.244.1.1"), is(infra.ErrCollision), in4 + "|10.244.1.1|next hop|another address"},
		{"an address with a route of its own", flannelWith(func(s *netstate.Snapshot) { s.Routes = append(s.Routes, via("10.244.1.3/32", "10.244.1.1")) }),
			masqueradeWithin("10.244.1.0/24", "10.244.1.3"), is(infra.ErrCollision), in4 + "|10.244.1.3|choose another address"},
		{"a network that is blocked", lan4With(func(s *netstate.Snapshot) {
			s.Routes = append(s.Routes, netstate.Route{Table: netstate.TableMain, Destination: pfx("10.9.0.0/16"), Type: 6})
		}), masqueradeWithin("10.9.1.0/24", "10.9.1.3"), is(infra.ErrCollision), in4 + "|10.9.0.0/16"},
		{"another guest's network", flannelWith(func(s *netstate.Snapshot) {
			s.Links = append(s.Links, netstate.Link{Index: 9, Name: "net1-tap", Alias: netstate.Mark("net1")})
			s.Routes = append(s.Routes, netstate.Route{Link: 9, Table: netstate.TableMain, Destination: pfx("10.0.2.0/24"), Type: netstate.RouteUnicast})
		}), masqueradeWithin("10.0.2.0/24", "10.0.2.10"), is(infra.ErrCollision), in4 + "|10.0.2.0/24|another"},
		{"a NIC that answers ARP for others", nicWith(func(l *netstate.Link) { l.ProxyARP = true }),
			masqueradeWithin("10.244.1.0/24", "10.244.1.3"), is(infra.ErrCollision), in4 + "|eth0|10.244.1.3|proxy_arp"},
		{"another link that answers ARP for others", beside(netstate.Link{Index: 7, Name: "net1", ProxyARP: true}),
			masqueradeWithin("10.244.1.0/24", "10.244.1.3"), is(infra.ErrCollision), in4 + "|net1 would answer|10.244.1.3|net.ipv4.conf.net1"},
		{"links that answer ARP for others", flannelWith(func(s *netstate.Snapshot) { s.Sysctls[netstate.ProxyARP] = "1" }),
			masqueradeWithin("10.244.1.0/24", "10.244.1.3"), is(infra.ErrCollision), in4 + "|eth0|10.244.1.3|proxy_arp"},
		{"IPv6 of the NIC's network", flannel(), withSpec(masquerade(), func(s *asked) {
			s.Binding = infra.Masquerade{IPv6: pfx("fd00:244:1::/64"), Guest: []netip.Addr{ip("fd00:244:1::3")}}
		}), is(infra.ErrCollision), in6 + "|fd00:244:1::/64|choose another|neighbour discovery"},

		{"macvtap on a veth", flannel(), direct(infra.Macvtap{}), refused("macvtap", "redirect"), "macvtap binding|veth|redirect would work"},
		{"macvtap on a tap", flannelWith(func(s *netstate.Snapshot) { s.Links[1].Kind, s.Links[1].Tap = "tun", &netstate.Tap{} }), direct(infra.Macvtap{}), refused("macvtap", "redirect"), "its kind is tap: |redirect would work"},
		{"macvtap on hardware", function(), direct(infra.Macvtap{}), refused("macvtap", "redirect"), "card of the machine|macvtap|redirect would work"},
		{"macvtap on an ipvlan", flannelWith(func(s *netstate.Snapshot) { s.Links[1].Kind = "ipvlan" }), direct(infra.Macvtap{}), refused("macvtap", "redirect"), "ipvlan|redirect would work"},
		{"bridge on a macvtap", macvtapWith(unchanged), bridge(), refused("bridge", "macvtap"), "bridge binding|no bridge's port|macvtap would work"},
		{"function of a veth", flannel(), direct(infra.SRIOV{}), refused("sriov", "redirect"), "sriov binding|no PCI device|binding.sriov.pci"},
		{"another function", function(), direct(infra.SRIOV{PCI: "0000:03:10.2"}), field("binding.sriov.pci"), "0000:03:10.2|eth0 is 0000:03:10.1|leave it out"},
		{"function without form", flannel(), direct(infra.SRIOV{PCI: "3:10.1"}), field("binding.sriov.pci"), "want the form 0000:03:10.1"},
		{"function without MAC", flannel(), withSpec(direct(infra.SRIOV{PCI: "0000:03:10.2"}), func(s *asked) { s.NIC = "net1" }), field("binding.sriov.mac"), "net1 is not there to take it from"},
		{"model of a function", function(), withSpec(direct(infra.SRIOV{}), func(s *asked) { s.Device.Model = "virtio" }), field("device.model"), "leave it out"},
		{"queues of a function", function(), withSpec(direct(infra.SRIOV{}), func(s *asked) { s.Queues = 2 }), field("queues"), "no tap"},
		{"passt without an address", passtWith(func(s *netstate.Snapshot) { s.Addresses = nil }), direct(infra.Passt{}), refused("passt", "redirect"), "passt binding|no address|redirect would work"},
		{"slirp without an address", passtWith(func(s *netstate.Snapshot) { s.Addresses = nil }), direct(infra.Slirp{}), refused("slirp", "redirect"), "slirp binding|no address|redirect would work"},
		{"slirp's network", passtWith(unchanged), direct(infra.Slirp{IPv4: pfx("10.244.0.0/24")}), is(infra.ErrCollision), "binding.slirp.ipv4|10.244.0.0/24|10.244.0.0/16|choose another"},
		{"slirp's network 6", passtWith(unchanged), direct(infra.Slirp{IPv6: pfx("fd00:244:1::/64")}), is(infra.ErrCollision), "binding.slirp.ipv6|fd00:244:1::/64|choose another"},
		{"slirp's ports without IPv4", lan6("fe80::1"), direct(infra.Slirp{Ports: []infra.Ports{{First: 80}}}), field("binding.slirp.ports"), "no IPv4 address|leave this field out"},
		{"servers of slirp", passtWith(unchanged), withSpec(direct(infra.Slirp{}), func(s *asked) { s.DNS = &cache.DNS{Servers: []netip.Addr{ip("10.96.0.10")}} }), field("dns.servers"), "resolv.conf"},
		{"options of slirp", passtWith(unchanged), withSpec(direct(infra.Slirp{}), func(s *asked) { s.Options.Hostname = "vm1" }), field("options"), "does not serve the guest"},
		{"queues of passt", passtWith(unchanged), withSpec(direct(infra.Passt{}), func(s *asked) { s.Queues = 2 }), field("queues"), "no tap"},
		{"vhost of passt", passtWith(unchanged), withSpec(direct(infra.Passt{}), func(s *asked) { s.Device.Driver = "vhost" }), field("device.driver"), "no tap"},
		{"DNS of passt", passtWith(unchanged), withSpec(direct(infra.Passt{}), func(s *asked) { s.DNS = &cache.DNS{} }), field("dns"), "does not serve the guest"},
		{"options of a macvtap", macvtapWith(unchanged), withSpec(direct(infra.Macvtap{}), func(s *asked) { s.Options.Hostname = "vm1" }), field("options"), "does not serve the guest"},
		{"a function without NIC and address", flannel(), withSpec(direct(infra.SRIOV{}), func(s *asked) { s.NIC = "net1" }), is(infra.ErrNoNIC), "no such link|lo, eth0"},
		{"a proxy of a family that masquerade's guest lacks", lan4(), withSpec(masquerade(), func(s *asked) {
			s.Binding = infra.Masquerade{Sidecar: &infra.Sidecar{Sources: []netip.Addr{ip("::6")}}}
		}), field("binding.masquerade.sidecar.sources[0]"), "::6|eth0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, err := tryPlan(c.found, c.spec)
			if err == nil {
				t.Fatalf("no refusal, but:\n%v", plan)
			}
			if !c.is(err) {
				t.Errorf("another kind of error: %T: %v", err, err)
			}
			for word := range strings.SplitSeq(c.words, "|") {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			var r *infra.RefusedError
			if errors.As(err, &r) && r.Instead != "" {
				instead := withSpec(c.spec, func(s *asked) { s.Binding, _ = infra.NewBinding(r.Instead) })
				if _, err := tryPlan(c.found, instead); err != nil {
					t.Errorf("%v, and then: %v", r, err)
				}
			}
		})
	}
}

// infiniband makes a link one of IPoIB, whose hardware address has 20 octets.
func infiniband(l *netstate.Link) { l.Kind, l.Ethernet, l.MAC = "", false, cache.MAC{} }

// TestInfiniBand: the namespace is the guest's router to IPoIB under masquerade, and under routed where no ARP is
// needed. By passt and slirp the guest uses the namespace's sockets.
func TestInfiniBand(t *testing.T) {
	for _, c := range []struct {
		found netstate.Snapshot
		spec  asked
	}{
		{flannel(), masquerade()}, {lan6("fe80::1"), masquerade()}, {lan6("fe80::1"), routed()}, {flannel(), direct(infra.Passt{})}, {flannel(), direct(infra.Slirp{})}, {flannel(), auto()},
	} {
		infiniband(&c.found.Links[1])
		p, err := tryPlan(c.found, c.spec)
		if err != nil {
			t.Errorf("%s: %v", c.spec.Binding.Kind(), err)
		} else if !p.Record.MAC.Unicast() {
			t.Errorf("%s: the guest has the MAC %v", c.spec.Binding.Kind(), p.Record.MAC)
		}
	}
}

// TestCollisionElsewhere: what only looks like a collision is none.
func TestCollisionElsewhere(t *testing.T) {
	for name, found := range map[string]netstate.Snapshot{
		"default route": lan4(),
		"neighbouring network": lan4With(func(s *netstate.Snapshot) {
			s.Routes = append(s.Routes, via("10.0.3.0/24", "10.244.1.1"))
		}),
	} {
		if _, err := tryPlan(found, masquerade()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAutoBehindRouted: where routed's own address is in use, auto goes on to masquerade and says why.
func TestAutoBehindRouted(t *testing.T) {
	for _, taken := range []string{"169.254.75.1/32", "fd00:a9fe:4b01::1/128"} {
		plan := newPlan(t, flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].Kind, s.Links[1].Ethernet, s.Links[1].NoARP = "tun", false, true
			s.Addresses = append(s.Addresses, netstate.Address{Link: 1, Prefix: pfx(taken), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever})
		}), auto())
		if plan.Record.Binding != cache.BindingMasquerade || len(plan.Refused) != 3 {
			t.Errorf("%s: binding %s, refused %v", taken, plan.Record.Binding, plan.Refused)
			continue
		}
		address, _, _ := strings.Cut(taken, "/")
		if last := plan.Refused[2]; last.Binding != cache.BindingRouted || !strings.Contains(last.Reason, address) || !strings.Contains(last.Reason, " lo ") {
			t.Errorf("%s: the last refusal is %v", taken, last)
		}
	}
}

// TestOtherGuestsNetwork: the network of another guest of the namespace is no place for a guest, whatever its address.
func TestOtherGuestsNetwork(t *testing.T) {
	found := lan4With(func(s *netstate.Snapshot) {
		s.Links = append(s.Links, netstate.Link{Index: 9, Name: "eth1-tap", Kind: "tun", Ethernet: true, Alias: netstate.Mark("eth1")})
		s.Routes = append(s.Routes, netstate.Route{Link: 9, Table: netstate.TableMain, Destination: pfx("10.0.2.0/24"), Type: netstate.RouteUnicast})
	})
	for _, spec := range []asked{masquerade(), masqueradeWithin("10.0.2.0/24", "10.0.2.7")} {
		_, err := tryPlan(found, spec)
		if !errors.Is(err, infra.ErrCollision) || !strings.HasSuffix(err.Error(), "choose another network") {
			t.Errorf("%v, want a collision that another network alone avoids", err)
		}
	}
}
