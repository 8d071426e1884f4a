package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// A run ends in an error if the ways did not do the same.
func TestRun(t *testing.T) {
	nstest.Need(t, "gcc", "nsenter", "sysctl")
	var out bytes.Buffer
	if err := run(t.Context(), &out, 1, 1); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"bridge: Setup", "bridge: Teardown", "masquerade: Setup", "masquerade: Teardown", "Setup / floor", "script / Setup"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// A run ends in an error if a frame is lost.
func TestDatapath(t *testing.T) {
	nstest.Need(t, "ip")
	var out bytes.Buffer
	if err := datapath(t.Context(), &out, traffic{sets: 1, rounds: 1, packets: 2, segments: 2}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"bridge: the guest filter", "masquerade: the guest filter", "packets, IPv6, from the guest", "TCP, IPv4, to the guest", "bare"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// A run ends in an error if one of the servers does not give the guest its addresses.
func TestResponders(t *testing.T) {
	nstest.Need(t, "dnsmasq", "nsenter", "setpriv")
	var out bytes.Buffer
	l := load{rounds: 1, closed: 20, paced: 10 * time.Millisecond, leases: 1, packets: 2000,
		idle: 10 * time.Millisecond, unplugged: 50 * time.Millisecond, progress: io.Discard}
	if err := responders(t.Context(), &out, l); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"DHCPv4 ", "DHCPv6 ", "exchanges/s", "REPLY after", "embedded guest", "after 2000 packets: VmRSS", "wake-ups"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestRatioIsTheMedianOfTheRounds(t *testing.T) {
	a := []time.Duration{20, 400, 90}
	b := []time.Duration{10, 100, 30}
	if got := pairs(a, b); got != 3 {
		t.Errorf("%v, want 3: of 2, 4, 3", got)
	}
}

// A stamped template is what would be made with that identifier from the start.
func TestStampMendsTheChecksum(t *testing.T) {
	for _, message := range [][]byte{frame4(make([]byte, 240)), dhcp6Frame(make([]byte, 41))} {
		payload := payload4 + 5
		if isIPv6(message) {
			payload = payload6 + 1
		}
		tmpl := newTemplate(message, payload)
		for _, id := range []uint32{0, 1, 0xffff, 0x10000, 0xabcdef, 0xffffff} {
			frame := bytes.Clone(tmpl.stamp(id))
			sum := binary.BigEndian.Uint16(frame[tmpl.sumAt:])
			if want := ^sumUDP(frame); sum != want && !(want == 0 && sum == 0xffff) {
				t.Errorf("identifier %x: checksum %x, want %x", id, sum, want)
			}
		}
	}
}
