package phase1_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestMaxConnections wants one connection too many to be refused, whichever side opens it, and the others to
// go on. Each side has a limit of its own.
func TestMaxConnections(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		if firewall == cache.FirewallNFTables {
			nstest.KernelDecides(t, "how it counts connections")
		}
		s := newScene(t)
		const most = 12
		s.wire(t, "guest", config(s.Network, infra.Masquerade{MaxConnections: most, Firewall: firewall}))
		in, out := exchange{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"}, exchange{from: "guest", to: "gateway:9000", want: "world:9000 sees pod"}
		s.serve(t, []exchange{in, out})
		open := func(family int, e exchange, wait time.Duration) (*nstest.Question, error) {
			t.Helper()
			q, err := s.question("tcp", family, e)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(q.Close)
			answer, err := q.Answer(wait)
			if err == nil && answer != s.wanted(e, family) {
				t.Errorf("%v: %q, want %q", e, answer, s.wanted(e, family))
			}
			return q, err
		}
		// What came before is not counted any more once the kernel knows that it has ended. By
		// iptables each family has a limit of its own, but not of what is new in a minute.
		families := 2
		if firewall != cache.FirewallNFTables {
			families = 1
		}
		var q []*nstest.Question
		for i := range 2 * most {
			nstest.Eventually(t, func() error {
				one, err := open(i/2%families, []exchange{in, out}[i%2], time.Second)
				if err != nil {
					one.Close()
					return err
				}
				q = append(q, one)
				return nil
			})
		}
		refused := func() {
			t.Helper()
			for family := range families {
				for _, e := range []exchange{in, out} {
					one, err := s.question("tcp", family, e)
					if err != nil {
						t.Fatal(err)
					}
					for i, o := range q { // each has a way there and back that is as long
						if err := o.Echo(10, patience); err != nil {
							t.Errorf("connection %d: %v", i, err)
						}
					}
					if answer, err := one.Answer(0); err == nil {
						t.Errorf("IPv%d, %v: %q, want no answer to one more than %d", 4+2*family, e, answer, most)
					}
					one.Close()
				}
			}
		}
		refused()
		q[0].Close()
		nstest.Eventually(t, func() (err error) {
			one, err := open(0, in, 2*time.Second)
			if err != nil {
				one.Close()
				return err
			}
			q[0] = one
			return nil
		})
		refused()
	})
}

// TestStandingConnection: a TCP connection of the namespace that is older than the rules stays its own,
// though its first packet that the kernel tracks comes from outside.
func TestStandingConnection(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var servers, clients []net.Conn
	for _, at := range []netip.Addr{nstest.Gateway4, nstest.Gateway6} {
		l := listen(t, s.World, netip.AddrPortFrom(at, 4000))
		clients = append(clients, dial(t, s.Pod, "tcp", netip.AddrPortFrom(at, 4000)))
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, c)
		defer c.Close()
	}
	s.wire(t, "guest", config(s.Network, infra.Masquerade{}))
	for i, server := range servers {
		if _, err := server.Write([]byte("late")); err != nil {
			t.Fatal(err)
		}
		if err := clients[i].SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		var got [4]byte
		if _, err := clients[i].Read(got[:]); err != nil {
			t.Errorf("%v: what its peer sends does not reach the namespace: %v", server.LocalAddr(), err)
		}
	}
}

// TestMaxConnectionsToNamespace: an echo to the gateway is a connection too, one for each identifier.
func TestMaxConnectionsToNamespace(t *testing.T) {
	t.Parallel()
	for _, off := range []bool{false, true} {
		t.Run(map[bool]string{false: "guarded", true: "guard off"}[off], func(t *testing.T) {
			n := nstest.NewNetwork(t)
			const most = 10
			c := config(n, infra.Masquerade{MaxConnections: most})
			c.Guard.Off = off
			setup(t, c)
			w := attach(t, n, true, true)
			for id := range uint16(300) {
				echo := []byte{8, 0, 0, 0, byte(id >> 8), byte(id), 0, 0}
				w.write(w.link.Packet(unix.IPPROTO_ICMP, w.link.IPv4, w.link.Gateway4, echo))
			}
			// The kernel has dealt with a frame when the write returns.
			if count := tracked(t, n.Pod); count < most || count > 2*most {
				t.Errorf("there are %d connections, want the guest's %d and hardly any else", count, most)
			}
		})
	}
}
