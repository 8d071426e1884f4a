package main

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// flow is a TCP connection of the guest, by IPv4.
type flow struct {
	name  string
	short bool // the shortest frames; otherwise segments of 64 KiB, as with offloads
}

var flows = []flow{{name: "short TCP", short: true}, {name: "64 KiB TCP"}}

const (
	vnetLen    = 10 // struct virtio_net_hdr, linux/virtio_net.h
	ipAt       = vnetLen + ethernetLen
	portsAt    = ipAt + header.IPv4MinimumSize
	clientPort = 20000 // a masquerade keeps it: a port above could be one of a client in the namespace
	serverPort = 5201

	refusedPort = 5202 // which the policy of measurePolicy does not allow
)

// serverAt is where most flows go.
var serverAt = netip.AddrPortFrom(gateways[0], serverPort)

// frame returns a frame of a guest that leaves checksums and segmentation to its device.
func (f flow) frame(n *variant) []byte {
	const segment = 1500 - header.IPv4MinimumSize - header.TCPMinimumSize
	payload := 44 * segment // whole segments, below 64 KiB
	if f.short {
		payload = 6
	}
	frame := n.segment(serverAt, header.TCPFlagAck, payload)
	if !f.short {
		frame[1] = unix.VIRTIO_NET_HDR_GSO_TCPV4
		binary.NativeEndian.PutUint16(frame[2:], portsAt+header.TCPMinimumSize-vnetLen)
		binary.NativeEndian.PutUint16(frame[4:], segment)
	}
	return frame
}

// segment returns a frame with a TCP segment of the guest. Its checksum is left to the device, so that the ports can be
// changed.
func (n *variant) segment(to netip.AddrPort, flags header.TCPFlags, payload int) []byte {
	frame := make([]byte, portsAt+header.TCPMinimumSize+payload)
	frame[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(frame[6:], uint16(portsAt-vnetLen))
	binary.NativeEndian.PutUint16(frame[8:], 16) // of the checksum, in TCP's header
	header.Ethernet(frame[vnetLen:]).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(n.mac[:]), DstAddr: tcpip.LinkAddress(n.next[:]), Type: header.IPv4ProtocolNumber,
	})
	source, destination := tcpip.AddrFrom4(n.source.As4()), tcpip.AddrFrom4(to.Addr().As4())
	packet := header.IPv4(frame[ipAt:])
	packet.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(packet)), TTL: 64, Protocol: uint8(header.TCPProtocolNumber), SrcAddr: source, DstAddr: destination,
	})
	packet.SetChecksum(^packet.CalculateChecksum())
	// Question and answer have the same sequence numbers, so answer only exchanges the addresses and ports.
	header.TCP(frame[portsAt:]).Encode(&header.TCPFields{
		SrcPort: clientPort, DstPort: to.Port(), SeqNum: 1 << 20, AckNum: 1 << 20,
		DataOffset: header.TCPMinimumSize, Flags: flags, WindowSize: 65535,
		Checksum: header.PseudoHeaderChecksum(header.TCPProtocolNumber, source, destination, uint16(len(packet)-header.IPv4MinimumSize)),
	})
	return frame
}

// isFor reports whether a frame is on its way to that port.
func isFor(frame []byte, destination uint16) bool {
	return len(frame) > portsAt+4 && header.Ethernet(frame[vnetLen:]).Type() == header.IPv4ProtocolNumber &&
		binary.BigEndian.Uint16(frame[portsAt+2:]) == destination
}

// answer returns the frame with source and destination exchanged, which keeps the checksums.
func answer(frame []byte) []byte {
	for _, field := range []struct{ at, size int }{{vnetLen, 6}, {ipAt + 12, 4}, {portsAt, 2}} {
		a, b := frame[field.at:field.at+field.size], frame[field.at+field.size:field.at+2*field.size]
		for i := range a {
			a[i], b[i] = b[i], a[i]
		}
	}
	return frame
}
