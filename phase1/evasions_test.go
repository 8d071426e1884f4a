package phase1_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/frames"
)

// evasions are what a guest may try that may send to the sentinel's port alone.
func evasions(w *wire) (kinds []frames.Kind) {
	add := func(name string, list ...[]byte) { kinds = append(kinds, frames.Kind{Name: name, Frames: list}) }
	data := []byte("what must not leave")
	for _, v := range []struct {
		name                  string
		own, far, no, gateway netip.Addr
		icmp                  uint8
		echo, reply, error    uint8
	}{
		{"IPv4 ", w.link.IPv4, w.link.Far4, refused4, w.link.Gateway4, unix.IPPROTO_ICMP, 8, 0, 3},
		{"IPv6 ", w.link.IPv6, w.link.Far6, refused6, w.link.Gateway6, unix.IPPROTO_ICMPV6, 128, 129, 1},
	} {
		packet := func(protocol uint8, to netip.Addr, body []byte) []byte {
			return w.link.Packet(protocol, v.own, to, body)
		}
		message := func(kind uint8, rest ...byte) []byte { return append([]byte{kind, 0, 0, 0}, rest...) }
		add(v.name+"TCP", w.link.Ask(6, v.own, v.no, 80))
		add(v.name+"UDP", w.link.Ask(17, v.own, v.no, 53))
		add(v.name+"UDP to the allowed port of another host", packet(17, v.no, frames.Datagram(5000, frames.SentinelPort, data)))
		add(v.name+"UDP from the port of an open connection", packet(17, v.no, frames.Datagram(frames.SentinelPort, frames.SentinelPort, data)))
		add(v.name+"UDP to another port of the allowed host", w.link.Ask(17, v.own, v.far, 53))
		add(v.name+"UDP to port 0", w.link.Ask(17, v.own, v.far, 0))
		add(v.name+"TCP to the allowed port", w.link.Ask(6, v.own, v.far, frames.SentinelPort))
		add(v.name+"UDP-Lite to the allowed port", packet(136, v.far, lite(v.own, v.far, data)))
		add(v.name+"SCTP to the allowed port", packet(132, v.far, association(5000, frames.SentinelPort)))
		add(v.name+"DCCP to the allowed port", packet(33, v.far, slices.Concat(portHeader(5000, frames.SentinelPort), []byte{4, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0})))
		add(v.name+"echo request", packet(v.icmp, v.no, message(v.echo, 0, 1, 0, 1)))
		add(v.name+"echo request to the allowed host", packet(v.icmp, v.far, message(v.echo, 0, 1, 0, 1)))
		add(v.name+"echo reply that nobody asked for", packet(v.icmp, v.no, message(v.reply, 0, 1, 0, 1)))
		about := func(from, to netip.Addr) []byte {
			return w.link.Packet(17, from, to, frames.Datagram(frames.SentinelPort, frames.SentinelPort, data))[14:]
		}
		add(v.name+"error about nothing", packet(v.icmp, v.no, slices.Concat(message(v.error, 0, 0, 0, 0), about(v.no, v.own))))
		add(v.name+"error about an open connection, to another", packet(v.icmp, v.no, slices.Concat(message(v.error, 0, 0, 0, 0), about(v.far, v.own))))
		for _, flags := range []uint8{0x12, 0x10, 0x04, 0x14, 0x11, 0, 0x29, 0x03, 0x06} {
			add(fmt.Sprintf("%sTCP with flags %#x", v.name, flags), packet(6, v.no, frames.Segment(5000, 80, flags, data)))
		}
		bad := w.link.Ask(17, v.own, v.no, 53)
		bad[len(bad)-1]++
		add(v.name+"UDP with a wrong checksum", bad)
		for _, protocol := range []uint8{4, 41, 47, 50, 89, 115, 137, 253} {
			add(fmt.Sprintf("%sprotocol %d", v.name, protocol), packet(protocol, v.no, make([]byte, 40)))
			add(fmt.Sprintf("%sprotocol %d to the allowed host, the port in its place", v.name, protocol), packet(protocol, v.far, append(portHeader(5000, frames.SentinelPort), make([]byte, 36)...)))
		}
		add(v.name+"no transport header", packet(253, v.no, nil))
		add(v.name+"a transport header of 3 octets", packet(253, v.no, make([]byte, 3)))
		whole := packet(17, v.no, frames.Datagram(5000, 53, make([]byte, 64)))
		add(v.name+"fragments", fragments(whole, 16, 56)...)
		add(v.name+"a later fragment alone", fragments(whole, 56, 16)[1:]...)
		allowed := packet(17, v.far, frames.Datagram(5000, frames.SentinelPort, make([]byte, 64)))
		other := packet(17, v.far, frames.Datagram(5000, 53, make([]byte, 64)))
		add(v.name+"fragments that overlap", fragments(allowed, 16, 56)[0], fragments(other, 24, 48)[0], fragments(other, 16, 56)[1])
		add(v.name+"the gateway's services", w.link.Ask(6, v.own, v.gateway, 22), w.link.Ask(17, v.own, v.gateway, 53))
		add(v.name+"an open connection to the gateway", packet(v.icmp, v.gateway, message(v.echo, 0, 7, 0, 1)))
	}
	v4 := func(to string) []byte { return w.link.Ask(17, w.link.IPv4, netip.MustParseAddr(to), 53) }
	v6 := func(to string) []byte { return w.link.Ask(17, w.link.IPv6, netip.MustParseAddr(to), 53) }
	for _, to := range []string{"192.168.9.7", "10.244.1.1", "10.244.1.9", "10.244.1.255", "255.255.255.255", "239.1.2.3", "224.0.0.1", "240.0.0.1", "0.0.0.0", "0.0.0.1", "127.0.0.1", "169.254.169.254", "100.64.0.1"} {
		add("UDP to "+to, v4(to))
	}
	for _, to := range []string{"fd00:9::7", "fd00:244:1::1", "ff02::1", "ff0e::1", "::", "::1", "::ffff:198.51.100.9", "::198.51.100.9", "64:ff9b::198.51.100.9", "64:ff9b::169.254.169.254", "64:ff9b::10.244.1.9", "2002:c633:6409::1", "2001::1", "fec0::1", "fd00:ec2::254"} {
		add("UDP to "+to, v6(to))
	}
	route := append([]byte{7, 4}, refused4.AsSlice()...)
	to := w.link.Packet(17, w.link.IPv4, refused4, frames.Datagram(5000, 53, data))
	by := w.link.Packet(1, w.link.IPv4, w.link.Gateway4, []byte{8, 0, 0, 0, 0, 7, 0, 1}) // of a connection that is open
	add("record route", withOptions(to, 7, 7, 4, 0, 0, 0, 0, 1))
	add("router alert", withOptions(to, 148, 4, 0, 0))
	for name, kind := range map[string]byte{"loose": 131, "strict": 137} {
		add(name+" source route by the gateway", withOptions(by, append(append([]byte{kind}, route...), 1)...))
	}
	segment := w.link.Packet(6, w.link.IPv6, refused6, frames.Segment(5000, 80, 2, nil))
	padding := []byte{0, 0, 1, 4, 0, 0, 0, 0}
	for name, e := range map[string][]byte{"hop-by-hop options": append([]byte{0}, padding...), "destination options": append([]byte{60}, padding...),
		"a routing header without segments": {43, 0, 0, 253, 0, 0, 0, 0, 0}, "an atomic fragment": {44, 0, 0, 0, 0, 0, 0, 0, 9},
		"an authentication header": append([]byte{51, 0, 4}, make([]byte, 22)...)} {
		add("TCP after "+name, withHeader(segment, e[0], e[1:]...))
	}
	echo := w.link.Packet(58, w.link.IPv6, w.link.Gateway6, []byte{128, 0, 0, 0, 0, 7, 0, 1})
	last, lastToo := refused6.AsSlice(), w.link.Gateway6.AsSlice()
	add("routing header of type 0 by the gateway", withHeader(echo, 43, slices.Concat([]byte{0, 2, 0, 1, 0, 0, 0, 0}, last)...))
	add("routing header of type 2 by the gateway", withHeader(echo, 43, slices.Concat([]byte{0, 2, 2, 1, 0, 0, 0, 0}, last)...))
	add("source route of RPL by the gateway", withHeader(echo, 43, slices.Concat([]byte{0, 2, 3, 1, 0, 0, 0, 0}, last)...))
	add("segment routing by the gateway", withHeader(echo, 43, slices.Concat([]byte{0, 4, 4, 1, 1, 0, 0, 0}, last, lastToo)...))
	return kinds
}

func portHeader(source, destination uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, source), destination)
}

// association is an INIT of SCTP (RFC 9260 section 3.3.2), whose checksum frames.Link.Packet completes.
func association(source, destination uint16) []byte {
	return slices.Concat(portHeader(source, destination), make([]byte, 8), []byte{1, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1})
}

// sum is that of RFC 1071, inverted.
func sum(b []byte) uint16 {
	var acc uint32
	for i := 0; i+1 < len(b); i += 2 {
		acc += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		acc += uint32(b[len(b)-1]) << 8
	}
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return ^uint16(acc)
}

// lite is a datagram of UDP-Lite (RFC 3828) to the sentinel's port. Its checksum covers all of it.
func lite(from, to netip.Addr, data []byte) []byte {
	b := append(append(portHeader(5000, frames.SentinelPort), 0, 0, 0, 0), data...)
	pseudo := slices.Concat(from.AsSlice(), to.AsSlice(), []byte{0, 0, 0, byte(len(b)), 0, 0, 0, 136})
	binary.BigEndian.PutUint16(b[6:], sum(append(pseudo, b...)))
	return b
}

// withOptions returns the frame of an IPv4 packet with options, whose length is a multiple of 4.
func withOptions(f []byte, options ...byte) []byte {
	f = slices.Insert(slices.Clone(f), 34, options...)
	f[14] += byte(len(options) / 4)
	return relength(f)
}

// relength corrects length and checksum of the frame's IPv4 header.
func relength(f []byte) []byte {
	binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
	f[24], f[25] = 0, 0
	binary.BigEndian.PutUint16(f[24:], sum(f[14:14+4*int(f[14]&15)]))
	return f
}

// withHeader returns the frame of an IPv6 packet with one more header before the others.
func withHeader(f []byte, number byte, header ...byte) []byte {
	f = slices.Insert(slices.Clone(f), 54, header...)
	f[54], f[20] = f[20], number
	binary.BigEndian.PutUint16(f[18:], uint16(len(f)-54))
	return f
}

// fragments are those of the frame's packet, of the given sizes: multiples of 8 octets but for the last.
func fragments(f []byte, sizes ...int) (list [][]byte) {
	v6 := f[14]>>4 == 6
	body, at := f[34:], 0
	if v6 {
		body = f[54:]
	}
	for _, size := range sizes {
		offset := uint16(at / 8)
		if at+size < len(body) && !v6 {
			offset |= 0x2000
		}
		if v6 {
			offset = uint16(at)
			if at+size < len(body) {
				offset |= 1
			}
			one := append(slices.Clone(f[:54]), body[at:at+size]...)
			list = append(list, withHeader(one, 44, append([]byte{0, 0, byte(offset >> 8), byte(offset)}, 0, 0, 0x32, 0x32)...))
		} else {
			one := append(slices.Clone(f[:34]), body[at:at+size]...)
			binary.BigEndian.PutUint16(one[20:], offset)
			list = append(list, relength(one))
		}
		at += size
	}
	return list
}
