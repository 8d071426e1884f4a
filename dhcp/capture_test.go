package dhcp

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

// captures returns the frames of real clients, by the name of the file, with the guest's MAC of newRecord:
// testdata/captures/*.pcap, from runs of phase2's tests.
func captures(t testing.TB) map[string][][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/captures/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures, %v", err)
	}
	all := map[string][][]byte{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".pcap")
		for _, frame := range readPcap(t, file) {
			own := cache.MAC(frame[6:12])
			all[name] = append(all[name], repair(bytes.ReplaceAll(frame, own[:], guestMAC[:])))
		}
	}
	return all
}

// readPcap returns the frames of an Ethernet capture in little-endian with microseconds (pcap-savefile(5)).
func readPcap(t testing.TB, file string) (frames [][]byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 || binary.LittleEndian.Uint32(b[20:]) != 1 {
		t.Fatalf("%s is no such capture", file)
	}
	for b = b[24:]; len(b) >= 16; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		if n < frame.EthernetLen || n > len(b)-16 {
			t.Fatalf("%s: a frame of %d octets", file, n)
		}
		frames = append(frames, b[16:16+n])
		b = b[16+n:]
	}
	return frames
}

// The first message of each real client gets an answer.
func TestCaptures(t *testing.T) {
	r := newResponder(t, newRecord(), resolvConf)
	for name, frames := range captures(t) {
		first := 0
		for i, f := range frames {
			var begins bool
			switch ip := f[frame.EthernetLen:]; binary.BigEndian.Uint16(f[12:]) {
			case frame.TypeIPv4:
				begins = ip[9] == frame.UDP && len(ip) > frame.IPv4Len+frame.UDPLen+fixedLen4+2 && ip[23] == portServer4 && ip[frame.IPv4Len+frame.UDPLen+fixedLen4+2] == 1
			case frame.TypeIPv6:
				begins = ip[6] == frame.UDP && binary.BigEndian.Uint16(ip[frame.IPv6Len+2:]) == portServer6 && ip[frame.IPv6Len+frame.UDPLen] == 1 ||
					ip[6] == frame.ICMPv6 && ip[frame.IPv6Len] == frame.RouterSolicitation
			}
			if !begins {
				continue
			}
			first++
			if _, silent := ask(t, r, f); silent {
				t.Errorf("%s: frame %d gets no answer: %x", name, i, f)
			}
		}
		if first == 0 {
			t.Errorf("%s: none of %d frames is a DISCOVER, a SOLICIT or a router solicitation", name, len(frames))
		}
	}
}
