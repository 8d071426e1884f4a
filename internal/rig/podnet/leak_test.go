package podnet

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// listener is a sniffer in a station's namespace.
type listener struct {
	namespace *nstest.Namespace
	*nstest.Sniffer
	renewed netip.Addr // a client of the node renews the lease of this address; zero: none does
}

// sniff starts a listener in each station's namespace.
func (l *Laid) sniff(t *testing.T) []listener {
	var all []listener
	renewed := netip.Addr{}
	if l.Leased {
		renewed = l.IPv4
	}
	for _, s := range l.Stations {
		if !slices.ContainsFunc(all, func(other listener) bool { return other.namespace == s.Namespace }) {
			all = append(all, listener{s.Namespace, s.Namespace.Sniff(t), renewed})
		}
	}
	return all
}

// checkQuiet checks that the listener has seen frames, and none of the guest that asks for a configuration.
func (l listener) checkQuiet(t *testing.T, mac cache.MAC) {
	t.Helper()
	seen := 0
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); seen++ {
		s, ok := l.Next()
		if !ok {
			break
		}
		if what := solicitation(s.Frame, mac); what != "" && !renews(s.Frame, l.renewed) {
			t.Errorf("%s sees the guest's %s: % x", l.namespace.Name, what, s.Frame)
		}
	}
	if seen == 0 {
		t.Errorf("%s has seen no frame", l.namespace.Name)
	}
}

// renews reports whether a DHCPv4 request comes from a client that has the address (ciaddr, RFC 2131 section 2).
func renews(frame []byte, a netip.Addr) bool {
	const ciaddr = 14 + 20 + 8 + 12
	return a.Is4() && len(frame) > ciaddr+4 && bytes.Equal(frame[ciaddr:ciaddr+4], a.AsSlice())
}

// TestSolicits: solicitation recognises each message by which the embedded guest asks for a configuration.
func TestSolicits(t *testing.T) {
	port := &void{sent: make(chan []byte, 100), closed: make(chan struct{})}
	mac := cache.MAC{0x02, 0, 0, 0, 0, 1}
	g, err := guest.Start(guest.Config{Port: port, MAC: mac})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for want, ask := range map[string]func() error{
		"DHCPv4":              func() error { _, err := g.DHCPv4(ctx); return err },
		"DHCPv6":              func() error { _, err := g.DHCPv6(ctx, false); return err },
		"router solicitation": func() error { _, err := g.RouterSolicitation(ctx); return err },
	} {
		ended := make(chan error, 1)
		go func() { ended <- ask() }()
		for got := ""; got != want; {
			select {
			case frame := <-port.sent:
				got = solicitation(frame, mac)
			case err := <-ended:
				t.Fatalf("%s: not seen, %v", want, err)
			}
		}
	}
}

// void is a port without a peer, whose written frames the test reads.
type void struct {
	sent   chan []byte
	closed chan struct{}
}

func (v *void) Read([]byte) (int, error) {
	<-v.closed
	return 0, io.EOF
}

func (v *void) Write(frame []byte) (int, error) {
	select {
	case v.sent <- slices.Clone(frame):
	default: // the channel is full: the test has ended, or will fail without this frame
	}
	return len(frame), nil
}

func (v *void) Close() error {
	close(v.closed)
	return nil
}

// solicitation returns by which protocol a frame asks for a configuration, empty if it does not: DHCP from any
// station, but a router solicitation only from the station with this MAC. The children of an ipvlan share a MAC,
// so the link-local address decides.
func solicitation(frame []byte, mac cache.MAC) string {
	if len(frame) < 14+40 {
		return ""
	}
	packet := frame[14:]
	udp := func(b []byte, ports ...uint16) bool {
		return len(b) >= 8 && slices.Contains(ports, binary.BigEndian.Uint16(b[2:]))
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		if header := int(packet[0]&0xf) * 4; packet[9] == 17 && len(packet) >= header && udp(packet[header:], 67) {
			return "DHCPv4"
		}
	case 0x86dd:
		source := netip.AddrFrom16([16]byte(packet[8:24]))
		switch body := packet[40:]; {
		case packet[6] == 17 && udp(body, 547):
			return "DHCPv6"
		case packet[6] == 58 && len(body) > 0 && body[0] == 133 && (source == mac.LinkLocal() || source.IsUnspecified() && cache.MAC(frame[6:12]) == mac):
			return "router solicitation"
		}
	}
	return ""
}
