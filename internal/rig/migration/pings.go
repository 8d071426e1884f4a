package migration

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
)

// Pings are ICMP echo requests to a broadcast address, which every port of a switch gets. A guest that gets one of them
// twice, as a frame that has waited in a tap, answers twice; so do two guests.
type Pings struct {
	conn             net.PacketConn
	stop             chan struct{}
	sending, reading sync.WaitGroup

	mu      sync.Mutex
	sent    int
	answers map[uint16]int
	gap     time.Duration
	begin   time.Time
	last    time.Time
	err     error
}

const (
	pingInterval = 10 * time.Millisecond
	// pingWait is how long the last answers may take.
	pingWait = 2 * time.Second
)

// NewPings begins to send requests to an IPv4 broadcast address of the namespace.
func NewPings(namespace *os.File, broadcast net.IP) (*Pings, error) {
	p := &Pings{stop: make(chan struct{}), answers: map[uint16]int{}, last: time.Now()}
	err := netns.Do(namespace, func() (err error) {
		p.conn, err = net.ListenPacket("ip4:icmp", "0.0.0.0")
		return err
	})
	if err != nil {
		return nil, err
	}
	p.sending.Go(func() { p.fail(p.send(&net.IPAddr{IP: broadcast})) })
	p.reading.Go(func() { p.fail(p.receive()) })
	return p, nil
}

const pingID = 0x6777 // of all requests

func (p *Pings) send(to net.Addr) error {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for sequence := uint16(0); ; sequence++ {
		select {
		case <-p.stop:
			return nil
		case <-ticker.C:
		}
		request, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: pingID, Seq: int(sequence)}}).Marshal(nil)
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.sent++
		p.mu.Unlock()
		if _, err := p.conn.WriteTo(request, to); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
	}
}

func (p *Pings) receive() error {
	b := make([]byte, 1500)
	for {
		n, _, err := p.conn.ReadFrom(b)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		if n < 8 || b[0] != byte(ipv4.ICMPTypeEchoReply) || binary.BigEndian.Uint16(b[4:]) != pingID {
			continue
		}
		p.mu.Lock()
		now := time.Now()
		if gap := now.Sub(p.last); gap > p.gap {
			p.gap, p.begin = gap, p.last
		}
		p.last = now
		p.answers[binary.BigEndian.Uint16(b[6:])]++
		p.mu.Unlock()
	}
}

func (p *Pings) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}

// End stops sending, waits for the last answers, and returns the measurements.
func (p *Pings) End() (Measured, error) {
	close(p.stop)
	p.sending.Wait()
	p.mu.Lock()
	sent := p.sent
	p.mu.Unlock()
	for end := time.Now().Add(pingWait); time.Now().Before(end); time.Sleep(pingInterval) {
		p.mu.Lock()
		last := p.answers[uint16(sent-1)]
		p.mu.Unlock()
		if last > 0 {
			break
		}
	}
	err := p.conn.Close()
	p.reading.Wait()
	m := Measured{Sent: sent, Lost: sent - len(p.answers), Gap: p.gap, GapBegin: p.begin}
	for _, n := range p.answers {
		m.Twice += n - 1
	}
	return m, errors.Join(err, p.err)
}
