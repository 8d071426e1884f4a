package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Lease6 is a DHCPv6 lease.
type Lease6 struct {
	// Address is the guest's address, installed as a /128. DHCPv6 has no prefix length: on-link prefixes
	// and routers come from router advertisements.
	Address netip.Addr
	// Server is the server's identifier.
	Server dhcpv6.DUID
	// DNS are the resolvers. Search are the search domains.
	DNS    []netip.Addr
	Search []string
	// Preferred and Valid are the address's lifetimes; 4294967295 s is infinite.
	Preferred, Valid time.Duration
	// Message is the whole reply.
	Message *dhcpv6.Message
}

// allServers is All_DHCP_Relay_Agents_and_Servers (RFC 8415 section 7.1).
var allServers = netip.AddrPortFrom(netip.MustParseAddr("ff02::1:2"), dhcpv6.DefaultServerPort)

// DHCPv6 gets a lease with messages from the link-local address, and installs it. With rapid the guest asks
// for rapid commit (two messages), and also accepts an exchange of four.
//
// The address goes through duplicate address detection. If another station answers, the guest declines the
// address and the error wraps ErrDuplicate. If the server has no address, the error wraps ErrRefused.
//
// RFC 8415 sections 18.2.1, 18.2.2 and 18.2.8.
func (g *Guest) DHCPv6(ctx context.Context, rapid bool) (*Lease6, error) {
	g.dhcp6.Lock()
	defer g.dhcp6.Unlock()
	ctx, free := g.withGuestContext(ctx)
	defer free()
	w, err := g.openSocket6(ctx)
	if err != nil {
		return nil, fmt.Errorf("DHCPv6: %w", err)
	}
	defer w.free()

	solicit, err := g.message6(dhcpv6.MessageTypeSolicit, nil)
	if err != nil {
		return nil, err
	}
	if rapid {
		dhcpv6.WithRapidCommit(solicit)
	}
	answer, err := g.exchange6(ctx, w, solicit, func(m *dhcpv6.Message) bool {
		committed := rapid && m.MessageType == dhcpv6.MessageTypeReply && m.GetOneOption(dhcpv6.OptionRapidCommit) != nil
		return committed || m.MessageType == dhcpv6.MessageTypeAdvertise
	})
	if err != nil {
		return nil, fmt.Errorf("DHCPv6: no answer to the solicitation: %w", err)
	}
	lease, err := g.parseLease6(answer)
	if err != nil {
		return nil, fmt.Errorf("DHCPv6: %v: %w", answer.MessageType, err)
	}
	if answer.MessageType == dhcpv6.MessageTypeAdvertise {
		if lease, err = g.request6(ctx, w, dhcpv6.MessageTypeRequest, lease); err != nil {
			return nil, fmt.Errorf("DHCPv6: request: %w", err)
		}
	}
	if err := g.applyLease6(ctx, lease); err != nil {
		if errors.Is(err, ErrDuplicate) {
			decline, declineErr := g.message6(dhcpv6.MessageTypeDecline, lease)
			if declineErr == nil {
				declineErr = w.send(decline.ToBytes())
			}
			err = errors.Join(err, declineErr)
		}
		return nil, fmt.Errorf("DHCPv6: %w", err)
	}
	return lease, nil
}

// Renew6 extends the lease with a message to its server.
//
// RFC 8415 section 18.2.4.
func (g *Guest) Renew6(ctx context.Context) (*Lease6, error) {
	g.dhcp6.Lock()
	defer g.dhcp6.Unlock()
	ctx, free := g.withGuestContext(ctx)
	defer free()
	g.mu.Lock()
	lease := g.lease6
	g.mu.Unlock()
	if lease == nil {
		return nil, errors.New("DHCPv6: renewal: no lease")
	}
	w, err := g.openSocket6(ctx)
	if err != nil {
		return nil, fmt.Errorf("DHCPv6: renewal: %w", err)
	}
	defer w.free()
	renewed, err := g.request6(ctx, w, dhcpv6.MessageTypeRenew, lease)
	if err == nil {
		err = g.applyLease6(ctx, renewed)
	}
	if err != nil {
		return nil, fmt.Errorf("DHCPv6: renewal of %v: %w", lease.Address, err)
	}
	return renewed, nil
}

// openSocket6 waits for the link-local address and returns a socket that is bound to it.
func (g *Guest) openSocket6(ctx context.Context) (*socket, error) {
	local, err := g.linkLocal(ctx)
	if err != nil {
		return nil, err
	}
	return g.openSocket(ctx, netip.AddrPortFrom(local, dhcpv6.DefaultClientPort), allServers)
}

// message6 returns a message that asks the lease's server for the lease's address, or any server for any
// address if lease is nil.
func (g *Guest) message6(t dhcpv6.MessageType, lease *Lease6) (*dhcpv6.Message, error) {
	m, err := dhcpv6.NewMessage()
	if err != nil {
		return nil, fmt.Errorf("DHCPv6: transaction identifier: %w", err)
	}
	m.MessageType = t
	m.AddOption(dhcpv6.OptClientID(g.duid()))
	association := &dhcpv6.OptIANA{IaId: g.iaid()}
	if lease != nil {
		m.AddOption(dhcpv6.OptServerID(lease.Server))
		association.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: lease.Address.AsSlice()})
	}
	m.AddOption(association)
	if t != dhcpv6.MessageTypeDecline {
		m.AddOption(dhcpv6.OptRequestedOption(dhcpv6.OptionDNSRecursiveNameServer, dhcpv6.OptionDomainSearchList))
	}
	return m, nil
}

// duid is a DUID-LL: the same after every start (RFC 8415 section 11.4).
func (g *Guest) duid() *dhcpv6.DUIDLL {
	mac := g.config.MAC
	return &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr(mac[:])}
}

func (g *Guest) iaid() [4]byte { return [4]byte(g.config.MAC[2:]) }

// exchange6 sends m and returns the first answer that names client and server and that want accepts.
func (g *Guest) exchange6(ctx context.Context, w wire, m *dhcpv6.Message, want func(*dhcpv6.Message) bool) (*dhcpv6.Message, error) {
	return exchange(ctx, w, func(elapsed time.Duration) []byte {
		m.UpdateOption(dhcpv6.OptElapsedTime(min(elapsed, 0xffff*10*time.Millisecond)))
		return m.ToBytes()
	}, func(b []byte) (*dhcpv6.Message, bool) {
		answer, err := dhcpv6.MessageFromBytes(b)
		if err != nil {
			g.log.Warn("DHCPv6 answer ignored", "err", err)
			return nil, false
		}
		client := answer.Options.ClientID()
		return answer, answer.TransactionID == m.TransactionID && client != nil && g.duid().Equal(client) &&
			answer.Options.ServerID() != nil && want(answer)
	})
}

// request6 asks the lease's server for the lease and returns the lease in the reply.
func (g *Guest) request6(ctx context.Context, w wire, t dhcpv6.MessageType, lease *Lease6) (*Lease6, error) {
	m, err := g.message6(t, lease)
	if err != nil {
		return nil, err
	}
	reply, err := g.exchange6(ctx, w, m, func(m *dhcpv6.Message) bool {
		return m.MessageType == dhcpv6.MessageTypeReply
	})
	if err != nil {
		return nil, err
	}
	return g.parseLease6(reply)
}

func (g *Guest) parseLease6(m *dhcpv6.Message) (*Lease6, error) {
	if err := refusal(m.Options.Status()); err != nil {
		return nil, err
	}
	for _, association := range m.Options.IANA() {
		if association.IaId != g.iaid() {
			continue
		}
		if err := refusal(association.Options.Status()); err != nil {
			return nil, err
		}
		for _, a := range association.Options.Addresses() {
			if err := refusal(a.Options.Status()); err != nil {
				return nil, err
			}
			if a.ValidLifetime == 0 {
				continue
			}
			l := &Lease6{
				Address:   fromIP(a.IPv6Addr),
				Server:    m.Options.ServerID(),
				DNS:       fromIPs(m.Options.DNS()),
				Preferred: a.PreferredLifetime,
				Valid:     a.ValidLifetime,
				Message:   m,
			}
			if search := m.Options.DomainSearchList(); search != nil {
				l.Search = search.Labels
			}
			return l, nil
		}
	}
	return nil, errors.New("no address in the message")
}

// refusal returns an error unless the status is success. A missing status means success (RFC 8415 section
// 21.13).
func refusal(s *dhcpv6.OptStatusCode) error {
	if s == nil || s.StatusCode == iana.StatusSuccess {
		return nil
	}
	return fmt.Errorf("%w: %v: %q", ErrRefused, s.StatusCode, s.StatusMessage)
}

// applyLease6 installs the lease's address, and waits for duplicate address detection.
func (g *Guest) applyLease6(ctx context.Context, lease *Lease6) error {
	g.mu.Lock()
	old := g.lease6
	g.mu.Unlock()
	if old != nil && old.Address != lease.Address {
		g.changeState(func() { g.lease6 = nil })
		if err := g.stack.RemoveAddress(nicID, address(old.Address)); err != nil {
			return fmt.Errorf("removal of %v: %s", old.Address, err)
		}
	}
	if old == nil || old.Address != lease.Address {
		g.changeState(func() { delete(g.probed, lease.Address) })
		err := g.stack.AddProtocolAddress(nicID, tcpip.ProtocolAddress{
			Protocol:          ipv6.ProtocolNumber,
			AddressWithPrefix: withPrefix(netip.PrefixFrom(lease.Address, 128)),
		}, stack.AddressProperties{})
		if err != nil {
			return fmt.Errorf("address %v: %s", lease.Address, err)
		}
		probed := g.waitForProbe(ctx, lease.Address)
		if probed != nil && !errors.Is(probed, ErrDuplicate) { // the stack itself removes a duplicate
			if err := g.stack.RemoveAddress(nicID, address(lease.Address)); err != nil {
				probed = errors.Join(probed, fmt.Errorf("removal of %v: %s", lease.Address, err))
			}
		}
		if probed != nil {
			return probed
		}
	}
	g.changeState(func() { g.lease6 = lease })
	return nil
}
