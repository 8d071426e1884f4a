package dhcp

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
)

// Frames as the guest sends and reads them, by another library than the code under test uses.

var (
	guestMAC     = cache.MAC{0x02, 0, 0, 0, 0, 0x01}
	responderMAC = cache.MAC{0x02, 0, 0, 0, 0, 0xfe}
	gatewayMAC   = cache.MAC{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

	anyone    = addr("0.0.0.0")
	everybody = addr("255.255.255.255")
	guestLL   = eui64.LinkLocal(guestMAC)
	servers6  = addr("ff02::1:2")
)

func addr(text string) netip.Addr          { return netip.MustParseAddr(text) }
func prefix(text string) netip.Prefix      { return netip.MustParsePrefix(text) }
func tcpipAddr(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

func ethernet(dst, src cache.MAC, proto tcpip.NetworkProtocolNumber, payload []byte) []byte {
	f := make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+len(payload))
	header.Ethernet(f).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(src[:]), DstAddr: tcpip.LinkAddress(dst[:]), Type: proto,
	})
	return append(f, payload...)
}

func udp(src, dst netip.Addr, from, to uint16, payload []byte) []byte {
	u := make(header.UDP, header.UDPMinimumSize+len(payload))
	u.Encode(&header.UDPFields{SrcPort: from, DstPort: to, Length: uint16(len(u))})
	copy(u.Payload(), payload)
	u.SetChecksum(^u.CalculateChecksum(checksum.Combine(
		header.PseudoHeaderChecksum(header.UDPProtocolNumber, tcpipAddr(src), tcpipAddr(dst), uint16(len(u))),
		checksum.Checksum(payload, 0))))
	return u
}

func ipv4(src, dst netip.Addr, payload []byte) []byte {
	ip := make(header.IPv4, header.IPv4MinimumSize, header.IPv4MinimumSize+len(payload))
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(cap(ip)), TTL: 64, Protocol: uint8(header.UDPProtocolNumber),
		SrcAddr: tcpipAddr(src), DstAddr: tcpipAddr(dst),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	return append(ip, payload...)
}

func ipv6(src, dst netip.Addr, proto tcpip.TransportProtocolNumber, hops uint8, payload []byte) []byte {
	ip := make(header.IPv6, header.IPv6MinimumSize, header.IPv6MinimumSize+len(payload))
	ip.Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(payload)), TransportProtocol: proto, HopLimit: hops,
		SrcAddr: tcpipAddr(src), DstAddr: tcpipAddr(dst),
	})
	return append(ip, payload...)
}

func from4(src, dst netip.Addr, msg []byte) []byte {
	return ethernet(frame.Broadcast, guestMAC, header.IPv4ProtocolNumber, ipv4(src, dst, udp(src, dst, 68, 67, msg)))
}

func from6(src, dst netip.Addr, msg []byte) []byte {
	mac := cache.MAC{0x33, 0x33, 0, 1, 0, 2}
	return ethernet(mac, guestMAC, header.IPv6ProtocolNumber, ipv6(src, dst, header.UDPProtocolNumber, 1, udp(src, dst, 546, 547, msg)))
}

func icmp(src, dst netip.Addr, hops uint8, msg []byte) []byte {
	msg = append([]byte(nil), msg...)
	msg[2], msg[3] = 0, 0
	c := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: msg, Src: tcpipAddr(src), Dst: tcpipAddr(dst)})
	binary.BigEndian.PutUint16(msg[2:], c)
	return ethernet(cache.MAC{0x33, 0x33, 0, 0, 0, 2}, guestMAC, header.IPv6ProtocolNumber, ipv6(src, dst, header.ICMPv6ProtocolNumber, hops, msg))
}

// reply is a decoded frame of the responder.
type reply struct {
	frame          []byte
	dstMAC, srcMAC cache.MAC
	proto          tcpip.NetworkProtocolNumber
	src, dst       netip.Addr
	from, to       uint16 // ports
	next           tcpip.TransportProtocolNumber
	hops           uint8
	payload        []byte // of UDP; of ICMPv6 and ARP the whole message
}

// readReply decodes a frame. The test fails if a header, a length or a checksum is wrong.
func readReply(t testing.TB, frame []byte) reply {
	t.Helper()
	if len(frame) < header.EthernetMinimumSize {
		t.Fatalf("a reply of %d octets", len(frame))
	}
	e := header.Ethernet(frame)
	r := reply{frame: frame, proto: e.Type(), dstMAC: cache.MAC(frame[:6]), srcMAC: cache.MAC(frame[6:12])}
	body := frame[header.EthernetMinimumSize:]
	switch r.proto {
	case header.ARPProtocolNumber:
		if !header.ARP(body).IsValid() {
			t.Fatalf("ARP packet %x is not valid", body)
		}
		r.payload = body
		return r
	case header.IPv4ProtocolNumber:
		ip := header.IPv4(body)
		if !ip.IsValid(len(body)) || int(ip.TotalLength()) != len(body) || !ip.IsChecksumValid() {
			t.Fatalf("IPv4 header %x of a packet of %d octets is not valid", body[:min(len(body), 20)], len(body))
		}
		r.src, r.dst = netip.AddrFrom4(ip.SourceAddress().As4()), netip.AddrFrom4(ip.DestinationAddress().As4())
		r.next, r.hops, body = ip.TransportProtocol(), ip.TTL(), ip.Payload()
	case header.IPv6ProtocolNumber:
		ip := header.IPv6(body)
		if !ip.IsValid(len(body)) || int(ip.PayloadLength())+header.IPv6MinimumSize != len(body) {
			t.Fatalf("IPv6 header of %x is not valid", body)
		}
		r.src, r.dst = netip.AddrFrom16(ip.SourceAddress().As16()), netip.AddrFrom16(ip.DestinationAddress().As16())
		r.next, r.hops, body = ip.TransportProtocol(), ip.HopLimit(), ip.Payload()
	default:
		t.Fatalf("a reply of Ethernet type %#x", r.proto)
	}
	switch r.next {
	case header.UDPProtocolNumber:
		u := header.UDP(body)
		if len(body) < header.UDPMinimumSize || int(u.Length()) != len(body) {
			t.Fatalf("UDP length of %x is not right", body)
		}
		if u.Checksum() == 0 || !u.IsChecksumValid(tcpipAddr(r.src), tcpipAddr(r.dst), checksum.Checksum(u.Payload(), 0)) {
			t.Fatalf("UDP checksum %#x is wrong", u.Checksum())
		}
		r.from, r.to, r.payload = u.SourcePort(), u.DestinationPort(), u.Payload()
	case header.ICMPv6ProtocolNumber:
		want := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: body, Src: tcpipAddr(r.src), Dst: tcpipAddr(r.dst)})
		if got := header.ICMPv6(body).Checksum(); got != want {
			t.Fatalf("ICMPv6 checksum %#x, want %#x", got, want)
		}
		r.payload = body
	default:
		t.Fatalf("a reply of protocol %d", r.next)
	}
	return r
}

// ask gives a frame to the responder and returns the decoded reply. Silent says that there is none.
func ask(t testing.TB, r *Responder, frame []byte) (got reply, silent bool) {
	t.Helper()
	before := []byte("before")
	out := r.Reply(before, frame)
	if string(out[:len(before)]) != "before" {
		t.Fatalf("Reply did not append: %q", out[:len(before)])
	}
	if len(out) == len(before) {
		return reply{}, true
	}
	return readReply(t, out[len(before):]), false
}

// judge asks, and wants an answer, or if there is a reason to ignore the frame none and that reason.
func judge(t testing.TB, r *Responder, name string, frame []byte, why Reason) (got reply, answered bool) {
	t.Helper()
	got, silent := ask(t, r, frame)
	if ignored := resultOf(r, frame).ignored; silent != (why != "") || ignored != why {
		t.Errorf("%s: silent %v, ignored %q, want %q", name, silent, ignored, why)
	}
	return got, !silent
}

// resultOf returns what the frame causes in addition to its answer.
func resultOf(r *Responder, frame []byte) result {
	_, e := r.answers.Load().answer(nil, frame)
	return e
}

// newRecord returns the record of a pod in a network like Calico's: a /32 behind 169.254.1.1, IPv6 by a
// link-local router.
func newRecord() cache.Record {
	return cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge,
		Tap: "eth0-tap", Queues: 1, ResponderTap: "eth0-dhcp", ResponderMAC: responderMAC, MAC: guestMAC, MTU: 1450,
		IPv4: &cache.IPv4{
			Address: prefix("10.244.1.7/32"),
			Server:  addr("169.254.1.1"),
			Routes: []cache.Route{
				{Destination: prefix("169.254.1.1/32")},
				{Destination: prefix("0.0.0.0/0"), Gateway: addr("169.254.1.1")},
			},
		},
		IPv6: &cache.IPv6{
			Address: addr("fd00:10:244::7"),
			Router:  &cache.Router{Address: addr("fe80::1"), MAC: gatewayMAC, Default: true},
		},
		Neighbours: []cache.Neighbour{
			{Address: addr("169.254.1.1"), MAC: gatewayMAC},
			{Address: addr("fe80::1"), MAC: gatewayMAC},
			{Address: addr("fd00::53"), MAC: responderMAC},
		},
	}
}

var resolvConf = cache.DNS{
	Servers: []netip.Addr{addr("10.96.0.10"), addr("fd00:10:96::a")},
	Search:  []string{"default.svc.cluster.local", "svc.cluster.local", "cluster.local"},
}

func newResponder(t testing.TB, rec cache.Record, dns cache.DNS) *Responder {
	t.Helper()
	r, err := New(rec, dns)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
