package guest

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/guestwire/guestwire/internal/test/sctp"
)

// ListenSCTP answers each INIT to a port of the guest's addresses until the guest is closed. The State Cookie of the
// answer is the text "NAME sees PEER-ADDRESS:PORT". There are no associations.
func (g *Guest) ListenSCTP(port uint16) {
	g.sctp.mu.Lock()
	defer g.sctp.mu.Unlock()
	g.sctp.served = append(g.sctp.served, port)
}

// AskSCTP sends an INIT each second until an INIT ACK comes, and returns the text of its State Cookie.
func (g *Guest) AskSCTP(ctx context.Context, to netip.AddrPort) (string, error) {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	answer, err := g.sctp.ask(ctx, to)
	if err != nil {
		return "", fmt.Errorf("SCTP to %v: %w", to, err)
	}
	return answer, nil
}

// handshake is the stack's transport protocol SCTP. It has no endpoints: all packets come to
// HandleUnknownDestinationPacket.
type handshake struct {
	guest *Guest
	stack *stack.Stack

	mu     sync.Mutex
	served []uint16
	asked  map[uint32]chan string // by initiate tag
}

var _ stack.TransportProtocol = (*handshake)(nil)

func (h *handshake) ask(ctx context.Context, to netip.AddrPort) (string, error) {
	route, terr := h.stack.FindRoute(nicID, tcpip.Address{}, address(to.Addr()), networkOf(to), false)
	if terr != nil {
		return "", fmt.Errorf("%s", terr)
	}
	defer route.Release()
	init := sctp.Packet{Source: uint16(32768 + rand.IntN(28000)), Destination: to.Port(), Initiate: rand.Uint32() | 1}
	answer := make(chan string, 1)
	h.mu.Lock()
	h.asked[init.Initiate] = answer
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.asked, init.Initiate)
	}()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		if err := write(route, init); err != nil {
			return "", err
		}
		select {
		case text := <-answer:
			return text, nil
		case <-again.C:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func write(route *stack.Route, p sctp.Packet) error {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()), Payload: buffer.MakeWithData(p.Marshal()),
	})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = sctp.Protocol
	if terr := route.WritePacket(stack.NetworkHeaderParams{Protocol: sctp.Protocol, TTL: 64}, pkt); terr != nil {
		return fmt.Errorf("%s", terr)
	}
	return nil
}

// HandleUnknownDestinationPacket implements stack.TransportProtocol.
func (h *handshake) HandleUnknownDestinationPacket(id stack.TransportEndpointID, pkt *stack.PacketBuffer) stack.UnknownDestinationPacketDisposition {
	p, err := sctp.Parse(slices.Concat(pkt.TransportHeader().Slice(), pkt.Data().AsRange().ToSlice()))
	if err != nil {
		h.guest.log.Info("SCTP packet ignored", "err", err)
		return stack.UnknownDestinationPacketMalformed
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch answer := h.asked[p.Tag]; {
	case p.Cookie != nil && answer != nil:
		select {
		case answer <- string(p.Cookie):
		default: // the answer to an INIT that was sent again
		}
	case p.Cookie == nil && slices.Contains(h.served, p.Destination):
		route, terr := h.stack.FindRoute(nicID, id.LocalAddress, id.RemoteAddress, pkt.NetworkProtocolNumber, false)
		if terr != nil {
			break
		}
		defer route.Release()
		peer := netip.AddrPortFrom(fromAddress(id.RemoteAddress), p.Source)
		if err := write(route, p.Answer(fmt.Appendf(nil, "%s sees %v", h.guest.config.Name, peer))); err != nil {
			h.guest.log.Info("SCTP packet not answered", "peer", peer, "err", err)
		}
	}
	return stack.UnknownDestinationPacketHandled
}

// sctpHeader is the size of SCTP's common header.
const sctpHeader = 12

// Number implements stack.TransportProtocol.
func (*handshake) Number() tcpip.TransportProtocolNumber { return sctp.Protocol }

// NewEndpoint implements stack.TransportProtocol.
func (*handshake) NewEndpoint(tcpip.NetworkProtocolNumber, *waiter.Queue) (tcpip.Endpoint, tcpip.Error) {
	return nil, &tcpip.ErrNotSupported{}
}

// NewRawEndpoint implements stack.TransportProtocol.
func (*handshake) NewRawEndpoint(tcpip.NetworkProtocolNumber, *waiter.Queue) (tcpip.Endpoint, tcpip.Error) {
	return nil, &tcpip.ErrNotSupported{}
}

// MinimumPacketSize implements stack.TransportProtocol.
func (*handshake) MinimumPacketSize() int { return sctpHeader }

// ParsePorts implements stack.TransportProtocol.
func (*handshake) ParsePorts(b []byte) (src, dst uint16, err tcpip.Error) {
	return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), nil
}

// Parse implements stack.TransportProtocol.
func (*handshake) Parse(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.TransportHeader().Consume(sctpHeader)
	return ok
}

// SetOption implements stack.TransportProtocol.
func (*handshake) SetOption(tcpip.SettableTransportProtocolOption) tcpip.Error {
	return &tcpip.ErrUnknownProtocolOption{}
}

// Option implements stack.TransportProtocol.
func (*handshake) Option(tcpip.GettableTransportProtocolOption) tcpip.Error {
	return &tcpip.ErrUnknownProtocolOption{}
}

// Close implements stack.TransportProtocol.
func (*handshake) Close() {}

// Wait implements stack.TransportProtocol.
func (*handshake) Wait() {}

// Pause implements stack.TransportProtocol.
func (*handshake) Pause() {}

// Resume implements stack.TransportProtocol.
func (*handshake) Resume() {}

// Restore implements stack.TransportProtocol.
func (*handshake) Restore() {}
