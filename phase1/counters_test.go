package phase1_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// vnetHeader is the struct virtio_net_hdr before each frame of a VMM, which is no part of the frame.
const vnetHeader = 10

// vmm is a process that has the queues of a guest's tap open, and counts.
type vmm struct {
	queues      []*os.File
	wrote, read phase1.Count
}

// write writes a frame by the queue, from the MAC.
func (v *vmm) write(queue int, from cache.MAC, data int) error {
	f := slices.Concat(make([]byte, vnetHeader), []byte{255, 255, 255, 255, 255, 255}, from[:], []byte{0x08, 0x06}, make([]byte, data))
	_, err := v.queues[queue].Write(f)
	if err == nil {
		v.wrote.Packets++
		v.wrote.Bytes += uint64(len(f) - vnetHeader)
	}
	return err
}

// drain reads what waits at the queues.
func (v *vmm) drain(t *testing.T) {
	t.Helper()
	buffer := make([]byte, 1<<16)
	for _, f := range v.queues {
		for {
			if err := f.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, err := f.Read(buffer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			v.read.Packets++
			v.read.Bytes += uint64(n - vnetHeader)
		}
	}
}

// linkCounters is what ip(8) says that the link has received and sent.
func linkCounters(t *testing.T, ns *nstest.Namespace, link string) (received, sent phase1.Count) {
	t.Helper()
	var links []struct {
		Stats64 struct {
			RX, TX struct{ Packets, Bytes uint64 }
		}
	}
	if err := json.Unmarshal([]byte(ns.IP("-s -j link show dev "+link)), &links); err != nil || len(links) != 1 {
		t.Fatalf("%d links, %v", len(links), err)
	}
	s := links[0].Stats64
	return phase1.Count{Packets: s.RX.Packets, Bytes: s.RX.Bytes}, phase1.Count{Packets: s.TX.Packets, Bytes: s.TX.Bytes}
}

// counters are what Counters says.
func counters(t *testing.T, c wired.NIC) *phase1.Counters {
	t.Helper()
	n, err := c.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// wantCounters wants ip(8), Status and Counters to say what the VMM has counted.
func (v *vmm) wantCounters(t *testing.T, n nstest.Network, c wired.NIC, when string) {
	t.Helper()
	report, err := c.Status(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	received, sent := linkCounters(t, n.Pod, "eth0-tap")
	if received != v.wrote || sent != v.read {
		t.Errorf("%s: the VMM wrote %+v and read %+v; ip says %+v and %+v", when, v.wrote, v.read, received, sent)
	}
	for from, all := range map[string]*phase1.Counters{"Status": &report.Counters, "Counters": counters(t, c)} {
		if all.FromGuest == nil || all.ToGuest == nil || *all.FromGuest != v.wrote || *all.ToGuest != v.read {
			t.Errorf("%s: the VMM wrote %+v and read %+v; %s says %+v and %+v", when, v.wrote, v.read, from, all.FromGuest, all.ToGuest)
		}
	}
}

// TestCounters: of each binding with a tap of guestwire's, by one queue and by several, the traffic is what the VMM
// wrote, dropped frames included, and what it read. A later Setup, Deactivate and Activate keep the counters. A tap
// that is made anew begins at 0.
func TestCounters(t *testing.T) {
	t.Parallel()
	foreign := cache.MAC{2, 0, 0, 0, 0, 0x66}
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		for _, queues := range []int{1, 3} {
			n := nstest.NewNetwork(t)
			c := config(n, b)
			c.Queues, c.Down.CutOff = queues, true
			setup(t, c)
			files, closeTap := openTap(t, n, "eth0-tap", queues)
			v := &vmm{queues: files}
			v.wantCounters(t, n, c, "before the first frame")
			guest := record(t, n).MAC
			for i := range 30 {
				from := guest
				if i%3 == 0 {
					from = foreign
				}
				if err := v.write(i%queues, from, 46+i); err != nil {
					t.Fatal(err)
				}
			}
			if dropped := counted(t, c)["mac-spoof"]; dropped != 10 {
				t.Errorf("%d frames were dropped, want 10 of 30", dropped)
			}
			nstest.Eventually(t, func() error {
				n.World.Exec("bash", "-c", "echo >/dev/udp/10.244.1.7/7777 || true")
				if v.drain(t); v.read.Packets < 3 {
					return fmt.Errorf("the VMM has read %+v", v.read)
				}
				return nil
			})
			v.wantCounters(t, n, c, "after traffic")
			c.Limits.FromGuest.PacketsPerSecond = 1_000_000
			setup(t, c)
			v.wantCounters(t, n, c, "after another Setup")
			if b.Kind() != cache.BindingRouted {
				if _, err := c.Deactivate(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := v.write(0, guest, 46); !errors.Is(err, unix.EIO) {
					t.Errorf("on standby a frame is written: %v", err)
				}
				v.wantCounters(t, n, c, "on standby")
				if _, err := c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
					t.Fatal(err)
				}
				if err := v.write(0, guest, 46); err != nil {
					t.Error(err)
				}
				v.drain(t)
				v.wantCounters(t, n, c, "after standby")
			}
			closeTap()
			n.Pod.IP("link del eth0-tap")
			if report, err := c.Status(t.Context()); err != nil || report.FromGuest != nil || report.ToGuest != nil {
				t.Errorf("without a tap: %+v, %v", report, err)
			}
			setup(t, c)
			(&vmm{}).wantCounters(t, n, c, "of a tap made anew")
		}
	})
}

// TestCountersOfMacvtap: the counters of a macvtap are the link's, the other way round: it sends what the guest sends.
func TestCountersOfMacvtap(t *testing.T) {
	t.Parallel()
	n := nstest.NewMacvtap(t)
	nstest.NeedRoot(t, "the test makes a device node")
	c := direct(n, infra.Macvtap{})
	setup(t, c)
	var major, minor uint32
	if _, err := fmt.Sscanf(n.Pod.Exec("sh", "-c", "cat /sys/class/net/eth0/macvtap/tap*/dev"), "%d:%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(t.TempDir(), "tap")
	if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor))); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(node, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v := &vmm{queues: []*os.File{f}}
	guest := record(t, n).MAC
	for range 20 {
		if err := v.write(0, guest, 900); err != nil {
			t.Fatal(err)
		}
	}
	nstest.Eventually(t, func() error {
		n.World.Exec("bash", "-c", "echo >/dev/udp/10.244.1.17/7777 || true") // it asks for the address
		v.drain(t)
		received, sent := linkCounters(t, n.Pod, "eth0")
		have := counters(t, c)
		if len(have.Attached) != 1 || have.Attached[0].Side != "vmm" || have.Attached[0].State != "unknown" {
			t.Fatalf("who has the macvtap open: %+v, want one that is not known", have.Attached)
		}
		if again, also := linkCounters(t, n.Pod, "eth0"); v.read.Packets < 2 || received != again || sent != also {
			return fmt.Errorf("the VMM has read %+v", v.read)
		}
		if have.FromGuest == nil || have.ToGuest == nil || *have.FromGuest != sent || *have.ToGuest != received {
			t.Fatalf("%+v and %+v; ip says that eth0 sent %+v and received %+v", have.FromGuest, have.ToGuest, sent, received)
		}
		if sent.Bytes < v.wrote.Bytes || received.Packets < v.read.Packets {
			t.Fatalf("the VMM wrote %+v and read %+v; ip says %+v and %+v", v.wrote, v.read, sent, received)
		}
		return nil
	})
}

// TestOpened: with a policy each connection that it allows is counted once, as nft(8) says. None that it refuses, or
// that others open, is counted. Another policy keeps the count, also one with another last entry. Without a policy
// there is no count.
func TestOpened(t *testing.T) {
	t.Parallel()
	allow := []string{"allow 198.51.100.9 9000", "allow 2001:db8:9::9 9000", "allow 198.51.100.9 9000/udp", "allow 2001:db8:9::9 9000/udp", "refuse all"}
	eachRouter(t, allow, func(t *testing.T, s *scene, c wired.NIC) {
		for _, protocol := range []string{"tcp", "udp"} {
			s.serveWorld(protocol, 9000, 9001)
		}
		want := uint64(0)
		looks := func(when string) {
			t.Helper()
			if have := counters(t, c).Opened; have == nil || *have != want {
				t.Errorf("%s %v connections were opened, want %d", when, have, want)
			}
			if list := s.Pod.Exec("nft", "list", "chain", "inet", "guestwire-eth0", "allowed"); !strings.Contains(list, fmt.Sprintf("counter packets %d ", want)) {
				t.Errorf("%s nft says, want %d:\n%s", when, want, list)
			}
		}
		open := func(family int, to string) {
			t.Helper()
			q, err := s.question("tcp", family, exchange{from: "guest", to: to})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			if answer, err := q.Answer(patience); err != nil {
				t.Fatalf("%q, %v", answer, err)
			}
			if err := q.Echo(1<<16, patience); err != nil {
				t.Error(err)
			}
			want++
		}
		looks("before the first one")
		for family := range 2 {
			open(family, "beyond:9000")
			open(family, "beyond:9000")
			conn := dial(t, s.who["guest"], "udp", netip.AddrPortFrom(s.addresses["beyond"][family], 9000))
			for range 3 {
				conn.SetDeadline(time.Now().Add(patience))
				if _, err := conn.Write([]byte("question")); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Read(make([]byte, 100)); err != nil {
					t.Fatal(err)
				}
			}
			want++
		}
		looks("after TCP and UDP")
		refused := counted(t, c)["egress"]
		s.refused(t, "tcp", 0, "beyond:9001")
		s.refused(t, "udp", 1, "beyond:9001")
		s.ask(t, []exchange{{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"}})
		looks("after refused ones, and those of the world,")
		if now := counted(t, c)["egress"]; now < refused+2 {
			t.Errorf("%d packets were refused, and %d before", now, refused)
		}
		for _, last := range []string{"refuse all", "allow all"} {
			c.Egress = policy(t, "refuse metadata", "allow 198.51.100.9 9000-9001", "allow 2001:db8:9::9 9000-9001", last)
			setup(t, c)
			open(0, "beyond:9001")
			open(1, "beyond:9001")
			looks("with the last entry " + last)
		}
		c.Egress = nil
		setup(t, c)
		open(0, "beyond:9001")
		all := counters(t, c)
		if text, err := json.Marshal(all); err != nil || all.Opened != nil || strings.Contains(string(text), `"opened":`) {
			t.Errorf("without a policy: %s, %v", text, err)
		}
	})
}
