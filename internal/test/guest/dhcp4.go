package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Lease4 is a DHCPv4 lease.
type Lease4 struct {
	// Address is the guest's address, with the prefix length of the subnet mask.
	Address netip.Prefix
	// Server is the server identifier; renewals are sent to it.
	Server netip.Addr
	// Routes are the routes of the classless static route option in the option's order; without the
	// option, a default route through the first router. The route to Address's prefix is not listed.
	Routes []Route
	// DNS are the resolvers. Search are the domains of option 119, or else that of option 15.
	DNS    []netip.Addr
	Search []string
	// MTU is option 26; 0: no option. A value below 68 is not used (RFC 2132 section 5.1).
	MTU int
	// Duration is the lease time; 4294967295 s is infinite.
	Duration time.Duration
	// Message is the whole acknowledgement.
	Message *dhcpv4.DHCPv4
}

// requestedOptions is the parameter request list.
var requestedOptions = []dhcpv4.OptionCode{
	dhcpv4.OptionSubnetMask,
	dhcpv4.OptionRouter,
	dhcpv4.OptionDomainNameServer,
	dhcpv4.OptionDomainName,
	dhcpv4.OptionInterfaceMTU,
	dhcpv4.OptionIPAddressLeaseTime,
	dhcpv4.OptionRenewTimeValue,
	dhcpv4.OptionRebindingTimeValue,
	dhcpv4.OptionDNSDomainSearchList,
	dhcpv4.OptionClasslessStaticRoute,
}

// DHCPv4 gets a lease and installs its address, routes and MTU.
//
// The guest first probes the address. If another station answers, the guest declines the address and the
// error wraps ErrDuplicate. After a DHCPNAK the error wraps ErrRefused. If a route's gateway is not on the
// link, both the lease and an error are returned, and the rest of the lease is in use: a kernel would refuse
// this route, too.
//
// RFC 2131 section 4.4.1, RFC 3442, RFC 5227 section 2.1.
func (g *Guest) DHCPv4(ctx context.Context) (*Lease4, error) {
	g.dhcp4.Lock()
	defer g.dhcp4.Unlock()
	ctx, free := g.withGuestContext(ctx)
	defer free()
	w := g.openBroadcast()
	defer w.close()

	discover, err := g.message4(dhcpv4.MessageTypeDiscover)
	if err != nil {
		return nil, err
	}
	offer, err := g.exchange4(ctx, w, discover, dhcpv4.MessageTypeOffer)
	if err != nil {
		return nil, fmt.Errorf("DHCPv4: no offer: %w", err)
	}
	identity := []dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())),
	}
	request, err := g.message4(dhcpv4.MessageTypeRequest, append(identity, dhcpv4.WithTransactionID(discover.TransactionID))...)
	if err != nil {
		return nil, err
	}
	lease, err := g.request4(ctx, w, request)
	if err != nil {
		return nil, fmt.Errorf("DHCPv4: request of %v: %w", offer.YourIPAddr, err)
	}
	if err := g.probe4(ctx, lease.Address.Addr()); err != nil {
		if errors.Is(err, ErrDuplicate) {
			decline, declineErr := g.message4(dhcpv4.MessageTypeDecline, identity...)
			if declineErr == nil {
				declineErr = w.send(decline.ToBytes())
			}
			err = errors.Join(err, declineErr)
		}
		return nil, fmt.Errorf("DHCPv4: %w", err)
	}
	return g.applyLease4(lease)
}

// Renew4 extends the lease with a unicast message to its server, over the guest's own stack.
//
// RFC 2131 section 4.4.5, state RENEWING.
func (g *Guest) Renew4(ctx context.Context) (*Lease4, error) {
	return g.extend4(ctx, "renewal", func(l *Lease4) netip.Addr { return l.Server })
}

// Rebind4 extends the lease with a broadcast to any server, over the guest's own stack.
//
// RFC 2131 section 4.4.5, state REBINDING.
func (g *Guest) Rebind4(ctx context.Context) (*Lease4, error) {
	return g.extend4(ctx, "rebinding", func(*Lease4) netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, 255}) })
}

func (g *Guest) extend4(ctx context.Context, what string, server func(*Lease4) netip.Addr) (*Lease4, error) {
	g.dhcp4.Lock()
	defer g.dhcp4.Unlock()
	ctx, free := g.withGuestContext(ctx)
	defer free()
	g.mu.Lock()
	lease := g.lease4
	g.mu.Unlock()
	if lease == nil {
		return nil, fmt.Errorf("DHCPv4: %s: no lease", what)
	}
	to := netip.AddrPortFrom(server(lease), bootServer)
	w, err := g.openSocket(ctx, netip.AddrPortFrom(lease.Address.Addr(), bootClient), to)
	if err != nil {
		return nil, fmt.Errorf("DHCPv4: %s: %w", what, err)
	}
	defer w.free()
	request, err := g.message4(dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(lease.Address.Addr().AsSlice()))
	if err != nil {
		return nil, err
	}
	extended, err := g.request4(ctx, w, request)
	if errors.Is(err, ErrRefused) {
		err = errors.Join(err, g.dropLease4(lease))
	}
	if err != nil {
		return nil, fmt.Errorf("DHCPv4: %s of %v by %v: %w", what, lease.Address.Addr(), to, err)
	}
	return g.applyLease4(extended)
}

func (g *Guest) message4(t dhcpv4.MessageType, more ...dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	mac := g.config.MAC
	m, err := dhcpv4.New(append([]dhcpv4.Modifier{
		dhcpv4.WithHwAddr(net.HardwareAddr(mac[:])),
		dhcpv4.WithMessageType(t),
	}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("DHCPv4: transaction identifier: %w", err)
	}
	if t != dhcpv4.MessageTypeDecline { // RFC 2131 table 5
		m.UpdateOption(dhcpv4.OptParameterRequestList(requestedOptions...))
		m.UpdateOption(dhcpv4.OptMaxMessageSize(1500))
	}
	return m, nil
}

// exchange4 sends m and returns the first answer of one of the types that names its server.
func (g *Guest) exchange4(ctx context.Context, w wire, m *dhcpv4.DHCPv4, types ...dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	return exchange(ctx, w, func(elapsed time.Duration) []byte {
		m.NumSeconds = uint16(min(elapsed/time.Second, 0xffff))
		return m.ToBytes()
	}, func(b []byte) (*dhcpv4.DHCPv4, bool) {
		answer, err := dhcpv4.FromBytes(b)
		if err != nil {
			g.log.Warn("DHCPv4 answer ignored", "err", err)
			return nil, false
		}
		if answer.OpCode != dhcpv4.OpcodeBootReply || answer.TransactionID != m.TransactionID ||
			answer.ClientHWAddr.String() != m.ClientHWAddr.String() || answer.ServerIdentifier() == nil {
			return nil, false
		}
		for _, t := range types {
			if answer.MessageType() == t {
				return answer, true
			}
		}
		return nil, false
	})
}

// request4 sends a DHCPREQUEST and reads the lease in the answer.
func (g *Guest) request4(ctx context.Context, w wire, request *dhcpv4.DHCPv4) (*Lease4, error) {
	answer, err := g.exchange4(ctx, w, request, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak)
	if err != nil {
		return nil, err
	}
	if answer.MessageType() == dhcpv4.MessageTypeNak {
		return nil, fmt.Errorf("%w by %v: %q", ErrRefused, answer.ServerIdentifier(), answer.Message())
	}
	return parseLease4(answer)
}

func parseLease4(ack *dhcpv4.DHCPv4) (*Lease4, error) {
	ones, bits := ack.SubnetMask().Size()
	if bits != 32 {
		return nil, errors.New("acknowledgement without a subnet mask")
	}
	l := &Lease4{
		Address:  netip.PrefixFrom(fromIP(ack.YourIPAddr), ones),
		Server:   fromIP(ack.ServerIdentifier()),
		DNS:      fromIPs(ack.DNS()),
		Duration: ack.IPAddressLeaseTime(0),
		Message:  ack,
	}
	if a := l.Address.Addr(); !a.Is4() || a.IsUnspecified() || a.IsMulticast() {
		return nil, fmt.Errorf("acknowledgement of %v, which is no station's address", a)
	}
	if l.Duration == 0 {
		return nil, errors.New("acknowledgement without a lease time")
	}
	switch {
	case ack.Options.Has(dhcpv4.OptionClasslessStaticRoute):
		for _, r := range ack.ClasslessStaticRoute() {
			ones, _ := r.Dest.Mask.Size()
			told := Route{Destination: netip.PrefixFrom(fromIP(r.Dest.IP), ones).Masked()}
			if via := fromIP(r.Router); !via.IsUnspecified() {
				told.Gateway = via
			}
			l.Routes = append(l.Routes, told)
		}
		if l.Routes == nil {
			return nil, errors.New("acknowledgement with a malformed classless static route option")
		}
	case len(ack.Router()) > 0:
		l.Routes = []Route{{Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: fromIP(ack.Router()[0])}}
	}
	if search := ack.DomainSearch(); search != nil {
		l.Search = search.Labels
	} else if domain := ack.DomainName(); domain != "" {
		l.Search = []string{domain}
	}
	if ack.Options.Has(dhcpv4.OptionInterfaceMTU) {
		mtu, err := dhcpv4.GetUint16(dhcpv4.OptionInterfaceMTU, ack.Options)
		if err != nil {
			return nil, fmt.Errorf("acknowledgement with a malformed MTU option: %w", err)
		}
		l.MTU = int(mtu)
	}
	return l, nil
}

// probe4 returns ErrDuplicate if another station on the link has the address. The guest's present address is
// not probed.
func (g *Guest) probe4(ctx context.Context, a netip.Addr) error {
	g.mu.Lock()
	own := g.lease4 != nil && g.lease4.Address.Addr() == a
	g.mu.Unlock()
	if own {
		return nil
	}
	result := make(chan stack.DADResult, 1)
	_, err := g.stack.CheckDuplicateAddress(nicID, ipv4.ProtocolNumber, address(a), func(r stack.DADResult) { result <- r })
	if err != nil {
		return fmt.Errorf("duplicate address detection of %v: %s", a, err)
	}
	select {
	case r := <-result:
		return probeError(a, r)
	case <-ctx.Done():
		return fmt.Errorf("duplicate address detection of %v: %w", a, context.Cause(ctx))
	}
}

// applyLease4 installs the lease's address, routes and MTU.
func (g *Guest) applyLease4(lease *Lease4) (*Lease4, error) {
	g.mu.Lock()
	old := g.lease4
	g.mu.Unlock()
	if old != nil && old.Address != lease.Address {
		if err := g.dropLease4(old); err != nil {
			return nil, fmt.Errorf("DHCPv4: %w", err)
		}
	}
	if old == nil || old.Address != lease.Address {
		err := g.stack.AddProtocolAddress(nicID, tcpip.ProtocolAddress{
			Protocol:          ipv4.ProtocolNumber,
			AddressWithPrefix: withPrefix(lease.Address),
		}, stack.AddressProperties{})
		if err != nil {
			return nil, fmt.Errorf("DHCPv4: address %v: %s", lease.Address, err)
		}
	}
	g.changeState(func() { g.lease4 = lease })
	g.installRoutes()
	if _, err := lease.usableRoutes(); err != nil {
		return lease, fmt.Errorf("DHCPv4: lease of %v: %w", lease.Address, err)
	}
	return lease, nil
}

// dropLease4 removes the lease from the guest.
func (g *Guest) dropLease4(lease *Lease4) error {
	g.changeState(func() { g.lease4 = nil })
	g.installRoutes()
	if err := g.stack.RemoveAddress(nicID, address(lease.Address.Addr())); err != nil {
		return fmt.Errorf("removal of %v: %s", lease.Address, err)
	}
	return nil
}
