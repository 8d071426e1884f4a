package phase1_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestGuardWire: the EtherTypes and VLANs of the guard pass unchanged in both directions, and no others. Frames with a
// priority tag have to pass the filter as those without a tag have.
func TestGuardWire(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		for _, c := range []struct {
			name      string
			addresses bool
			options   cache.Options
		}{
			{"no addresses", false, cache.Options{}},
			{"served", true, cache.Options{}},
			{"not served", true, cache.Options{NoResponder: true}},
		} {
			t.Run(string(b.Kind())+", "+c.name, func(t *testing.T) {
				if b.Kind() == "bridge" && c.name == "served" {
					nstest.KernelDecides(t, "VLAN tags as that kernel's rules read them")
				}
				n := nstest.NewNetwork(t)
				if !c.addresses {
					n.Pod.IP("-6 route flush dev eth0")
					n.Pod.IP("addr flush dev eth0")
				}
				config := config(n, b)
				config.Options = c.options
				setup(t, config)
				config.Guard.EtherTypes, config.Guard.VLANs = []infra.EtherType{0x8863, 0x8864, 0x88cc}, []uint16{0, 5}
				setup(t, config) // the guard changes under a guest
				w := attach(t, n, true, true)
				if w.link.Served != (c.name == "served") {
					t.Fatalf("served: %v", w.link.Served)
				}
				passing, hostile := w.framesOfWire()
				w.legitimate(passing)
				for _, name := range w.hostile(hostile) {
					t.Errorf("leaked: %s", name)
				}
				for i, k := range w.framesToWire() {
					// A guest that is not served receives everything without a tag, and the guard's VLANs.
					wanted := k.Reason == "" || !w.link.Served && !(k.Reason == firewall.NetworkFrame && isTagged(k.Frames[0]))
					before := w.dropped()
					came := arrives(t, w, k.Frames, i)
					for again := 0; came != wanted && wanted && again < 3; again++ { // a busy machine loses frames
						came = arrives(t, w, k.Frames, i)
					}
					want := ""
					if !wanted {
						want = fmt.Sprintf("%s %d", k.Reason, len(k.Frames))
					}
					if have := more(before, w.dropped()); came != wanted || have != want {
						t.Errorf("to the guest: %s: came %v, dropped %q; want %v, %q", k.Name, came, have, wanted, want)
					}
				}
				check(t, config)

				config.Guard.EtherTypes, config.Guard.VLANs = nil, nil
				setup(t, config)
				w.send() // Setup has asked for the gateway's MAC
				for _, k := range passing {
					if world, _ := w.send(k.Frames...); len(world) > 0 {
						t.Errorf("leaked with a strict guard: %s", k.Name)
					}
				}
			})
		}
	}
}

// TestPriorityTags: what tc gives to the responder, the guest filter gives it from a frame with a priority tag. A frame
// of another VLAN goes to the network.
func TestPriorityTags(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			n.Pod.IP("-4 addr flush dev eth0")
			n.Pod.IP("addr add 10.244.1.7/32 dev eth0") // so the responder answers for the gateway
			n.Pod.IP("route add 10.244.1.1 dev eth0 scope link")
			n.Pod.IP("route add default via 10.244.1.1")
			c := config(n, b)
			c.Guard.VLANs = []uint16{0, 5}
			setup(t, c)
			check(t, c)
			w := attach(t, n, true, true)
			r, local := record(t, n), eui64.LinkLocal(w.link.MAC)
			asked := map[string][]byte{
				"DHCPv4":               w.link.Packet(unix.IPPROTO_UDP, netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255"), frames.Datagram(68, 67, make([]byte, 250))),
				"DHCPv4 to its server": w.link.Packet(unix.IPPROTO_UDP, r.IPv4.Address.Addr(), r.IPv4.Server, frames.Datagram(68, 67, make([]byte, 250))),
				"DHCPv6":               w.link.Packet(unix.IPPROTO_UDP, local, firewall.AllDHCP6, frames.Datagram(546, 547, make([]byte, 20))),
				"router solicitation":  w.link.Packet(unix.IPPROTO_ICMPV6, local, netip.MustParseAddr("ff02::2"), []byte{133, 0, 0, 0, 0, 0, 0, 0}),
			}
			for _, neighbour := range r.Neighbours {
				q := frame.AppendSolicitation(nil, w.link.MAC, local, neighbour.Address)
				if neighbour.Address.Is4() {
					q = frame.ARP{Operation: frame.ARPRequest, SenderMAC: w.link.MAC, Sender: r.IPv4.Address.Addr(), Target: neighbour.Address}.
						Append(frame.AppendEthernet(nil, frame.Broadcast, w.link.MAC, frame.TypeARP))
				}
				asked["for the MAC of "+neighbour.Address.String()] = q
			}
			if len(r.Neighbours) == 0 {
				t.Error("the responder answers for no neighbour")
			}
			responder := openPort(t, n, "eth0-dhcp")
			for name, q := range asked {
				for _, tag := range [][]uint16{nil, {0x8100, 0}, {0x8100, 0xe000}} {
					f := tagged(q, tag...)
					if world, pod := w.send(f); len(world)+len(pod) > 0 {
						t.Errorf("%s with the tag %#x leaves", name, tag)
					}
					readFrame(t, responder, name, f)
				}
				f := tagged(q, 0x8100, 5)
				if world, _ := w.send(f); !slices.ContainsFunc(world, func(s nstest.Sniffed) bool { return bytes.Equal(s.Frame, f) }) {
					t.Errorf("%s of VLAN 5 does not leave", name)
				}
			}
			if have := more(map[string]int{}, w.dropped()); have != "" {
				t.Errorf("dropped %s", have)
			}
		})
	}
}

// readFrame wants the frame to come to the port, whatever else does.
func readFrame(t *testing.T, port *os.File, name string, want []byte) {
	t.Helper()
	have := make([]byte, 1<<11)
	if err := port.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for {
		size, err := port.Read(have)
		if err != nil {
			t.Errorf("%s, %x: %v", name, want[12:16], err)
			return
		}
		if bytes.Equal(have[:size], want) {
			return
		}
	}
}

// raw is a frame of a protocol that no filter looks into.
func raw(to, from cache.MAC, kind uint16) []byte {
	return append(binary.BigEndian.AppendUint16(slices.Concat(to[:], from[:]), kind), bytes.Repeat([]byte{0x5a}, 60)...)
}

// tagged adds VLAN tags, the outermost first: EtherType and control information of each.
func tagged(frame []byte, tags ...uint16) []byte {
	var b []byte
	for _, word := range tags {
		b = binary.BigEndian.AppendUint16(b, word)
	}
	return slices.Insert(slices.Clone(frame), 12, b...)
}

// isTagged reports whether the frame has a VLAN tag.
func isTagged(frame []byte) bool {
	kind := binary.BigEndian.Uint16(frame[12:])
	return kind == 0x8100 || kind == 0x88a8
}

// first returns the first frame of the first kind for which is holds.
func first(t *testing.T, kinds []frames.Kind, is func(frames.Kind) bool) []byte {
	t.Helper()
	at := slices.IndexFunc(kinds, is)
	if at < 0 {
		t.Fatal("no such kind of frame")
	}
	return kinds[at].Frames[0]
}

// framesOfWire returns what passes with the guard of TestGuardWire, and what does not.
func (w *wire) framesOfWire() (passing, hostile []frames.Kind) {
	w.t.Helper()
	own, all, other := w.link.MAC, cache.MAC{255, 255, 255, 255, 255, 255}, cache.MAC{2, 0, 0, 0, 0, 0x99}
	legitimate, bad := frames.Legitimate(w.link), frames.Hostile(w.link)
	because := func(r firewall.Reason) func(frames.Kind) bool {
		return func(k frames.Kind) bool { return k.Reason == r }
	}
	datagram := first(w.t, legitimate, func(k frames.Kind) bool { return k.Version == 4 && k.Forwarded })
	datagram6 := first(w.t, legitimate, func(k frames.Kind) bool { return k.Version == 6 && k.Forwarded })
	arp := first(w.t, legitimate, func(k frames.Kind) bool { return bytes.Equal(k.Frames[0][12:14], []byte{8, 6}) })
	advertisement, offer := first(w.t, bad, because(firewall.RouterAdvertisement)), first(w.t, bad, because(firewall.DHCPServer))
	loopback := first(w.t, bad, because(firewall.LoopbackAddress))
	pass := func(name string, f []byte) {
		passing = append(passing, frames.Kind{Name: name, Frames: [][]byte{f}})
	}
	drop := func(reason firewall.Reason, name string, f []byte) {
		hostile = append(hostile, frames.Kind{Name: name, Frames: [][]byte{f}, Reason: reason})
	}
	pass("PPPoE discovery", raw(all, own, 0x8863))
	pass("PPPoE session", raw(w.router, own, 0x8864))
	pass("LLDP to a station", raw(w.router, own, 0x88cc))
	for _, f := range []struct {
		name  string
		frame []byte
	}{
		{"IPv4", datagram}, {"IPv6", datagram6}, {"ARP", arp}, {"PPPoE", raw(all, own, 0x8863)}, {"an EtherType", raw(all, own, 0x88b5)},
		{"a router advertisement", advertisement}, {"a DHCP offer", offer},
	} {
		pass(f.name+" in VLAN 5", tagged(f.frame, 0x8100, 5))
		pass(f.name+" in VLAN 5, with a priority", tagged(f.frame, 0x8100, 0xf005))
		drop(firewall.VLANTag, f.name+" in VLAN 6", tagged(f.frame, 0x8100, 6))
		drop(firewall.VLANTag, f.name+" in VLAN 4, with a priority", tagged(f.frame, 0x8100, 0xf004))
		drop(firewall.VLANTag, f.name+" in VLAN 261", tagged(f.frame, 0x8100, 0x105))
		for _, inner := range []uint16{0x8100, 0x88a8, 0x9100, 0x9200, 0x9300} {
			drop(firewall.VLANTag, fmt.Sprintf("%s in VLAN 5 with an inner tag %#04x", f.name, inner), tagged(f.frame, 0x8100, 5, inner, 6))
			drop(firewall.VLANTag, fmt.Sprintf("%s in VLAN 5 with an inner tag %#04x of VLAN 5", f.name, inner), tagged(f.frame, 0x8100, 5, inner, 5))
			drop(firewall.VLANTag, fmt.Sprintf("%s with a priority tag and an inner tag %#04x", f.name, inner), tagged(f.frame, 0x8100, 0, inner, 5))
		}
		drop(firewall.VLANTag, f.name+" in the outer VLAN 5", tagged(f.frame, 0x88a8, 5))
		drop(firewall.VLANTag, f.name+" in the outer VLAN 5, and in VLAN 5", tagged(f.frame, 0x88a8, 5, 0x8100, 5))
		drop(firewall.EtherTypeOther, f.name+" in VLAN 5 of 0x9100", tagged(f.frame, 0x9100, 5))
	}
	pass("IPv4 with a priority", tagged(datagram, 0x8100, 0xe000))
	pass("IPv6 with a priority", tagged(datagram6, 0x8100, 0xe000))
	pass("ARP with a priority", tagged(arp, 0x8100, 0))
	pass("PPPoE with a priority", tagged(raw(all, own, 0x8863), 0x8100, 0))
	drop(firewall.RouterAdvertisement, "router advertisement with a priority", tagged(advertisement, 0x8100, 0))
	drop(firewall.DHCPServer, "DHCP offer with a priority", tagged(offer, 0x8100, 0xe000))
	drop(firewall.LoopbackAddress, "loopback address with a priority", tagged(loopback, 0x8100, 0))
	drop(firewall.VLANTag, "an EtherType with a priority", tagged(raw(all, own, 0x88b5), 0x8100, 0))
	drop(firewall.EtherTypeOther, "an EtherType", raw(all, own, 0x88b5))
	drop(firewall.EtherTypeOther, "a length", raw(all, own, 60))
	drop(firewall.BridgeControl, "LLDP to bridges", raw(cache.MAC{1, 0x80, 0xc2, 0, 0, 0x0e}, own, 0x88cc))
	drop(firewall.BridgeControl, "spanning tree in VLAN 5", tagged(raw(cache.MAC{1, 0x80, 0xc2, 0, 0, 0}, own, 0x88cc), 0x8100, 5))
	drop(firewall.MACSpoof, "PPPoE of another station", raw(all, other, 0x8863))
	drop(firewall.MACSpoof, "VLAN 5 of another station", tagged(raw(all, other, 0x8863), 0x8100, 5))
	return passing, hostile
}

// framesToWire returns what the network sends to the guest of TestGuardWire. Kinds with a reason are dropped for a
// guest that is served.
func (w *wire) framesToWire() (kinds []frames.Kind) {
	w.t.Helper()
	add := func(reason firewall.Reason, name string, f []byte) {
		kinds = append(kinds, frames.Kind{Name: name, Frames: [][]byte{f}, Reason: reason})
	}
	outer := frames.Outer(w.link)
	advertisement := first(w.t, outer, func(k frames.Kind) bool { return k.Reason == firewall.NetworkRouter })
	offer := first(w.t, outer, func(k frames.Kind) bool { return k.Reason == firewall.NetworkDHCP })
	datagram := w.link.FromGateway().Sentinel(w.link.Gateway4, 1<<20)
	add("", "PPPoE discovery", raw(w.link.MAC, w.router, 0x8863))
	add("", "PPPoE session", raw(w.link.MAC, w.router, 0x8864))
	add("", "IPv4 in VLAN 5", tagged(datagram, 0x8100, 5))
	add("", "an EtherType in VLAN 5, with a priority", tagged(raw(w.link.MAC, w.router, 0x88b5), 0x8100, 0xe005))
	add("", "DHCP offer in VLAN 5", tagged(offer, 0x8100, 5)) // the responder serves the guest without a tag
	add("", "router advertisement in VLAN 5", tagged(advertisement, 0x8100, 5))
	add("", "IPv4 with a priority", tagged(datagram, 0x8100, 0xe000))
	add("", "PPPoE with a priority", tagged(raw(w.link.MAC, w.router, 0x8863), 0x8100, 0xe000))
	add(firewall.NetworkDHCP, "DHCP offer with a priority", tagged(offer, 0x8100, 0xe000))
	add(firewall.NetworkRouter, "router advertisement with a priority", tagged(advertisement, 0x8100, 0))
	add(firewall.NetworkFrame, "IPv4 in VLAN 6", tagged(datagram, 0x8100, 6))
	add(firewall.NetworkFrame, "IPv4 in the outer VLAN 5", tagged(datagram, 0x88a8, 5))
	add(firewall.NetworkFrame, "an EtherType", raw(w.link.MAC, w.router, 0x88b5))
	add(firewall.NetworkFrame, "an EtherType with a priority", tagged(raw(w.link.MAC, w.router, 0x88b5), 0x8100, 0))
	for _, inner := range []uint16{0x8100, 0x88a8, 0x9100, 0x9200, 0x9300} {
		add(firewall.NetworkFrame, fmt.Sprintf("VLAN 5 with an inner tag %#04x", inner), tagged(datagram, 0x8100, 5, inner, 6))
		add(firewall.NetworkFrame, fmt.Sprintf("priority tag with an inner tag %#04x", inner), tagged(datagram, 0x8100, 0, inner, 5))
	}
	return kinds
}

// arrives reports whether frames from the gateway come to the guest.
func arrives(t *testing.T, w *wire, list [][]byte, number int) bool {
	t.Helper()
	missing, _ := wantInOrder(t, w, list, list, number)
	return len(missing) == 0
}
