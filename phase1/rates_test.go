package phase1_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestLimits has guest and network send more at once than the buckets hold. What passes is the bucket and what the time
// has added, and the rest is counted. It holds without the guard as well.
func TestLimits(t *testing.T) {
	t.Parallel()
	const size, sent = 1000, 120 // octets of an IP packet; packets
	for name, limit := range map[string]struct {
		cache.Limit
		bucket, perSecond int // packets
	}{
		"packets": {cache.Limit{PacketsPerSecond: 1, BurstPackets: 30}, 30, 1},
		"octets":  {cache.Limit{BitsPerSecond: 8000, BurstBytes: 79 * size}, 80, 1},
		"both":    {cache.Limit{BitsPerSecond: 8_000_000, PacketsPerSecond: 2, BurstPackets: 40}, 40, 2},
	} {
		for _, off := range []bool{false, true} {
			tried := bindings
			if name != "both" {
				if off {
					continue
				}
				tried = []infra.Binding{infra.Redirect{}, infra.Masquerade{}}
			}
			t.Run(fmt.Sprintf("%s, guard.off %v", name, off), func(t *testing.T) {
				eachOf(t, tried, func(t *testing.T, b infra.Binding) {
					n := nstest.NewNetwork(t)
					before := settled(t, n)
					c := config(n, b)
					c.Guard.Off = off
					setup(t, c)
					w := attachDeaf(t, n, true, true)
					// What was sent can still be under way. After ten seconds a limit that drops nothing is far above
					// the bucket.
					passes := func(way string, begin time.Time, had int) {
						for {
							took := time.Since(begin)
							most := limit.bucket + int(took.Seconds()*float64(limit.perSecond)) + 2
							passed := sent - (w.dropped()["rate-limit"] - had)
							if passed > most && took < 10*time.Second {
								time.Sleep(20 * time.Millisecond)
								continue
							}
							if passed < limit.bucket-2 || passed > most {
								t.Errorf("%s: %d of %d packets passed in %v, want %d to %d", way, passed, sent, took, limit.bucket-2, most)
							}
							return
						}
					}
					for _, d := range []struct {
						way    string
						limits cache.Limits
						send   func() error
					}{
						{"from the guest", cache.Limits{FromGuest: limit.Limit}, func() error {
							frame := w.link.Packet(unix.IPPROTO_UDP, w.link.IPv4, w.link.Far4, datagram(size-20))
							for range sent {
								if _, err := w.port.Write(frame); err != nil {
									return err
								}
							}
							return nil
						}},
						{"to the guest", cache.Limits{ToGuest: limit.Limit}, func() error {
							frame := w.link.FromGateway().Packet(unix.IPPROTO_UDP, nstest.Gateway4, nstest.Pod4, datagram(size-20))
							if w.masquerade {
								l := w.link
								l.MAC, l.Gateway = w.router, w.own[0]
								frame = l.Packet(unix.IPPROTO_UDP, nstest.Gateway4, nstest.Pod4, datagram(size-20))
							}
							return w.inject(slices.Repeat([][]byte{frame}, sent)...)
						}},
					} {
						c.Limits = d.limits
						setup(t, c)
						if r := record(t, n); r.Limits != d.limits {
							t.Errorf("the record has %+v, want %+v", r.Limits, d.limits)
						}
						had := w.dropped()["rate-limit"]
						begin := time.Now()
						if err := d.send(); err != nil {
							t.Fatal(err)
						}
						passes(d.way, begin, had)
					}
					check(t, c) // after the buckets have been used
					w.port.Close()
					teardown(t, n, c, before)
				})
			})
		}
	}
}

// datagram is a UDP datagram to a closed port, of so many octets with its header. It has no checksum (RFC 768).
func datagram(octets int) []byte {
	d := make([]byte, octets)
	copy(d, []byte{0x4e, 0x20, 0x1f, 0x40, byte(octets >> 8), byte(octets)})
	return d
}

// TestLimitsUnderConnections changes the limits while a guest has connections in both directions, which go on.
func TestLimitsUnderConnections(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		guest, addresses := kernelGuest(t, n, record(t, n), 1450)
		var conns []net.Conn
		for i, beyond := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
			outer := []netip.Addr{nstest.Pod4, nstest.Pod6}[i]
			n.World.Serve("world", "tcp", netip.AddrPortFrom(beyond, 9000))
			guest.Serve("guest", "tcp", netip.AddrPortFrom(addresses[i], 8000))
			for _, way := range []struct {
				from *nstest.Namespace
				to   netip.AddrPort
			}{{guest, netip.AddrPortFrom(beyond, 9000)}, {n.World, netip.AddrPortFrom(outer, 8000)}} {
				conns = append(conns, dial(t, way.from, "tcp", way.to))
			}
		}
		for i, conn := range conns { // the server's first line
			if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
		}
		for _, limits := range []cache.Limits{
			{FromGuest: cache.Limit{BitsPerSecond: 1_000_000}},
			{FromGuest: cache.Limit{PacketsPerSecond: 1000}, ToGuest: cache.Limit{BitsPerSecond: 80_000_000}},
			{ToGuest: cache.Limit{BitsPerSecond: 1_000_000, PacketsPerSecond: 500}},
			{},
		} {
			c.Limits = limits
			setup(t, c)
			for i, conn := range conns {
				text := strings.Repeat("x", 1000)
				if _, err := conn.Write([]byte(text)); err != nil {
					t.Errorf("%+v: connection %d: %v", limits, i, err)
				}
				buffer := make([]byte, len(text))
				for got := 0; got < len(text); {
					size, err := conn.Read(buffer[got:])
					if got += size; err != nil {
						t.Fatalf("%+v: connection %d: %v", limits, i, err)
					}
				}
			}
			check(t, c)
		}
	})
}

// TestLimitedLease: a guest whose bucket is empty gets its addresses, as what the responder answers is not counted.
func TestLimitedLease(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		none := cache.Limit{PacketsPerSecond: 1, BurstPackets: 1}
		c.Limits = cache.Limits{FromGuest: none, ToGuest: none}
		setup(t, c)
		n.Serve(t, nstest.LauncherUID)
		g := boot(t, n, record(t, n))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := g.Configure(ctx, guest.Families{IPv4: true, IPv6: true}); err != nil {
			t.Fatal(err)
		}
		for range 10 { // a second has one packet
			if _, err := g.Renew4(ctx); err != nil {
				t.Error(err)
			}
			if _, err := g.Renew6(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}
