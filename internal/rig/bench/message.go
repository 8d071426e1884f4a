package main

import (
	"encoding/binary"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Offsets in a frame without IP options.
const (
	ethernetLen = header.EthernetMinimumSize
	udpAt       = ethernetLen + header.IPv4MinimumSize
	payloadAt   = udpAt + header.UDPMinimumSize
	idAt        = payloadAt + 4 // of the transaction
	yiaddrAt    = payloadAt + 16
	optionsAt   = payloadAt + 240
)

// template is a frame with a DHCPv4 message, whose transaction identifier is set by stamp before each send.
type template struct {
	frame []byte
	sum   uint16 // of the datagram without the identifier
}

// newTemplate returns a broadcast of a guest without an address.
func newTemplate(kind dhcpv4.MessageType, more ...dhcpv4.Modifier) (*template, error) {
	message, err := dhcpv4.New(append([]dhcpv4.Modifier{
		dhcpv4.WithHwAddr(podMAC[:]), dhcpv4.WithMessageType(kind), dhcpv4.WithTransactionID(dhcpv4.TransactionID{}),
		dhcpv4.WithOption(dhcpv4.OptClientIdentifier(append([]byte{1}, podMAC[:]...))),
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(1500)),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer,
			dhcpv4.OptionDomainName, dhcpv4.OptionBroadcastAddress, dhcpv4.OptionClasslessStaticRoute),
	}, more...)...)
	if err != nil {
		return nil, err
	}
	frame := append(make([]byte, payloadAt), message.ToBytes()...)
	everybody := [6]byte{255, 255, 255, 255, 255, 255}
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(podMAC[:]), DstAddr: tcpip.LinkAddress(everybody[:]), Type: header.IPv4ProtocolNumber,
	})
	from, to := tcpip.AddrFrom4(netip.IPv4Unspecified().As4()), tcpip.AddrFrom4([4]byte(everybody[:4]))
	packet, datagram := header.IPv4(frame[ethernetLen:]), header.UDP(frame[udpAt:])
	packet.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(packet)), TTL: 64, Protocol: uint8(header.UDPProtocolNumber), SrcAddr: from, DstAddr: to,
	})
	packet.SetChecksum(^packet.CalculateChecksum())
	datagram.Encode(&header.UDPFields{SrcPort: dhcpv4.ClientPort, DstPort: dhcpv4.ServerPort, Length: uint16(len(datagram))})
	pseudo := header.PseudoHeaderChecksum(header.UDPProtocolNumber, from, to, uint16(len(datagram)))
	return &template{frame, checksum.Checksum(datagram, pseudo)}, nil
}

// stamp sets the transaction identifier and the checksum.
func (t *template) stamp(id uint32) []byte {
	binary.BigEndian.PutUint32(t.frame[idAt:], id)
	sum := checksum.Combine(t.sum, checksum.Combine(uint16(id>>16), uint16(id)))
	if sum == 0xffff {
		sum = 0 // RFC 768: 0 would mean that there is no checksum
	}
	header.UDP(t.frame[udpAt:]).SetChecksum(^sum)
	return t.frame
}

// answers are the two of an exchange.
var answers = [2]dhcpv4.MessageType{dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck}

// isAnswer reports whether a frame is an answer of a kind with the guest's address. Its first option is the kind.
func isAnswer(frame []byte, kind dhcpv4.MessageType, id uint32) bool {
	return len(frame) > optionsAt+2 && header.Ethernet(frame).Type() == header.IPv4ProtocolNumber &&
		header.UDP(frame[udpAt:]).DestinationPort() == dhcpv4.ClientPort && binary.BigEndian.Uint32(frame[idAt:]) == id &&
		[4]byte(frame[yiaddrAt:]) == pods[0].As4() && [3]byte(frame[optionsAt:]) == [3]byte{53, 1, byte(kind)}
}
