package dhcp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// client4 is a message of a DHCPv4 client, by default the guest.
type client4 struct {
	kind     dhcpv4.MessageType // 0: none, BOOTP
	ciaddr   string
	flags    uint16
	options  map[uint8][]byte
	src, dst string // default: 0.0.0.0 to 255.255.255.255
	change   func(msg []byte)
}

var xid = []byte{0xde, 0xad, 0xbe, 0xef}

// bytes returns the message. It is encoded by hand, so that it can be wrong.
func (c client4) bytes() []byte {
	msg := make([]byte, 240)
	msg[0], msg[1], msg[2] = 1, 1, 6
	copy(msg[4:], xid)
	binary.BigEndian.PutUint16(msg[8:], 7) // secs
	binary.BigEndian.PutUint16(msg[10:], c.flags)
	if c.ciaddr != "" {
		copy(msg[12:], addr(c.ciaddr).AsSlice())
	}
	copy(msg[28:], guestMAC[:])
	copy(msg[236:], []byte{99, 130, 83, 99})
	if c.kind != 0 {
		msg = append(msg, 53, 1, byte(c.kind))
	}
	for code, value := range c.options {
		for len(value) > 255 {
			msg = append(append(msg, code, 255), value[:255]...)
			value = value[255:]
		}
		msg = append(append(msg, code, byte(len(value))), value...)
	}
	msg = append(msg, 255)
	if c.change != nil {
		c.change(msg)
	}
	return msg
}

// overloads moves the type to file and the identifier to sname, as option 52 says. The message has these two options.
func overloads(msg []byte) {
	options := msg[fixedLen4:]
	copy(msg[offFile:], append(bytes.Clone(options[:3]), 255))
	copy(msg[offSname:], options[3:])
	clear(options)
	copy(options, []byte{52, 1, 3, 255})
}

func (c client4) frame() []byte {
	src, dst := anyone, everybody
	if c.src != "" {
		src = addr(c.src)
	}
	if c.dst != "" {
		dst = addr(c.dst)
	}
	return from4(src, dst, c.bytes())
}

func read4(t testing.TB, r reply) *dhcpv4.DHCPv4 {
	t.Helper()
	if r.from != 67 || r.to != 68 {
		t.Errorf("ports %d to %d, want 67 to 68", r.from, r.to)
	}
	m, err := dhcpv4.FromBytes(r.payload)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// order4 returns the codes of a message's options in their order.
func order4(t testing.TB, msg []byte) []int {
	t.Helper()
	var codes []int
	for b := msg[240:]; b[0] != 255; b = b[2+int(b[1]):] {
		if b[0] == 0 {
			t.Fatalf("padding among the options of %x", msg)
		}
		codes = append(codes, int(b[0]))
	}
	return codes
}

// parts4 returns the values of an option that is given several times.
func parts4(t testing.TB, options []byte, code uint8) [][]byte {
	t.Helper()
	var parts [][]byte
	for b := options; len(b) > 0 && b[0] != 255; b = b[2+int(b[1]):] {
		if b[0] == code {
			parts = append(parts, b[2:2+int(b[1])])
		}
	}
	return parts
}
