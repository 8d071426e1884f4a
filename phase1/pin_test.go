package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// pins are the sets of pins in the namespace, as nft(8) lists them.
func (s *scene) pins() string {
	return s.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-4") + s.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-6")
}

// reached wants the world to answer the guest.
func (s *scene) reached(t *testing.T, protocol string, family int, to string) {
	t.Helper()
	q, err := s.question(protocol, family, exchange{from: "guest", to: to})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if answer, err := q.Answer(patience); err != nil || !strings.HasPrefix(answer, "world:") {
		t.Errorf("%s, %s: %q, %v", protocol, to, answer, err)
	}
}

// number is that of a regular expression's only group; 0: it has not matched.
func number(match []string) int {
	if len(match) != 2 {
		return 0
	}
	n, _ := strconv.Atoi(match[1])
	return n
}

// wantUnpinned wants the error to be about these addresses.
func wantUnpinned(t *testing.T, err error, addresses ...netip.Addr) {
	t.Helper()
	var left *phase1.PinError
	if !errors.As(err, &left) {
		t.Errorf("%v, want one about %v", err, addresses)
		return
	}
	slices.SortFunc(left.LeftOut, netip.Addr.Compare)
	slices.SortFunc(addresses, netip.Addr.Compare)
	if !slices.Equal(left.LeftOut, addresses) {
		t.Errorf("left out are %v, want %v", left.LeftOut, addresses)
	}
	for _, a := range addresses {
		if !strings.Contains(err.Error(), a.String()+": ") {
			t.Errorf("no word about %v: %v", a, err)
		}
	}
}

// act runs one act of a test, and ends the test if it fails: the next acts need what it has done.
func act(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, f) {
		t.FailNow()
	}
}

// TestPin: a pin opens what the last entry refuses, its ports alone, for its life. What an earlier entry refuses, no
// pin opens, even one that is in the set. Pins are no drift, and live through a Setup with another list and through the
// repair of their set.
func TestPin(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachRouter(t, []string{"refuse private", "allow 198.51.100.9 9000", "allow 2001:db8:9::9 9000", "refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		s.serveWorld("tcp", 9000, 9001, 9002, 9003)
		s.serveWorld("udp", 9001)
		beyond, gateway := s.addresses["beyond"], s.addresses["gateway"]
		for _, a := range gateway {
			s.World.Serve("world", "tcp", netip.AddrPortFrom(a, 9001))
		}
		pin := func(life time.Duration, port uint16, addresses ...netip.Addr) error {
			return c.Pin(t.Context(), phase1.Pin{Addresses: addresses, Ports: []infra.Ports{{First: port}}, Life: life})
		}
		opensItsPort := func(t *testing.T) {
			t.Helper()
			for family := range 2 {
				s.reached(t, "tcp", family, "beyond:9001")
				s.refused(t, "udp", family, "beyond:9001")
				s.refused(t, "tcp", family, "beyond:9002")
				s.refused(t, "tcp", family, "gateway:9001")
			}
			check(t, c)
		}
		act(t, "without a pin", func(t *testing.T) {
			for family := range 2 {
				s.refused(t, "tcp", family, "beyond:9001")
			}
		})
		act(t, "pinned", func(t *testing.T) {
			mapped := netip.AddrFrom16(beyond[0].As16()) // ::ffff:198.51.100.9
			if err := pin(time.Hour, 9001, mapped, beyond[1], beyond[0]); err != nil {
				t.Fatal(err)
			}
			opensItsPort(t)
		})
		act(t, "refused by an earlier entry", func(t *testing.T) {
			local := []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fe80::1")}
			wantUnpinned(t, pin(time.Hour, 9001, append(local, gateway[0], gateway[1], beyond[0])...), append(local, gateway[:]...)...)
			for family, set := range []string{"pins-4", "pins-6"} {
				s.Pod.Exec("nft", "add", "element", "inet", "guestwire-eth0", set, fmt.Sprintf("{ %v . tcp . 9001 timeout 1h }", gateway[family]))
			}
			opensItsPort(t)
		})
		act(t, "another list", func(t *testing.T) {
			c.Egress = policy(t, "refuse 203.0.113.0/24", "refuse private", "refuse all")
			setup(t, c)
			opensItsPort(t)
		})
		act(t, "a repaired set", func(t *testing.T) {
			s.Pod.Exec("nft", `flush chain inet guestwire-eth0 egress; delete set inet guestwire-eth0 pins-4
				add set inet guestwire-eth0 pins-4 { type ipv4_addr . inet_proto . inet_service; size 7; flags dynamic,timeout; timeout 1m; }
				add element inet guestwire-eth0 pins-4 { 198.51.100.9 . tcp . 9001 timeout 1h }`)
			if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "set pins-4 is") {
				t.Errorf("Check says %v of another set", err)
			}
			setup(t, c)
			opensItsPort(t)
			for _, a := range beyond {
				left := regexp.MustCompile(regexp.QuoteMeta(a.String()) + ` . tcp . 9001 timeout (\d+)m`).FindStringSubmatch(s.pins())
				if minutes := number(left); minutes == 0 || minutes > 59 {
					t.Errorf("%v has %q of an hour after a repair", a, left)
				}
			}
		})
		act(t, "the end of a life", func(t *testing.T) {
			if err := pin(time.Second, 9003, beyond[:]...); err != nil {
				t.Fatal(err)
			}
			for family := range 2 {
				nstest.Eventually(t, func() error {
					q, err := s.question("tcp", family, exchange{from: "guest", to: "beyond:9003"})
					if err != nil {
						return err
					}
					defer q.Close()
					if answer, err := q.Answer(patience); !errors.Is(err, syscall.ECONNREFUSED) {
						return fmt.Errorf("a pin has not ended: %q, %v", answer, err)
					}
					return nil
				})
			}
			opensItsPort(t)
		})
		act(t, "a list that allows the rest", func(t *testing.T) {
			c.Egress = policy(t, "refuse private", "allow all")
			setup(t, c)
			var field *cache.FieldError
			if err := pin(time.Hour, 9001, beyond[0]); !errors.As(err, &field) || field.Field != "egress" {
				t.Errorf("%v, want one about egress", err)
			}
		})
	})
}

// TestPinAgain: what is pinned keeps the longer life, in each order and by calls at once.
func TestPinAgain(t *testing.T) {
	nstest.KernelDecides(t, "whether an element that is added again gets a new life")
	t.Parallel()
	s := newScene(t)
	c := config(s.Network, infra.Masquerade{})
	c.Egress = policy(t, "refuse all")
	setup(t, c)
	pin := func(life time.Duration, from, to uint16) error {
		return c.Pin(t.Context(), phase1.Pin{Addresses: []netip.Addr{nstest.Beyond4, nstest.Beyond6}, Ports: []infra.Ports{{First: from, Last: to, Protocol: "udp"}, {First: to, Protocol: "udp"}}, Life: life})
	}
	act(t, "in each order", func(t *testing.T) {
		for _, life := range []time.Duration{time.Minute, time.Hour, time.Second, 2 * time.Hour, time.Minute} { // a minute is the set's own
			if err := pin(life, 53, 53); err != nil {
				t.Fatal(err)
			}
		}
		if list := s.pins(); strings.Count(list, ". 53 timeout 2h") != 2 {
			t.Errorf("want 2 pins of two hours:\n%s", list)
		}
	})
	act(t, "by calls at once", func(t *testing.T) {
		var calls sync.WaitGroup
		for i := range 16 {
			calls.Go(func() {
				for j := range 8 {
					if err := pin(time.Minute+time.Duration((i*5+j)%16)*time.Minute, 100, 131); err != nil {
						t.Error(err)
					}
				}
			})
		}
		calls.Wait()
		if list := s.pins(); strings.Count(list, " timeout 16m") != 64 {
			t.Errorf("want 64 pins of 16 minutes:\n%s", list)
		}
	})
}

// TestPinRefused: what Pin refuses to do, and that nothing is pinned then.
func TestPinRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := config(s.Network, infra.Masquerade{})
	ctx, hosts, https := t.Context(), []netip.Addr{nstest.Beyond4, nstest.Beyond6}, []infra.Ports{{First: 443}}
	act(t, "not wired", func(t *testing.T) {
		if err := c.Pin(ctx, phase1.Pin{Addresses: hosts, Ports: https, Life: time.Hour}); !errors.Is(err, phase1.ErrNotWired) {
			t.Error(err)
		}
	})
	setup(t, c)
	refuse := func(name, field string, addresses []netip.Addr, ports []infra.Ports, life time.Duration) {
		t.Helper()
		act(t, name, func(t *testing.T) {
			var bad *cache.FieldError
			if err := c.Pin(ctx, phase1.Pin{Addresses: addresses, Ports: ports, Life: life}); !errors.As(err, &bad) || bad.Field != field {
				t.Errorf("%v, want one about %s", err, field)
			}
		})
	}
	refuse("no list", "egress", hosts, https, time.Hour)
	c.Egress = policy(t, "refuse all")
	setup(t, c)
	refuse("short life", "life", hosts, https, time.Second-1)
	refuse("long life", "life", hosts, https, 8*24*time.Hour)
	refuse("no address", "addresses", nil, https, time.Hour)
	refuse("zero address", "addresses[1]", []netip.Addr{hosts[0], {}}, https, time.Hour)
	refuse("zone", "addresses[0]", []netip.Addr{netip.MustParseAddr("fe80::1%eth0")}, https, time.Hour)
	refuse("no port", "ports", hosts, nil, time.Hour)
	act(t, "a way out", func(t *testing.T) {
		if err := c.Pin(ctx, phase1.Pin{Addresses: hosts, Ports: []infra.Ports{{First: 80, Guest: 81}}, Life: time.Hour}); !strings.HasSuffix(fmt.Sprint(err), "leave :81 out") {
			t.Error(err)
		}
	})
	refuse("many ports", "ports", hosts, []infra.Ports{{First: 1, Last: 513}}, time.Hour)
	for name, p := range map[string]infra.Ports{"zero ports": {}, "ports backwards": {First: 2, Last: 1}, "ICMP": {First: 80, Protocol: "icmp"}, "port of the guest": {First: 80, Guest: 81}} {
		refuse(name, "ports[1]", hosts, []infra.Ports{https[0], p}, time.Hour)
	}
	act(t, "ended context", func(t *testing.T) {
		done, cancel := context.WithCancelCause(ctx)
		cancel(errors.New("the caller's reason"))
		if err := c.Pin(done, phase1.Pin{Addresses: hosts, Ports: https, Life: time.Hour}); err == nil || !strings.Contains(err.Error(), "the caller's reason") {
			t.Error(err)
		}
	})
	act(t, "nothing is pinned", func(t *testing.T) {
		if list := s.pins(); strings.Contains(list, "elements") {
			t.Error(list)
		}
	})
	act(t, "full set", func(t *testing.T) {
		for first := 1; first < 4096; first += 1024 {
			if err := c.Pin(ctx, phase1.Pin{Addresses: hosts[:1], Ports: []infra.Ports{{First: uint16(first), Last: uint16(first) + 1023}}, Life: time.Hour, Name: strings.Repeat("n", 253)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Pin(ctx, phase1.Pin{Addresses: hosts, Ports: []infra.Ports{{First: 5000}}, Life: time.Hour}); err == nil || !strings.Contains(err.Error(), "full") {
			t.Error(err)
		}
		if list := s.pins(); strings.Contains(list, " 5000 ") || !strings.Contains(list, ". 4096 timeout 1h") {
			t.Error("a call that found a set full has pinned something, or there is less")
		}
	})
	act(t, "again in a full set", func(t *testing.T) {
		if err := c.Pin(ctx, phase1.Pin{Addresses: hosts[:1], Ports: []infra.Ports{{First: 4096}}, Life: 2 * time.Hour}); err != nil {
			t.Error(err)
		}
	})
}

// TestPinName: nft(8) shows a pin's name. It stays with the longer life, through a Setup with another list, and is no
// difference to Check.
func TestPinName(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Masquerade{})
	c.Egress = policy(t, "refuse private", "refuse all")
	setup(t, c)
	pin := func(life time.Duration, name string) {
		t.Helper()
		if err := c.Pin(t.Context(), phase1.Pin{Addresses: []netip.Addr{nstest.Beyond4, nstest.Beyond6}, Ports: []infra.Ports{{First: 443}}, Life: life, Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	shown := func(want string) {
		t.Helper()
		for _, set := range []string{"pins-4", "pins-6"} {
			list := n.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", set)
			if has := strings.Contains(list, "comment"); strings.Count(list, " . tcp . 443 timeout ") != 1 || has != (want != "") || !strings.Contains(list, want) {
				t.Errorf("want %s in\n%s", want, list)
			}
		}
		check(t, c)
	}
	pin(2*time.Minute, "")
	shown("")
	pin(time.Hour, "*.registry.example")
	shown(`comment "*.registry.example"`)
	pin(2*time.Minute, "other.example")
	shown(`comment "*.registry.example"`)
	c.Egress = policy(t, "refuse all")
	setup(t, c)
	shown(`comment "*.registry.example"`)
	pin(2*time.Hour, "other.example")
	shown(`comment "other.example"`)
	for _, name := range []string{"a\"b", "a\\", "ä", "a\nb", strings.Repeat("n", 254)} {
		var field *cache.FieldError
		err := c.Pin(t.Context(), phase1.Pin{Addresses: []netip.Addr{nstest.Beyond4}, Ports: []infra.Ports{{First: 443}}, Life: time.Hour, Name: name})
		if !errors.As(err, &field) || field.Field != "name" {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestPinPartly: what is refused is named, and the rest is pinned, also if a look at the policy takes so long that the
// time of a pin has run on.
func TestPinPartly(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Masquerade{})
	var entries []string
	for i := range 1000 {
		entries = append(entries, fmt.Sprintf("refuse 11.%d.%d.0/25 443", i/256, i%256))
	}
	c.Egress = policy(t, append(entries, "refuse all")...)
	setup(t, c)
	refused := netip.MustParseAddr("11.0.0.1")
	own := []netip.Addr{netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("10.0.2.10"), netip.MustParseAddr("fd10:0:2::a")} // in the guest's own network
	wantUnpinned(t, c.Pin(t.Context(), phase1.Pin{Addresses: append(own, nstest.Beyond4, refused), Ports: []infra.Ports{{First: 443, Last: 543}}, Life: time.Hour}), append(own, refused)...)
	if have := strings.Count(n.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-4"), " . tcp . "); have != 101 {
		t.Errorf("%d pins, want 101", have)
	}
}

// TestPinWithoutFamily: of a guest without IPv6 no address of IPv6 is pinned, and the others are.
func TestPinWithoutFamily(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	n.Pod.IP("-6 route flush dev eth0")
	n.Pod.IP("-6 addr flush dev eth0")
	c := config(n, infra.Masquerade{})
	c.Egress = policy(t, "refuse all")
	setup(t, c)
	hosts := []netip.Addr{nstest.Beyond4, nstest.Beyond6}
	wantUnpinned(t, c.Pin(t.Context(), phase1.Pin{Addresses: hosts, Ports: []infra.Ports{{First: 443}}, Life: time.Hour}), hosts[1])
	if list := n.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-4"); !strings.Contains(list, hosts[0].String()) {
		t.Error(list)
	}
}

// TestPinBesideSetup: a pin can come at any time of a Setup. None is lost by a repair that replaces the table, and no
// Setup fails.
func TestPinBesideSetup(t *testing.T) {
	nstest.KernelDecides(t, "which transactions it refuses")
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Masquerade{})
	c.Egress = policy(t, "refuse all")
	setup(t, c)
	ctx, stop := context.WithCancel(t.Context())
	pinned := make(chan int, 1)
	go func() {
		last := 0
		for ctx.Err() == nil && last < 4000 {
			if err := c.Pin(t.Context(), phase1.Pin{Addresses: []netip.Addr{nstest.Beyond4}, Ports: []infra.Ports{{First: uint16(last + 1)}}, Life: time.Hour}); err != nil {
				t.Error(err)
				break
			}
			last++
		}
		pinned <- last
	}()
	for range 20 {
		n.Pod.Exec("nft", "add counter inet guestwire-eth0 another")
		if err := setupAlone(t.Context(), c); err != nil {
			t.Error(err)
		}
	}
	stop()
	want := <-pinned
	have := strings.Count(n.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-4"), " . tcp . ")
	if have != want || want < 20 {
		t.Errorf("%d pins are left of %d", have, want)
	}
	check(t, c)
}

// TestPinForeign: where another program has put sets of its own in the place of the wiring's, Pin and CutRefused name
// the set and the way out, which works, and change nothing.
func TestPinForeign(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Masquerade{})
	c.Egress = policy(t, "allow 198.51.100.9 9000", "refuse all")
	pin := func() error {
		return c.Pin(t.Context(), phase1.Pin{Addresses: []netip.Addr{nstest.Beyond4}, Ports: []infra.Ports{{First: 443}}, Life: time.Hour})
	}
	cut := func() error {
		_, err := c.CutRefused(t.Context())
		return err
	}
	const addresses = "{ type ipv4_addr; flags timeout; elements = { 192.0.2.1 }; }"
	for _, c2 := range []struct {
		name, set, as string // as: what comes in its place; empty: nothing
		call          func() error
		want          []string
	}{
		{"pins of another type", "pins-4", addresses, pin, []string{"pin eth0: ", "the set pins-4 of the nftables table inet guestwire-eth0 is not as Setup makes it", "call Setup"}},
		{"pins of another size", "pins-4", "{ type ipv4_addr . inet_proto . inet_service; flags timeout; size 1; }", pin, []string{"the set pins-4 of"}},
		{"pins that are a map", "pins-4", "{ type ipv4_addr : ipv4_addr; flags timeout; }", pin, []string{"the set pins-4 of"}},
		{"what is pinnable, of another type", "pinnable-4", addresses, pin, []string{"the set pinnable-4 of"}},
		{"what is pinnable is gone", "pinnable-4-all", "", pin, []string{"the set pinnable-4-all of", "is gone", "call Setup"}},
		{"cut by a set of another type", "egress-4", addresses, cut, []string{"cut eth0: ", "the set egress-4 of the nftables table inet guestwire-eth0", "call Setup"}},
		{"cut by no table", "", "", cut, []string{"the nftables table inet guestwire-eth0 is gone", "call Setup"}},
		{"pin in no table", "", "", pin, []string{"its rules are gone"}},
	} {
		setup(t, c)
		if c2.set == "" {
			n.Pod.Exec("nft", "delete table inet guestwire-eth0")
		} else {
			n.Pod.Exec("nft", "flush chain inet guestwire-eth0 egress; delete set inet guestwire-eth0 "+c2.set)
		}
		if c2.as != "" {
			kind := "set"
			if strings.Contains(c2.as, " : ") {
				kind = "map"
			}
			n.Pod.Exec("nft", "add "+kind+" inet guestwire-eth0 "+c2.set+" "+c2.as)
		}
		err := c2.call()
		if err == nil {
			t.Errorf("%s: no error", c2.name)
			continue
		}
		for _, w := range c2.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q in it", c2.name, err, w)
			}
		}
		setup(t, c)
		if err := c2.call(); err != nil {
			t.Errorf("%s: after Setup, %v", c2.name, err)
		}
		check(t, c)
	}
}
