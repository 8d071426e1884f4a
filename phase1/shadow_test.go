package phase1_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

const tcpACK = 16

// get reports whether the guest gets a frame with the text before the answer to a ping of the host, which has the same
// way as what the guest has sent before.
func (w *wire) get(text []byte, host netip.Addr) bool {
	w.t.Helper()
	frame := make([]byte, 1<<16)
	reply, at := byte(0), 34 // the type of an echo reply, and its offset
	if host.Is6() {
		reply, at = 129, 54
	}
	end := time.Now().Add(patience)
	for {
		w.sentinels++
		w.write(w.link.Ping(w.guestAddress(host), host, w.sentinels))
		if err := w.port.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			w.t.Fatal(err)
		}
		for {
			size, err := w.port.Read(frame)
			if err != nil && time.Now().Before(end) {
				break // the echo request was lost: ask again
			}
			if err != nil {
				w.t.Fatalf("no echo reply: %v", err)
			}
			if bytes.Contains(frame[:size], text) {
				return true
			}
			if bytes.Contains(frame[:size], frames.SentinelData(w.sentinels)) && frame[at] == reply {
				return false
			}
		}
	}
}

// guestAddress is the guest's of the family of another address.
func (w *wire) guestAddress(like netip.Addr) netip.Addr {
	if like.Is4() {
		return w.link.IPv4
	}
	return w.link.IPv6
}

// write has the guest send frames.
func (w *wire) write(list ...[]byte) {
	w.t.Helper()
	for _, f := range list {
		if _, err := w.port.Write(f); err != nil {
			w.t.Fatal(err)
		}
	}
}

// in calls f in the namespace, and fails the test if f does.
func in(t *testing.T, n *nstest.Namespace, f func() error) {
	t.Helper()
	if err := netns.Do(n.File, f); err != nil {
		t.Fatal(err)
	}
}

// TestShadowedConnection has a guest that sends from all ports that an older TCP connection of the namespace can have,
// to that one's peer. Connection tracking does not know the connection yet, and takes the guest's segment for its first
// one. What the peer says goes to the namespace all the same, whether the namespace has opened the connection or
// accepted it.
func TestShadowedConnection(t *testing.T) {
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		if firewall == cache.FirewallNFTables {
			nstest.KernelDecides(t, "source ports of a masquerade")
		}
		n := nstest.NewNetwork(t)
		type standing struct {
			name         string
			server, peer net.Conn
		}
		var all []standing
		for _, version := range []struct{ world, pod netip.Addr }{{nstest.Beyond4, nstest.Pod4}, {nstest.Beyond6, nstest.Pod6}} {
			for _, c := range []struct {
				name               string
				at                 netip.AddrPort
				listening, dialing *nstest.Namespace
			}{
				{"opened by the namespace", netip.AddrPortFrom(version.world, 4000), n.World, n.Pod},
				{"accepted by the namespace", netip.AddrPortFrom(version.pod, 4022), n.Pod, n.World},
			} {
				var l net.Listener
				var ends [2]net.Conn
				in(t, c.listening, func() (err error) {
					l, err = net.Listen("tcp", c.at.String())
					return err
				})
				in(t, c.dialing, func() (err error) {
					ends[0], err = net.Dial("tcp", c.at.String())
					return err
				})
				var err error
				if ends[1], err = l.Accept(); err != nil {
					t.Fatal(err)
				}
				l.Close()
				for _, e := range ends {
					t.Cleanup(func() { e.Close() })
				}
				one := standing{c.name + ", " + c.at.String(), ends[0], ends[1]}
				if c.dialing == n.World {
					one.server, one.peer = ends[1], ends[0]
				}
				all = append(all, one)
			}
		}
		setup(t, config(n, infra.Masquerade{Firewall: firewall}))
		w := attachDeaf(t, n, true, true)
		for i, c := range all {
			from, to := c.server.LocalAddr().(*net.TCPAddr).AddrPort(), c.server.RemoteAddr().(*net.TCPAddr).AddrPort()
			// The guest does not know the port. One that the kernel chooses is found among these.
			own := w.guestAddress(to.Addr())
			w.write(w.link.Packet(unix.IPPROTO_TCP, own, to.Addr(), frames.Segment(from.Port(), to.Port(), tcpACK, nil)))
			w.get([]byte("nothing"), to.Addr())
			secret := fmt.Appendf(nil, "what the peer says %d", i)
			if _, err := c.peer.Write(secret); err != nil {
				t.Fatal(err)
			}
			if err := c.server.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(secret))
			if w.get(secret, to.Addr()) {
				t.Errorf("%s: the guest gets what the peer says", c.name)
				continue
			}
			if _, err := c.server.Read(got); err != nil || !bytes.Equal(got, secret) {
				t.Errorf("%s: the namespace gets %q, %v", c.name, got, err)
			}
		}
	})
}

// TestPortShadowing has a guest that sends from the port of a service of the namespace to a client's port, so that the
// client's next packets would be answers to the guest. They reach the service.
func TestPortShadowing(t *testing.T) {
	nstest.Long(t)
	// A port that the kernel gives to clients, one above these, and a low one.
	ports := []uint16{53, 8080, 40000, 62000}
	excluded := make([]infra.Ports, 0, 2*len(ports))
	for _, p := range ports {
		for _, protocol := range []string{"tcp", "udp"} {
			excluded = append(excluded, infra.Ports{Protocol: protocol, First: p})
		}
	}
	for _, c := range []struct {
		name      string
		binding   infra.Masquerade
		guard     infra.Guard
		before    bool // the services are there before Setup
		ephemeral string
	}{
		{name: "other ports are forwarded", binding: infra.Masquerade{Ports: each("9000-9010")}, before: true},
		{name: "no port is forwarded", binding: infra.Masquerade{Ports: []infra.Ports{}, Loopback: true}, before: true},
		{name: "these ports are excluded", binding: infra.Masquerade{Excluded: excluded}},
		{name: "proxies take the network's packets", binding: infra.Masquerade{Excluded: excluded, Sidecar: &infra.Sidecar{}}},
		{name: "the guest may reach these ports", binding: infra.Masquerade{Ports: each("9000-9010")}, guard: infra.Guard{Open: excluded}},
		{name: "the kernel gives all ports to clients", binding: infra.Masquerade{Excluded: excluded}, ephemeral: "1024 65535", before: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
				n := nstest.NewNetwork(t)
				if c.ephemeral != "" {
					n.Pod.Exec("sysctl", "-qw", "net.ipv4.ip_local_port_range="+c.ephemeral)
				}
				b := c.binding
				b.Firewall = firewall
				config := config(n, b)
				config.Guard = c.guard
				serve := func() {
					for _, p := range ports {
						at := []netip.AddrPort{netip.AddrPortFrom(nstest.Pod4, p), netip.AddrPortFrom(nstest.Pod6, p)}
						n.Pod.Serve("namespace", "udp", at...)
						n.Pod.Serve("namespace", "tcp", at...)
					}
				}
				if c.before {
					serve()
				}
				setup(t, config)
				if !c.before {
					serve()
				}
				w := attachDeaf(t, n, true, true)
				// The client's host does not know the guest's connection, and says nothing.
				n.World.Exec("nft", "add table inet quiet; add chain inet quiet output { type filter hook output priority 0; tcp flags & rst == rst drop; }")
				client, faults := uint16(5000), 0
				for _, version := range []struct{ world, pod netip.Addr }{{nstest.Gateway4, nstest.Pod4}, {nstest.Gateway6, nstest.Pod6}} {
					w.get([]byte("nothing"), version.world)
					for _, service := range ports {
						for _, protocol := range []string{"udp", "tcp"} {
							client++
							own := w.guestAddress(version.world)
							if protocol == "udp" {
								w.write(w.link.Packet(unix.IPPROTO_UDP, own, version.world, frames.Datagram(service, client, []byte("shadow"))))
							} else {
								w.write(w.link.Packet(unix.IPPROTO_TCP, own, version.world, frames.Segment(service, client, 2, nil)))
							}
							answer := askFrom(t, n.World, protocol, netip.AddrPortFrom(version.world, client), netip.AddrPortFrom(version.pod, service))
							if !strings.HasPrefix(answer, fmt.Sprintf("namespace:%d sees", service)) {
								t.Errorf("%s from %v port %d: %q", protocol, version.world, service, answer)
								if faults++; faults == enough {
									t.Fatal("the rest is not asked any more")
								}
							}
						}
					}
				}
			})
		})
	}
}

// askFrom asks from a port of its own, and returns the answer or the error's text.
func askFrom(t *testing.T, n *nstest.Namespace, protocol string, from, to netip.AddrPort) string {
	t.Helper()
	var c net.Conn
	var err error
	in(t, n, func() error {
		d := net.Dialer{Timeout: 3 * time.Second}
		if protocol == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(from)
		} else {
			d.LocalAddr = net.TCPAddrFromAddrPort(from)
		}
		c, err = d.Dial(protocol, to.String())
		return nil
	})
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if protocol == "udp" {
		if _, err := c.Write(make([]byte, 100)); err != nil {
			return err.Error()
		}
	}
	b := make([]byte, 200)
	size, err := c.Read(b)
	if err != nil && !os.IsTimeout(err) {
		return err.Error()
	}
	return strings.TrimSpace(string(b[:size]))
}
