package guest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Ping sends an ICMP echo request each second until one is answered, and returns its round-trip time. Without a
// route to the address the error comes at once.
func (g *Guest) Ping(ctx context.Context, to netip.Addr) (time.Duration, error) {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	if to.IsLinkLocalUnicast() {
		to = to.WithZone(g.zone)
	}
	return g.Namespace.Ping(ctx, to)
}

// DialTCP connects to an address. The kernel chooses the source address.
func (g *Guest) DialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	conn, err := g.Namespace.DialTCP(ctx, to.String())
	if err = because(ctx, err); err != nil {
		if conn != nil {
			conn.Close()
		}
		return nil, fmt.Errorf("TCP connection to %v: %w", to, err)
	}
	return conn, nil
}

// ListenTCP serves a port of all the guest's addresses until the guest is closed. Each connection receives the
// line "NAME sees PEER-ADDRESS:PORT", and then an echo of what it sends.
func (g *Guest) ListenTCP(port uint16) error {
	answers, err := g.Answer(g.config.Name, fmt.Sprint(":", port))
	if err != nil {
		return fmt.Errorf("TCP port %d: %w", port, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answers = append(g.answers, answers)
	return nil
}
