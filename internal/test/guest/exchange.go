package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// A message without an answer is sent again after firstWait, then after twice the time, up to maxWait.
// firstWait is that of RFC 8415 section 7.6 for SOLICIT and REQUEST. RFC 2131 section 4.1 starts with 4 s, for
// links slower than a tap.
const (
	firstWait = time.Second
	maxWait   = 16 * time.Second
)

// wire sends and receives the messages of a DHCP client.
type wire interface {
	send(message []byte) error
	// receive returns os.ErrDeadlineExceeded at the deadline.
	receive(ctx context.Context, deadline time.Time) ([]byte, error)
}

// exchange sends a message, and repeats it until accept accepts an answer. message gets the time since the
// first one.
func exchange[T any](ctx context.Context, w wire, message func(elapsed time.Duration) []byte, accept func([]byte) (T, bool)) (T, error) {
	var none T
	start := time.Now()
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		err := w.send(message(time.Since(start)))
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		if err != nil {
			return none, err
		}
		deadline := time.Now().Add(wait)
		for {
			answer, err := w.receive(ctx, deadline)
			if ctx.Err() != nil {
				return none, context.Cause(ctx)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return none, err
			}
			if v, ok := accept(answer); ok {
				return v, nil
			}
		}
	}
}

// socket is a wire over the stack's UDP, to one server.
type socket struct {
	conn *gonet.UDPConn
	to   *net.UDPAddr
	free func()
}

// openSocket binds a socket to an address of the guest. The socket is closed when ctx is done.
func (g *Guest) openSocket(ctx context.Context, local, to netip.AddrPort) (*socket, error) {
	network := ipv6.ProtocolNumber
	if local.Addr().Is4() {
		network = ipv4.ProtocolNumber
	}
	var queue waiter.Queue
	ep, err := g.stack.NewEndpoint(udp.ProtocolNumber, network, &queue)
	if err != nil {
		return nil, fmt.Errorf("UDP socket: %s", err)
	}
	ep.SocketOptions().SetBroadcast(true)
	if err := ep.Bind(fullAddress(local)); err != nil {
		ep.Close()
		return nil, fmt.Errorf("UDP socket on %v: %s", local, err)
	}
	conn := gonet.NewUDPConn(&queue, ep)
	stop := context.AfterFunc(ctx, ep.Close)
	return &socket{conn, net.UDPAddrFromAddrPort(to), func() {
		stop()
		ep.Close()
	}}, nil
}

func (s *socket) send(message []byte) error {
	_, err := s.conn.WriteTo(message, s.to)
	return err
}

func (s *socket) receive(_ context.Context, deadline time.Time) ([]byte, error) {
	if err := s.conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	buffer := make([]byte, 1<<16)
	n, _, err := s.conn.ReadFrom(buffer)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return nil, os.ErrDeadlineExceeded
	}
	return buffer[:n], err
}

// broadcast is a wire for a guest without an IPv4 address: frames from 0.0.0.0 to the broadcast address.
type broadcast struct {
	guest   *Guest
	replies chan []byte
}

// openBroadcast returns a wire that gets all DHCPv4 messages to the guest, instead of the stack, until it is
// closed.
func (g *Guest) openBroadcast() *broadcast {
	b := &broadcast{g, make(chan []byte, 16)}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bootReply = b.replies
	return b
}

func (b *broadcast) close() {
	b.guest.mu.Lock()
	defer b.guest.mu.Unlock()
	b.guest.bootReply = nil
}

func (b *broadcast) receive(ctx context.Context, deadline time.Time) ([]byte, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case message := <-b.replies:
		return message, nil
	case <-timer.C:
		return nil, os.ErrDeadlineExceeded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// The ports of RFC 2131 section 4.1.
const (
	bootServer = 67
	bootClient = 68
)

func (b *broadcast) send(message []byte) error {
	const size = header.EthernetMinimumSize + header.IPv4MinimumSize + header.UDPMinimumSize
	frame := make([]byte, size, size+len(message))
	frame = append(frame, message...)
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: b.guest.link.LinkAddress(),
		DstAddr: header.EthernetBroadcastAddress,
		Type:    header.IPv4ProtocolNumber,
	})
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ip)),
		TTL:         64,
		Protocol:    uint8(header.UDPProtocolNumber),
		SrcAddr:     header.IPv4Any,
		DstAddr:     header.IPv4Broadcast,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	datagram := header.UDP(ip[header.IPv4MinimumSize:])
	datagram.Encode(&header.UDPFields{SrcPort: bootClient, DstPort: bootServer, Length: uint16(len(datagram))})
	datagram.SetChecksum(^datagram.CalculateChecksum(udpSum(ip, datagram)))
	return b.guest.link.write(frame)
}

// udpSum returns the checksum of the pseudo-header and the payload.
func udpSum(ip header.IPv4, datagram header.UDP) uint16 {
	pseudo := header.PseudoHeaderChecksum(header.UDPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), datagram.Length())
	return checksum.Checksum(datagram.Payload(), pseudo)
}

// deliverBootReply passes a DHCPv4 message to the open broadcast wire. It returns false if there is none or if
// the frame is no such message.
func (g *Guest) deliverBootReply(frame []byte) bool {
	g.mu.Lock()
	replies := g.bootReply
	g.mu.Unlock()
	if replies == nil {
		return false
	}
	message := bootReply(frame)
	if message == nil {
		return false
	}
	select {
	case replies <- message:
	default: // the queue is full, which no honest server causes
	}
	return true
}

// bootReply returns a copy of the payload if the frame is a well-formed datagram to the DHCPv4 client port,
// otherwise nil.
func bootReply(frame []byte) []byte {
	if header.Ethernet(frame).Type() != header.IPv4ProtocolNumber {
		return nil
	}
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	if !ip.IsValid(len(ip)) || !ip.IsChecksumValid() || ip.TransportProtocol() != header.UDPProtocolNumber ||
		ip.More() || ip.FragmentOffset() != 0 {
		return nil
	}
	datagram := header.UDP(ip.Payload())
	if len(datagram) < header.UDPMinimumSize || datagram.DestinationPort() != bootClient {
		return nil
	}
	length := int(datagram.Length())
	if length < header.UDPMinimumSize || length > len(datagram) {
		return nil
	}
	datagram = datagram[:length]
	if datagram.Checksum() != 0 && datagram.CalculateChecksum(udpSum(ip, datagram)) != 0xffff {
		return nil
	}
	return append([]byte{}, datagram.Payload()...)
}
