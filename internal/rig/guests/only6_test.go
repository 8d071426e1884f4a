package guests_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// TestIPv6Only: in a pod with IPv6 alone and options.ipv6OnlySeconds, a client that knows RFC 8925 stops asking for
// IPv4. systemd-networkd 257 ignores an offer without an address.
func TestIPv6Only(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	launcher := nstest.Program(t, "examples/guestwire-launcher")
	for _, c := range []struct {
		name, start, says string
	}{
		{"dhcpcd-13", "echo 'option ipv6_only_preferred' >>/etc/dhcpcd.conf; dhcpcd --nobackground --debug eth0", "IPv6-Only Preferred received (1800 seconds)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			n.Pod.IP("-4 addr flush dev eth0")
			_, m := startClient(t, n, launcher, cache.Options{IPv6OnlySeconds: 1800}, nil, c.start)
			nstest.Eventually(t, func() error {
				out, err := m.Run("cat /run/log")
				if err == nil && !strings.Contains(out, c.says) {
					err = fmt.Errorf("%s does not say %q:\n%s", c.name, c.says, out)
				}
				return err
			})
		})
	}
}

// TestPREF64: systemd-networkd 257 reads the prefix of options.nat64. Debian 12's, 252, does not know the setting for
// it, as its log says.
func TestPREF64(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	const reported = `"PREF64":[{"Prefix":[32,1,13,184,0,100,0,0,0,0,0,0,0,0,0,0],"PrefixLength":96,`
	for _, c := range []struct {
		name            string
		packages        []string
		identify, asked string // a command that prints what the client has of the prefix
		want            string
	}{
		{"networkd", []string{"managers"}, "", "cat /run/log", "Unknown key 'UsePREF64' in section [IPv6AcceptRA], ignoring."},
		{"networkd-13", nil, "systemd-id128 new >/etc/machine-id; ", "networkctl --json=short status eth0", reported},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			_, m := startClient(t, n, nstest.Program(t, "examples/guestwire-launcher"), cache.Options{NAT64: netip.MustParsePrefix("2001:db8:64::/96")}, c.packages, startBus+
				c.identify+"mkdir -p /run/systemd/network; "+
				"printf '[Match]\\nName=eth0\\n[Network]\\nDHCP=yes\\n[IPv6AcceptRA]\\nUsePREF64=yes\\n' >/run/systemd/network/10-eth0.network; "+startNetworkd)
			nstest.Eventually(t, func() error {
				out, err := m.Run(c.asked)
				if err == nil && !strings.Contains(out, c.want) {
					err = fmt.Errorf("%s says %s", c.name, out)
				}
				return err
			})
		})
	}
}

// startClient wires the network's pod by a bridge, and starts the launcher, and a client in a guest: of the Debian 12
// packages, or without packages of Debian 13.
func startClient(t *testing.T, n nstest.Network, program string, o cache.Options, packages []string, start string) (launcher *nstest.Process, m *machine.Machine) {
	t.Helper()
	_, err := (phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}).Setup(t.Context(), infra.Spec{
		Binding: infra.Bridge{}, State: n.State, Owner: nstest.Owner(),
		DNS:     &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr(dns6)}},
		Options: o,
	})
	if err != nil {
		t.Fatal(err)
	}
	launcher = n.Pod.Start(nstest.LauncherUID, program, "serve", "-state", n.State)
	nstest.Eventually(t, func() error { return checkOutput(launcher, "serving") })
	vm, err := phase2.Open(n.State)
	if err != nil {
		t.Fatal(err)
	}
	guest := n.Guest(t, vm.Records()[0])
	guest.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=1")
	if packages == nil {
		m = machine.NewDebian13(t, guest)
	} else {
		m = machine.New(t, guest, packages...)
	}
	if _, err := m.Run("export LINKS=eth0 link=eth0; :>/run/log; (" + start + ") >>/run/log 2>&1 &"); err != nil {
		t.Fatal(err)
	}
	return launcher, m
}

// TestDeclined: a client that finds another station at its address declines it, and the launcher says so.
func TestDeclined(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	launcher := nstest.Program(t, "examples/guestwire-launcher")
	for _, sys := range systems {
		for i, p := range sys.programs {
			start, says := "", []string{"dhcpv4-declined"}
			switch sys.name {
			case "dhcpcd": // which waits where its IPv6 address has failed
				start = p.start
			case "dhcpcd-13":
				start, says = p.start, append(says, "dhcpv6-declined")
			case "udhcpc", "udhcpc-13":
				start = udhcpc + " -a"
			default: // the others send none: systemd-networkd's fails ("Network is unreachable")
				continue
			}
			packages := p.packages
			if sys.debian13 {
				packages = nil
			}
			t.Run(fmt.Sprint(sys.name, i), func(t *testing.T) {
				t.Parallel()
				n := nstest.NewNetwork(t)
				l, m := startClient(t, n, launcher, cache.Options{}, packages, "sleep 1; "+start)
				n.World.IP("addr add 10.244.1.7/32 dev pod")
				n.World.IP("addr add fd00:244:1::7/128 dev pod nodad")
				defer func() {
					if t.Failed() {
						out, err := m.Run("cat /run/log; ip addr")
						t.Logf("%v\n%s\nlauncher: %s", err, out, l.Output.String())
					}
				}()
				for _, event := range says {
					nstest.Eventually(t, func() error {
						return checkOutput(l, "level=WARN msg=\"DHCP"+event[4:6]+" address declined by the guest: a station of the network answers for it")
					})
				}
			})
		}
	}
}

// TestDeclinedManager is TestDeclined with NetworkManager in a guest in QEMU, which asks for other stations only with
// ipv4.dad-timeout.
func TestDeclinedManager(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	ctx := bootTime(t)
	n := networks[0].create(t)
	_, r := setupAndOpen(ctx, t, bootConfig(n, infra.Bridge{}, uid, gid))
	launcher := n.Serve(t, uid)
	guest := bootQEMU(ctx, t, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1", Boot: vm.BootNetworkManager}, newNIC(t, r, qemu.Options{}))
	n.World.IP("addr add 10.244.1.7/32 dev pod")
	const again = `kill $(pidof NetworkManager); printf '[connection]\nipv4.dad-timeout=3000\n' >/etc/NetworkManager/NetworkManager.conf
ip addr flush dev eth0; NetworkManager --debug >>/run/manager 2>&1 &`
	if _, err := guest.Run(ctx, strings.ReplaceAll(again, "\n", "; ")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			out, err := guest.Run(ctx, "tail -n 60 /run/manager; ip addr")
			t.Logf("guest: %s, %v\nlauncher: %s", out, err, launcher.Output.String())
		}
	}()
	nstest.Eventually(t, func() error {
		return checkOutput(launcher, "DHCPv4 address declined by the guest: a station of the network answers for it")
	})
}
