package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/guestwire/guestwire/cache"
)

// The guest, and the addresses that both servers must lease to it: those of podNIC.
var (
	guestMAC  = cache.MAC{2, 0, 0, 0, 0, 7}
	guestIPv4 = netip.MustParseAddr("10.244.1.7")
	guestIPv6 = netip.MustParseAddr("fd00:10:244:1::7")
)

var (
	zero4        = netip.IPv4Unspecified()
	broadcast4   = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	allServers6  = netip.MustParseAddr("ff02::1:2")
	broadcastMAC = cache.MAC{255, 255, 255, 255, 255, 255}
)

// Offsets in a frame without IP options.
const (
	ethernetLen = header.EthernetMinimumSize
	payload4    = ethernetLen + header.IPv4MinimumSize + header.UDPMinimumSize
	payload6    = ethernetLen + header.IPv6MinimumSize + header.UDPMinimumSize
	yiaddrAt    = payload4 + 16
	options4At  = payload4 + 240
)

// template is a frame with a DHCP message, whose transaction identifier is set by stamp before each send.
type template struct {
	frame []byte
	idAt  int    // offset of the identifier's three octets, or the last three of four; idAt+1 is even
	sumAt int    // offset of the UDP checksum
	sum   uint16 // checksum of the datagram without the identifier
}

// stamp sets the transaction identifier, of 24 bits, and the checksum.
func (t *template) stamp(id uint32) []byte {
	t.frame[t.idAt] = byte(id >> 16)
	binary.BigEndian.PutUint16(t.frame[t.idAt+1:], uint16(id))
	sum := uint32(t.sum) + id>>16 + id&0xffff
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	check := ^uint16(sum)
	if check == 0 {
		check = 0xffff // RFC 768
	}
	binary.BigEndian.PutUint16(t.frame[t.sumAt:], check)
	return t.frame
}

func newTemplate(frame []byte, idAt int) *template {
	t := &template{frame: frame, idAt: idAt, sumAt: payload4 - 2}
	if isIPv6(frame) {
		t.sumAt = payload6 - 2
	}
	copy(frame[idAt:idAt+3], []byte{0, 0, 0})
	t.sum = sumUDP(frame)
	return t
}

func isIPv6(frame []byte) bool {
	return header.Ethernet(frame).Type() == header.IPv6ProtocolNumber
}

// sumUDP returns the sum of a datagram whose checksum field is zero.
func sumUDP(frame []byte) uint16 {
	ip := frame[ethernetLen:]
	var source, destination tcpip.Address
	var datagram header.UDP
	if isIPv6(frame) {
		source, destination = header.IPv6(ip).SourceAddress(), header.IPv6(ip).DestinationAddress()
		datagram = ip[header.IPv6MinimumSize:]
	} else {
		source, destination = header.IPv4(ip).SourceAddress(), header.IPv4(ip).DestinationAddress()
		datagram = ip[header.IPv4MinimumSize:]
	}
	datagram.SetChecksum(0)
	pseudo := header.PseudoHeaderChecksum(header.UDPProtocolNumber, source, destination, uint16(len(datagram)))
	return checksum.Checksum(datagram, pseudo)
}

// frame4 returns a broadcast datagram of a guest without an address.
func frame4(payload []byte) []byte {
	frame := make([]byte, payload4, payload4+len(payload))
	frame = append(frame, payload...)
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(guestMAC[:]),
		DstAddr: tcpip.LinkAddress(broadcastMAC[:]),
		Type:    header.IPv4ProtocolNumber,
	})
	ip := header.IPv4(frame[ethernetLen:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ip)),
		TTL:         64,
		Protocol:    uint8(header.UDPProtocolNumber),
		SrcAddr:     tcpip.AddrFrom4(zero4.As4()),
		DstAddr:     tcpip.AddrFrom4(broadcast4.As4()),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	datagram := header.UDP(frame[payload4-header.UDPMinimumSize:])
	datagram.Encode(&header.UDPFields{SrcPort: dhcpv4.ClientPort, DstPort: dhcpv4.ServerPort, Length: uint16(len(datagram))})
	return frame
}

// frame6 returns a packet from the guest's link-local address to a group.
func frame6(group netip.Addr, protocol tcpip.TransportProtocolNumber, hopLimit uint8, payload []byte) []byte {
	const head = ethernetLen + header.IPv6MinimumSize
	frame := make([]byte, head, head+len(payload))
	frame = append(frame, payload...)
	to := group.As16()
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(guestMAC[:]),
		DstAddr: tcpip.LinkAddress(append([]byte{0x33, 0x33}, to[12:]...)),
		Type:    header.IPv6ProtocolNumber,
	})
	header.IPv6(frame[ethernetLen:]).Encode(&header.IPv6Fields{
		PayloadLength:     uint16(len(payload)),
		TransportProtocol: protocol,
		HopLimit:          hopLimit,
		SrcAddr:           tcpip.AddrFrom16(guestMAC.LinkLocal().As16()),
		DstAddr:           tcpip.AddrFrom16(to),
	})
	return frame
}

func dhcp6Frame(message []byte) []byte {
	datagram := append(make(header.UDP, header.UDPMinimumSize), message...)
	datagram.Encode(&header.UDPFields{SrcPort: dhcpv6.DefaultClientPort, DstPort: dhcpv6.DefaultServerPort, Length: uint16(len(datagram))})
	return frame6(allServers6, header.UDPProtocolNumber, 64, datagram)
}

// protocol is DHCPv4 or DHCPv6, with two messages that the server has answered before.
type protocol struct {
	name  string
	legs  [2]string // names of the server's answers
	first *template
	then  *template
	// answer returns which of the two answers a frame is, and to which transaction; leg is -1 for other
	// frames. An answer without the guest's address is an error.
	answer func(frame []byte) (leg int, id uint32, err error)
}

var errOther = errors.New("an answer without the guest's address")

func answer4(frame []byte) (leg int, id uint32, err error) {
	if len(frame) < options4At || frame[12] != 0x08 || frame[13] != 0x00 || frame[ethernetLen] != 0x45 ||
		frame[23] != uint8(header.UDPProtocolNumber) || binary.BigEndian.Uint16(frame[36:]) != dhcpv4.ClientPort {
		return -1, 0, nil
	}
	id = binary.BigEndian.Uint32(frame[payload4+4:])
	if [4]byte(frame[yiaddrAt:]) != guestIPv4.As4() {
		return -1, id, errOther
	}
	switch messageType4(frame[options4At:]) {
	case dhcpv4.MessageTypeOffer:
		return 0, id, nil
	case dhcpv4.MessageTypeAck:
		return 1, id, nil
	}
	return -1, id, errOther
}

func messageType4(options []byte) dhcpv4.MessageType {
	for len(options) >= 3 {
		if options[0] == dhcpv4.OptionDHCPMessageType.Code() {
			return dhcpv4.MessageType(options[2])
		}
		options = options[min(len(options), 2+int(options[1])):]
	}
	return dhcpv4.MessageTypeNone
}

var guestIPv6Octets = guestIPv6.AsSlice()

func answer6(frame []byte) (leg int, id uint32, err error) {
	if len(frame) < payload6+4 || frame[12] != 0x86 || frame[13] != 0xdd ||
		frame[20] != uint8(header.UDPProtocolNumber) || binary.BigEndian.Uint16(frame[56:]) != dhcpv6.DefaultClientPort {
		return -1, 0, nil
	}
	id = binary.BigEndian.Uint32(frame[payload6:]) & 0xffffff
	if !bytes.Contains(frame[payload6+4:], guestIPv6Octets) {
		return -1, id, errOther
	}
	switch dhcpv6.MessageType(frame[payload6]) {
	case dhcpv6.MessageTypeAdvertise:
		return 0, id, nil
	case dhcpv6.MessageTypeReply:
		return 1, id, nil
	}
	return -1, id, errOther
}

// learnID is the transaction identifier of learn4's and learn6's exchange.
const learnID = 0xffffff

// learn4 makes an exchange, checks the answers in full, and returns its messages.
func learn4(ask func(p *protocol, leg int) ([]byte, error)) (*protocol, error) {
	message := func(t dhcpv4.MessageType, more ...dhcpv4.Modifier) (*template, error) {
		m, err := dhcpv4.New(append([]dhcpv4.Modifier{
			dhcpv4.WithHwAddr(guestMAC[:]), dhcpv4.WithMessageType(t),
			dhcpv4.WithTransactionID(dhcpv4.TransactionID{}),
			dhcpv4.WithOption(dhcpv4.OptClientIdentifier(append([]byte{1}, guestMAC[:]...))),
			dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(1500)),
			dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer,
				dhcpv4.OptionDomainName, dhcpv4.OptionBroadcastAddress, dhcpv4.OptionClasslessStaticRoute),
		}, more...)...)
		if err != nil {
			return nil, err
		}
		return newTemplate(frame4(m.ToBytes()), payload4+5), nil
	}
	p := &protocol{name: "DHCPv4", legs: [2]string{"OFFER", "ACK"}, answer: answer4}
	var err error
	if p.first, err = message(dhcpv4.MessageTypeDiscover); err != nil {
		return nil, err
	}
	offer, err := askParsed(ask, p, 0, payload4, dhcpv4.FromBytes)
	if err != nil {
		return nil, err
	}
	p.then, err = message(dhcpv4.MessageTypeRequest,
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())))
	if err != nil {
		return nil, err
	}
	ack, err := askParsed(ask, p, 1, payload4, dhcpv4.FromBytes)
	if err != nil {
		return nil, err
	}
	if ones, _ := ack.SubnetMask().Size(); ones != 24 || len(ack.Router()) != 1 || !ack.ServerIdentifier().Equal(offer.ServerIdentifier()) {
		return nil, fmt.Errorf("the lease is not as configured: %s", ack.Summary())
	}
	return p, nil
}

// learn6 is learn4 for DHCPv6.
func learn6(ask func(p *protocol, leg int) ([]byte, error)) (*protocol, error) {
	message := func(t dhcpv6.MessageType, more ...dhcpv6.Modifier) (*template, error) {
		m, err := dhcpv6.NewMessage(append([]dhcpv6.Modifier{
			dhcpv6.WithClientID(&dhcpv6.DUIDLL{HWType: 1, LinkLayerAddr: net.HardwareAddr(guestMAC[:])}),
			dhcpv6.WithOption(dhcpv6.OptElapsedTime(0)),
			dhcpv6.WithRequestedOptions(dhcpv6.OptionDNSRecursiveNameServer, dhcpv6.OptionDomainSearchList),
		}, more...)...)
		if err != nil {
			return nil, err
		}
		m.MessageType = t
		return newTemplate(dhcp6Frame(m.ToBytes()), payload6+1), nil
	}
	p := &protocol{name: "DHCPv6", legs: [2]string{"ADVERTISE", "REPLY"}, answer: answer6}
	var err error
	if p.first, err = message(dhcpv6.MessageTypeSolicit, dhcpv6.WithIAID([4]byte(guestMAC[2:]))); err != nil {
		return nil, err
	}
	advertise, err := askParsed(ask, p, 0, payload6, dhcpv6.MessageFromBytes)
	if err != nil {
		return nil, err
	}
	p.then, err = message(dhcpv6.MessageTypeRequest,
		dhcpv6.WithServerID(advertise.Options.ServerID()), dhcpv6.WithOption(advertise.Options.OneIANA()))
	if err != nil {
		return nil, err
	}
	reply, err := askParsed(ask, p, 1, payload6, dhcpv6.MessageFromBytes)
	if err != nil {
		return nil, err
	}
	lease := reply.Options.OneIANA()
	if lease == nil || lease.Options.OneAddress() == nil || !lease.Options.OneAddress().IPv6Addr.Equal(net.IP(guestIPv6Octets)) {
		return nil, fmt.Errorf("the lease is not as configured: %s", reply.Summary())
	}
	return p, nil
}

func askParsed[T any](ask func(p *protocol, leg int) ([]byte, error), p *protocol, leg, payload int, parse func([]byte) (T, error)) (T, error) {
	frame, err := ask(p, leg)
	if err != nil {
		var none T
		return none, err
	}
	return parse(frame[payload:])
}

// floodFrames returns the frames of a guest that sends all it can: a third are whole DHCP
// messages, a third are damaged ones, the others router solicitations and ARP requests.
func floodFrames(v4, v6 *protocol) [][]byte {
	solicitation := append(make(header.ICMPv6, header.ICMPv6MinimumSize), []byte{1, 1}...)
	solicitation = append(solicitation, guestMAC[:]...)
	solicitation.SetType(header.ICMPv6RouterSolicit)
	allRouters := netip.MustParseAddr("ff02::2")
	solicitation.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
		Header: solicitation, Src: tcpip.AddrFrom16(guestMAC.LinkLocal().As16()), Dst: tcpip.AddrFrom16(allRouters.As16()),
	}))
	arp := make([]byte, ethernetLen+header.ARPSize)
	header.Ethernet(arp).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(guestMAC[:]), DstAddr: tcpip.LinkAddress(broadcastMAC[:]), Type: header.ARPProtocolNumber,
	})
	request := header.ARP(arp[ethernetLen:])
	request.SetIPv4OverEthernet()
	request.SetOp(header.ARPRequest)
	copy(request.HardwareAddressSender(), guestMAC[:])
	copy(request.ProtocolAddressTarget(), []byte{10, 244, 1, 1})

	whole := [][]byte{v4.first.stamp(1), v4.then.stamp(1), v6.first.stamp(1), v6.then.stamp(1)}
	var frames [][]byte
	for i := range 128 {
		message := whole[i%len(whole)]
		damaged := damaged(message, i)
		frames = append(frames, slices.Clone(message), damaged)
		if i%2 == 0 {
			frames = append(frames, frame6(allRouters, header.ICMPv6ProtocolNumber, 255, solicitation), arp)
		}
	}
	return frames
}

// damaged returns the message with the nth kind of damage and a right checksum.
func damaged(message []byte, n int) []byte {
	payload, head := payload4, options4At
	if isIPv6(message) {
		payload, head = payload6, payload6+4
	}
	body := slices.Clone(message[payload:])
	options := body[head-payload:]
	switch n / 4 % 4 {
	case 0: // ends within an option
		body = body[:len(body)-len(options)/2]
	case 1: // an option is longer than what is left
		options[1], options[3] = 0xff, 0xff
	case 2: // other options
		for i := range options {
			options[i] ^= byte(n*31 + i*7)
		}
	case 3: // not a DHCP message
		body = body[:n%16]
	}
	frame := frame4(body)
	if payload == payload6 {
		frame = dhcp6Frame(body)
	}
	check := ^sumUDP(frame)
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(frame[payload-2:], check)
	return frame
}
