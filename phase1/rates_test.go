package phase1_test

import (
	"bufio"
	"context"
	"encoding/json"
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

// TestLimits has a guest send more at once than the buckets hold. What passes is the bucket and what the time has
// added, and the rest is counted. It holds without the guard as well.
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
					passes := func(begin time.Time, had int) {
						for {
							took := time.Since(begin)
							most := limit.bucket + int(took.Seconds()*float64(limit.perSecond)) + 2
							passed := sent - (w.dropped()["rate-limit"] - had)
							if passed > most && took < 10*time.Second {
								time.Sleep(20 * time.Millisecond)
								continue
							}
							if passed < limit.bucket-2 || passed > most {
								t.Errorf("%d of %d packets passed in %v, want %d to %d", passed, sent, took, limit.bucket-2, most)
							}
							return
						}
					}
					c.Limits = cache.Limits{FromGuest: limit.Limit}
					setup(t, c)
					if r := record(t, n); r.Limits != c.Limits {
						t.Errorf("the record has %+v, want %+v", r.Limits, c.Limits)
					}
					had := w.dropped()["rate-limit"]
					begin := time.Now()
					frame := w.link.Packet(unix.IPPROTO_UDP, w.link.IPv4, w.link.Far4, datagram(size-20))
					for range sent {
						if _, err := w.port.Write(frame); err != nil {
							t.Fatal(err)
						}
					}
					passes(begin, had)
					check(t, c) // after the buckets have been used
					w.port.Close()
					teardown(t, n, c, before)
				})
			})
		}
	}
}

// rootQdisc is what tc(8) says of the root qdisc of the guest's tap.
type rootQdisc struct {
	Kind, Handle            string
	Options                 struct{ Rate, Burst, Limit uint64 }
	Drops, Overlimits, Qlen uint64
	Packets, Backlog        uint64
	text                    string
}

func shapeOf(t *testing.T, n *nstest.Namespace) rootQdisc {
	t.Helper()
	var list []rootQdisc
	text := n.Exec("tc", "-r", "-s", "-j", "qdisc", "show", "dev", "eth0-tap", "root") // raw: with the limit
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 1 {
		t.Fatalf("%d root qdiscs, %v: %s", len(list), err, text)
	}
	list[0].text = text
	return list[0]
}

// TestShape has the network send more at once than the bucket holds. The rest waits at the guest's tap: with another
// rate it arrives, as a later Setup keeps the queue. What the queue does not hold is dropped and counted.
func TestShape(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		const sent = 60
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		c.Limits.ToGuest.BitsPerSecond = 8000 // a frame of 1014 octets a second; a bucket of one, a queue of 15
		setup(t, c)
		w := attachDeaf(t, n, true, true)
		frame := w.link.FromGateway().Packet(unix.IPPROTO_UDP, nstest.Gateway4, nstest.Pod4, datagram(1000-20))
		if w.masquerade {
			l := w.link
			l.MAC, l.Gateway = w.router, w.own[0]
			frame = l.Packet(unix.IPPROTO_UDP, nstest.Gateway4, nstest.Pod4, datagram(1000-20))
		}
		begun := shapeOf(t, n.Pod)
		if err := w.inject(slices.Repeat([][]byte{frame}, sent)...); err != nil {
			t.Fatal(err)
		}
		nstest.Eventually(t, func() error {
			q := shapeOf(t, n.Pod)
			if have := q.Packets - begun.Packets + q.Qlen + q.Drops; have < sent {
				return fmt.Errorf("%d frames arrived at the tap: %s", have, q.text)
			}
			return nil
		})
		q := shapeOf(t, n.Pod)
		if q.Qlen == 0 || q.Drops == 0 || q.Overlimits == 0 {
			t.Errorf("nothing waits, or nothing was dropped: %s", q.text)
		}
		if have := w.dropped()["rate-limit"]; have < int(q.Drops) {
			t.Errorf("%d packets are counted, tc says %d", have, q.Drops)
		}
		c.Limits.ToGuest.BitsPerSecond = 80_000_000
		setup(t, c)
		after := shapeOf(t, n.Pod)
		nstest.Eventually(t, func() error {
			q := shapeOf(t, n.Pod)
			if q.Qlen != 0 || q.Packets-begun.Packets+q.Drops < sent || q.Drops != after.Drops {
				return fmt.Errorf("after another rate: %s", q.text)
			}
			return nil
		})
		check(t, c)
		w.port.Close()
		teardown(t, n, c, before)
	})
}

// TestShapeQueue: a large bucket lets more pass at once, and the queue does not grow with it. The queue holds the
// longest packet that the bucket lets pass whole.
func TestShapeQueue(t *testing.T) {
	t.Parallel()
	const burst, longest, size = 230_000, 128 << 10, 1014
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	c.Limits.ToGuest = cache.Shape{BitsPerSecond: 8000, BurstBytes: burst}
	setup(t, c)
	w := attachDeaf(t, n, true, true)
	frame := w.link.FromGateway().Packet(unix.IPPROTO_UDP, nstest.Gateway4, nstest.Pod4, datagram(size-14-20))
	var q rootQdisc
	for range 20 { // until the queue is full, whatever the bucket has got meanwhile
		inject := n.World.Injector(t, w.gateway) // what waits fills a socket's buffer
		if err := inject(slices.Repeat([][]byte{frame}, 60)...); err != nil {
			t.Fatal(err)
		}
		if q = shapeOf(t, n.Pod); q.Drops > 0 {
			break
		}
	}
	if q.Drops == 0 || q.Packets*size < burst*9/10 || q.Backlog > longest || q.Backlog < longest-size {
		t.Errorf("want at least %d octets sent, %d waiting, and drops: %s", burst, longest, q.text)
	}
}

// TestShapeRepair: Check names what others do to the root qdisc of the guest's tap, and the next Setup repairs it. tc
// makes the same of the text in the plan. Without a limit the root qdisc is as the kernel makes it, or another
// program's.
func TestShapeRepair(t *testing.T) {
	t.Parallel()
	for _, queues := range []int{1, 3} {
		n := nstest.NewNetwork(t)
		c := config(n, infra.Redirect{})
		c.Queues = queues
		setup(t, c)
		none := shapeOf(t, n.Pod)
		for bits, want := range map[uint64]struct{ rate, burst, limit uint64 }{
			8000:            {1000, 1468, 14_680},
			10_000_000:      {1_250_000, 12_500, 62_500},
			100_000_000_000: {12_500_000_000, 125_000_000, 4 << 20},
		} {
			c.Limits.ToGuest.BitsPerSecond = bits
			plan, err := c.Plan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			setup(t, c)
			q := shapeOf(t, n.Pod)
			if q.Kind != "tbf" || q.Options.Rate != want.rate || q.Options.Limit != want.limit || q.Options.Burst > want.burst || want.burst-q.Options.Burst > want.burst/100 {
				t.Errorf("%d bits a second: %s", bits, q.text)
			}
			other := nstest.New(t, "text")
			other.IP("tuntap add eth0-tap mode tap")
			for _, step := range plan.Steps {
				if step.Kind == "shape-set" {
					other.Exec("sh", "-c", step.Command)
				}
			}
			text := func(n *nstest.Namespace) string { // each queue counts as a user
				_, text, _ := strings.Cut(n.Exec("tc", "-d", "qdisc", "show", "dev", "eth0-tap", "root"), " rate ")
				return text
			}
			if have, want := text(n.Pod), text(other); have == "" || have != want {
				t.Errorf("Setup made\n%stc makes of the text\n%s", have, want)
			}
			check(t, c)
		}
		wired := shapeOf(t, n.Pod).Options
		for line, says := range map[string]string{
			"tc qdisc del dev eth0-tap root":                                                             " of eth0-tap is gone",
			"tc qdisc replace dev eth0-tap root bfifo limit 100000":                                      "root qdisc of eth0-tap is bfifo, not tbf",
			"tc qdisc replace dev eth0-tap root handle 7: tbf rate 1mbit burst 10000 limit 100000":       "root qdisc of eth0-tap is tbf, not tbf",
			"tc qdisc change dev eth0-tap root handle 6777: tbf rate 1mbit burst 10000 limit 129194304":  "root qdisc of eth0-tap is tbf rate 1000000bit",
			"tc qdisc change dev eth0-tap root handle 6777: tbf rate 100gbit burst 125000000 limit 9000": "limit 9000, not tbf",
		} {
			n.Pod.Exec("sh", "-c", line)
			if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: Check says %v, want %q", line, err, says)
			}
			setup(t, c)
			if q := shapeOf(t, n.Pod); q.Options != wired {
				t.Errorf("%s: after Setup %s", line, q.text)
			}
			check(t, c)
		}
		c.Limits = cache.Limits{}
		setup(t, c)
		if q := shapeOf(t, n.Pod); q.Kind != none.Kind {
			t.Errorf("without a limit: %s", q.text)
		}
		n.Pod.Exec("sh", "-c", "tc qdisc replace dev eth0-tap root bfifo limit 100000")
		check(t, c)
		setup(t, c)
		if q := shapeOf(t, n.Pod); q.Kind != "bfifo" {
			t.Errorf("another program's qdisc: %s", q.text)
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
			{FromGuest: cache.Limit{PacketsPerSecond: 1000}, ToGuest: cache.Shape{BitsPerSecond: 80_000_000}},
			{ToGuest: cache.Shape{BitsPerSecond: 1_000_000}},
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

// TestLimitedLease: a guest whose bucket is empty gets its addresses, as what it asks the responder is not counted. The
// answers wait for the bucket toward the guest.
func TestLimitedLease(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		none := cache.Limit{PacketsPerSecond: 1, BurstPackets: 1}
		c.Limits = cache.Limits{FromGuest: none, ToGuest: cache.Shape{BitsPerSecond: 8000}}
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
