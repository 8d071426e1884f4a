package migration

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
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
