package phase1_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestHostileFramesWhileWiring sends everything hostile from the first moment in which the tap can be opened
// to the last, while the wiring is made and taken down again and again.
func TestHostileFramesWhileWiring(t *testing.T) {
	nstest.Long(t)
	const rounds = 12
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		var w wire
		known := t.Run("one at rest", func(t *testing.T) { // who is who
			setup(t, c)
			w = *attach(t, n, true, true)
		})
		if !known {
			return
		}
		teardown(t, n, c, before)

		receive(t, n)
		hostile := frames.Hostile(w.link)
		flood := newFlood(n, w, hostile)
		leaks := watchWorld(t, n, w, hostile)
		for round := 1; round <= rounds; round++ {
			flood.round.Store(int64(round))
			setup(t, c)
			nstest.Eventually(t, func() error {
				if leaks.received.Load() < int64(round) {
					return fmt.Errorf("round %d: the guest is not received", round)
				}
				return nil
			})
			all := n.Pod.Exec("sh", "-c", "ip route show table all; ip -6 route show table all; ip addr; ip neigh; bridge fdb")
			for _, bad := range []string{"proto ra", "bad", "203.0.113.66", "02:00:5e:00:53:66"} {
				if strings.Contains(all, bad) {
					t.Errorf("round %d: the namespace has %q:\n%s", round, bad, all)
				}
			}
			c.Down.CutOff = true // the flood has the tap open
			unwire(t, c)
		}
		flood.end()
		leaks.end()
		for name, frame := range leaks.hostile {
			t.Errorf("leaked: %s: %x", name, frame)
		}
		if flood.err != nil {
			t.Error(flood.err)
		}
		t.Logf("%d frames, %d taps", flood.sent, flood.taps)
		asFound(t, n, before)
	})
}

// flood sends frames from the tap whenever there is one.
type flood struct {
	round      atomic.Int64 // the number in the sentinels
	stop       atomic.Bool
	running    sync.WaitGroup
	sent, taps int
	err        error
}

func newFlood(n nstest.Network, w wire, kinds []frames.Kind) *flood {
	f := &flood{}
	f.running.Go(func() {
		f.err = netns.Do(n.Pod.File, func() error {
			for !f.stop.Load() {
				if err := f.once(w, kinds); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return f
}

func (f *flood) end() {
	f.stop.Store(true)
	f.running.Wait()
}

// once opens the tap if it is there, and sends until it has gone.
func (f *flood) once(w wire, kinds []frames.Kind) error {
	port, err := tap.Open("eth0-tap")
	if err != nil {
		time.Sleep(50 * time.Microsecond)
		return nil
	}
	defer port.Close()
	f.taps++
	for !f.stop.Load() {
		list := [][]byte{w.link.Sentinel(w.address(), int(f.round.Load()))}
		for _, k := range kinds {
			list = append(list, k.Frames...)
		}
		for _, frame := range list {
			_, err := port.Write(frame)
			switch {
			case errors.Is(err, unix.EIO): // it is down
			case errors.Is(err, unix.EBADFD): // it has gone
				return nil
			case err != nil:
				return err
			default:
				f.sent++
			}
		}
	}
	return nil
}

// leaks is what came out in the world.
type leaks struct {
	received atomic.Int64 // the last sentinel
	hostile  map[string][]byte
	stop     atomic.Bool
	running  sync.WaitGroup
}

func watchWorld(t *testing.T, n nstest.Network, w wire, kinds []frames.Kind) *leaks {
	known := map[string]string{}
	for _, k := range kinds {
		for _, f := range k.Frames {
			known[string(f)] = k.Name
			if binary.BigEndian.Uint16(f[12:]) == 0x8100 { // which the sniffer does not see
				known[string(append(bytes.Clone(f[:12]), f[16:]...))] = k.Name
			}
		}
	}
	l := &leaks{hostile: map[string][]byte{}}
	sniffer := n.World.Sniff(t)
	l.running.Go(func() {
		for {
			s, ok := sniffer.Next()
			if !ok && l.stop.Load() {
				return
			}
			if !ok || s.Outgoing || s.Link != w.gateway {
				continue
			}
			var number int64
			if _, text, is := bytes.Cut(s.Frame, []byte("guestwire sentinel ")); is {
				if _, err := fmt.Sscanf(string(text), "%d", &number); err == nil {
					l.received.Store(max(l.received.Load(), number))
				}
				if w.masquerade && !w.translated(s.Frame) {
					l.hostile["a legitimate frame, not translated"] = s.Frame
				}
				continue
			}
			if name, is := known[string(s.Frame)]; is {
				l.hostile[name] = s.Frame
			} else if bytes.Contains(s.Frame, []byte("guestwire kind")) {
				l.hostile["a changed one"] = s.Frame
			}
		}
	})
	return l
}

func (l *leaks) end() {
	l.stop.Store(true)
	l.running.Wait()
}

// TestTables floods the machine's tables from the guest: with sources that do not exist, and with neighbours
// that do not exist.
func TestTables(t *testing.T) {
	nstest.Need(t)
	nstest.NeedRoot(t, "the sniffer needs a larger buffer than rmem_max")
	const count = 20000
	for _, off := range []bool{false, true} {
		t.Run(map[bool]string{false: "guarded", true: "guard off"}[off], func(t *testing.T) {
			eachBinding(t, func(t *testing.T, b infra.Binding) {
				n := nstest.NewNetwork(t)
				c := config(n, b)
				c.Guard.Off = off
				setup(t, c)
				w := attach(t, n, true, true)
				tables := func() string {
					text := n.Pod.Exec("bridge", "fdb")
					if !off { // without the guard the guest can have any source
						for line := range strings.Lines(n.Pod.IP("neigh")) {
							if strings.Contains(line, "eth0-tap") {
								text += line
							}
						}
					}
					return text
				}
				before := tables()
				random := rand.New(rand.NewPCG(1, 2))
				for range count / 4 {
					var mac [6]byte
					binary.BigEndian.PutUint32(mac[1:], random.Uint32())
					var list [][]byte
					for _, frame := range [][]byte{
						w.link.Sentinel(netip.AddrFrom4([4]byte{10, 0, 2, byte(random.Uint32())}), 0),
						w.link.Sentinel(netip.MustParseAddr(fmt.Sprintf("fd10:0:2::%x", byte(random.Uint32()))), 0),
					} {
						copy(frame[6:], mac[:])
						list = append(list, frame)
					}
					// With its own source, to addresses of its own network that no station has.
					to := w.link
					to.Far4 = netip.AddrFrom4([4]byte{10, 0, 2, byte(random.Uint32())})
					to.Far6 = netip.MustParseAddr(fmt.Sprintf("fd10:0:2::%x", byte(random.Uint32())))
					list = append(list, to.Sentinel(w.link.IPv4, 0), to.Sentinel(w.link.IPv6, 0))
					for _, frame := range list {
						if _, err := w.port.Write(frame); err != nil {
							t.Fatal(err)
						}
					}
				}
				w.send()
				if err := difference(before, tables()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
