package podnet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// TestProjectNumber: the project of a guest's pod gets another number while the guest runs. A pod with a number that no
// flow allows is isolated. Once the controller has allowed the number, open connections go on, and new ones come up, in
// both directions, on the node and to the other one.
func TestProjectNumber(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	nstest.NeedTaps(t)
	l, node := createSDN(t)
	l.listen()
	w := l.mustSetup(t.Context(), t, infra.Redirect{})
	g := w.bootAnswering(t.Context(), t)
	others := l.Stations[1:3] // on this node, and on the other one
	own := netip.AddrPortFrom(l.IPv4, Port)
	open := map[string]net.Conn{}
	for _, s := range others {
		for way, dial := range map[string]func(context.Context) (net.Conn, error){
			"to " + s.Name: func(ctx context.Context) (net.Conn, error) {
				return g.DialTCP(ctx, netip.AddrPortFrom(s.IPv4, stationPort))
			},
			"from " + s.Name: func(ctx context.Context) (net.Conn, error) { return s.dial(ctx, own) },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			c, err := dial(ctx)
			cancel()
			if err == nil {
				defer c.Close()
				_, err = nstest.Answer(c)
			}
			if err != nil {
				t.Fatalf("%s: %v", way, err)
			}
			open[way] = c
		}
	}

	node.updatePod(node.ports[0], l.IPv4.String(), 43)
	if answer, err := answerAt(t, others[0].dial, own, impatience); err == nil {
		t.Errorf("the peer asks a pod whose project has no flow: %q; want no answer", answer)
	}
	node.allowProject(43)
	for way, c := range open {
		err := c.SetDeadline(time.Now().Add(patience))
		if err == nil {
			_, err = c.Write([]byte("on"))
		}
		back := make([]byte, 2)
		if err == nil {
			_, err = io.ReadFull(c, back)
		}
		if err != nil || string(back) != "on" {
			t.Errorf("the open connection %s: %q, %v", way, back, err)
		}
	}
	for _, s := range others {
		checkTalk(t, g.DialTCP, netip.AddrPortFrom(s.IPv4, stationPort), s.Name+" sees "+l.IPv4.String())
		checkTalk(t, s.dial, own, "guest sees "+s.IPv4.String())
	}
	w.end(t.Context(), t)
}

// TestMacvlanBeside: beside its NIC at the switch, a pod of OpenShift SDN can have a macvlan of a node's link, without
// addresses (the annotation assign-macvlan). A guest has both, and uses an address of its own on the macvlan's network.
func TestMacvlanBeside(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	nstest.NeedTaps(t)
	l, node := createSDN(t)
	lan := Station{Name: "lan", Namespace: nstest.New(t, "lan"), IPv4: addr("192.0.2.50")}
	connectNamespaces(node.node, "lan0", lan.Namespace, "eth0")
	addAddresses(lan.Namespace, "eth0", lan.IPv4.String()+"/24")
	node.node.IP("link add macvlan0 link lan0 type macvlan mode private")
	node.node.IP("link set macvlan0 netns " + l.Pod.Name)
	l.Pod.IP("link set macvlan0 up")
	l.Pod.Settle("macvlan0")
	l.Stations = append(l.Stations[1:3], lan)
	l.listen()
	before := l.Pod.Settled()

	n := nstest.Network{Pod: l.Pod, State: nstest.Dir(t)}
	var wirings []wired.NIC
	wire := func(nic string) cache.Record {
		c := wired.NIC{NIC: phase1.NIC{NetNS: l.Pod.File, Name: nic}, Spec: infra.Spec{Binding: infra.Redirect{}, State: n.State, Owner: nstest.Owner()}}
		r, err := c.Setup(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wirings = append(wirings, c)
		return r
	}
	r := wire("eth0")
	g := n.Guest(t, r)
	configureStatic(g, "eth0", r)
	n.Attach(t, g, "eth1", wire("macvlan0"))
	g.IP("link set eth1 up")
	addAddresses(g, "eth1", "192.0.2.7/24")
	g.Listen("guest", fmt.Sprintf(":%d", Port))
	for _, s := range l.Stations {
		own := l.IPv4
		if s.Name == lan.Name {
			own = addr("192.0.2.7")
		}
		checkTalk(t, Station{Namespace: g}.dial, netip.AddrPortFrom(s.IPv4, stationPort), s.Name+" sees "+own.String())
		checkTalk(t, s.dial, netip.AddrPortFrom(own, Port), "guest sees "+s.IPv4.String())
	}
	var errs []error
	for _, c := range wirings {
		c.Down.CutOff = true // the guest lasts as long as the test
		errs = append(errs, c.Teardown(t.Context()))
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	l.checkRestored(t, n.State, before)
}

// TestPolicing: OpenShift SDN has Open vSwitch limit what a pod sends, by policing at its port, and what the pod
// receives, by HTB. A guest in the pod is limited as a process was, in both directions, and not once the limits are
// off. A datapath in user space receives a frame before the kernel polices it, so the switch is the kernel's. The SDN
// leaves the burst at 8000 kbit.
//
// github.com/openshift/sdn: pkg/network/node/ovscontroller.go, SetPodBandwidth
func TestPolicing(t *testing.T) {
	t.Parallel()
	nstest.KernelDecides(t, "the switch and its limits are modules")
	nstest.Need(t, "tc")
	nstest.NeedTaps(t)
	if _, err := netlink.GenlFamilyGet("ovs_datapath"); errors.Is(err, fs.ErrNotExist) {
		nstest.LeaveOut(t, "this kernel has no Open vSwitch")
	}
	peer := Station{Name: "peer", Namespace: nstest.New(t, "peer"), IPv4: addr("10.128.0.6")}
	l := &Instance{Pod: nstest.New(t, "pod"), NIC: "eth0", IPv4: addr("10.128.0.5"), Stations: []Station{peer}}
	// Open vSwitch 3.1 counts no CPUs in the first ten seconds of a kernel. Started then, it gets no packet from the
	// kernel's switch.
	nstest.Eventually(t, func() error {
		var now unix.Timespec
		err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
		if err == nil && now.Sec < 10 {
			err = fmt.Errorf("the kernel is up for %d s", now.Sec)
		}
		return err
	})
	v := startOVS(t, nstest.New(t, "node"), false)
	v.vsctl("add-br br0")
	for port, s := range map[string]Station{"vethpod": {Namespace: l.Pod, IPv4: l.IPv4}, "vethpeer": peer} {
		connectNamespaces(s.Namespace, "eth0", v.node, port)
		addAddresses(s.Namespace, "eth0", s.IPv4.String()+"/23")
		v.vsctl("add-port br0 " + port)
	}
	t.Run(processName, func(t *testing.T) { v.checkPolicing(t, l, Station{Name: processName, Namespace: l.Pod, IPv4: l.IPv4}) })
	for _, b := range bindings {
		t.Run(string(b.Kind()), func(t *testing.T) {
			w := l.mustSetup(t.Context(), t, b)
			v.checkPolicing(t, l, hostOf(t, w.boot(t.Context(), t)).Station)
			w.end(t.Context(), t)
		})
	}
}

// checkPolicing checks how much passes in each direction between the peer and who has the pod's network. The rates are
// so small that time does not count: 125 octets/s after a burst of 10000 from the pod, and 100 octets/s to it.
func (v *vswitch) checkPolicing(t *testing.T, l *Instance, own Station) {
	t.Helper()
	peer := l.Stations[0]
	floods := map[string]flood{"sends": openFlood(t, own, peer, peer.IPv4), "receives": openFlood(t, peer, own, l.IPv4)}
	for way, f := range floods {
		f.received(t) // neighbours and flows are known from now on
		f.send(t)
		if n := f.received(t); n != flooding {
			t.Errorf("without limits %s %s %d datagrams of %d", own.Name, way, n, flooding)
		}
	}
	v.vsctl("set interface vethpod ingress_policing_rate=1 ingress_policing_burst=80",
		"--id=@limit create qos type=linux-htb other_config:max-rate=800", "set port vethpod qos=@limit")
	for _, f := range floods {
		f.send(t)
	}
	// Before the limits go, all must have come to them. HTB drops then what still waits.
	nstest.Eventually(t, func() error {
		var list []struct {
			Kind          string
			Packets, Qlen int
		}
		err := json.Unmarshal([]byte(v.node.Exec("tc", "-s", "-j", "qdisc", "show", "dev", "vethpod")), &list)
		come := map[string]int{}
		for _, q := range list {
			come[q.Kind] += q.Packets + q.Qlen
		}
		if come["ingress"] < flooding || come["htb"] < flooding {
			err = errors.Join(err, fmt.Errorf("the datagrams have not come to the limits: %v", come))
		}
		return err
	})
	v.vsctl("set interface vethpod ingress_policing_rate=0 ingress_policing_burst=0", "clear port vethpod qos", "--all destroy qos")
	for way, f := range floods {
		if n := f.received(t); n == 0 || n > flooding/2 {
			t.Errorf("with limits %s %s %d datagrams of %d", own.Name, way, n, flooding)
		}
	}
}

// flooding is the number of a flood's datagrams, and floodSize their size.
const flooding, floodSize = 50, 1000

// flood is UDP in one direction.
type flood struct{ from, to net.Conn }

// openFlood opens the sockets until the test ends. The receiver is reached at the address.
func openFlood(t *testing.T, from, to Station, at netip.Addr) (f flood) {
	t.Helper()
	err := netns.Do(to.Namespace.File, func() (err error) {
		f.to, err = net.ListenUDP("udp4", &net.UDPAddr{Port: groupPort})
		return err
	})
	if err == nil {
		t.Cleanup(func() { f.to.Close() })
		f.from, err = host{Station: from}.dialUDP(netip.AddrPortFrom(at, groupPort))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.from.Close() })
	return f
}

func (f flood) send(t *testing.T) {
	t.Helper()
	for range flooding {
		if _, err := f.from.Write(make([]byte, floodSize)); err != nil {
			t.Fatal(err)
		}
	}
}

// received returns how many datagrams of the flood came, once all did, or one that is sent when no more come.
func (f flood) received(t *testing.T) (n int) {
	t.Helper()
	last, b := datagram(minDatagram), make([]byte, floodSize)
	nstest.Eventually(t, func() error {
		for {
			err := f.to.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			var size int
			if err == nil {
				size, err = f.to.Read(b)
			}
			if err != nil {
				_, sending := f.from.Write(last)
				return errors.Join(err, sending)
			}
			if size == floodSize {
				n++
			}
			if n == flooding || bytes.Equal(b[:size], last) {
				return nil
			}
		}
	})
	return n
}
