package guest

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/guestwire/guestwire/cache"
)

// link is the guest's network device, between the stack's packets and the port's frames. It does no checksum
// offload: the stack computes and verifies every checksum.
type link struct {
	port io.ReadWriteCloser
	mac  cache.MAC
	log  *slog.Logger

	writing sync.Mutex

	mu         sync.RWMutex
	mtu        uint32
	dispatcher stack.NetworkDispatcher // nil: not attached
}

var _ stack.LinkEndpoint = (*link)(nil)

// accepts reports whether the device accepts the frame: to its own MAC or to a group.
func (l *link) accepts(frame []byte) bool {
	to := header.Ethernet(frame).DestinationAddress()
	return to == l.LinkAddress() || to[0]&1 != 0
}

// deliver passes a received frame to the stack, which copies it.
func (l *link) deliver(frame []byte) {
	l.mu.RLock()
	dispatcher := l.dispatcher
	l.mu.RUnlock()
	if dispatcher == nil {
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
	defer pkt.DecRef()
	if !l.ParseHeader(pkt) {
		return
	}
	eth := header.Ethernet(frame)
	switch to := eth.DestinationAddress(); {
	case to == header.EthernetBroadcastAddress:
		pkt.PktType = tcpip.PacketBroadcast
	case to[0]&1 != 0:
		pkt.PktType = tcpip.PacketMulticast
	default:
		pkt.PktType = tcpip.PacketHost
	}
	dispatcher.DeliverNetworkPacket(eth.Type(), pkt)
}

func (l *link) write(frame []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.port.Write(frame)
	return err
}

// WritePackets implements stack.LinkWriter.
func (l *link) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	for i, pkt := range packets.AsSlice() {
		view := pkt.ToView()
		err := l.write(view.AsSlice())
		view.Release()
		if errors.Is(err, os.ErrClosed) {
			return i, &tcpip.ErrClosedForSend{}
		}
		if err != nil {
			l.log.Warn("frame not sent", "err", err)
			return i, &tcpip.ErrAborted{}
		}
	}
	return packets.Len(), nil
}

// MTU implements stack.NetworkLinkEndpoint.
func (l *link) MTU() uint32 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mtu
}

// SetMTU implements stack.NetworkLinkEndpoint.
func (l *link) SetMTU(mtu uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mtu = mtu
}

// Attach implements stack.NetworkLinkEndpoint.
func (l *link) Attach(dispatcher stack.NetworkDispatcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dispatcher = dispatcher
}

// IsAttached implements stack.NetworkLinkEndpoint.
func (l *link) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dispatcher != nil
}

// AddHeader implements stack.NetworkLinkEndpoint.
func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: l.LinkAddress(),
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

// ParseHeader implements stack.NetworkLinkEndpoint.
func (l *link) ParseHeader(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	return ok
}

// LinkAddress implements stack.NetworkLinkEndpoint.
func (l *link) LinkAddress() tcpip.LinkAddress { return tcpip.LinkAddress(l.mac[:]) }

// SetLinkAddress implements stack.NetworkLinkEndpoint. The MAC of Config stays.
func (l *link) SetLinkAddress(tcpip.LinkAddress) {}

// MaxHeaderLength implements stack.NetworkLinkEndpoint.
func (l *link) MaxHeaderLength() uint16 { return header.EthernetMinimumSize }

// Capabilities implements stack.NetworkLinkEndpoint.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityResolutionRequired
}

// ARPHardwareType implements stack.NetworkLinkEndpoint.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// Wait implements stack.NetworkLinkEndpoint. Guest.Close waits for the reader.
func (l *link) Wait() {}

// Close implements stack.NetworkLinkEndpoint. Guest.Close closes the port.
func (l *link) Close() {}

// SetOnCloseAction implements stack.NetworkLinkEndpoint. There is no action.
func (l *link) SetOnCloseAction(func()) {}
