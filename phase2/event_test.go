package phase2_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// newDiscover returns the frame of a DHCPDISCOVER, without a UDP checksum, which IPv4 allows.
func newDiscover(t *testing.T, mac cache.MAC) []byte {
	t.Helper()
	message, err := dhcpv4.NewDiscovery(mac[:])
	if err != nil {
		t.Fatal(err)
	}
	payload := message.ToBytes()
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255}
	binary.BigEndian.PutUint16(ip[2:], uint16(20+8+len(payload)))
	sum := 0
	for i := 0; i < len(ip); i += 2 {
		sum += int(ip[i])<<8 | int(ip[i+1])
	}
	binary.BigEndian.PutUint16(ip[10:], uint16(^(sum>>16 + sum&0xffff)))
	udp := binary.BigEndian.AppendUint16([]byte{0, 68, 0, 67}, uint16(8+len(payload)))
	return slices.Concat(bytes.Repeat([]byte{255}, 6), mac[:], []byte{8, 0}, ip, udp, []byte{0, 0}, payload)
}

func openTap(t *testing.T, n nstest.Network, name string) *os.File {
	t.Helper()
	f := nstest.OpenTap(t, n.Pod.File, name)
	t.Cleanup(func() { f.Close() })
	return f
}

// isOffer reports whether a frame is a DHCPv4 message of the server.
func isOffer(frame []byte) bool {
	return len(frame) > 42 && binary.BigEndian.Uint16(frame[12:]) == 0x0800 && frame[23] == 17 && binary.BigEndian.Uint16(frame[34:]) == 67
}

// TestServeAttached: the first request after the event gets its answer, each time. No request is repeated.
func TestServeAttached(t *testing.T) {
	n := nstest.NewNetwork(t)
	if _, err := (phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}).Setup(t.Context(), infra.Spec{Binding: infra.Bridge{}, Owner: infra.Owner{Root: true}, State: n.State}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		vm, err := phase2.Open(n.State)
		if err != nil {
			t.Fatal(err)
		}
		r := vm.Records()[0]
		port := openTap(t, n, r.Tap)
		if i == 0 { // the guest's tap, which is new, has its carrier
			n.Pod.IP("link show " + r.Tap)
		}
		var kinds []dhcp.Kind
		discover := newDiscover(t, r.MAC)
		vm.Notify = func(e phase2.Event) {
			kinds = append(kinds, e.Kind)
			if e.Kind == "attached" {
				if _, err := port.Write(discover); err != nil {
					t.Error(err)
				}
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- netns.Do(n.Pod.File, func() error { return vm.Serve(ctx) }) }()
		if err := port.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		in := make([]byte, 2000)
		for {
			got, err := port.Read(in)
			if err != nil {
				t.Errorf("run %d: no answer: %v", i, err)
				break
			}
			if isOffer(in[:got]) {
				break
			}
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if kinds[0] != "attached" || !slices.Contains(kinds, "ready") || !slices.Contains(kinds, "router-withdrawn") {
			t.Errorf("events %q", kinds)
		}
		port.Close()
	}
}

// TestServeOtherMAC: tc gives the responder the requests of a guest with another MAC than the record's, such as a QEMU
// that was started without mac=. They get no answer, and Serve reports why.
func TestServeOtherMAC(t *testing.T) {
	n := nstest.NewNetwork(t)
	n.Pod.IP("route del default via 10.244.1.1") // without a gateway, the responder answers ARP for its own address
	vm := wire(t, n)
	r := vm.Records()[0]
	var events eventLog
	vm.Notify = events.add
	log := serveInBackground(t, n, vm)
	events.wait(t, " ready")
	port := openTap(t, n, r.Tap)

	stranger := cache.MAC{0x52, 0x54, 0, 0x12, 0x34, 0x56}
	own := eui64.LinkLocal(stranger)
	router := r.IPv6.Router.Address
	solicited := router.As16()
	copy(solicited[:], []byte{0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff})
	var arp []byte
	for _, neighbour := range r.Neighbours {
		if neighbour.Address.Is4() {
			target := neighbour.Address.As4()
			arp = slices.Concat(bytes.Repeat([]byte{255}, 6), stranger[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, stranger[:], make([]byte, 10), target[:])
		}
	}
	target := router.As16()
	if arp == nil || !slices.ContainsFunc(r.Neighbours, func(n cache.Neighbour) bool { return n.Address == router }) {
		t.Fatalf("the record does not list a neighbour of each family: %v", r.Neighbours)
	}
	for name, frame := range map[string][]byte{
		"DISCOVER": newDiscover(t, stranger),
		"SOLICIT": ipv6Frame(stranger, own, netip.MustParseAddr("ff02::1:2"), unix.IPPROTO_UDP,
			[]byte{0x02, 0x22, 0x02, 0x23, 0, 12, 0, 0, 1, 1, 2, 3}),
		"router solicitation":    ipv6Frame(stranger, own, netip.MustParseAddr("ff02::2"), unix.IPPROTO_ICMPV6, []byte{133, 0, 0, 0, 0, 0, 0, 0}),
		"neighbour solicitation": ipv6Frame(stranger, own, netip.AddrFrom16(solicited), unix.IPPROTO_ICMPV6, append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target[:]...)),
		"ARP":                    arp,
	} {
		before := vm.Counters()["eth0"].Ignored["other-mac"]
		if _, err := port.Write(frame); err != nil {
			t.Fatal(err)
		}
		e := events.wait(t, "eth0 other-mac-seen")
		if e.MAC != stranger || !strings.Contains(e.Text, "the guest of the record is "+r.MAC.String()+", this is 52:54:00:12:34:56; start the VM with mac="+r.MAC.String()) {
			t.Errorf("%s: event %+v", name, e)
		}
		if got := vm.Counters()["eth0"].Ignored["other-mac"]; got != before+1 {
			t.Errorf("%s: %d frames ignored, want %d", name, got, before+1)
		}
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "event=other-mac-seen") {
		t.Errorf("the log does not warn:\n%s", log)
	}
	// The guest of the record is served as before, and nothing else is ignored.
	port.Close()
	if got := requestLease(t, n, r); got.Address.Addr() != nstest.Pod4 {
		t.Errorf("lease %v", got.Address)
	}
	if c := vm.Counters()["eth0"]; len(c.Ignored) != 1 {
		t.Errorf("ignored %v, want other-mac alone", c.Ignored)
	}
}

// ipv6Frame returns a frame whose ICMPv6 or UDP checksum is zero: the responder looks at the MAC first.
func ipv6Frame(mac cache.MAC, src, dst netip.Addr, next byte, body []byte) []byte {
	s, d := src.As16(), dst.As16()
	return slices.Concat([]byte{0x33, 0x33}, d[12:], mac[:], []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(body)), next, 255}, s[:], d[:], body)
}

// TestServeAttachFailed: a new record whose tap is not there is reported once, and the NIC is served when the tap is
// there.
func TestServeAttachFailed(t *testing.T) {
	n := nstest.NewNetwork(t)
	dir := nstest.Dir(t)
	writeRecords(t, dir, newRecord("eth0"))
	vm, err := phase2.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var events eventLog
	vm.Notify = events.add
	serveInBackground(t, n, vm)
	events.wait(t, "eth0 no-responder", " ready")
	served := newRecord("net1")
	served.ResponderTap, served.ResponderMAC = "net1-dhcp", cache.MAC{2, 0, 0, 0, 0, 2}
	writeRecords(t, dir, served)
	if e := events.wait(t, "net1 record-added", "net1 attach-failed"); !errors.Is(e.Err, fs.ErrNotExist) {
		t.Errorf("the event of a missing tap: %+v", e)
	}
	n.Pod.IP("tuntap add net1-dhcp mode tap")
	n.Pod.IP("link set net1-dhcp addrgenmode none up")
	events.wait(t, "net1 attached")

	// A record that loses its responder is reported as changed, not as removed. The other record's events are not
	// repeated.
	writeRecords(t, dir, newRecord("net1"))
	events.wait(t, "net1 record-changed", "net1 no-responder")
	if err := os.Remove(filepath.Join(dir, "net1.json")); err != nil {
		t.Fatal(err)
	}
	events.wait(t, "net1 record-removed")
	events.mu.Lock()
	defer events.mu.Unlock()
	count := map[string]int{}
	for _, e := range events.events {
		count[fmt.Sprint(e.NIC, " ", e.Kind)]++
	}
	for _, once := range []string{"eth0 no-responder", "net1 attach-failed", "net1 record-removed", " ready"} {
		if count[once] != 1 {
			t.Errorf("%q is reported %d times: %v", once, count[once], count)
		}
	}
}

// TestEventJSON: the JSON of an event has the short name, and the sentence beside it.
func TestEventJSON(t *testing.T) {
	at := time.Date(2000, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, e := range map[string]phase2.Event{
		`{"time":"2000-01-02T03:04:05Z","event":"ready","text":"ready"}`: {Time: at, Kind: "ready", Text: "ready"},
		`{"time":"2000-01-02T03:04:05Z","nic":"eth0","event":"dhcpv4-leased","text":"t","address":"10.0.0.2","held":3}`: {
			Time: at, NIC: "eth0", Kind: "dhcpv4-leased", Text: "t", Address: netip.MustParseAddr("10.0.0.2"), Held: 3, Err: errors.New("no part of the JSON")},
		`{"time":"2000-01-02T03:04:05Z","nic":"eth0","event":"other-mac-seen","text":"t","mac":"52:54:00:00:00:01"}`: {
			Time: at, NIC: "eth0", Kind: "other-mac-seen", Text: "t", MAC: cache.MAC{0x52, 0x54, 0, 0, 0, 1}},
	} {
		if got, err := json.Marshal(e); err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
}

// TestEventNames: the doc comment of Event has each kind that the code reports, in kebab-case.
func TestEventNames(t *testing.T) {
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var documented, reported []string
	for _, row := range regexp.MustCompile(`(?m)^//\t(\S+) +(.*)$`).FindAllStringSubmatch(read("event.go"), -1) {
		documented = append(documented, row[1])
		if !regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`).MatchString(row[1]) {
			t.Errorf("%q is not in kebab-case", row[0])
		}
	}
	for _, kind := range regexp.MustCompile(`Event\{Kind: "([^"]*)"`).FindAllStringSubmatch(read("serve.go"), -1) {
		reported = append(reported, kind[1])
	}
	slices.Sort(documented)
	slices.Sort(reported)
	if reported = slices.Compact(reported); len(reported) == 0 || !slices.Equal(documented, reported) {
		t.Errorf("documented are %q, reported %q", documented, reported)
	}
}
