package names

import (
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guestwire/guestwire/internal/pinmessage"
)

// fast is a scene without limits, whose resolver answers all names.
func fast(b *testing.B) *scene {
	s := &scene{list: []string{"good.example", "*.wild.example", "host.internal = 10.0.2.1"}}
	s.answer = func(q dnsmessage.Message, _ bool) [][]byte {
		return [][]byte{packed(replyTo(q, fold(q.Questions[0].Name)+" 300 A 198.51.100.9"))}
	}
	s.proxy.limits = defaults
	s.proxy.limits.perSecond, s.proxy.limits.names, s.proxy.limits.answers = 1<<30, 1<<30, 1<<30
	return s.start(b)
}

// client is a socket of a guest.
type client struct {
	net.Conn
	b      *testing.B
	buffer [4096]byte
}

func dial(b *testing.B, to string) *client {
	c, err := net.Dial("udp", to)
	if err != nil {
		b.Fatal(err)
	}
	return &client{Conn: c, b: b}
}

func (c *client) ask(message []byte) {
	if _, err := c.Write(message); err != nil {
		c.b.Error(err)
		return
	}
	if _, err := c.Read(c.buffer[:]); err != nil {
		c.b.Error(err)
	}
}

// BenchmarkQuestions: one question after the other, and from several sockets at once. The resolver's own time is that
// of "resolver".
func BenchmarkQuestions(b *testing.B) {
	for _, c := range []struct{ of, name string }{{"refused", "other.example."}, {"own", "host.internal."}, {"kept", "good.example."}} {
		message := packed(questionOf(c.name, a))
		b.Run(c.of, func(b *testing.B) {
			s := fast(b)
			g := dial(b, s.at)
			defer g.Close()
			for b.Loop() {
				g.ask(message)
			}
		})
		b.Run(c.of+"-at-once", func(b *testing.B) {
			s := fast(b)
			b.SetParallelism(4)
			b.RunParallel(func(pb *testing.PB) {
				g := dial(b, s.at)
				defer g.Close()
				for pb.Next() {
					g.ask(message)
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "questions/s")
		})
	}
	b.Run("resolver", func(b *testing.B) {
		s := fast(b)
		g := dial(b, s.resolver)
		defer g.Close()
		for i := 0; b.Loop(); i++ {
			g.ask(packed(questionOf(fmt.Sprintf("n%d.wild.example.", i), a)))
		}
	})
	b.Run("resolved", func(b *testing.B) {
		s := fast(b)
		g := dial(b, s.at)
		defer g.Close()
		for i := 0; b.Loop(); i++ {
			g.ask(packed(questionOf(fmt.Sprintf("n%d.wild.example.", i), a)))
		}
	})
	b.Run("resolved-at-once", func(b *testing.B) {
		s := fast(b)
		var next atomic.Int64
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			g := dial(b, s.at)
			defer g.Close()
			for pb.Next() {
				g.ask(packed(questionOf(fmt.Sprintf("n%d.wild.example.", next.Add(1)), a)))
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "questions/s")
	})
}

// BenchmarkEntries: the memory of 10,000 names, and the time to find one.
func BenchmarkEntries(b *testing.B) {
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	var list []pinmessage.Name
	for i := range 10000 {
		n := pinmessage.Name{Name: fmt.Sprintf("host-%d.of.some.example", i)}
		if i%10 == 0 {
			n.Name = "*." + n.Name
		}
		parsed, err := pinmessage.ParseName(n.Append(nil))
		if err != nil {
			b.Fatal(err)
		}
		list = append(list, parsed)
	}
	e := newEntries(list)
	memory := (heap() - before) / 1e6
	deep := strings.Repeat("a.", 100) + "host-9990.of.some.example"
	for b.Loop() {
		if _, found := e.find(deep); !found {
			b.Fatal("not found")
		}
	}
	b.ReportMetric(memory, "MB")
	runtime.KeepAlive(list)
}
