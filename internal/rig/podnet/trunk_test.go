package podnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// The VLANs of TestTrunk, by what lets them pass.
const (
	untagged    = 0 // the frames without a tag
	vlanOfBoth  = 5 // network and guard
	vlanOfNet   = 6 // the network alone
	vlanOfGuard = 7 // the guard alone
)

var trunkVLANs = []uint16{untagged, vlanOfBoth, vlanOfNet, vlanOfGuard}

// trunk is a network whose port to the pod is a VLAN trunk with the native VLAN 1, VLAN 5 and VLAN 6.
type trunk struct {
	name   string
	kind   string // as Network.Kind
	create func(t *testing.T) *trunkInstance
}

// trunkInstance is a pod on a trunk, and a station in each VLAN, at host 50 of the VLAN's networks.
type trunkInstance struct {
	pod      *nstest.Namespace
	stations map[uint16]*nstest.Namespace
}

// vlanAddresses are the addresses of a host in a VLAN: 10.22.VLAN.0/24 and fd00:22:VLAN::/64.
func vlanAddresses(id uint16, host int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.22.%d.%d/24", id, host)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:22:%d::%x/64", id, host)),
	}
}

const trunkStation, trunkGuestHost = 50, 7

func (l *trunkInstance) addStation(id uint16, n *nstest.Namespace, link string) {
	if l.stations == nil {
		l.stations = map[uint16]*nstest.Namespace{}
	}
	l.stations[id] = n
	n.IP("link set " + link + " up")
	for _, a := range vlanAddresses(id, trunkStation) {
		addAddresses(n, link, a.String())
	}
	n.Listen(stationName(id), fmt.Sprint(":", stationPort))
}

func stationName(id uint16) string { return "station " + strconv.Itoa(int(id)) }

// outerVLAN is the VLAN of the network behind the trunk: frames without a tag are in VLAN 1.
func outerVLAN(id uint16) uint16 { return max(id, 1) }

var trunks = []trunk{
	{name: "Open vSwitch", create: func(t *testing.T) *trunkInstance {
		nstest.Need(t)
		node := nstest.New(t, "node")
		v := startOVS(t, node, false)
		v.vsctl("add-br br0", "set bridge br0 datapath_type=netdev")
		l := &trunkInstance{pod: nstest.New(t, "pod")}
		v.addPort(l.pod, 1500, "br0", "vethpod", "external_ids:trunk=test")
		v.vsctl("set port vethpod vlan_mode=native-untagged tag=1 trunks=1,5,6")
		for _, id := range trunkVLANs {
			n, port := nstest.New(t, "station"), fmt.Sprint("veth", id)
			v.addPort(n, 1500, "br0", port, "external_ids:trunk=test")
			v.vsctl(fmt.Sprintf("set port %s tag=%d", port, outerVLAN(id)))
			l.addStation(id, n, "eth0")
		}
		l.addPod("eth0")
		return l
	}},
	{name: "CNI bridge with vlanTrunk", kind: "vlan", create: func(t *testing.T) *trunkInstance {
		nstest.Need(t)
		node := nstest.New(t, "node")
		l := &trunkInstance{pod: nstest.New(t, "pod")}
		c := newChain(t, node, `"type": "bridge", "bridge": "br0", "vlanTrunk": [{"id": 5}, {"id": 6}],
			"ipam": {"type": "static", "addresses": [{"address": "10.22.0.7/24"}, {"address": "fd00:22:0::7/64"}]}`+current)
		c.add(t, l.pod, "eth0")
		l.addAccessPorts(t, node, "br0")
		return l
	}},
}

// addAccessPorts adds a station in each VLAN to a bridge with VLAN filtering.
func (l *trunkInstance) addAccessPorts(t *testing.T, node *nstest.Namespace, bridge string) {
	for _, id := range trunkVLANs {
		n, port := nstest.New(t, "station"), fmt.Sprint("veth", id)
		connectNamespaces(n, "eth0", node, port)
		node.IP("link set " + port + " master " + bridge)
		if id != untagged {
			node.Exec("bridge", "vlan", "del", "dev", port, "vid", "1")
			node.Exec("bridge", "vlan", "add", "dev", port, "vid", fmt.Sprint(id), "pvid", "untagged")
		}
		l.addStation(id, n, "eth0")
	}
}

func (l *trunkInstance) addPod(nic string) {
	l.pod.IP("link set " + nic + " up")
	for _, a := range vlanAddresses(untagged, trunkGuestHost) {
		addAddresses(l.pod, nic, a.String())
	}
	l.pod.Settle(nic)
}

// trunkGuest is a guest with a link in each VLAN.
type trunkGuest struct {
	dial map[uint16]dialer
	end  func()
}

// TestTrunk: with VLANs in the guard, a guest with VLAN links reaches those VLANs of the network, and no others, and is
// reached from there, with whole frames and beside the frames without a tag. The namespace receives nothing of it.
func TestTrunk(t *testing.T) {
	nstest.NeedTaps(t)
	for _, n := range trunks {
		for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
			for _, addresses := range []bool{true, false} {
				name := n.name + "/" + string(b.Kind())
				if !addresses {
					name += ", no addresses" // and so no responder
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					if strings.HasPrefix(n.name, "CNI") && addresses == (b == infra.Bridge{}) {
						nstest.KernelDecides(t, "VLANs, and a bridge that filters them")
					}
					if n.kind != "" && !hasKind(t, n.kind) {
						nstest.LeaveOut(t, "this kernel has no links of the kind "+n.kind+": the trunk is measured under the stock kernel")
					}
					l := n.create(t)
					if !addresses {
						l.pod.IP("-6 route flush dev eth0")
						l.pod.IP("addr flush dev eth0")
					}
					l.check(t, b)
				})
			}
		}
	}
}

func (l *trunkInstance) check(t *testing.T, b infra.Binding) {
	ctx := t.Context()
	net := nstest.Network{Pod: l.pod, State: nstest.Dir(t)}
	c := wired.NIC{NIC: phase1.NIC{NetNS: l.pod.File, Name: "eth0"}, Spec: infra.Spec{
		Binding: b, State: net.State, Owner: nstest.Owner(), Guard: infra.Guard{VLANs: []uint16{vlanOfBoth, vlanOfGuard}},
	}}
	l.pod.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.router_solicitations=0")
	before := l.pod.Settled()
	setup := func() {
		t.Helper()
		if _, err := c.Setup(ctx); err != nil {
			t.Fatal(err)
		}
	}
	setup()
	launcher := net.Serve(t, nstest.LauncherUID)
	g := l.startGuest(ctx, t, net)
	l.pod.Listen(processName, fmt.Sprint(":", Port))

	received := l.received()
	for _, id := range []uint16{untagged, vlanOfBoth} {
		l.checkTalks(t, g, id)
		l.checkWhole(t, id, 1500)
	}
	for _, id := range []uint16{vlanOfNet, vlanOfGuard} {
		l.checkSilent(t, g, id)
	}
	if now := l.received(); now != received {
		t.Errorf("the namespace has received the guest or its network: before %s, now %s", received, now)
	}
	l.checkDropped(ctx, t, c, "vlan-tag")
	l.checkDropped(ctx, t, c, "network-frame")
	if err := c.Check(ctx); err != nil {
		t.Error(err)
	}

	// The guard changes under the guest. That VLAN 6 is reached then shows that it was the guard that kept it away.
	c.Guard.VLANs = []uint16{vlanOfNet}
	setup()
	l.checkTalks(t, g, vlanOfNet)
	l.checkSilent(t, g, vlanOfBoth)
	l.checkTalks(t, g, untagged)

	// The bounds hold for frames with a tag as well.
	c.Spec.MTU = 1400
	setup()
	l.checkTalks(t, g, vlanOfNet)
	l.checkWhole(t, vlanOfNet, 1400)
	l.checkDropped(ctx, t, c, "too-long")
	c.Spec.MTU, c.Limits.ToGuest.BitsPerSecond = 0, 8000
	setup()
	// What waits at the tap fills the socket's buffer, for which ping chooses room for one packet.
	if out, err := l.ping(vlanOfNet, 1500, "-c", "60", "-i", "0.01", "-S", "200000"); !strings.Contains(out, "packet loss") || strings.Contains(out, " 0% packet loss") {
		t.Errorf("sixty pings through a limit of 8 kbit/s: %v\n%s", err, out)
	}
	l.checkDropped(ctx, t, c, "rate-limit")

	g.end()
	launcher.Stop(t)
	c.Down.CutOff = true
	if err := c.Teardown(ctx); err != nil {
		t.Error(err)
	}
	nstest.Eventually(t, func() error { return nstest.Difference(before, l.pod.Dump()) })
}

// startGuest starts a guest of Linux with VLAN links, or the embedded one where the kernel has no such links.
func (l *trunkInstance) startGuest(ctx context.Context, t *testing.T, n nstest.Network) trunkGuest {
	t.Helper()
	r := nstest.Record(t, n.State, "eth0")
	if hasKind(t, "vlan") {
		return newLinuxTrunk(t, n, r)
	}
	card := newVLANs(nstest.OpenTap(t, l.pod.File, r.Tap))
	t.Cleanup(func() { card.Close() })
	g := trunkGuest{dial: map[uint16]dialer{}}
	var guests []*guest.Guest
	for _, id := range trunkVLANs {
		one, err := guest.Start(guest.Config{Port: card.Link(id), MAC: r.MAC, Name: "guest"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { one.Close() })
		guests = append(guests, one)
		if id == untagged && r.ResponderTap != "" {
			if _, err := one.Configure(ctx, guest.Families{IPv4: true, IPv6: true}); err != nil {
				t.Errorf("the guest is not configured: %v", err)
			}
		} else {
			for _, a := range vlanAddresses(id, trunkGuestHost) {
				if err := one.AddAddress(a); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := one.ListenTCP(Port); err != nil {
			t.Fatal(err)
		}
		g.dial[id] = one.DialTCP
	}
	g.end = func() {
		for _, one := range guests {
			one.Close()
		}
		card.Close()
	}
	return g
}

// newLinuxTrunk is a namespace in the guest's place, with the kernel's VLAN links on its device.
func newLinuxTrunk(t *testing.T, n nstest.Network, r cache.Record) trunkGuest {
	t.Helper()
	g := n.Guest(t, r)
	g.IP(fmt.Sprintf("link set eth0 mtu %d up", r.MTU))
	d := trunkGuest{dial: map[uint16]dialer{}, end: func() {}}
	for _, id := range trunkVLANs {
		link := "eth0"
		if id != untagged {
			link = fmt.Sprint("eth0.", id)
			g.IP(fmt.Sprintf("link add link eth0 name %s type vlan id %d", link, id))
			g.IP("link set " + link + " up")
		}
		own := vlanAddresses(id, trunkGuestHost)
		for _, a := range own {
			addAddresses(g, link, a.String())
		}
		d.dial[id] = Station{"guest", g, own[0].Addr(), own[1].Addr()}.dial
	}
	g.Listen("guest", fmt.Sprint(":", Port))
	return d
}

// checkTalks: guest and station of the VLAN connect to each other, and see each other's addresses.
func (l *trunkInstance) checkTalks(t *testing.T, g trunkGuest, id uint16) {
	t.Helper()
	own, far := vlanAddresses(id, trunkGuestHost), vlanAddresses(id, trunkStation)
	for i := range own {
		checkTalk(t, g.dial[id], netip.AddrPortFrom(far[i].Addr(), stationPort), fmt.Sprintf("%s sees %v", stationName(id), own[i].Addr()))
		station := Station{Namespace: l.stations[id], IPv4: far[0].Addr(), IPv6: far[1].Addr()}
		checkTalk(t, station.dial, netip.AddrPortFrom(own[i].Addr(), Port), fmt.Sprintf("guest sees %v", far[i].Addr()))
	}
}

// checkSilent: guest and station of the VLAN receive nothing of each other.
func (l *trunkInstance) checkSilent(t *testing.T, g trunkGuest, id uint16) {
	t.Helper()
	n, there := l.stations[id]
	if !there {
		return // the network has no such VLAN
	}
	var trying sync.WaitGroup
	defer trying.Wait()
	own, far := vlanAddresses(id, trunkGuestHost), vlanAddresses(id, trunkStation)
	try := func(dial dialer, to netip.AddrPort) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c, err := dial(ctx, to)
		if err == nil {
			c.Close()
			t.Errorf("VLAN %d: a connection to %v", id, to)
		} else if ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) && !strings.Contains(err.Error(), "no route to host") && !strings.Contains(err.Error(), "host is unreachable") {
			t.Errorf("VLAN %d: %v", id, err)
		}
	}
	station := Station{Namespace: n, IPv4: far[0].Addr(), IPv6: far[1].Addr()}
	for i := range own {
		trying.Go(func() { try(g.dial[id], netip.AddrPortFrom(far[i].Addr(), stationPort)) })
		trying.Go(func() { try(station.dial, netip.AddrPortFrom(own[i].Addr(), Port)) })
	}
}

// ping pings the guest from the VLAN's station with packets of so many octets of IP, and does not let them be
// fragmented.
func (l *trunkInstance) ping(id uint16, octets int, more ...string) (string, error) {
	args := append([]string{"ping", "-n", "-M", "do", "-W", "1", "-s", fmt.Sprint(octets - 28)}, more...)
	cmd := exec.Command("ip", slices.Concat([]string{"netns", "exec", l.stations[id].Name}, args, []string{vlanAddresses(id, trunkGuestHost)[0].Addr().String()})...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// checkWhole: packets of the MTU pass in both directions, and longer ones do not come to the guest. The tag adds to a
// frame and not to what the MTU counts.
func (l *trunkInstance) checkWhole(t *testing.T, id uint16, mtu int) {
	t.Helper()
	nstest.Eventually(t, func() error {
		if out, err := l.ping(id, mtu, "-c", "1"); err != nil {
			return fmt.Errorf("VLAN %d, %d octets: %w\n%s", id, mtu, err, out)
		}
		return nil
	})
	if out, err := l.ping(id, mtu+1, "-c", "1"); err == nil {
		t.Errorf("VLAN %d: %d octets come to the guest and back\n%s", id, mtu+1, out)
	}
}

// received is what the stack of the namespace has received from others: packets of IPv4, and the neighbours that it
// noted.
func (l *trunkInstance) received() string {
	snmp := l.pod.Exec("cat", "/proc/net/snmp")
	for line := range strings.Lines(snmp) {
		if fields := strings.Fields(line); fields[0] == "Ip:" && fields[3] != "InReceives" {
			snmp = fields[3]
			break
		}
	}
	return fmt.Sprintf("%s packets; %s", snmp, l.pod.IP("neigh show"))
}

func (l *trunkInstance) checkDropped(ctx context.Context, t *testing.T, c wired.NIC, reason string) {
	t.Helper()
	counters, err := c.Counters(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(counters.Drops, func(d phase1.Count) bool { return d.Reason == reason && d.Packets > 0 }) {
		t.Errorf("nothing was dropped for the reason %s: %+v", reason, counters.Drops)
	}
}
