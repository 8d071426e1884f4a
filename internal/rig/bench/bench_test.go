package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) {
	nstest.Main(m, nstest.Selection{Short: []nstest.Selected{
		{Test: "TestRatioIsTheMedianOfTheRounds", Why: "no namespace"},
		{Test: "TestStampMendsTheChecksum", Why: "no namespace"},
		{Test: "TestSpread", Why: "no namespace"},
		{Test: "TestDocument", Why: "no namespace"},
		{Test: "TestOptions", Why: "no namespace"},
		{Test: "TestHelp", Why: "no namespace"},
		{Test: "TestParseTrace", Why: "no namespace"},
		{Test: "TestDrawing", Why: "no namespace"},
		{Test: "TestUnpack", Why: "no namespace"},
	}})
}

// removeWorld takes away the namespace that all pods of a run share.
func removeWorld(t *testing.T) {
	t.Cleanup(func() {
		nstest.Run(t, "ip", "netns", "del", "world")
		pods = 0
	})
}

// TestRun: run fails if the compared ways leave different namespaces.
func TestRun(t *testing.T) {
	nstest.Need(t, "gcc", "nsenter", "sysctl")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	removeWorld(t)
	var out bytes.Buffer
	if err := run(t.Context(), &out, 1, 1, ""); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"bridge: Setup", "bridge: Teardown", "masquerade: Setup", "masquerade: Teardown", "Setup / floor", "script / Setup", "floor / floor of 1123c4b", "virt-handler / Setup", "tc-redirect-tap / Setup", "Check / dump", "Setup / floor, CPU time", "the first write to a page"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestDatapath: a run fails if a frame is lost.
func TestDatapath(t *testing.T) {
	nstest.Need(t, "ip", "nft", "nsenter")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	removeWorld(t)
	var out bytes.Buffer
	if err := measureDatapath(t.Context(), &out, traffic{sets: 1, rounds: 1, packets: 2, segments: 2}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"bridge: the guest filter", "masquerade: the guest filter", "routed: the guest filter", "packets, IPv6, from the guest", "TCP, IPv4, to the guest", "bare"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestLimits: limits hold back what is above, and let pass about what they say, in each binding and direction. The bounds
// are wide, as the time is short.
func TestLimits(t *testing.T) {
	nstest.Need(t, "ip")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	removeWorld(t)
	list, err := measureLimits(t.Context(), limited{bits: 20_000_000, packets: 2000, warm: 600 * time.Millisecond, counted: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 3*2*4 {
		t.Errorf("%d measurements, want 24", len(list))
	}
	for _, p := range list {
		t.Logf("%s: %.2f of the limit", p.name, p.share)
		if p.share < 1.0/3 || p.share > 3 {
			t.Errorf("%s: %.2f of the limit passed, want a third to three times", p.name, p.share)
		}
	}
}

// TestResponders: a run fails if a server does not give the guest its addresses.
func TestResponders(t *testing.T) {
	nstest.Need(t, "dnsmasq", "nsenter", "setpriv")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	var out bytes.Buffer
	removeWorld(t)
	l := load{rounds: 1, closed: 20, paced: 10 * time.Millisecond, leases: 1, packets: 2000,
		idle: 10 * time.Millisecond, unplugged: 50 * time.Millisecond, progress: io.Discard}
	if err := measureResponders(t.Context(), &out, l); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"DHCPv4 ", "DHCPv6 ", "exchanges/s", "REPLY after", "embedded guest", "after 2000 packets: VmRSS", "wake-ups"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestRespondersOfTwoCommits: the other server can be a launcher.
func TestRespondersOfTwoCommits(t *testing.T) {
	nstest.Need(t, "dnsmasq", "nsenter", "setpriv")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	dir := t.TempDir()
	base, err := build(t.Context(), dir, "launcher", "examples/launcher")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	removeWorld(t)
	l := load{rounds: 1, closed: 20, paced: 10 * time.Millisecond, leases: 1, packets: 2000,
		idle: 10 * time.Millisecond, unplugged: 50 * time.Millisecond, progress: io.Discard, base: base}
	if err := measureResponders(t.Context(), &out, l); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{" base ", "target <= 1.05", "target >= 0.95"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// needEngine skips a test on a machine where Debian's containerd is not unpacked.
func needEngine(t *testing.T) {
	t.Helper()
	nstest.Need(t, "ip", "nsenter", "setpriv")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "a node has cgroups and devices of its own")
	for _, dir := range []string{"containerd", "busybox"} {
		if _, err := os.Stat(unpacked.Path(dir)); err != nil {
			nstest.Skip(t, "no "+unpacked.Path(dir)+": make install")
		}
	}
}

// TestPlugin: a run fails if a wanted NIC is not wired, or another one is.
func TestPlugin(t *testing.T) {
	needEngine(t)
	removeWorld(t)
	var out bytes.Buffer
	if err := measurePlugin(t.Context(), &out, starts{calls: 1, pods: 1}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"does nothing", "ADD, redirect", "DEL, redirect", "chained, not wanted", "target <= 20"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestNode: a run fails if a launcher has ended.
func TestNode(t *testing.T) {
	needEngine(t)
	removeWorld(t)
	var out bytes.Buffer
	if err := measureNode(t.Context(), &out, 2); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"launcher serve", "launcher: 2", "containerd-shim: 2"} {
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

// A stamped template equals a message that was made with this identifier.
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
