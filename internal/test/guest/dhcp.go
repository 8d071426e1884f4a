package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/nclient6"
	"github.com/insomniacslk/dhcp/iana"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/syntax"
)

// firstWait is the time after which a client sends a message again, if there is no answer; the time doubles.
const firstWait = time.Second

// requested is the parameter request list.
var requested = dhcpv4.WithRequestedOptions(
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
)

// onNIC opens sockets that belong to the NIC. A socket of an earlier exchange may be open still: a process that another
// test starts has it until the program runs.
var onNIC = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
	failed := c.Control(func(fd uintptr) {
		err = errors.Join(unix.BindToDevice(int(fd), NIC), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	})
	return errors.Join(failed, err)
}}

// DHCPv4 gets a lease and uses its address, routes and MTU. If the kernel refuses a route, both the lease and an error
// are returned, and the rest of the lease is in use.
//
// RFC 2131 section 4.4.1, RFC 3442.
func (g *Guest) DHCPv4(ctx context.Context) (*Lease4, error) {
	return g.lease4By(ctx, func() (conn net.PacketConn, err error) {
		return nclient4.NewRawUDPConn(NIC, nclient4.ClientPort)
	}, nil, func(ctx context.Context, c *nclient4.Client) (*nclient4.Lease, error) {
		return c.Request(ctx, requested)
	})
}

// Renew4 extends the lease with a unicast message to its server.
//
// RFC 2131 section 4.4.5, state RENEWING.
func (g *Guest) Renew4(ctx context.Context) (*Lease4, error) {
	return g.extend4(ctx, func(l *Lease4) netip.Addr { return l.Server })
}

// Rebind4 extends the lease with a broadcast to any server.
//
// RFC 2131 section 4.4.5, state REBINDING.
func (g *Guest) Rebind4(ctx context.Context) (*Lease4, error) {
	return g.extend4(ctx, func(*Lease4) netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, 255}) })
}

func (g *Guest) extend4(ctx context.Context, server func(*Lease4) netip.Addr) (*Lease4, error) {
	g.mu.Lock()
	l := g.lease4
	g.mu.Unlock()
	if l == nil {
		return nil, errors.New("DHCPv4: no lease to extend")
	}
	at := netip.AddrPortFrom(l.Address.Addr(), nclient4.ClientPort)
	to := netip.AddrPortFrom(server(l), nclient4.ServerPort)
	return g.lease4By(ctx, func() (net.PacketConn, error) {
		return onNIC.ListenPacket(ctx, "udp4", at.String())
	}, net.UDPAddrFromAddrPort(to), func(ctx context.Context, c *nclient4.Client) (*nclient4.Lease, error) {
		return c.Renew(ctx, &nclient4.Lease{Offer: l.offer, ACK: l.Message}, requested)
	})
}

// lease4By gets a lease by a socket that listen opens in the guest, and uses it. A nil server is all.
func (g *Guest) lease4By(ctx context.Context, listen func() (net.PacketConn, error), server *net.UDPAddr,
	ask func(context.Context, *nclient4.Client) (*nclient4.Lease, error)) (*Lease4, error) {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	var conn net.PacketConn
	err := g.Do(func() (err error) {
		conn, err = listen()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("DHCPv4: socket: %w", err)
	}
	options := []nclient4.ClientOpt{nclient4.WithTimeout(firstWait), nclient4.WithRetry(-1)}
	if server != nil {
		options = append(options, nclient4.WithServerAddr(server))
	}
	mac := g.config.MAC
	client, err := nclient4.NewWithConn(conn, mac[:], options...)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("DHCPv4: %w", err)
	}
	defer client.Close()
	got, err := ask(ctx, client)
	if err = because(ctx, err); err != nil {
		return nil, fmt.Errorf("DHCPv4: no lease: %w", err)
	}
	l, err := parseLease4(got.ACK)
	if err != nil {
		return nil, fmt.Errorf("DHCPv4: %w", err)
	}
	l.offer = got.Offer
	if err := g.use4(l); err != nil {
		return l, fmt.Errorf("DHCPv4: lease of %v: %w", l.Address, err)
	}
	return l, nil
}

// use4 gives the guest the lease's address, routes and MTU, in the place of an earlier lease's.
func (g *Guest) use4(l *Lease4) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.lease4
	g.lease4 = l
	var lines []string
	if old != nil && old.Address != l.Address {
		lines = append(lines, "addr del "+old.Address.String()+" dev "+NIC)
	}
	if l.MTU >= syntax.MinMTU {
		lines = append(lines, fmt.Sprintf("link set %s mtu %d", NIC, l.MTU))
	}
	lines = append(lines, "addr replace "+l.Address.String()+" dev "+NIC)
	if old != nil && !slices.Equal(old.Routes, l.Routes) {
		lines = append(lines, "-4 route flush dev "+NIC+" proto dhcp")
	}
	for _, r := range l.Routes {
		lines = append(lines, "route replace "+r.String()+" dev "+NIC+" proto dhcp")
	}
	var errs []error
	for _, line := range lines {
		errs = append(errs, g.ip(line))
	}
	return errors.Join(errs...)
}

// DHCPv6 gets a lease with messages from the link-local address, and uses it. With rapid the guest asks
// for rapid commit (two messages), and also accepts an exchange of four.
//
// RFC 8415 sections 18.2.1 and 18.2.2.
func (g *Guest) DHCPv6(ctx context.Context, rapid bool) (*Lease6, error) {
	return g.lease6By(ctx, func(ctx context.Context, c *nclient6.Client) (*dhcpv6.Message, error) {
		if rapid {
			return c.RapidSolicit(ctx, g.identify)
		}
		advertise, err := c.Solicit(ctx, g.identify)
		if err != nil {
			return nil, err
		}
		return c.Request(ctx, advertise)
	})
}

// Renew6 extends the lease with a message to its server.
//
// RFC 8415 section 18.2.4.
func (g *Guest) Renew6(ctx context.Context) (*Lease6, error) {
	g.mu.Lock()
	l := g.lease6
	g.mu.Unlock()
	if l == nil {
		return nil, errors.New("DHCPv6: no lease to extend")
	}
	return g.lease6By(ctx, func(ctx context.Context, c *nclient6.Client) (*dhcpv6.Message, error) {
		m, err := dhcpv6.NewMessage(g.identify, dhcpv6.WithServerID(l.Message.Options.ServerID()), dhcpv6.WithOption(l.Message.Options.OneIANA()))
		if err != nil {
			return nil, err
		}
		m.MessageType = dhcpv6.MessageTypeRenew
		return c.SendAndRead(ctx, c.RemoteAddr(), m, nclient6.IsMessageType(dhcpv6.MessageTypeReply))
	})
}

// identify gives a message a DUID-LL, the same after every start (RFC 8415 section 11.4), and the options that the
// guest wants.
func (g *Guest) identify(d dhcpv6.DHCPv6) {
	mac := g.config.MAC
	dhcpv6.WithClientID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac[:]})(d)
	dhcpv6.WithRequestedOptions(dhcpv6.OptionDNSRecursiveNameServer, dhcpv6.OptionDomainSearchList)(d)
}

// lease6By gets a lease, and uses its address.
func (g *Guest) lease6By(ctx context.Context, ask func(context.Context, *nclient6.Client) (*dhcpv6.Message, error)) (*Lease6, error) {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	var conn net.PacketConn
	err := g.Do(func() (err error) {
		local := eui64.LinkLocal(g.config.MAC).WithZone(g.zone)
		conn, err = onNIC.ListenPacket(ctx, "udp6", netip.AddrPortFrom(local, dhcpv6.DefaultClientPort).String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("DHCPv6: socket: %w", err)
	}
	mac := g.config.MAC
	client, err := nclient6.NewWithConn(conn, mac[:], nclient6.WithTimeout(firstWait), nclient6.WithRetry(-1))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("DHCPv6: %w", err)
	}
	defer client.Close()
	m, err := ask(ctx, client)
	if err = because(ctx, err); err != nil {
		return nil, fmt.Errorf("DHCPv6: no lease: %w", err)
	}
	l, err := parseLease6(m)
	if err == nil {
		err = g.AddAddress(netip.PrefixFrom(l.Address, 128))
	}
	if err != nil {
		return nil, fmt.Errorf("DHCPv6: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lease6 = l
	return l, nil
}
