package migration

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestStream connects a Stream to stations that echo well, that lose an octet, that repeat octets, and that pause.
func TestStream(t *testing.T) {
	const pause = 100 * time.Millisecond
	for _, c := range []struct {
		name string
		echo func(to io.Writer, data []byte) error
		err  string
		gap  time.Duration
	}{
		{"well", func(to io.Writer, data []byte) error { _, err := to.Write(data); return err }, "", 0},
		{"loses", func(to io.Writer, data []byte) error { _, err := to.Write(data[1:]); return err }, "octet 0 is", 0},
		{"repeats", func(to io.Writer, data []byte) error { _, err := to.Write(append(data, data...)); return err }, "octet", 0},
		{"pauses", func(to io.Writer, data []byte) error { time.Sleep(pause); _, err := to.Write(data); return err }, "", pause},
	} {
		t.Run(c.name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			done := make(chan error, 1)
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					done <- err
					return
				}
				defer conn.Close()
				buffer := make([]byte, 1<<16)
				for {
					n, err := conn.Read(buffer)
					if err == nil {
						err = c.echo(conn, buffer[:n])
					}
					if err != nil {
						done <- err
						return
					}
				}
			}()
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			s := NewStream(conn)
			err = s.Progress()
			var m Measured
			if err == nil {
				m, err = s.End()
			}
			if c.err == "" && (err != nil || m.Sent == 0 || m.Lost != 0 || m.Gap < c.gap) {
				t.Errorf("%v, %v", m, err)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%v, %v, want an error with %q", m, err, c.err)
			}
			if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
			<-done
		})
	}
}

// TestStreamEnded: the error says how the connection ended, whoever of the sender and the receiver tells first.
func TestStreamEnded(t *testing.T) {
	for name, conn := range map[string]endedConn{
		"the sender first":   {write: syscall.EPIPE, read: syscall.ECONNRESET, readAfter: 50 * time.Millisecond},
		"the receiver first": {write: syscall.ECONNRESET, read: io.EOF, writeAfter: 50 * time.Millisecond},
	} {
		s := NewStream(conn)
		if err := s.Ended(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want the reset", name, err)
		}
	}
}

// endedConn is a connection that has ended. The kernel tells the reset to whoever asks first, and each of the two calls fail
// some time later.
type endedConn struct {
	net.Conn
	write, read           error
	writeAfter, readAfter time.Duration
}

func (c endedConn) Write([]byte) (int, error) { time.Sleep(c.writeAfter); return 0, c.write }

func (c endedConn) Read([]byte) (int, error) { time.Sleep(c.readAfter); return 0, c.read }

func (c endedConn) SetDeadline(time.Time) error { return nil }

// TestPings has a namespace answer broadcasts. Its own address answers each request once.
func TestPings(t *testing.T) {
	nstest.Need(t)
	l := newLAN(t)
	p := l.pod(guestMAC)
	p.Pod.IP("addr add 10.244.1.7/24 brd + dev eth0")
	p.Pod.Exec("sysctl", "-qw", "net.ipv4.icmp_echo_ignore_broadcasts=0")
	p.connect()
	for _, want := range []int{1, 2} { // stations
		if want == 2 {
			twin := l.pod(guestMAC)
			twin.Pod.IP("addr add 10.244.1.7/24 brd + dev eth0")
			twin.Pod.Exec("sysctl", "-qw", "net.ipv4.icmp_echo_ignore_broadcasts=0")
			twin.connect()
		}
		pings, err := NewPings(l.world.File, broadcast4)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * pingInterval)
		m, err := pings.End()
		if err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
		if m.Sent == 0 || m.Lost > m.Sent/2 || (m.Twice > 0) != (want == 2) {
			t.Errorf("with %d stations: %v", want, m)
		}
	}
}
