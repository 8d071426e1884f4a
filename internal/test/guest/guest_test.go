package guest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/guest"
)

var both = guest.Families{IPv4: true, IPv6: true}

func timeLimit(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func lines[T fmt.Stringer](values []T) string {
	var text []string
	for _, v := range values {
		text = append(text, v.String())
	}
	return strings.Join(text, "\n")
}

func TestGuestIsWhatItWasTold(t *testing.T) {
	k := newKernel(t)
	server := &fakeServer{
		ra: defaultRA(),
		ack: []dhcpv4.Modifier{
			classless("169.254.1.1/32 via 0.0.0.0", "0.0.0.0/0 via 10.9.0.1"),
			dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(10, 9, 0, 99))), // ignored, as there is option 121
			dhcpv4.WithOption(dhcpv4.OptDNS(net.IPv4(10, 9, 0, 53))),
			dhcpv4.WithDomainSearchList("a.example", "b.example"),
			dhcpv4.WithGeneric(dhcpv4.OptionInterfaceMTU, []byte{0x05, 0xaa}), // 1450
		},
	}
	k.serve(server)
	begin := time.Now()
	g := k.start()
	ctx := timeLimit(t, 20*time.Second)
	got, err := g.Configure(ctx, both)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("configured %v after Start was called", time.Since(begin).Round(time.Millisecond))

	l := got.IPv4
	if l.Address.String() != "10.9.0.50/24" || l.Server.String() != "10.9.0.1" || l.MTU != 1450 || l.Duration != time.Hour ||
		lines(l.DNS) != "10.9.0.53" || strings.Join(l.Search, " ") != "a.example b.example" {
		t.Errorf("IPv4 lease %+v", l)
	}
	if asked := l.Message; asked == nil || asked.MessageType() != dhcpv4.MessageTypeAck {
		t.Errorf("IPv4 lease without its acknowledgement: %v", asked)
	}
	if l := got.IPv6; l.Address.String() != "fd09::50" || l.Preferred != time.Hour || l.Valid != 2*time.Hour || lines(l.DNS) != "fd09::53" {
		t.Errorf("IPv6 lease %+v", l)
	}
	if got.RA.Source.String() != "fe80::1" || got.RA.RouterLifetime != 30*time.Minute || len(got.RA.Options) != 4 {
		t.Errorf("advertisement %+v", got.RA)
	}
	if want := "10.9.0.50/24\nfd09::50/128\n" + guestMAC.LinkLocal().String() + "/64"; lines(g.Addresses()) != want {
		t.Errorf("addresses:\n%s\nwant:\n%s", lines(g.Addresses()), want)
	}
	wantRoutes := "fe80::/64\nfd09::/64\n2001:db8:1::/48 via fe80::1\n169.254.1.1/32\n10.9.0.0/24\ndefault via 10.9.0.1\ndefault via fe80::1"
	if lines(g.Routes()) != wantRoutes {
		t.Errorf("routes:\n%s\nwant:\n%s", lines(g.Routes()), wantRoutes)
	}
	if g.MTU() != 1400 { // the advertisement's MTU is below the lease's 1450
		t.Errorf("MTU %d, want 1400", g.MTU())
	}

	for _, to := range []string{"10.9.0.1", "fd09::1", "fe80::1", "192.0.2.1", "2001:db8:ffff::1"} {
		rtt, err := g.Ping(ctx, netip.MustParseAddr(to))
		if err != nil {
			t.Error(err)
			continue
		}
		if rtt <= 0 || rtt > 5*time.Second {
			t.Errorf("ping %s took %v", to, rtt)
		}
	}

	if _, err := g.Renew4(ctx); err != nil {
		t.Error(err)
	}
	if _, err := g.Rebind4(ctx); err != nil {
		t.Error(err)
	}
	if _, err := g.Renew6(ctx); err != nil {
		t.Error(err)
	}
	ll := guestMAC.LinkLocal().String()
	seen := strings.Split(server.log(), "\n")
	// Both families run at the same time, so the order is not fixed.
	for _, want := range []string{"DISCOVER 0.0.0.0:68", "REQUEST 0.0.0.0:68", "SOLICITATION " + ll, "SOLICIT " + ll, "REQUEST " + ll} {
		if !slices.Contains(seen, want) {
			t.Errorf("messages %q without %q", seen, want)
		}
	}
	if want := []string{"REQUEST 10.9.0.50:68", "REQUEST 10.9.0.50:68", "RENEW " + ll}; !slices.Equal(seen[len(seen)-3:], want) {
		t.Errorf("last messages %q, want %q", seen[len(seen)-3:], want)
	}
}

func TestRouterOption(t *testing.T) {
	k := newKernel(t)
	k.serve(&fakeServer{ack: []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(10, 9, 0, 1)))}})
	g := k.start()
	ctx := timeLimit(t, 10*time.Second)
	if _, err := g.Configure(ctx, guest.Families{IPv4: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Ping(ctx, netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Error(err)
	}
	if g.MTU() != 1500 {
		t.Errorf("MTU %d, want 1500", g.MTU())
	}
}

func TestWrongLeaseBreaksTraffic(t *testing.T) {
	far := netip.MustParseAddr("192.0.2.1")
	t.Run("gateway not on the link", func(t *testing.T) {
		k := newKernel(t)
		k.serve(&fakeServer{ack: []dhcpv4.Modifier{classless("0.0.0.0/0 via 169.254.1.1", "169.254.1.1/32 via 0.0.0.0")}})
		g := k.start()
		ctx := timeLimit(t, 10*time.Second)
		lease, err := g.DHCPv4(ctx)
		if err == nil || !strings.Contains(err.Error(), "default via 169.254.1.1") || lease == nil {
			t.Errorf("lease %v, error %v: want both, the error with the route", lease, err)
		}
		if _, err := g.Ping(ctx, netip.MustParseAddr("10.9.0.1")); err != nil {
			t.Errorf("the rest of the lease: %v", err)
		}
		if _, err := g.Ping(ctx, far); err == nil || ctx.Err() != nil {
			t.Errorf("ping without a route: %v, want an error at once", err)
		}
	})
	t.Run("gateway that is not there", func(t *testing.T) {
		k := newKernel(t)
		k.serve(&fakeServer{ack: []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(10, 9, 0, 99)))}})
		g := k.start()
		if _, err := g.DHCPv4(timeLimit(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Ping(timeLimit(t, time.Second), far); err == nil {
			t.Error("pinged through a gateway that is not there")
		}
	})
	t.Run("no mask", func(t *testing.T) {
		k := newKernel(t)
		k.serve(&fakeServer{ack: []dhcpv4.Modifier{dhcpv4.WithoutOption(dhcpv4.OptionSubnetMask)}})
		g := k.start()
		if l, err := g.DHCPv4(timeLimit(t, 10*time.Second)); err == nil {
			t.Errorf("lease %+v without a subnet mask", l)
		}
	})
}

func TestRouterThatIsNoDefault(t *testing.T) {
	k := newKernel(t)
	server := &fakeServer{ra: defaultRA()}
	k.serve(server)
	g := k.start()
	ctx := timeLimit(t, 20*time.Second)
	if _, err := g.Configure(ctx, guest.Families{IPv6: true}); err != nil {
		t.Fatal(err)
	}
	far := netip.MustParseAddr("2001:db8:ffff::1")
	if _, err := g.Ping(ctx, far); err != nil {
		t.Error(err)
	}
	withdrawn := defaultRA()
	withdrawn.RouterLifetime = 0
	server.change(func() { server.ra = withdrawn })
	if _, err := g.RouterSolicitation(ctx); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(lines(g.Routes()), "default") {
		t.Errorf("routes after the router withdrew:\n%s", lines(g.Routes()))
	}
	if _, err := g.Ping(ctx, far); err == nil || ctx.Err() != nil {
		t.Errorf("ping without a default route: %v, want an error at once", err)
	}
}

func TestAutonomousPrefix(t *testing.T) {
	k := newKernel(t)
	ra := defaultRA()
	ra.ManagedConfiguration = false
	ra.Options[1].(*ndp.PrefixInformation).AutonomousAddressConfiguration = true
	server := &fakeServer{ra: ra}
	k.serve(server)
	g := k.start()
	ctx := timeLimit(t, 20*time.Second)
	got, err := g.Configure(ctx, guest.Families{IPv6: true})
	if err != nil {
		t.Fatal(err)
	}
	if got.IPv6 != nil || strings.Contains(server.log(), "SOLICIT ") {
		t.Errorf("DHCPv6 was used without the managed flag: %v, %q", got.IPv6, server.log())
	}
	want := netip.AddrFrom16([16]byte(append(netip.MustParseAddr("fd09::").AsSlice()[:8], guestMAC.LinkLocal().AsSlice()[8:]...)))
	if !strings.Contains(lines(g.Addresses()), want.String()+"/64") {
		t.Errorf("addresses:\n%s\nwant %v among them", lines(g.Addresses()), want)
	}
	if _, err := g.Ping(ctx, netip.MustParseAddr("2001:db8:ffff::1")); err != nil {
		t.Error(err)
	}
}

func TestRapidCommit(t *testing.T) {
	k := newKernel(t)
	server := &fakeServer{}
	k.serve(server)
	g := k.start()
	lease, err := g.DHCPv6(timeLimit(t, 10*time.Second), true)
	if err != nil {
		t.Fatal(err)
	}
	if lease.Address.String() != "fd09::50" || server.log() != "SOLICIT "+guestMAC.LinkLocal().String() {
		t.Errorf("lease %+v after %q", lease, server.log())
	}
}

func TestRefusal(t *testing.T) {
	k := newKernel(t)
	server := &fakeServer{nak: true, status6: &dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail, StatusMessage: "none left"}}
	k.serve(server)
	g := k.start()
	ctx := timeLimit(t, 10*time.Second)
	if _, err := g.DHCPv4(ctx); !errors.Is(err, guest.ErrRefused) {
		t.Errorf("DHCPv4 after DHCPNAK: %v", err)
	}
	if _, err := g.DHCPv6(ctx, false); !errors.Is(err, guest.ErrRefused) || !strings.Contains(err.Error(), "none left") {
		t.Errorf("DHCPv6 without addresses: %v", err)
	}
	if _, err := g.Renew4(ctx); err == nil {
		t.Error("renewed a lease that was refused")
	}
	if _, err := g.Renew6(ctx); err == nil {
		t.Error("renewed a lease that was refused")
	}
}

func TestRefusedRenewalEndsTheLease(t *testing.T) {
	k := newKernel(t)
	server := &fakeServer{}
	k.serve(server)
	g := k.start()
	ctx := timeLimit(t, 10*time.Second)
	if _, err := g.DHCPv4(ctx); err != nil {
		t.Fatal(err)
	}
	server.change(func() { server.nak = true })
	if _, err := g.Renew4(ctx); !errors.Is(err, guest.ErrRefused) {
		t.Errorf("renewal: %v", err)
	}
	if strings.Contains(lines(g.Addresses()), "10.9.0.50") || strings.Contains(lines(g.Routes()), "10.9.0.0") {
		t.Errorf("addresses:\n%s\nroutes:\n%s", lines(g.Addresses()), lines(g.Routes()))
	}
}

func TestDuplicateAddressIsDeclined(t *testing.T) {
	k := newKernel(t)
	k.run("ip addr add 10.9.0.50/24 dev tap0")
	k.run("ip addr add fd09::50/64 dev tap0 nodad")
	server := &fakeServer{}
	k.serve(server)
	g := k.start()
	ctx := timeLimit(t, 10*time.Second)
	if _, err := g.DHCPv4(ctx); !errors.Is(err, guest.ErrDuplicate) {
		t.Errorf("DHCPv4: %v", err)
	}
	if _, err := g.DHCPv6(ctx, false); !errors.Is(err, guest.ErrDuplicate) {
		t.Errorf("DHCPv6: %v", err)
	}
	if want := guestMAC.LinkLocal().String() + "/64"; lines(g.Addresses()) != want {
		t.Errorf("addresses:\n%s\nwant only %s", lines(g.Addresses()), want)
	}
	for _, want := range []string{"DECLINE 0.0.0.0:68", "DECLINE " + guestMAC.LinkLocal().String()} {
		for range 50 {
			if strings.Contains(server.log(), want) {
				break
			}
			time.Sleep(20 * time.Millisecond) // the message is on its way
		}
		if !strings.Contains(server.log(), want) {
			t.Errorf("messages %q without %q", server.log(), want)
		}
	}
}

func TestNoAnswer(t *testing.T) {
	k := newKernel(t)
	g := k.start()
	got, err := g.Configure(timeLimit(t, 500*time.Millisecond), both)
	if !errors.Is(err, context.DeadlineExceeded) || got.IPv4 != nil || got.IPv6 != nil || got.RA != nil {
		t.Errorf("configuration %+v, error %v", got, err)
	}
	for _, part := range []string{"no offer", "no advertisement"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v without %q", err, part)
		}
	}
}

func TestCloseEndsEverything(t *testing.T) {
	k := newKernel(t)
	k.serve(&fakeServer{ra: defaultRA()})
	g := k.start()
	ctx := timeLimit(t, 30*time.Second)
	if _, err := g.Configure(ctx, both); err != nil {
		t.Fatal(err)
	}
	if err := g.ListenTCP(7); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	k.inNamespace(func() (err error) {
		l, err = net.Listen("tcp", "10.9.0.1:9")
		return err
	})
	defer l.Close()
	// One connection in each lasting state: established from either side, half closed by the guest, closed by
	// the guest first.
	var open []net.Conn
	for range 3 {
		c, err := g.DialTCP(ctx, netip.MustParseAddrPort("10.9.0.1:9"))
		if err != nil {
			t.Fatal(err)
		}
		peer, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		open = append(open, c, peer)
	}
	open[2].Close()
	open[4].Close()
	open[5].Close()
	var in net.Conn
	k.inNamespace(func() (err error) {
		in, err = net.Dial("tcp", "10.9.0.50:7")
		return err
	})
	defer in.Close()
	waiting := make(chan error, 3)
	go func() {
		_, err := g.Ping(ctx, netip.MustParseAddr("10.9.0.77")) // an address that no station has
		waiting <- err
	}()
	go func() {
		_, err := g.DialTCP(ctx, netip.MustParseAddrPort("10.9.0.77:1"))
		waiting <- err
	}()
	go func() {
		_, err := g.DHCPv6(ctx, false)
		for err == nil {
			_, err = g.Renew6(ctx)
		}
		waiting <- err
	}()
	time.Sleep(100 * time.Millisecond)
	begin := time.Now()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("Close took %v", d)
	}
	for range cap(waiting) {
		if err := <-waiting; !errors.Is(err, guest.ErrClosed) {
			t.Errorf("an operation under way: %v", err)
		}
	}
	in.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.Copy(io.Discard, in); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the guest's peer was not told that the guest is gone")
	}
	if _, err := g.Ping(ctx, netip.MustParseAddr("10.9.0.1")); err == nil {
		t.Error("a closed guest pings")
	}
}

func TestPortThatGoes(t *testing.T) {
	k := newKernel(t)
	g := k.start()
	ctx := timeLimit(t, 20*time.Second)
	ended := make(chan error, 1)
	go func() {
		_, err := g.DHCPv4(ctx)
		ended <- err
	}()
	time.Sleep(200 * time.Millisecond) // the client is waiting for an offer by then
	k.run("ip link del tap0")
	err := <-ended
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "port") {
		t.Errorf("lease from a tap that was deleted: %v", err)
	}
}

func TestDHCPv6AgainAfterCancel(t *testing.T) {
	k := newKernel(t)
	k.serve(&fakeServer{})
	g := k.start()
	ctx, cancel := context.WithCancel(timeLimit(t, 10*time.Second))
	go func() { // cancels as soon as the stack has the leased address, still tentative
		defer cancel()
		for ctx.Err() == nil && !strings.Contains(lines(g.Addresses()), "fd09::50") {
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := g.DHCPv6(ctx, false); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled while the address was tentative: %v", err)
	}
	if strings.Contains(lines(g.Addresses()), "fd09::50") {
		t.Error("the address stayed")
	}
	lease, err := g.DHCPv6(timeLimit(t, 10*time.Second), false)
	if err != nil || !strings.Contains(lines(g.Addresses()), "fd09::50/128") {
		t.Errorf("lease %+v, error %v", lease, err)
	}
}

func TestStartRefuses(t *testing.T) {
	port, other := net.Pipe()
	defer port.Close()
	defer other.Close()
	for name, c := range map[string]guest.Config{
		"no port":   {MAC: guestMAC},
		"no MAC":    {Port: port},
		"group MAC": {Port: port, MAC: cache.MAC{1}},
		"MTU":       {Port: port, MAC: guestMAC, MTU: 40},
	} {
		if g, err := guest.Start(c); err == nil {
			t.Errorf("%s: no error", name)
			g.Close()
		}
	}
}
