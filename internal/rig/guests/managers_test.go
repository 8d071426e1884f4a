package guests_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestManagers boots guests whose network Debian's systemd-networkd or NetworkManager configures, each with a
// link-local address that is not made of the MAC (RFC 7217). They get all that other guests get, and nothing that they
// send is dropped.
func TestManagers(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	redirected := bootNetworks[0]
	redirected.name, redirected.binding = "redirect", infra.Redirect{}
	networks := append(slices.Clone(bootNetworks), redirected)
	for _, manager := range []struct {
		name string
		boot vm.Boot
		few  []string
	}{
		{"systemd-networkd", vm.BootNetworkd, []string{"masquerade", "redirect"}},
		{"NetworkManager", vm.BootNetworkManager, []string{"bridge-on-link"}},
	} {
		eachOf(t, networks, manager.name+"/", manager.few, func(t *testing.T, network bootNetwork) {
			manages(t, network, manager.boot, uid, gid)
		})
	}
}

// manages boots a guest and checks it. The filter may have dropped the first that the guest sent from its link-local
// address: the filter holds a new address back for 0.9 s, and the guest waits for 1 s. On a busy machine, the guest's
// question can be on its way to the filter for the difference. TestLinkLocal tests the time.
func manages(t *testing.T, network bootNetwork, boot vm.Boot, uid, gid int) {
	t.Helper()
	ctx := bootTime(t)
	n := network.create(t)
	if network.name == "bridge" || network.name == "redirect" {
		n.Pod.IP("addr add fd00:244:1::17/64 dev eth0 nodad")
	}
	c := bootConfig(n, network.binding, uid, gid)
	_, r := setupAndOpen(ctx, t, c)
	station := otherEnd(t, n, network.binding.Kind())
	launcher := n.Serve(t, uid)
	g, err := vm.BootQEMU(ctx, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1", Boot: boot}, newNIC(t, r, qemu.Options{}))
	if err != nil {
		t.Fatalf("%v\n%s", err, launcher.Output.String())
	}
	defer func() {
		if t.Failed() {
			out, err := g.Run(ctx, "cat /run/manager; ip addr; ip -6 route; cat /proc/net/igmp6")
			t.Logf("guest: %s, %v\nlauncher: %s", out, err, launcher.Output.String())
		}
		if err := g.Destroy(); err != nil {
			t.Error(err)
		}
	}()
	reported := checkManaged(ctx, t, g, n, r, network, station)
	counters, err := c.Counters(ctx)
	if err != nil {
		t.Fatal(err)
	}
	late := false
	for _, d := range counters.Drops {
		switch {
		case d.Packets == 0, d.Reason == "namespace-output": // not the guest's
		case d.Reason == "ip-spoof":
			t.Logf("%d packets were dropped: %s", d.Packets, d.Reason)
			late = true
		default:
			t.Errorf("%d packets were dropped: %s", d.Packets, d.Reason)
		}
	}
	if !reported && !late {
		t.Error("the neighbour received no report of the guest's groups")
	}
}

// neighbour is the station at the other end of the guest's link.
type neighbour struct {
	*nstest.Namespace
	link    string
	index   int
	sniffer *nstest.Sniffer
}

func otherEnd(t *testing.T, n nstest.Network, kind cache.Kind) neighbour {
	t.Helper()
	station := neighbour{Namespace: n.World, link: "pod"}
	if kind == cache.BindingMasquerade {
		station = neighbour{Namespace: n.Pod, link: "eth0-tap"}
	}
	err := netns.Do(station.File, func() error {
		link, err := net.InterfaceByName(station.link)
		if err == nil {
			station.index = link.Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	station.sniffer = station.Sniff(t)
	return station
}

// checkManaged checks addresses and connections of the guest, and reports whether its neighbours receive a report of
// its groups.
func checkManaged(ctx context.Context, t *testing.T, g *vm.Guest, n nstest.Network, r cache.Record, network bootNetwork, station neighbour) bool {
	t.Helper()
	wait := func(command string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
		defer cancel()
		out, err := g.Until(ctx, command)
		if err != nil {
			t.Errorf("%s: %q, %v", command, out, err)
		}
		return out
	}
	local := firstAddress(t, wait("ip -6 -o addr show dev eth0 scope link -tentative | grep inet6"))
	if local == eui64.LinkLocal(r.MAC) {
		t.Errorf("the guest's link-local address is %v, made of its MAC; want another one", local)
	}
	t.Logf("link-local address %v", local)
	wait(fmt.Sprintf("ip -4 -o addr show dev eth0 | grep 'inet %v '", r.IPv4.Address))
	for _, a := range r.IPv6.Addresses() {
		wait(fmt.Sprintf("ip -6 -o addr show dev eth0 scope global -tentative | grep 'inet6 %v/'", a))
	}
	wait("ip -6 route | grep ^default")

	gateway := firstAddress(t, station.IP("-6 -o addr show dev "+station.link+" scope link"))
	wait(fmt.Sprintf("ping6 -c 1 -W 1 -I eth0 %v", gateway))
	for _, to := range network.stations {
		program := "ping"
		if to.Is6() {
			program = "ping6"
		}
		wait(fmt.Sprintf("%s -c 1 -W 1 %v", program, to))
	}
	// The station does not know the guest's MAC, and solicits it.
	station.IP("-6 neigh flush dev " + station.link)
	if answer, err := ask(station.Namespace, netip.AddrPortFrom(local.WithZone(station.link), vm.AnswerPort)); err != nil || answer.Guest != "guest1" {
		t.Errorf("the neighbour to %v: %+v, %v; want guest1 to answer", local, answer, err)
	}
	asked := []netip.Addr{nstest.Pod4, nstest.Pod6}
	for _, a := range r.IPv6.Addresses() {
		if r.Binding != cache.BindingMasquerade && a != nstest.Pod6 {
			asked = append(asked, a)
		}
	}
	for _, to := range asked {
		if answer, err := ask(n.World, netip.AddrPortFrom(to, vm.AnswerPort)); err != nil || answer.Guest != "guest1" {
			t.Errorf("world to %v: %+v, %v; want guest1 to answer", to, answer, err)
		}
	}
	return station.receivesReport(local)
}

// receivesReport reports whether an MLDv2 report from the address has come, or comes.
func (n neighbour) receivesReport(from netip.Addr) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		s, ok := n.sniffer.Next()
		f := s.Frame
		if ok && s.Link == n.index && !s.Outgoing && len(f) > 14+48 && slices.Equal(f[12:14], []byte{0x86, 0xdd}) && slices.Equal(f[22:38], from.AsSlice()) &&
			f[20] == 0 && f[54] == 58 && f[62] == 143 {
			return true
		}
	}
	return false
}

// firstAddress returns the first address that ip(8) printed with -o.
func firstAddress(t *testing.T, line string) netip.Addr {
	t.Helper()
	words := strings.Fields(line)
	at := slices.Index(words, "inet6")
	if at < 0 || at+1 >= len(words) {
		t.Fatalf("ip: %q has no address", line)
	}
	p, err := netip.ParsePrefix(words[at+1])
	if err != nil {
		t.Fatal(err)
	}
	return p.Addr()
}
