package podnet

import (
	"context"
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/rig/guest"
	"github.com/guestwire/guestwire/internal/rig/nstest"
)

// listener sniffs at a namespace around the pod.
type listener struct {
	namespace *nstest.Namespace
	*nstest.Sniffer
}

// sniff listens at everybody's.
func (l *Laid) sniff(t *testing.T) []listener {
	var all []listener
	for _, s := range l.Stations {
		if !slices.ContainsFunc(all, func(other listener) bool { return other.namespace == s.Namespace }) {
			all = append(all, listener{s.Namespace, s.Namespace.Sniff(t)})
		}
	}
	return all
}

// quiet has seen the guest's connections, and nothing that asks for a configuration.
func (l listener) quiet(t *testing.T, mac cache.MAC) {
	t.Helper()
	seen := 0
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); seen++ {
		s, ok := l.Next()
		if !ok {
			break
		}
		if what := solicits(s.Frame, mac); what != "" {
			t.Errorf("%s sees the guest's %s: % x", l.namespace.Name, what, s.Frame)
		}
	}
	if seen == 0 {
		t.Errorf("%s has seen nothing at all", l.namespace.Name)
	}
}

// TestSolicits has the embedded guest ask into the void: each kind of its solicitations has to be known.
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
				got = solicits(frame, mac)
			case err := <-ended:
				t.Fatalf("%s: not seen, %v", want, err)
			}
		}
	}
}

// void is a port that nobody is at.
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
	default: // the test has ended, or will miss it
	}
	return len(frame), nil
}

func (v *void) Close() error {
	close(v.closed)
	return nil
}

// solicits says whether a frame asks for a configuration: DHCP whoever sends it, a router solicitation
// if it is that station's, as the children of one ipvlan have the same MAC.
func solicits(frame []byte, mac cache.MAC) string {
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
