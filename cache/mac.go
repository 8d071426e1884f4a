package cache

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// MAC is an Ethernet address. In text and JSON it is 02:00:00:00:00:07. Zero: there is none.
type MAC [6]byte

// ParseMAC reads aa:bb:cc:dd:ee:ff, in lower or upper case.
func ParseMAC(text string) (MAC, error) {
	var m MAC
	parts := strings.Split(text, ":")
	if len(parts) != len(m) {
		return MAC{}, fmt.Errorf("MAC %q: want the form aa:bb:cc:dd:ee:ff", text)
	}
	for i, part := range parts {
		if len(part) != 2 {
			return MAC{}, fmt.Errorf("MAC %q: want the form aa:bb:cc:dd:ee:ff", text)
		}
		if _, err := hex.Decode(m[i:i+1], []byte(part)); err != nil {
			return MAC{}, fmt.Errorf("MAC %q: want the form aa:bb:cc:dd:ee:ff", text)
		}
	}
	return m, nil
}

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

func (m MAC) IsZero() bool { return m == MAC{} }

// Unicast reports whether a single station can have the address: it is neither zero nor a group's.
func (m MAC) Unicast() bool { return !m.IsZero() && m[0]&1 == 0 }

func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m *MAC) UnmarshalText(text []byte) error {
	parsed, err := ParseMAC(string(text))
	if err != nil {
		return err
	}
	*m = parsed
	return nil
}
