package phase1_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// virtioHeader is struct virtio_net_hdr (linux/virtio_net.h).
type virtioHeader struct {
	flags, segments         byte   // VIRTIO_NET_HDR_F_*, VIRTIO_NET_HDR_GSO_*
	headers, segment        uint16 // lengths
	checksumStart, checksum uint16 // of the frame; of checksumStart

	tunnel *tunnelHeader
}

// before returns the header and the frame.
func (h virtioHeader) before(f []byte) []byte {
	b := []byte{h.flags, h.segments}
	for _, n := range []uint16{h.headers, h.segment, h.checksumStart, h.checksum} {
		b = binary.NativeEndian.AppendUint16(b, n)
	}
	if h.tunnel != nil {
		b = append(b, make([]byte, longHeader-usualHeader-4)...)
		b = binary.LittleEndian.AppendUint16(b, h.tunnel.outer)
		b = binary.LittleEndian.AppendUint16(b, h.tunnel.inner)
	}
	return append(b, f...)
}

// partial leaves a checksum to the device: that of the frame from start on, which is written at the place.
func partial(start, at int) virtioHeader {
	return virtioHeader{flags: unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, checksumStart: uint16(start), checksum: uint16(at - start)}
}

// transportOf is where the transport header of a frame begins that has no options.
func transportOf(f []byte) int {
	if f[14]>>4 == 6 {
		return 54
	}
	return 34
}

// atDevice is the frame as the NIC's device gets it from the namespace, with the checksum that the device completes.
// Under masquerade the source differs, and the field of the checksum follows it.
func (w *wire) atDevice(f []byte) []byte {
	f = slices.Clone(f)
	source, own, hops, field := f[26:30], nstest.Pod4.AsSlice(), 22, 0
	protocol := f[23]
	if f[14]>>4 == 6 {
		source, own, hops, protocol = f[22:38], nstest.Pod6.AsSlice(), 21, f[20]
	}
	f[hops]--
	switch protocol {
	case unix.IPPROTO_UDP:
		field = transportOf(f) + 6
	case unix.IPPROTO_TCP:
		field = transportOf(f) + 16
	case unix.IPPROTO_ICMPV6:
		field = transportOf(f) + 2
	}
	if !w.routed && field > 0 {
		check := ^sum(slices.Concat(f[field:field+2], own, inverted(source)))
		binary.BigEndian.PutUint16(f[field:], check)
	}
	if !w.routed {
		copy(source, own)
	}
	if f[14]>>4 == 4 {
		copy(f[24:], []byte{0, 0})
		binary.BigEndian.PutUint16(f[24:], sum(f[14:34]))
	}
	return f
}

func inverted(b []byte) []byte {
	b = slices.Clone(b)
	for i := range b {
		b[i] = ^b[i]
	}
	return b
}

// rewriting returns a frame, in fragments of these sizes if there are some, of which the device writes the value at the
// place, as checksum of what comes from start on. Balance are two octets of the frame that the guest can choose.
func (w *wire) rewriting(f []byte, start, at, balance int, value uint16, sizes ...int) (list [][]byte) {
	f = slices.Clone(f)
	copy(f[balance:], []byte{0, 0})
	choice := ^sum(slices.Concat(portHeader(^value, sum(w.atDevice(f)[start:]))))
	binary.BigEndian.PutUint16(f[balance:], choice)
	if len(sizes) == 0 {
		return [][]byte{partial(start, at).before(f)}
	}
	moved := 0 // by the fragment header
	if f[14]>>4 == 6 {
		moved = 8
	}
	for _, one := range fragments(f, sizes...) {
		list = append(list, partial(start+moved, at+moved).before(one))
	}
	return list
}

// evasion is what a guest with root tries: frames with virtio headers.
type evasion struct {
	name   string
	frames [][]byte
	// inert: the kernel drops it in any case.
	inert bool
	// tunnel: the header has a tunnel's fields.
	tunnel bool
}

const (
	openPort53, openTCP, openSCTP, closedPort = 53, 9000, 9001, 161
)

var (
	openHost6   = netip.MustParseAddr("2001:db8:9::77") // all of it
	openNetwork = []string{"allow 198.51.100.9 53/udp", "allow 198.51.100.9 9000/tcp", "allow 198.51.100.9 9001/sctp", "allow 198.51.100.9 icmp",
		"allow 2001:db8:9::9 53/udp", "allow 2001:db8:9::9 9000/tcp", "allow 2001:db8:9::9 9001/sctp", "allow 2001:db8:9::9 icmp", "allow 2001:db8:9::77"}
)

// virtioEvasions are the ways round the policy of openNetwork. Each has a source port of its own, from port on.
func virtioEvasions(w *wire, port uint16) (list []evasion) {
	add := func(name string, frames ...[][]byte) {
		list = append(list, evasion{name: name, frames: slices.Concat(frames...)})
	}
	next := func() uint16 { port++; return port }
	const tail = 64 // octets of data
	data := func() []byte { return append([]byte("virtio!!"), make([]byte, tail-8)...) }
	for _, far := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
		own, ip := w.link.IPv4, "IPv4"
		if far.Is6() {
			own, ip = w.link.IPv6, "IPv6"
		}
		udp := func(source, to uint16) []byte {
			return w.link.Packet(unix.IPPROTO_UDP, own, far, frames.Datagram(source, to, data()))
		}
		head := transportOf(udp(1, 1))
		bare := func(source, to uint16) []byte { // without a checksum, which IPv6 must have
			f := udp(source, to)
			if far.Is4() {
				copy(f[head+6:], []byte{0, 0})
			}
			return f
		}
		query := func(source uint16) [][]byte { return [][]byte{partial(head, head+6).before(udp(source, openPort53))} }
		balance := head + 8 + 32
		add(ip+", UDP to another port", w.rewriting(udp(next(), openPort53), head+2, head+2, balance, closedPort))
		add(ip+", UDP to another port, summed from the header on", w.rewriting(bare(next(), openPort53), head, head+2, balance, closedPort))
		source := next()
		add(ip+", UDP of an established flow", query(source), w.rewriting(bare(source, openPort53), head+2, head+2, balance, closedPort))
		add(ip+", UDP in fragments", w.rewriting(udp(next(), openPort53), head+2, head+2, balance, closedPort, 16, 56))
		syn := w.link.Packet(unix.IPPROTO_TCP, own, far, frames.Segment(next(), openTCP, 2, data()))
		add(ip+", TCP to another port", w.rewriting(syn, head+2, head+2, head+20+32, closedPort))
		if w.routed { // a masquerade gives SCTP another port
			init := w.link.Packet(unix.IPPROTO_SCTP, own, far, association(next(), openSCTP))
			add(ip+", SCTP to another port", w.rewriting(init, head+2, head+2, head+12+4, closedPort))
		}
		for _, segments := range []byte{unix.VIRTIO_NET_HDR_GSO_UDP, unix.VIRTIO_NET_HDR_GSO_UDP_L4, unix.VIRTIO_NET_HDR_GSO_TCPV4, unix.VIRTIO_NET_HDR_GSO_TCPV6} {
			for _, start := range []int{head + 2, head, head - 8} {
				of, length := w.link.Packet(unix.IPPROTO_UDP, own, far, frames.Datagram(next(), openPort53, make([]byte, 3000))), head+8
				if segments == unix.VIRTIO_NET_HDR_GSO_TCPV4 || segments == unix.VIRTIO_NET_HDR_GSO_TCPV6 {
					of, length = w.link.Packet(unix.IPPROTO_TCP, own, far, frames.Segment(next(), openTCP, 2, make([]byte, 3000))), head+20
				}
				h := partial(start, head+2)
				h.segments, h.headers, h.segment = segments, uint16(length), 1000
				list = append(list, evasion{name: fmt.Sprintf("%s, segments of kind %d from %d", ip, segments, start-head), frames: [][]byte{h.before(of)}, inert: true})
			}
		}
		// Where the link-layer header is, and where the kernel may look for none.
		for start := range 20 {
			list = append(list, evasion{name: fmt.Sprintf("%s, from octet %d", ip, start), inert: true,
				frames: [][]byte{partial(start, head+2).before(udp(next(), openPort53))}})
			for tags := 1; tags <= 2; tags++ { // without a number, which the kernel takes off
				f := udp(next(), openPort53)
				f = slices.Concat(f[:12], bytes.Repeat([]byte{0x81, 0, 0, 0}, tags), f[12:])
				list = append(list, evasion{name: fmt.Sprintf("%s, %d tags, from octet %d", ip, tags, start), inert: true,
					frames: [][]byte{partial(start, head+2+4*tags).before(f)}})
			}
		}
		// What others have opened, and the guest answers.
		asked, other := next(), uint16(4242)
		question := slices.Concat(w.own[0][:], w.router[:], w.link.Packet(unix.IPPROTO_UDP, far, map[bool]netip.Addr{true: nstest.Pod4, false: nstest.Pod6}[far.Is4()], frames.Datagram(other, asked, data()))[12:])
		list = append(list, evasion{name: ip + ", an answer to another port", frames: slices.Concat([][]byte{nil, question}, w.rewriting(bare(asked, other), head+2, head+2, balance, closedPort))})
	}
	// IPv6 has no checksum of its header.
	far, own := nstest.Beyond6, w.link.IPv6
	last, bad := 52, uint16(0xbad)
	udp := func() []byte {
		return w.link.Packet(unix.IPPROTO_UDP, own, far, frames.Datagram(next(), openPort53, data()))
	}
	const balance = 54 + 8 + 32
	add("the address, UDP", w.rewriting(udp(), last, last, balance, bad))
	add("the protocol", w.rewriting(udp(), 20, 20, balance, unix.IPPROTO_GRE<<8|63))
	add("the address, an echo request", w.rewriting(w.link.Packet(unix.IPPROTO_ICMPV6, own, far, append([]byte{128, 0, 0, 0, 9, 9, 0, 1}, data()...)), last, last, balance, bad))
	add("the source, UDP", w.rewriting(udp(), 36, 36, balance, bad))
	if w.routed {
		for _, protocol := range []uint8{unix.IPPROTO_GRE, unix.IPPROTO_ESP, unix.IPPROTO_UDPLITE} {
			add(fmt.Sprintf("the source, protocol %d", protocol), w.rewriting(w.link.Packet(protocol, own, openHost6, append(portHeader(next(), 0), append(make([]byte, 4), data()...)...)), 36, 36, balance, bad))
			add(fmt.Sprintf("the address, protocol %d", protocol), w.rewriting(w.link.Packet(protocol, own, openHost6, append(portHeader(next(), 0), append(make([]byte, 4), data()...)...)), last, last, balance, bad))
		}
	}
	// The kernel takes the header of an atomic fragment out, and moves what is before it.
	plain := udp()
	copy(plain[balance:], []byte{0, 0})
	seen := w.atDevice(plain)
	const start = 20
	choice := ^sum(portHeader(^uint16(closedPort), sum(seen[start-8:])))
	binary.BigEndian.PutUint16(plain[balance:], choice)
	atomic := withHeader(plain, 44, 0, 0, 0, 0, 0, 0, 0, 9)
	add("an atomic fragment", [][]byte{partial(start, 54+8+2).before(atomic)})
	return list
}

// try sends what the guest tries, and returns where to packets left that the policy does not allow.
func (w *wire) try(e evasion) (left []string) {
	w.t.Helper()
	fromWorld := false
	size := func(octets int) {
		if err := w.control(func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, octets) }); err != nil {
			w.t.Fatal(err)
		}
	}
	if e.tunnel {
		size(longHeader)
	}
	for _, f := range e.frames {
		if f == nil { // the next one is the world's
			fromWorld = true
			continue
		}
		if fromWorld {
			if err := w.inject(f); err != nil {
				w.t.Fatal(err)
			}
			fromWorld = false
			w.awaitAtTap(f[len(f)-64:])
			continue
		}
		if _, err := w.port.Write(f); err != nil && !(e.inert && errors.Is(err, unix.EINVAL)) {
			w.t.Errorf("%s: %v", e.name, err)
		}
	}
	if e.tunnel {
		size(usualHeader)
	}
	world, _ := w.send()
	for _, s := range world {
		if to, ok := allowedByOpen(s.Frame); !ok {
			left = append(left, to)
		}
	}
	return left
}

// awaitAtTap reads from the tap until a frame with the octets comes.
func (w *wire) awaitAtTap(part []byte) {
	w.t.Helper()
	if err := w.port.SetReadDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	for b := make([]byte, 1<<16); ; {
		n, err := w.port.Read(b)
		if err != nil {
			w.t.Fatalf("the guest does not get %q: %v", part, err)
		}
		if bytes.Contains(b[:n], part) {
			return
		}
	}
}

// allowedByOpen reports whether the policy of openNetwork allows a packet, and where it goes.
func allowedByOpen(f []byte) (to string, ok bool) {
	protocol, head := f[23], 34
	source, _ := netip.AddrFromSlice(f[26:30])
	address, _ := netip.AddrFromSlice(f[30:34])
	if f[14]>>4 == 6 {
		protocol, head = f[20], 54
		source, _ = netip.AddrFromSlice(f[22:38])
		address, _ = netip.AddrFromSlice(f[38:54])
		if protocol == unix.IPPROTO_FRAGMENT {
			protocol, head = f[54], 62
			if binary.BigEndian.Uint16(f[56:])&^7 != 0 {
				return fmt.Sprintf("%v", address), address == nstest.Beyond6
			}
		}
	} else if binary.BigEndian.Uint16(f[20:])&0x1fff != 0 {
		return fmt.Sprintf("%v", address), address == nstest.Beyond4
	}
	if source != nstest.Pod4 && source != nstest.Pod6 {
		return fmt.Sprintf("%v, from %v", address, source), false
	}
	port := binary.BigEndian.Uint16(f[head+2:])
	to = fmt.Sprintf("protocol %d of %v, %d", protocol, address, port)
	if address == openHost6 {
		return to, true
	}
	if address != nstest.Beyond4 && address != nstest.Beyond6 {
		return to, false
	}
	switch protocol {
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return to, true
	case unix.IPPROTO_UDP:
		return to, port == openPort53 || port == 4242
	case unix.IPPROTO_TCP:
		return to, port == openTCP
	case unix.IPPROTO_SCTP:
		return to, port == openSCTP
	}
	return to, false
}

// TestHostileVirtio: a guest says in the header of a frame where a device writes a checksum. Beside a policy that is no
// way round it, behind a card that computes checksums: not to another port, address or protocol, by any protocol, in
// new and established flows, in fragments and segments. Without the policy the same frames leave for these places. What
// is allowed is answered, also if the guest leaves its checksum to the device.
func TestHostileVirtio(t *testing.T) {
	nstest.Long(t)
	nstest.Need(t, "ethtool")
	eachTracking(t, func(t *testing.T, b infra.Binding) {
		if byNFTables(b) {
			nstest.KernelDecides(t, "where checksums are written")
		}
		n := nstest.NewNetwork(t)
		n.Pod.Exec("ethtool", "-K", "eth0", "tx", "off") // as a card that writes the checksum itself
		c := config(n, b)
		texts := openNetwork
		for _, far := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
			texts = append(texts, fmt.Sprintf("allow %v %d/udp", far, frames.SentinelPort))
		}
		c.Egress = policy(t, append(texts, "refuse all")...)
		setup(t, c)
		r := record(t, n)
		if slices.ContainsFunc(r.Warnings, func(text string) bool { return strings.Contains(text, "guest's root") }) {
			t.Fatalf("the policy does not hold under this kernel: %q", r.Warnings)
		}
		n.World.Serve("beyond", "udp", netip.AddrPortFrom(nstest.Beyond4, openPort53), netip.AddrPortFrom(nstest.Beyond6, openPort53))
		w := attachPort(t, n, true, true, true)
		w.pod, w.world = n.Pod.Sniff(t), n.World.Sniff(t)
		w.send()

		before := counted(t, c)
		clearing := func() int {
			return strings.Count(n.Pod.Exec("tc", "filter", "show", "dev", "eth0-tap", "ingress"), "modify id 1")
		}
		want := 0
		if _, err := w.port.Write(partial(0, 40).before(w.link.Packet(unix.IPPROTO_UDP, w.link.IPv4, nstest.Beyond4, frames.Datagram(1, openPort53, nil)))); err == nil {
			want = 2 // this kernel takes a checksum that begins before the packet
		} else if !errors.Is(err, unix.EINVAL) {
			t.Fatal(err)
		}
		if have := clearing(); have != want {
			t.Errorf("%d filters clear checksums, want %d", have, want)
		}
		check(t, c)
		w.send()

		tries := 0
		for _, e := range slices.Concat(virtioEvasions(w, 20000), tunnelEvasions(w, 25000)) {
			if left := w.try(e); len(left) > 0 {
				t.Errorf("%s: left for %q", e.name, left)
			}
			tries++
		}
		have := counted(t, c)
		// Connection tracking takes a packet with a wrong checksum for one of no connection, before the policy looks.
		if counted := have["egress"] - before["egress"]; counted < 3 {
			t.Errorf("of %d ways, %d packets were counted", tries, counted)
		}
		for i, far := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
			own := []netip.Addr{w.link.IPv4, w.link.IPv6}[i]
			q := w.link.Packet(unix.IPPROTO_UDP, own, far, frames.Datagram(19000, openPort53, make([]byte, 100)))
			head := transportOf(q)
			binary.BigEndian.PutUint16(q[head+6:], ^sum(slices.Concat(own.AsSlice(), far.AsSlice(), []byte{0, unix.IPPROTO_UDP}, q[head+4:head+6])))
			if _, err := w.port.Write(partial(head, head+6).before(q)); err != nil {
				t.Fatal(err)
			}
			w.awaitAtTap([]byte("beyond:53 sees"))
			for _, length := range []uint16{1000, 500} { // of segments
				q := w.link.Packet(unix.IPPROTO_UDP, own, far, frames.Datagram(19001+length, openPort53, make([]byte, 3000)))
				binary.BigEndian.PutUint16(q[head+6:], ^sum(slices.Concat(own.AsSlice(), far.AsSlice(), []byte{0, unix.IPPROTO_UDP}, q[head+4:head+6])))
				h := partial(head, head+6)
				h.segments, h.headers, h.segment = unix.VIRTIO_NET_HDR_GSO_UDP_L4, uint16(head+8), length
				if _, err := w.port.Write(h.before(q)); errors.Is(err, unix.EINVAL) {
					t.Log("this kernel takes no segments of UDP") // before Linux 6.2
					continue
				} else if err != nil {
					t.Fatal(err)
				}
				for range 3000 / length {
					w.awaitAtTap([]byte("beyond:53 sees"))
				}
			}
		}

		c.Egress = nil
		setup(t, c)
		if have := clearing(); have > 0 {
			t.Errorf("without the policy, %d filters clear checksums", have)
		}
		stays := 0
		for _, e := range slices.Concat(virtioEvasions(w, 30000), tunnelEvasions(w, 35000)) {
			left := w.try(e)
			if len(left) == 0 && !e.inert {
				t.Errorf("%s: does not leave without the policy: it tries nothing", e.name)
			}
			if len(left) == 0 {
				stays++
			}
		}
		t.Logf("%d ways round, of which %d stay without the policy; segments of tunnels: %v", tries, stays, w.takesTunnels())
	})
}
