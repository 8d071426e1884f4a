package migration

import (
	"net"
	"strings"
	"testing"
)

// TestStream connects a Stream to stations that lose an octet, and that repeat octets. TestMigration has stations that
// echo well.
func TestStream(t *testing.T) {
	for name, echo := range map[string]func(data []byte) []byte{
		"loses":   func(data []byte) []byte { return data[1:] },
		"repeats": func(data []byte) []byte { return append(data, data...) },
	} {
		t.Run(name, func(t *testing.T) {
			conn, station := net.Pipe()
			go func() {
				buffer := make([]byte, 1<<16)
				for {
					n, err := station.Read(buffer)
					if err == nil {
						_, err = station.Write(echo(buffer[:n:n]))
					}
					if err != nil {
						station.Close()
						return
					}
				}
			}()
			s := NewStream(conn)
			if err := s.Progress(); err == nil || !strings.Contains(err.Error(), "octet") {
				t.Errorf("%v, want an error about an octet", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
