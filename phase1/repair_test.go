package phase1_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// damage is a line for a shell in the namespace, and a part of what Check says of it. $table is our
// nftables table, whose $chain has a rule with the handle $handle.
type damage struct {
	line, says string
	// nic says that it takes from the NIC what the namespace itself has there.
	nic bool
	// optional says that a kernel can be built without it.
	optional bool
	// kernel says that the kernel decides what the damage leaves, before Setup and before Teardown.
	kernel bool
}

// damages of all bindings' parts.
var damages = []damage{
	{line: "ip link del eth0-tap", says: "tap eth0-tap is gone", kernel: true},
	{line: "ip link del eth0-dhcp", says: "tap eth0-dhcp is gone", kernel: true},
	{line: "ip link del eth0-br", says: "bridge eth0-br is gone", kernel: true},
	{line: "for link in eth0-br eth0-tap eth0-dhcp; do ip link del $link; done", says: "bridge eth0-br is gone", kernel: true},
	{line: "ip link set eth0-tap down", says: "eth0-tap is down"},
	{line: "ip link set eth0-dhcp down", says: "eth0-dhcp is down"},
	{line: "ip link set eth0-br down", says: "eth0-br is down"},
	{line: "ip link set eth0-tap nomaster", says: "eth0-tap is no port of eth0-br"},
	{line: "ip link add other type bridge; ip link set eth0-tap master other", says: "eth0-tap is a port of other, not of eth0-br"},
	{line: "ip link set eth0-tap mtu 1300", says: "MTU of eth0-tap is 1300, not 1450"},
	{line: "ip link set eth0-br mtu 1200", says: "MTU of eth0-br is 1200, not 1450"},
	{line: "ip link set eth0-dhcp mtu 1200", says: "MTU of eth0-dhcp is 1200, not 1450"},
	{line: "ip link set eth0-dhcp txqueuelen 1000", says: "txqueuelen of eth0-dhcp is 1000, not 16"},
	{line: "ip link set eth0-br address 02:00:00:00:00:01", says: "MAC of eth0-br is 02:00:00:00:00:01"},
	{line: "ip link set eth0-tap address 02:00:00:00:00:01", says: "MAC of eth0-tap is 02:00:00:00:00:01"},
	{line: "ip link set eth0-br group 7", says: "group of eth0-br is 7"},
	{line: "ip link set eth0-tap alias other", says: `alias of eth0-tap is "other"`},
	{line: "ip link set eth0-br arp off", says: "ARP of eth0-br is off, not on"},
	{line: "ip link set eth0-br addrgenmode eui64", says: "addrgenmode of eth0-br is eui64, not none"},
	{line: "ip tuntap del eth0-tap mode tap; ip tuntap add eth0-tap mode tap user 5", says: "tap eth0-tap is of user 5, group 0"},
	{line: "ip tuntap del eth0-tap mode tap; ip tuntap add eth0-tap mode tap user $uid group $uid multi_queue", says: "multi_queue of tap eth0-tap is on, not off"},
	{line: "ip tuntap del eth0-dhcp mode tap; ip tuntap add eth0-dhcp mode tap user 5", says: "tap eth0-dhcp is of user 5, group 0, not of $uid"},
	{line: "ip tuntap del eth0-dhcp mode tap; ip link add eth0-dhcp group 7 type bridge; ip link del eth0-dhcp", says: "tap eth0-dhcp is gone"},

	{line: "bridge link set dev eth0-tap learning on", says: "port eth0-tap: learning is 1, not 0"},
	{line: "bridge link set dev eth0-tap flood off", says: "port eth0-tap: flood is 0, not 1"},
	{line: "bridge link set dev eth0-tap mcast_flood off", says: "port eth0-tap: mcast_flood is 0, not 1"},
	{line: "bridge link set dev eth0-tap bcast_flood off", says: "port eth0-tap: bcast_flood is 0, not 1"},
	{line: "bridge link set dev eth0-tap isolated on", says: "port eth0-tap: isolated is 1, not 0"},
	{line: "bridge link set dev eth0-tap hairpin on", says: "port eth0-tap: hairpin is 1, not 0"},
	{line: "bridge link set dev eth0-tap guard on", says: "port eth0-tap: guard is 1, not 0"},
	{line: "bridge link set dev eth0-tap neigh_suppress on", says: "port eth0-tap: neigh_suppress is 1, not 0"},
	{line: "ip link set eth0-tap type bridge_slave group_fwd_mask 8", says: "port eth0-tap: group_fwd_mask is 8, not 0"},
	{line: "bridge link set dev eth0-tap learning on; bridge link set dev eth0-tap locked on", says: "port eth0-tap: locked is 1, not 0"},
	{line: "ip link set eth0-br type bridge vlan_filtering 1", says: "bridge eth0-br: vlan_filtering is 1, not 0", optional: true},
	{line: "ip link set eth0-br type bridge stp_state 1", says: "bridge eth0-br: stp_state is 1, not 0"},
	{line: "ip link set eth0-br type bridge mcast_snooping 1", says: "bridge eth0-br: mcast_snooping is 1, not 0"},
	{line: "ip link set eth0-br type bridge group_fwd_mask 8", says: "bridge eth0-br: group_fwd_mask is 8, not 0"},

	{line: "for mac in $(bridge fdb show dev eth0-tap | grep static | cut -d' ' -f1); do bridge fdb del $mac dev eth0-tap master; done", says: "forwarding entry "},
	{line: "bridge fdb add 02:00:00:00:00:77 dev eth0-tap master static", says: "forwarding entry 02:00:00:00:00:77 of eth0-tap is not of the wiring"},

	{line: "tc qdisc del dev eth0-tap parent ffff:fff1", says: " qdisc of eth0-tap is gone"},
	{line: "tc qdisc del dev eth0-dhcp ingress", says: "ingress qdisc of eth0-dhcp is gone"},
	{line: "tc filter del dev eth0-tap ingress pref 1", says: "filter 1 of eth0-tap is gone"},
	{line: "tc filter add dev eth0-dhcp ingress pref 77 protocol ip u32 match u32 0 0 action mirred ingress mirror dev eth0-tap", says: "ingress of eth0-dhcp has a filter of another program: u32 that does not redirect"},
	{line: "tc filter del dev eth0-tap ingress pref 1; tc filter add dev eth0-tap ingress pref 1 protocol ip u32 match u32 0 0 action mirred egress redirect dev eth0-dhcp", says: "filter 1 of eth0-tap is another"},
	{line: "tc filter add dev eth0-tap ingress pref 77 protocol ip u32 match u32 0 0 action drop", says: "ingress of eth0-tap has a filter of another program: u32 with the action gact", optional: true},
	{line: `tc filter add dev eth0-tap ingress pref 77 protocol ip bpf da bytecode '1,6 0 0 0,'`, says: "ingress of eth0-tap has a filter of another program: bpf"},
	{line: "tc filter add dev eth0-tap ingress pref 77 protocol ip u32 match u32 0 0 action mirred egress mirror dev eth0-dhcp", says: "ingress of eth0-tap has a filter of another program: u32 that does not redirect"},
	{line: "tc filter add dev eth0-tap ingress pref 77 protocol ip u32 match u32 0 0 classid 1:1", says: "ingress of eth0-tap has a filter of another program: u32 "},
	{line: "tc filter add dev eth0-tap ingress pref 77 protocol ip chain 5 u32 match u32 0 0 action mirred egress redirect dev eth0-dhcp", says: "ingress of eth0-tap has a filter of another program: u32 in chain 5"},
	{line: "tc filter add dev eth0-tap ingress pref 77 protocol ip u32 match u32 0 0 action mirred egress redirect dev eth0-dhcp", says: "filter 77 of eth0-tap is another"},
	{line: "tc qdisc del dev eth0-dhcp ingress; tc qdisc add dev eth0-dhcp clsact", says: "eth0-dhcp has a qdisc of another kind: clsact", kernel: true},
	{line: "tc qdisc del dev eth0-tap parent ffff:fff1; tc qdisc add dev eth0-tap ingress_block 7 ingress", says: "ingress of eth0-tap has a filter of another program: qdisc with a shared block"},

	{line: "nft flush ruleset", says: "is gone", kernel: true},
	{line: "nft add table $table '{ flags dormant; }'", says: "the table is dormant"},
	{line: "nft add chain $table other", says: "chain other belongs to another program"},
	{line: "nft add chain $table other '{ type filter hook output priority 7; policy drop; }'", says: "chain other belongs to another program"},
	{line: "nft add set $table other '{ type ipv4_addr; elements = { 192.0.2.1 } }'", says: "set other belongs to another program"},
	{line: "nft add counter $table other", says: "the table has 1 objects of another program"},
	{line: "nft add map $table other '{ type inet_service : inet_service; }'", says: "set other belongs to another program"},
	{line: "nft insert rule $table $chain meta mark 0 accept", says: "chain $chain has an extra rule: not a rule of guestwire"},
	{line: "nft add rule $table $chain meta mark '{ 1, 2 }' drop", says: "chain $chain has an extra rule: not a rule of guestwire"},
	{line: "nft delete rule $table $chain handle $handle", says: "chain $chain lacks the rule"},
	{line: "nft replace rule $table $chain handle $handle accept", says: "chain $chain lacks the rule"},
	{line: "nft replace rule $table $chain handle $handle iifname eth7 drop", says: "chain $chain has an extra rule: not a rule of guestwire"},
	{line: "nft flush chain $table $chain", says: "chain $chain lacks the rule"},
	{line: "nft flush chain $drops; nft add rule $drops drop", says: "chain $reason lacks the rule: "},
	{line: "nft flush chain $drops; nft add rule $drops limit rate 20/second burst 20 packets log prefix '\"guestwire eth0 $reason\"' group 7", says: "chain $reason lacks the rule: "},
	{line: "nft chain $table $chain '{ policy drop; }'", says: "policy drop;"},
	{line: "nft chain netdev guestwire-eth0 guest '{ policy accept; }'", says: "policy accept;"}, // chains of reasons end there
	{line: "nft delete table $table; nft add table $table; nft add chain $table $chain '{ type filter hook output priority 7; }'", says: "hook output priority 7; policy accept;"},

	{line: "rm $state/eth0.json", says: "eth0.json is gone"},
	{line: "echo >>$state/eth0.json", says: ""},                                                                       // the same record, in other words
	{line: `sed -i 's/"mtu": 1450/"mtu": 1449/' $state/eth0.json`, says: "record eth0.json is not as it was written"}, // the launcher believes it
	{line: `chmod 666 $state/eth0.json`, says: "record eth0.json has another mode than 0644"},                         // anybody may write it
	{line: "echo {} >$state/eth0.json", says: "eth0.json: "},
	{line: "chmod 600 $state/eth0.json", says: "record eth0.json"}, // the launcher cannot read it any more
}

var damagesOf = map[string][]damage{
	"bridge": {
		{line: "ip link del eth0", says: " eth0 is gone", kernel: true},
		{line: "for link in eth0 eth0-br eth0-tap eth0-dhcp; do ip link del $link; done", says: " eth0 is gone", kernel: true},
		{line: "ip link set eth0 up", says: "eth0 is up"},
		{line: "ip link set eth0-nic nomaster", says: "eth0-nic is no port of eth0-br"},
		{line: "ip link set eth0-nic down", says: "eth0-nic is down"},
		{line: "ip link set eth0-nic mtu 1300", says: "MTU of eth0-nic is 1300, not 1450"},
		{line: "ip link set eth0-nic mtu 1200", says: "MTU of eth0-nic is 1200, not 1450"},
		{line: "ip link set eth0-nic address 02:00:00:00:00:01", says: "MAC of eth0-nic is 02:00:00:00:00:01"},
		{line: "ip link set eth0-nic down; ip link set eth0-nic name other", says: "eth0-nic is called other"},
		{line: "ip link set eth0-nic addrgenmode eui64", says: "addrgenmode of eth0-nic is eui64, not none"},
		{line: "ip link set eth0-nic arp off", says: "ARP of eth0-nic is off, not on"},
		{line: "bridge link set dev eth0-nic learning on flood off", says: "port eth0-nic: flood is 0, not 1"},
		{line: "bridge link set dev eth0-nic state 0", says: "port eth0-nic: state is 0, not 3"},
		{line: "ip addr add 192.0.2.7/24 dev eth0-nic", says: "address 192.0.2.7/24 of eth0-nic is not of the wiring"},
		{line: "ip addr flush dev eth0", says: "address 10.244.1.7/24 of eth0 is gone"},
		{line: "ip addr del fd00:244:1::7/64 dev eth0", says: "address fd00:244:1::7/64 of eth0 is gone"},
		{line: "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1", says: "sysctl net/ipv6/conf/eth0/disable_ipv6 is not 0"},
		{line: "ip link set eth0 address 02:00:00:00:00:01", says: "MAC of eth0 is 02:00:00:00:00:01"},
		{line: "ip link set eth0 group 7", says: "group of eth0 is 7"},
		{line: "ip link set eth0 alias other", says: `alias of eth0 is "other"`},
		{line: "ip link set eth0-br down; ip link set eth0-br name other", says: "bridge eth0-br is gone", kernel: true},
	},
	"masquerade": {
		{line: "ip addr del 10.0.2.1/24 dev eth0-tap", says: "address 10.0.2.1/24 of eth0-tap is gone"},
		{line: "ip addr add 10.0.2.9/24 dev eth0-tap", says: "address 10.0.2.9/24 of eth0-tap is not of the wiring"},
		{line: "ip addr flush dev eth0-tap", says: "address fd10:0:2::1/120 of eth0-tap is gone"},
		{line: "ip route del 10.0.2.0/24 dev eth0-tap", says: "route 10.0.2.0/24 dev eth0-tap"},
		{line: "ip -6 route del fd10:0:2::/120 dev eth0-tap", says: "route fd10:0:2::/120 dev eth0-tap"},
		{line: "sysctl -qw net.ipv6.conf.eth0-tap.disable_ipv6=1", says: "sysctl net/ipv6/conf/eth0-tap/disable_ipv6 is not 0"},
		{line: "sysctl -qw net.ipv6.conf.all.forwarding=1; sysctl -qw net.ipv6.conf.all.forwarding=0", says: "forwarding is 0, not 1"},
		{line: "sysctl -qw net.ipv4.conf.eth0-tap.route_localnet=1", says: "IPv4 route_localnet of eth0-tap is on, not off"},
		{line: "ip link del eth0-tap", says: "tap eth0-tap is gone"},
		{line: "ip link set eth0-tap down", says: "eth0-tap is down"},
		{line: "ip link set eth0-tap mtu 1200", says: "MTU of eth0-tap is 1200, not 1450"},
		{line: "ip link set eth0-tap address 02:00:00:00:00:01", says: "MAC of eth0-tap is 02:00:00:00:00:01"},
		{line: "ip link set eth0-tap arp off", says: "ARP of eth0-tap is off, not on"},
		{line: "ip link set eth0-tap addrgenmode eui64", says: "addrgenmode of eth0-tap is eui64, not none"},
		{line: "ip neigh del 10.0.2.2 dev eth0-tap", says: "neighbour 10.0.2.2 of eth0-tap is gone"},
		{line: "sysctl -qw net.ipv4.conf.eth0.forwarding=0", says: "IPv4 forwarding of eth0 is off, not on"},
		{line: "sysctl -qw net.ipv4.conf.eth0-tap.forwarding=0", says: "IPv4 forwarding of eth0-tap is off, not on"},
	},
	"routed": {
		{line: "ip route add local 10.244.1.7 dev eth0 table local proto kernel scope host src 10.244.1.7", says: "10.244.1.7"},
		{line: "ip route del 10.244.1.7 dev eth0-tap table local", says: "route 10.244.1.7 dev eth0-tap"},
		{line: "ip -6 route del fd00:244:1::7 dev eth0-tap table local", says: "route fd00:244:1::7 dev eth0-tap"},
		{line: "ip addr change fd00:244:1::7/64 dev eth0 preferred_lft forever valid_lft forever", says: "address fd00:244:1::7/64 of eth0"},
		{line: "ip addr del 169.254.75.1/32 dev eth0", says: "address 169.254.75.1/32 of eth0 is gone"},
		{line: "ip addr del 169.254.75.1/32 dev eth0-tap", says: "address 169.254.75.1/32 of eth0-tap is gone"},
		{line: "ip addr del fd00:a9fe:4b01::1/128 dev eth0", says: "address fd00:a9fe:4b01::1/128 of eth0 is gone"},
		{line: "ip neigh del 10.244.1.7 dev eth0-tap", says: "neighbour 10.244.1.7 of eth0-tap is gone"},
		{line: "sysctl -qw net.ipv4.conf.eth0-tap.accept_local=0", says: "IPv4 accept_local of eth0-tap is off, not on"},
		{line: "sysctl -qw net.ipv4.conf.eth0-tap.forwarding=0", says: "IPv4 forwarding of eth0-tap is off, not on"},
		{line: "sysctl -qw net.ipv4.conf.eth0.forwarding=0", says: "IPv4 forwarding of eth0 is off, not on"},
	},
	"redirect": {
		{line: "ip link add other type bridge; ip link set eth0-tap master other", says: "eth0-tap is a port of other"},
		{line: "ip link add other type bridge; ip link set eth0 master other", says: "eth0 is a port of other"},
		{line: "nft add chain $table other '{ type filter hook ingress device eth0 priority -7; policy drop; }'", says: "chain other belongs to another program"},
	},
}

// damagesOfAnnouncing are those of the filters by which the responder sends for the guest, and follows its gateway.
var damagesOfAnnouncing = []damage{
	{line: "tc filter del dev eth0-dhcp ingress pref 1", says: "filter 1 of eth0-dhcp is gone"},
	{line: "tc filter del dev eth0-dhcp ingress pref 1; tc filter add dev eth0-dhcp ingress pref 1 protocol all u32 match u32 0 0 action mirred ingress redirect dev eth0-tap", says: "filter 1 of eth0-dhcp is another"},

	{line: "tc filter del dev eth0-tap egress pref 50000", says: "filter 50000 of eth0-tap is gone", kernel: true},
	{line: "tc filter del dev eth0-tap egress pref 50000; tc filter add dev eth0-tap egress pref 50000 protocol ipv6 u32 match u32 0 0 action mirred egress mirror dev eth0-dhcp", says: "filter 50000 of eth0-tap is another"},
	{line: "tc filter add dev eth0-tap egress pref 77 protocol ip u32 match u32 0 0 action mirred egress mirror dev eth0-dhcp", says: "filter 77 of eth0-tap is another"},
	{line: "tc filter add dev eth0-tap egress pref 1 protocol ip u32 match u32 0 0 action mirred egress mirror dev eth0-dhcp", says: "eth0-tap has a filter of another program: u32 that does not redirect"},
	{line: `tc filter add dev eth0-tap egress pref 77 protocol ip bpf da bytecode '1,6 0 0 0,'`, says: "egress of eth0-tap has a filter of another program: bpf", kernel: true},
	{line: "tc filter add dev eth0-tap ingress pref 50000 protocol ipv6 u32 match u32 0 0 action mirred egress redirect dev eth0-dhcp", says: "eth0-tap has a filter of another program: u32 that does not redirect"},
	{line: "tc qdisc del dev eth0-tap clsact; tc qdisc add dev eth0-tap ingress", says: "eth0-tap has a qdisc of another kind: ingress"},
	{line: "tc qdisc del dev eth0-tap clsact; tc qdisc add dev eth0-tap clsact", says: "filter 1 of eth0-tap is gone"},
	{line: "tc qdisc del dev eth0-tap clsact; tc qdisc add dev eth0-tap egress_block 7 clsact", says: "eth0-tap has a filter of another program: qdisc with a shared block", kernel: true},
	{line: "tc qdisc del dev eth0-tap clsact; tc qdisc add dev eth0-tap ingress_block 7 clsact", says: "eth0-tap has a filter of another program: qdisc with a shared block"},
}

// damagesOfNIC take from the NIC what the namespace itself has there, if the binding leaves it that.
var damagesOfNIC = []damage{
	{line: "ip addr del 10.244.1.7/24 dev eth0", says: "address 10.244.1.7/24 of eth0 is gone"},
	{line: "ip -6 addr del fd00:244:1::7/64 dev eth0", says: "address fd00:244:1::7/64 of eth0 is gone"},
	{line: "ip addr flush dev eth0", says: "address 10.244.1.7/24 of eth0 is gone"},
	{line: "ip route del default", says: "route default via 10.244.1.1 dev eth0"},
	{line: "ip -6 route del default", says: "route ::/0 via fd00:244:1::1 dev eth0"},
	{line: "ip route del 10.244.1.0/24", says: "route 10.244.1.0/24 dev eth0"},
	{line: "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1", says: "sysctl net/ipv6/conf/eth0/disable_ipv6 is not 0"},
	{line: "ip link set eth0 down", says: "eth0 is down"},
	{line: "ip link set eth0 mtu 1300", says: "MTU of eth0 is 1300, not 1450"},
	{line: "ip link set eth0 mtu 1200", says: "MTU of eth0 is 1200, not 1450"},
	{line: "ip link set eth0 arp off", says: "ARP of eth0 is off, not on"},
	{line: "ip link set eth0 address 02:00:00:00:00:01", says: "MAC of eth0 is 02:00:00:00:00:01"},
	{line: "ip link set eth0 down; ip link set eth0 name other", says: "eth0 is called other"},
}

// damagesTo are those of a binding's wiring.
func damagesTo(b infra.Binding) []damage {
	list := slices.Clone(damages)
	if b.Kind() != "bridge" {
		ofBridge := regexp.MustCompile(`eth0-br|bridge|master|hook output`)
		list = slices.DeleteFunc(list, func(d damage) bool { return ofBridge.MatchString(d.line) })
	}
	list = append(list, damagesOf[string(b.Kind())]...)
	if b.Kind() != "masquerade" && b.Kind() != "routed" {
		list = append(list, damagesOfAnnouncing...)
	}
	if b.Kind() != "bridge" {
		for _, d := range damagesOfNIC {
			if b.Kind() == "routed" && strings.Contains(d.line, "name other") {
				continue // the kernel gives the second IPv4 address another label
			}
			if b.Kind() == "routed" && strings.Contains(d.line, "arp off") {
				continue // when ARP is on again, the kernel detects all duplicates anew, and so adds local routes after Setup has ended
			}
			d.nic = true
			list = append(list, d)
		}
	}
	return list
}

// TestRepair damages a wiring. Check says what is otherwise, and Setup repairs it: the namespace looks
// as it did before the damage, and so it does after Teardown of what is damaged.
func TestRepair(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		if b.Kind() == "bridge" || b.Kind() == "redirect" {
			nstest.KernelDecides(t, "a dummy without its bridge, chains at the ingress of a link, VLAN filtering and gact")
		}
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		setup(t, c)
		wired := wiring(settled(t, n))
		for i, d := range damagesTo(b) {
			if i < len(damages) && b.Kind() != "bridge" && i%3 != 0 && !d.kernel {
				continue // every binding has the same parts
			}
			if nstest.Kernels && !d.kernel && !d.optional {
				continue
			}
			inSample := i%sample == 0 || d.optional || d.kernel
			t.Run(d.line, func(t *testing.T) {
				if strings.Contains(d.line, "user 5") {
					nstest.NeedRoot(t, "the test needs two users")
				}
				if d.optional {
					if err := tryDamage("true"); err != nil {
						t.Fatalf("the damage could not be tried: %v", err)
					}
					if err := tryDamage(d.line); lacksFeature(err) {
						nstest.LeaveOut(t, "this kernel refuses "+d.line)
					} else if err != nil {
						t.Fatal(err)
					}
				}
				says := hurt(t, n, d.line, d.says)
				var drift *phase1.DriftError
				err := c.Check(t.Context())
				if says == "" && err != nil {
					t.Errorf("check says %v of what does no harm", err)
				} else if says != "" && (!errors.As(err, &drift) || !strings.Contains(fmt.Sprint(drift.Differs), says)) {
					t.Errorf("check says\n%v\nwant a DriftError with %q", err, says)
				}
				repair(t, c)
				removeOther(n)
				nstest.Eventually(t, func() error { return difference(wired, wiring(n.Pod.Dump())) })

				// What a NIC that still serves the namespace has lost is not Teardown's to give.
				if inSample && !d.nic {
					hurt(t, n, d.line, d.says)
					unwire(t, c)
					removeOther(n)
					asFound(t, n, before)
					setup(t, c)
				}
			})
		}
		teardown(t, n, c, before)
	})
}

// repair wants Repair to repair, and to leave journal and record as they were, if the record is not what is damaged.
func repair(t *testing.T, c wired.NIC) {
	t.Helper()
	path := filepath.Join(cmp.Or(c.Dir, phase1.DefaultDir), nameOf(t, c.NetNS), c.Name+".journal")
	before := readFile(t, path)
	if _, err := c.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := readFile(t, path); after != before {
		t.Errorf("Repair changes the journal from\n%s\nto\n%s", before, after)
	}
	check(t, c)
}

// TestRepairKeeps: Repair needs no Spec, and leaves to the guest what only a Setup changes.
func TestRepairKeeps(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"masquerade": `{"binding": {"masquerade": {"ipv4": "10.9.0.0/24", "ports": ["80", "8080-8081:9090/tcp"], "excluded": ["15000"], "loopback": true, "maxConnections": 100}},
			"guest": "vm1", "egress": ["refuse metadata", "allow resolvers 53/udp", "refuse all"], "egressWithin": ["allow all"]}`,
		"routed": `{"binding": {"routed": {}}, "queues": 2, "tap": "vm", "mtu": 1400, "egress": ["allow 192.0.2.0/24", "refuse all"],
			"limits": {"fromGuest": {"bitsPerSecond": 100000000}}, "guard": {"open": ["53/udp"]}}`,
		"auto": `{"binding": {"auto": {}}, "options": {"hostname": "vm1", "dhcpv4": {"252": "http://wpad/x"}}, "device": {"model": "e1000e"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			before := settled(t, n)
			c := config(n, nil)
			given := c.Spec
			if err := json.Unmarshal([]byte(text), &c.Spec); err != nil {
				t.Fatal(err)
			}
			c.State, c.Owner, c.DNS = given.State, given.Owner, given.DNS
			setup(t, c)
			path, whole := filepath.Join(n.State, "eth0.json"), wiring(settled(t, n))
			recorded := readFile(t, path)
			n.Pod.IP("link del " + record(t, n).Tap)
			n.Pod.Exec("nft", "flush", "ruleset")
			repair(t, c)
			if now := readFile(t, path); now != recorded {
				t.Errorf("the record is\n%s\nand was\n%s", now, recorded)
			}
			nstest.Eventually(t, func() error { return difference(whole, wiring(n.Pod.Dump())) })
			teardown(t, n, c, before)
		})
	}
}

// TestRepairBesideSetup: a Repair that another process' Setup overtakes does not take back what that Setup changed.
func TestRepairBesideSetup(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	for i := range 20 {
		c.MTU = 1300 + i%2
		err := together(func(caller int) error {
			if caller == 0 {
				_, err := c.Setup(t.Context())
				return err
			}
			_, err := c.Repair(t.Context())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if r := record(t, n); r.MTU != c.MTU {
			t.Fatalf("the guest's MTU is %d after a Setup with %d", r.MTU, c.MTU)
		}
	}
}

// TestAddressAdded: under bridge a later Setup removes an address that came after the first one, and reports it. After
// the way out that it names, the guest has it.
func TestAddressAdded(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	n.Pod.Exec("ip", "addr", "flush", "dev", "eth0")
	c := config(n, infra.Bridge{})
	said := ""
	c.Progress = func(text string) { said += text }
	setup(t, c)
	add := func() { n.Pod.Exec("ip", "addr", "add", "10.244.1.77/24", "dev", "eth0") }
	add()
	if said != "" {
		t.Errorf("the first Setup says %q", said)
	}
	setup(t, c)
	if !strings.Contains(said, "address 10.244.1.77/24 came after the first Setup, and is removed: ") {
		t.Errorf("Setup says %q", said)
	}
	check(t, c)
	unwire(t, c)
	add()
	said = ""
	for range 2 {
		record, err := c.Setup(t.Context())
		if err != nil || record.IPv4 == nil || record.IPv4.Address.String() != "10.244.1.77/24" || said != "" {
			t.Errorf("after the way out: %v, %+v, and Setup says %q", err, record, said)
		}
	}
}

// sample: of how many damages one is done before Teardown too.
const sample = 7

// tryDamage does a damage to links of a new namespace.
func tryDamage(line string) error {
	probe := "set -e; ip link add eth0-br type bridge; ip tuntap add eth0-tap mode tap; tc qdisc add dev eth0-tap ingress; " + line
	return run("unshare", "--net", "sh", "-c", probe)
}

// run returns what the program wrote as its error.
func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// lacksFeature reports whether the error of ip or tc says that the kernel was built without what the command asks for:
// a link kind, an option of a bridge (EOPNOTSUPP), an action of tc.
func lacksFeature(err error) bool {
	words := []string{"Unknown device type", "Operation not supported", "Failed to load TC action module"}
	return err != nil && slices.ContainsFunc(words, func(w string) bool { return strings.Contains(err.Error(), w) })
}

// removeOther takes away a link that a damage may have made.
func removeOther(n nstest.Network) {
	n.Pod.Exec("sh", "-c", "if ip link show other >/dev/null 2>&1; then ip link del other; fi")
}

// hurt does the damage, and returns what Check has to say.
func hurt(t *testing.T, n nstest.Network, line, says string) string {
	t.Helper()
	list := n.Pod.Exec("nft", "-a", "list", "ruleset")
	var table, chain, handle string
	for line := range strings.Lines(list) {
		words := strings.Fields(line)
		switch {
		case len(words) > 2 && words[0] == "table":
			table, chain = words[1]+" "+words[2], ""
		case len(words) > 1 && words[0] == "chain":
			chain = words[1]
		case strings.HasPrefix(table, "netdev") && chain != "to-guest": // the policy of another is drop
		case chain != "" && len(words) > 2 && words[len(words)-2] == "handle":
			handle = words[len(words)-1]
		}
		if handle != "" {
			break
		}
	}
	var ofReason, reason string // a chain that drops for a reason, with its table
	for line := range strings.Lines(list) {
		switch words := strings.Fields(line); {
		case len(words) > 2 && words[0] == "table":
			ofReason = words[1] + " " + words[2]
		case len(words) > 1 && words[0] == "chain" && strings.HasPrefix(words[1], "drop-"):
			reason = words[1]
		}
		if reason != "" {
			ofReason += " " + reason
			break
		}
	}
	fill := strings.NewReplacer("$table", table, "$chain", chain, "$handle", handle, "$state", n.State, "$drops", ofReason, "$reason", reason, "$uid", strconv.Itoa(nstest.LauncherUID))
	nstest.Run(t, "ip", "netns", "exec", n.Pod.Name, "sh", "-ec", fill.Replace(line))
	return fill.Replace(says)
}

// wiring is what of a dump must be the same after a repair, in any order. It leaves out numbers, and the MAC of the
// responder's tap, which is random. It leaves out what the kernel decides: the qdisc of a link that was never up, the
// anycast address of a router's link that was down, the multicast routes of a tap whose carrier was seen late, and what
// a bridge has learned meanwhile.
func wiring(dump string) string {
	if port := portMAC.FindStringSubmatch(dump); port != nil {
		dump = strings.ReplaceAll(dump, port[1], "random")
	}
	return sorted(numbers.ReplaceAllString(dump, ""))
}

var (
	portMAC = regexp.MustCompile(`eth0-dhcp: .*\n.*link/ether (\S+)`)
	numbers = regexp.MustCompile(`(?m)^[0-9]+: |(parent ffff: | fh \S+| ht [0-9a-f]+)| (port_no|port_id|designated_port) \S+| qdisc (noop|noqueue)\b|^qdisc noqueue .*\n|^anycast .*\n|^multicast ff00::/8 dev eth0-(tap|dhcp) .*\n|^\S+ dev \S+ master \S+ (stale )?\n`)
)
