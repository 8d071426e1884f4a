package podnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// TestSDN: a process reaches all stations of OpenShift SDN also by the services' addresses, and is reached by its own
// service and the hostport. Multicast of pods on both nodes comes to the pod.
func TestSDN(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	l, _ := createSDN(t)
	for q, answer := range l.ready(t).askProcess(t, tcp) {
		if answer == "" {
			t.Errorf("%s does not reach %s at %v", q.from, q.to, q.at)
		}
	}
	at := l.Pod.Sniff(t)
	for i, s := range l.Stations[1:3] {
		group := frames.Link{MAC: macAt(t, s.Namespace), Gateway: cache.MAC{0x01, 0, 0x5e, 1, 2, 3}, Far4: addr("239.1.2.3")}
		frame := group.Sentinel(s.IPv4, i)
		came := func(f nstest.Sniffed) bool { return bytes.Equal(f.Frame, frame) }
		at.Until(came, func() { s.Namespace.Send(t, "eth0", frame) })
	}
}

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
