package guestwiretest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// checked is the tests, and a search for what they leave.
type checked struct{ *testing.M }

func (c checked) Run() int { return leak.Run(c.M) }

func TestMain(m *testing.M) { guestwiretest.Main(checked{m}) }

// wire sets a binding up, and serves it.
func wire(t *testing.T, pod *guestwiretest.Pod, b infra.Binding, queues int) (cache.Record, wired.NIC) {
	t.Helper()
	c := wired.NIC{NIC: phase1.NIC{NetNS: pod.NetNS, Name: pod.NIC}, Spec: infra.Spec{Binding: b, Owner: pod.Owner, State: pod.State, Queues: queues}}
	record, err := c.Setup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pod.Serve()
	return record, c
}

func at(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, guestwiretest.Port) }

// TestShapes: each shape of a pod gives its network to a guest by each binding that it allows, and gets it back.
func TestShapes(t *testing.T) {
	for _, shape := range []guestwiretest.Shape{guestwiretest.Veth, guestwiretest.Calico, guestwiretest.Terway, guestwiretest.Macvlan} {
		for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}} {
			if shape == guestwiretest.Macvlan && b.Kind() == "bridge" {
				continue
			}
			t.Run(shape.String()+"/"+string(b.Kind()), func(t *testing.T) {
				t.Parallel()
				pod := guestwiretest.NewPod(t, shape)
				before := pod.Dump()
				for _, to := range []netip.Addr{pod.World.IPv4, pod.World.IPv6} {
					if answer, err := pod.Ask(t.Context(), at(to)); err != nil || !strings.HasPrefix(answer, "world sees ") {
						t.Errorf("the pod asks %v: %q, %v", to, answer, err)
					}
				}
				record, c := wire(t, pod, b, 2)
				if diff := guestwiretest.Diff(before, pod.Dump()); !strings.Contains(diff, "\n+") {
					t.Errorf("a wiring does not show: %q", diff)
				}
				guest := guestwiretest.NewGuest(t, pod, record)
				if err := guest.Configure(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, to := range []netip.Addr{pod.World.IPv4, pod.World.IPv6} {
					if err := guest.Ping(t.Context(), to); err != nil {
						t.Error(err)
					}
					answer, err := guest.Ask(t.Context(), at(to))
					want := pod.IPv4.String()
					if to.Is6() {
						want = pod.IPv6.String()
					}
					if err != nil || !strings.HasPrefix(answer, "world sees ") || !strings.Contains(answer, want) {
						t.Errorf("the guest asks %v: %q, %v; want the world, which sees %s", to, answer, err, want)
					}
				}
				for _, to := range []netip.Addr{pod.IPv4, pod.IPv6} {
					if answer, err := pod.World.Ask(t.Context(), at(to)); err != nil || !strings.HasPrefix(answer, "guest sees ") {
						t.Errorf("the world asks %v: %q, %v", to, answer, err)
					}
				}
				for who, dial := range map[string]func() (net.Conn, error){
					"the world": func() (net.Conn, error) { return guest.DialTCP(t.Context(), at(pod.World.IPv6)) },
					"the guest": func() (conn net.Conn, err error) {
						err = pod.World.Do(func() error {
							conn, err = net.Dial("tcp", at(pod.IPv4).String())
							return err
						})
						return conn, err
					},
				} {
					if err := echoes(dial); err != nil {
						t.Errorf("%s does not send back: %v", who, err)
					}
				}
				if err := c.Teardown(t.Context()); !errors.Is(err, phase1.ErrInUse) {
					t.Errorf("Teardown under the guest: %v, want ErrInUse", err)
				}
				guest.Close()
				if err := c.Teardown(t.Context()); err != nil {
					t.Fatal(err)
				}
				if diff := guestwiretest.Diff(before, pod.Dump()); diff != "" {
					t.Errorf("the pod is not as it was:\n%s", diff)
				}
			})
		}
	}
}

// echoes wants the station at the other end to send a line back, after its own.
func echoes(dial func() (net.Conn, error)) error {
	conn, err := dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return err
	}
	lines := bufio.NewReader(conn)
	for _, want := range []string{" sees ", "hello\n"} {
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, want) {
			return fmt.Errorf("%q, %w; want %q", line, err, want)
		}
	}
	return nil
}

// TestLeases: each exchange by itself, and what the guest has of it.
func TestLeases(t *testing.T) {
	pod := guestwiretest.NewPod(t, guestwiretest.Veth)
	record, _ := wire(t, pod, infra.Redirect{}, 1)
	guest := guestwiretest.NewGuest(t, pod, record)
	lease4, err := guest.DHCPv4(t.Context())
	if err != nil || lease4.Address != netip.PrefixFrom(pod.IPv4, 24) || lease4.MTU != 1450 || lease4.Duration == 0 || len(lease4.Message) < 240 {
		t.Errorf("DHCPv4: %+v, %v", lease4, err)
	}
	router, err := guest.RouterSolicitation(t.Context())
	if err != nil || !router.IsLinkLocalUnicast() {
		t.Errorf("router advertisement of %v, %v", router, err)
	}
	lease6, err := guest.DHCPv6(t.Context())
	if err != nil || lease6.Address != netip.PrefixFrom(pod.IPv6, 128) || lease6.Duration == 0 || len(lease6.Message) == 0 {
		t.Errorf("DHCPv6: %+v, %v", lease6, err)
	}
	if routes := strings.Join(guest.Routes(), "\n"); !strings.Contains(routes, "default via 10.244.1.1") || !strings.Contains(routes, "default via fe80::") {
		t.Errorf("routes:\n%s", routes)
	}
	if len(guest.Addresses()) != 3 {
		t.Errorf("addresses %v, want a link-local one and two others", guest.Addresses())
	}
	guest.Close()
	if err := guest.Ping(t.Context(), pod.World.IPv4); err == nil {
		t.Error("a guest that is closed pings")
	}
	again := guestwiretest.NewGuest(t, pod, record)
	if err := again.Configure(t.Context()); err != nil {
		t.Error(err)
	}
}

// frame is an ARP request by which a station looks for the pod. The mark is in the station's address.
func frame(to, from [6]byte, mark byte) []byte {
	b := append(append(to[:], from[:]...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	b = append(append(b, from[:]...), 10, 244, 1, mark, 0, 0, 0, 0, 0, 0, 10, 244, 1, 7)
	return append(b, make([]byte, 18)...)
}

// TestFrames: without a filter, frames go both ways as they are; with the filter, one with a foreign MAC is dropped.
func TestFrames(t *testing.T) {
	all, station := [6]byte{255, 255, 255, 255, 255, 255}, [6]byte{2, 0, 0, 0, 0, 9}
	for name, guard := range map[string]infra.Guard{"no filter": {Off: true}, "filter": {}} {
		t.Run(name, func(t *testing.T) {
			pod := guestwiretest.NewPod(t, guestwiretest.Veth)
			c := wired.NIC{NIC: phase1.NIC{NetNS: pod.NetNS, Name: pod.NIC}, Spec: infra.Spec{Binding: infra.Redirect{}, Owner: pod.Owner, State: pod.State, Guard: guard}}
			record, err := c.Setup(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			guest := guestwiretest.NewGuest(t, pod, record)
			outside := pod.World.Capture("pod")
			is := func(mark byte) func([]byte) bool {
				return func(b []byte) bool { return bytes.Equal(b, frame(all, station, mark)) }
			}
			if err := guest.Send(frame(all, station, 1)); err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			if !guard.Off { // the frame is dropped at once, or never
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
			}
			_, err = outside.Next(ctx, is(1))
			if guard.Off && err != nil || !guard.Off && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the guest's frame outside: %v", err)
			}
			inside := guest.Capture()
			if err := pod.World.Send("pod", frame(all, station, 2)); err != nil {
				t.Fatal(err)
			}
			if _, err := inside.Next(t.Context(), is(2)); err != nil {
				t.Errorf("the world's frame at the guest: %v", err)
			}
		})
	}
}

// TestDiff names the command whose output differs. Elements of a set differ in any order, but those that pass.
func TestDiff(t *testing.T) {
	pod := guestwiretest.NewPod(t, guestwiretest.Veth)
	pod.Dump() // says which programs are missing
	pod.Run("nft", "add table inet a; add set inet a stays { type inet_proto . inet_service; }; add set inet a passes { type inet_service; flags dynamic,timeout; timeout 1h; }")
	before := pod.Dump()
	pod.Run("nft", "add element inet a stays { tcp . 9, tcp . 7 }; add element inet a passes { 8 }")
	pod.Run("ip", "route", "add", "192.0.2.0/24", "via", "10.244.1.1")
	pod.Run("ip", "neigh", "add", "10.244.1.9", "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
	want := "# ip -d -batch -: link, addr, route show table all, rule\n+unicast 192.0.2.0/24 via 10.244.1.1 dev eth0 table main proto boot scope global \n" +
		"# nft -s list ruleset\n+\t\telements = {\n+\t\t\ttcp . 7,\n+\t\t\ttcp . 9 }\n" +
		"# ip neigh show nud permanent\n+10.244.1.9 dev eth0 lladdr 02:00:00:00:00:01 PERMANENT \n"
	if diff := guestwiretest.Diff(before, pod.Dump()); diff != want {
		t.Errorf("%q, want %q", diff, want)
	}
	changed := pod.Dump()
	pod.Run("ip", "route", "del", "192.0.2.0/24")
	pod.Run("nft", "delete element inet a stays { tcp . 7, tcp . 9 }")
	pod.Run("ip", "neigh", "del", "10.244.1.9", "dev", "eth0")
	if diff := guestwiretest.Diff(before, pod.Dump()); diff != "" {
		t.Errorf("%q, want nothing", diff)
	}
	if diff, want := guestwiretest.Diff(changed, pod.Dump()), strings.ReplaceAll(want, "\n+", "\n-"); diff != want {
		t.Errorf("%q, want %q", diff, want)
	}
}
