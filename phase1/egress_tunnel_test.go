package phase1_test

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// tunnelHeader is what struct virtio_net_hdr_v1_hash_tunnel has more: where the tunnel's UDP header and the IP header
// in it begin.
type tunnelHeader struct{ outer, inner uint16 }

// The constants of tunnels (linux/virtio_net.h, linux/if_tun.h, since Linux 6.17).
const (
	tunnelIPv4, tunnelIPv6  = 0x20, 0x40 // of segments
	tunnelChecksum          = 0x08       // of flags
	tunnelOffloads          = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_USO4 | unix.TUN_F_USO6 | 0x080 | 0x100
	usualHeader, longHeader = 10, 24
)

// takesTunnels reports whether the kernel has segments of UDP tunnels. Else a header that asks for them is not valid.
func (w *wire) takesTunnels() bool {
	w.t.Helper()
	err := w.control(func(fd int) error { return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunnelOffloads) })
	if err != nil && !errors.Is(err, unix.EINVAL) {
		w.t.Fatal(err)
	}
	if off := w.control(func(fd int) error { return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0) }); off != nil {
		w.t.Fatal(off)
	}
	return err == nil
}

func (w *wire) control(f func(fd int) error) error {
	raw, err := w.port.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { err = f(int(fd)) }), err)
	}
	return err
}

// tunnelEvasions are the ways round by segments of a UDP tunnel, from port on: tunnels to another port, and headers
// that place the parts of a tunnel to an allowed port where they are not.
func tunnelEvasions(w *wire, port uint16) (list []evasion) {
	taken := w.takesTunnels()
	for _, far := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
		own, ip, of := w.link.IPv4, "IPv4", byte(tunnelIPv4)
		if far.Is6() {
			own, ip, of = w.link.IPv6, "IPv6", tunnelIPv6
		}
		for name, within := range map[string]struct {
			segments byte
			far      netip.Addr
			inner    func(source uint16) []byte
			header   int
			field    int
			protocol uint8
		}{
			"datagrams":         {unix.VIRTIO_NET_HDR_GSO_UDP_L4, nstest.Beyond4, func(source uint16) []byte { return frames.Datagram(source, openPort53, make([]byte, 3000)) }, 8, 6, unix.IPPROTO_UDP},
			"datagrams of IPv6": {unix.VIRTIO_NET_HDR_GSO_UDP_L4, nstest.Beyond6, func(source uint16) []byte { return frames.Datagram(source, openPort53, make([]byte, 3000)) }, 8, 6, unix.IPPROTO_UDP},
			"a stream":          {unix.VIRTIO_NET_HDR_GSO_TCPV4, nstest.Beyond4, func(source uint16) []byte { return frames.Segment(source, openTCP, 16, make([]byte, 3000)) }, 20, 16, unix.IPPROTO_TCP},
			"a stream of IPv6":  {unix.VIRTIO_NET_HDR_GSO_TCPV6, nstest.Beyond6, func(source uint16) []byte { return frames.Segment(source, openTCP, 16, make([]byte, 3000)) }, 20, 16, unix.IPPROTO_TCP},
		} {
			inside := w.link.IPv4
			if within.far.Is6() {
				inside = w.link.IPv6
			}
			frame := func(to uint16) (f []byte, h virtioHeader) {
				port++
				inner := w.link.Packet(within.protocol, inside, within.far, within.inner(port))
				vxlan := append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, inner...)
				f = w.link.Packet(unix.IPPROTO_UDP, own, far, frames.Datagram(port, to, vxlan))
				outer := transportOf(f)
				start := outer + 8 + 8 + transportOf(inner)
				h = partial(start, start+within.field)
				h.segments, h.headers, h.segment = within.segments|of, uint16(start+within.header), 1000
				h.tunnel = &tunnelHeader{uint16(outer), uint16(outer + 8 + 8 + 14)}
				binary.BigEndian.PutUint16(f[outer+6:], 0) // as the device writes it, or none
				return f, h
			}
			add := func(what string, inert bool, f []byte, h virtioHeader) {
				list = append(list, evasion{name: ip + ", a tunnel of " + name + what, tunnel: true, inert: inert, frames: [][]byte{h.before(f)}})
			}
			f, h := frame(closedPort)
			h.flags |= tunnelChecksum
			add(" to another port", !taken, f, h)
			for what, change := range map[string]func(h *virtioHeader){
				"its header is before the UDP header": func(h *virtioHeader) { h.tunnel.outer -= 4 },
				"its header is behind the UDP header": func(h *virtioHeader) { h.tunnel.outer += 8 },
				"its packet is at once":               func(h *virtioHeader) { h.tunnel.inner = h.tunnel.outer + 8 },
				"of the other family":                 func(h *virtioHeader) { h.segments ^= tunnelIPv4 | tunnelIPv6 },
				"of both families":                    func(h *virtioHeader) { h.segments |= tunnelIPv4 | tunnelIPv6 },
				"without segments":                    func(h *virtioHeader) { h.segments &= tunnelIPv4 | tunnelIPv6 },
				"without a checksum":                  func(h *virtioHeader) { h.flags = 0 },
				"the checksum is the UDP header's":    func(h *virtioHeader) { h.checksumStart, h.checksum = h.tunnel.outer, 2 },
				"the checksum is the UDP header's, which is an IPv4 header later": func(h *virtioHeader) {
					h.checksumStart, h.checksum = h.tunnel.outer+28, 2
					h.tunnel.inner = h.tunnel.outer + 8
				},
			} {
				f, h := frame(openPort53)
				change(&h)
				add(", "+what, true, f, h)
			}
		}
	}
	return list
}
