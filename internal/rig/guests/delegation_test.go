package guests_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// requester is a DHCPv6 client that asks for a prefix for lan0, by eth0.
type requester struct {
	name     string
	packages []string // Debian packages of the machine; none: the machine is Debian 13's
	start    string
	// renew is a command after which the client asks again for what it has; empty: the client has none.
	renew string
	// alone: the client asks for no address.
	alone bool
}

var requesters = func() []requester {
	const (
		dhcpcd = "echo 'nodelay\nnoipv4\ninterface eth0\nia_na 1\nia_pd 2 lan0/0/64' >/etc/dhcpcd.conf; dhcpcd --nobackground --nodev --debug eth0 lan0"
		// dhclient gives no link a part of the prefix: an administrator's script does.
		dhclient = "mkdir -p /etc/dhcp/dhclient-exit-hooks.d; " +
			"echo 'if [ -n \"$new_ip6_prefix\" ]; then ip addr replace ${new_ip6_prefix%%/*}1/64 dev lan0 nodad; " +
			"elif [ -n \"$old_ip6_prefix\" ]; then ip addr del ${old_ip6_prefix%%/*}1/64 dev lan0; fi' >/etc/dhcp/dhclient-exit-hooks.d/lan; " +
			"dhclient -6 -N -P -d -pf /run/dhclient.pid eth0"
		networkd = "mkdir -p /run/systemd/network; " +
			"printf '[Match]\\nName=eth0\\n[Network]\\nDHCP=ipv6\\n' >/run/systemd/network/10-eth0.network; " +
			"printf '[Match]\\nName=lan0\\n[Network]\\nDHCPPrefixDelegation=yes\\n[DHCPPrefixDelegation]\\nUplinkInterface=eth0\\nSubnetId=0\\n' >/run/systemd/network/20-lan0.network; "
		dhcp6c = "echo 'interface eth0 { send ia-pd 7; }; id-assoc pd 7 { prefix-interface lan0 { sla-id 0; sla-len 8; ifid 1; }; };' >/run/dhcp6c.conf; " +
			"mkdir -p /var/lib/dhcpv6; dhcp6c -f -D -c /run/dhcp6c.conf eth0"
	)
	return []requester{
		{name: "dhcpcd", packages: []string{"dhcpcd"}, start: "useradd --system --home /usr/lib/dhcpcd --shell /bin/false dhcpcd; " + dhcpcd, renew: "dhcpcd --renew eth0"},
		{name: "dhcpcd-13", start: dhcpcd, renew: "dhcpcd --renew eth0"},
		{name: "dhclient", packages: []string{"dhclient"}, start: dhclient, renew: "kill $(cat /run/dhclient.pid); " + dhclient + " >>/run/log 2>&1 &"},
		{name: "networkd", packages: []string{"managers"}, start: networkd + startNetworkd},
		{name: "networkd-13", start: "systemd-id128 new >/etc/machine-id; " + networkd + startNetworkd},
		{name: "dhcp6c", packages: []string{"dhcp6c"}, start: dhcp6c, alone: true},
	}
}()

// The networks that are routed to the guest.
const delegated, alsoDelegated = "2001:db8:42::/56", "fd42::/56"

// TestDelegation: a client gets the prefixes of guard.prefixes, and gives a link a part of each. A host on that link
// talks with the world.
func TestDelegation(t *testing.T) {
	nstest.Need(t, "ping")
	nstest.NeedTaps(t)
	for i, c := range requesters {
		bindings := []infra.Binding{infra.Routed{}}
		if i == 0 {
			bindings = append(bindings, infra.Bridge{}, infra.Redirect{}, infra.Masquerade{})
		}
		for _, b := range bindings {
			t.Run(c.name+"-"+string(b.Kind()), func(t *testing.T) {
				t.Parallel()
				testDelegation(t, c, b)
			})
		}
	}
}

func testDelegation(t *testing.T, c requester, binding infra.Binding) {
	n := nstest.NewNetwork(t)
	n.World.IP("route add " + delegated + " via fd00:244:1::7")
	n.World.Listen("world", ":7")
	nic := phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}
	spec := infra.Spec{Binding: binding, State: n.State, Owner: nstest.Owner(), DNS: &cache.DNS{},
		Guard: infra.Guard{Prefixes: []netip.Prefix{netip.MustParsePrefix(delegated), netip.MustParsePrefix(alsoDelegated)}}}
	r, err := nic.Setup(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	guest := n.Guest(t, r)
	behind := nstest.New(t, "behind")
	guest.IP("link add lan0 type veth peer name eth0 netns " + behind.Name)
	guest.Exec("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.eth0.accept_ra=2")
	guest.IP("link set lan0 up")
	guest.IP("link set eth0 up")
	guest.Settle("eth0")
	behind.IP("link set eth0 up")
	launcher := n.Serve(t, nstest.LauncherUID)

	m := machineOf(t, guest, c)
	if _, err := m.Run(":>/run/log; (" + c.start + ") >>/run/log 2>&1 &"); err != nil {
		t.Fatal(err)
	}
	lan := func() (string, error) { return m.Run("ip -6 -o addr show scope global dev lan0") }
	var own netip.Prefix
	nstest.Eventually(t, func() error {
		out, err := lan()
		found := regexp.MustCompile(`inet6 (2001:db8:42:.*/64) `).FindStringSubmatch(out)
		if found == nil || !strings.Contains(out, "inet6 fd42:") {
			return fmt.Errorf("%s: lan0 has %q, %v", c.start, out, err)
		}
		own = netip.MustParsePrefix(found[1])
		if out, err = m.Run("ip -6 route show default"); !strings.Contains(out, "dev eth0") {
			return fmt.Errorf("default route %q, %v", out, err)
		}
		return nil
	})
	host := own.Masked().Addr().As16()
	host[15] = 0x99
	at := netip.AddrFrom16(host)
	behind.IP(fmt.Sprintf("addr add %v/64 dev eth0 nodad", at))
	behind.IP(fmt.Sprintf("route add default via %v", own.Addr()))
	behind.Listen("behind", ":7")
	sees := at
	if binding.Kind() == cache.BindingMasquerade {
		sees = nstest.Pod6
	}
	checkAnswer(t, behind, nstest.Beyond6, fmt.Sprintf("world sees [%v]:", sees))
	behind.Exec("ping", "-6", "-c", "1", "-W", "10", nstest.Beyond6.String())
	switch binding.Kind() {
	case cache.BindingMasquerade: // it forwards nothing but ports
		checkAnswer(t, n.Pod, at, "behind sees [")
		if answer, err := n.World.Ask(netip.AddrPortFrom(at, 7).String()); err == nil {
			t.Errorf("the world reaches %v: %s", at, answer)
		}
	case cache.BindingRouted:
		checkAnswer(t, n.Pod, at, "behind sees [")
		fallthrough
	default:
		checkAnswer(t, n.World, at, "behind sees [")
		n.World.Exec("ping", "-6", "-c", "1", "-W", "10", at.String())
	}

	if c.renew == "" {
		return
	}
	// The lease is infinite: the client gives the prefix up only if it is told to.
	spec.Guard = infra.Guard{}
	if _, err := nic.Setup(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error { return checkOutput(launcher, "the record has changed") })
	nstest.Eventually(t, func() error {
		if _, err := m.Run(c.renew); err != nil {
			return err
		}
		if out, err := lan(); err != nil || strings.TrimSpace(out) != "" {
			return fmt.Errorf("lan0 still has %q, %v\n%s", out, err, launcher.Output.String())
		}
		return nil
	})
}

func machineOf(t *testing.T, guest *nstest.Namespace, c requester) *machine.Machine {
	t.Helper()
	var m *machine.Machine
	if c.packages == nil {
		m = machine.NewDebian13(t, guest)
	} else {
		m = machine.New(t, guest, c.packages...)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, err := m.Run("cat /run/log; ip addr; ip -6 route; cat /var/lib/dhcp/*6.leases")
			t.Logf("%v\n%s", err, out)
		}
	})
	return m
}
