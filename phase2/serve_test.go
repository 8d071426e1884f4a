package phase2_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// serveInBackground runs Serve in the pod until the test ends, and returns the log.
func serveInBackground(t *testing.T, n nstest.Network, vm *phase2.VM) *syncBuffer {
	t.Helper()
	log := &syncBuffer{}
	vm.Log = slog.New(slog.NewTextHandler(log, nil))
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- netns.Do(n.Pod.File, func() error { return vm.Serve(ctx) }) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return log
}

// eventLog keeps the events of a Serve.
type eventLog struct {
	mu     sync.Mutex
	events []phase2.Event
	next   int // the first event after the one that wait returned
}

func (l *eventLog) add(e phase2.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// wait waits for the events, each "NIC kind", in this order after the last one that was waited for. Other events may
// come between them. It returns the last one.
func (l *eventLog) wait(t *testing.T, want ...string) (last phase2.Event) {
	t.Helper()
	for _, want := range want {
		nstest.Eventually(t, func() error {
			l.mu.Lock()
			defer l.mu.Unlock()
			for i := l.next; i < len(l.events); i++ {
				if e := l.events[i]; e.NIC+" "+string(e.Kind) == want {
					last, l.next = e, i+1
					return nil
				}
			}
			return fmt.Errorf("no event %q after %d of %+v", want, l.next, l.events)
		})
		if last.Time.IsZero() || last.Text == "" {
			t.Errorf("the event %q: %+v", want, last)
		}
	}
	return last
}

// requestLease starts a guest and returns its DHCPv4 lease.
func requestLease(t *testing.T, n nstest.Network, r cache.Record) *guest.Lease4 {
	t.Helper()
	g := nstest.Boot(t, n.Pod.File, r, "guest")
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got, err := g.DHCPv4(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func waitForLog(t *testing.T, log *syncBuffer, text string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		if !strings.Contains(log.String(), text) {
			return fmt.Errorf("the log lacks %q:\n%s", text, log)
		}
		return nil
	})
}

// TestServeRecords adds a second NIC while the first one is served, changes the record, deletes the
// responder's tap, and removes the NIC.
func TestServeRecords(t *testing.T) {
	n := nstest.NewNetwork(t)
	n.World.IP("link add pod2 type veth peer name net1 netns " + n.Pod.Name)
	n.World.IP("link set pod2 up")
	n.Pod.IP("link set net1 up")
	n.Pod.IP("addr add 10.7.0.2/24 dev net1")
	dns := &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	config := func(nic string) wired.NIC {
		return wired.NIC{NIC: phase1.NIC{NetNS: n.Pod.File, Name: nic}, Spec: infra.Spec{Binding: infra.Bridge{}, Owner: infra.Owner{Root: true}, State: n.State, DNS: dns}}
	}
	setup := func(c wired.NIC) {
		t.Helper()
		if _, err := c.Setup(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	setup(config("eth0"))
	vm, err := phase2.Open(n.State)
	if err != nil {
		t.Fatal(err)
	}
	var events eventLog
	vm.Notify = events.add
	log := serveInBackground(t, n, vm)
	events.wait(t, "eth0 attached", " ready")
	record := func(nic string) cache.Record {
		t.Helper()
		return nstest.Record(t, n.State, nic)
	}
	if got := requestLease(t, n, record("eth0")); got.Address.Addr() != nstest.Pod4 {
		t.Errorf("lease %v", got.Address)
	}

	// A NIC is added.
	setup(config("net1"))
	events.wait(t, "net1 record-added", "net1 attached")
	if got := requestLease(t, n, record("net1")); got.Address.String() != "10.7.0.2/24" {
		t.Errorf("lease of the second NIC %v", got.Address)
	}
	if got := vm.Records(); len(got) != 2 || vm.Counters()["net1"].Events["dhcpv4-leased"] != 1 {
		t.Errorf("%d records, counters %v", len(got), vm.Counters())
	}

	// A record is changed.
	changed := record("net1")
	changed.DNS = &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.7.0.53")}}
	writeRecords(t, n.State, changed)
	events.wait(t, "net1 record-changed")
	if got := requestLease(t, n, changed); fmt.Sprint(got.DNS) != "[10.7.0.53]" {
		t.Errorf("DNS after the change %v", got.DNS)
	}

	// A damaged record changes nothing.
	file := filepath.Join(n.State, "net1.json")
	if err := os.WriteFile(file, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	damaged := events.wait(t, "net1 record-failed")
	var bad *cache.FileError
	if !errors.As(damaged.Err, &bad) || !strings.Contains(damaged.Text, "net1.json") {
		t.Errorf("the event of a damaged record: %+v", damaged)
	}
	if got := requestLease(t, n, changed); fmt.Sprint(got.DNS) != "[10.7.0.53]" {
		t.Errorf("DNS with a damaged record %v", got.DNS)
	}
	writeRecords(t, n.State, changed)

	// The responder's tap is deleted, and Setup creates it again.
	n.Pod.IP("link del eth0-dhcp")
	if e := events.wait(t, "eth0 tap-lost"); !errors.Is(e.Err, syscall.EBADFD) {
		t.Errorf("the event of a lost tap: %+v", e)
	}
	setup(config("eth0"))
	events.wait(t, "eth0 attached")
	if got := requestLease(t, n, record("eth0")); got.Address.Addr() != nstest.Pod4 {
		t.Errorf("lease after the repair %v", got.Address)
	}

	// The responder's tap goes down and up again.
	n.Pod.IP("link set eth0-dhcp down")
	time.Sleep(300 * time.Millisecond)
	n.Pod.IP("link set eth0-dhcp up")
	if got := requestLease(t, n, record("eth0")); got.Address.Addr() != nstest.Pod4 {
		t.Errorf("lease after the responder's tap was down %v", got.Address)
	}

	// The NIC is removed.
	c := config("net1")
	c.DNS = nil
	if err := c.Teardown(t.Context()); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		if got := vm.Records(); len(got) != 1 {
			return fmt.Errorf("%d records", len(got))
		}
		return nil
	})
	events.wait(t, "net1 record-removed")
	if err := os.Remove(filepath.Join(n.State, "eth0.json")); err != nil {
		t.Fatal(err)
	}
	events.wait(t, "eth0 record-removed")
	if !strings.Contains(log.String(), "router advertisement withdrawn") {
		t.Errorf("the router is not withdrawn from the guest:\n%s", log)
	}
}

// late is a context whose end the contexts derived from it have not noticed yet.
type late struct{ context.Context }

func (late) Done() <-chan struct{} { return make(chan struct{}) }

// newServed returns a record whose responder's tap is in the namespace of this process until the test ends.
func newServed(t *testing.T) cache.Record {
	t.Helper()
	nstest.SkipUndecided(t)
	nstest.NeedTaps(t)
	ip := func(args string) {
		t.Helper()
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	r := newRecord("nic")
	r.ResponderTap, r.ResponderMAC = "nic-dhcp", cache.MAC{2, 0, 0, 0, 0, 2}
	r.IPv6 = &cache.IPv6{Address: nstest.Pod6, Router: &cache.Router{Address: netip.MustParseAddr("fe80::1")}}
	ip("tuntap add nic-dhcp mode tap")
	t.Cleanup(func() { ip("link del nic-dhcp") })
	ip("link set nic-dhcp addrgenmode none up")
	return r
}

// TestNew: records without a directory are served, their resolv.conf is followed, and nothing else is.
func TestNew(t *testing.T) {
	r := newServed(t)
	t.Chdir(t.TempDir())
	writeRecords(t, ".", newRecord("other"))
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	configure := func(server string) {
		t.Helper()
		if err := os.WriteFile(conf, []byte("nameserver "+server+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	configure("192.0.2.1")
	vm := phase2.New(r, newRecord("second"))
	var events eventLog
	vm.ResolvConf, vm.Notify = conf, events.add
	stop, err := vm.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	events.wait(t, "nic attached", "second no-responder", " ready")
	configure("192.0.2.2")
	events.wait(t, " resolv-conf-changed")
	stop()
	for _, e := range events.events {
		if e.Err != nil || strings.HasPrefix(string(e.Kind), "record-") {
			t.Errorf("event %+v", e)
		}
	}
	for _, r := range []cache.Record{r, newRecord("second")} {
		if _, err := phase2.New(r, r).Start(t.Context()); err == nil || !strings.Contains(err.Error(), "two records") {
			t.Errorf("two records with one name: %v", err)
		}
		r.MTU = -1
		var field *cache.FieldError
		if _, err := phase2.New(r).Start(t.Context()); !errors.As(err, &field) {
			t.Errorf("an invalid record: %v", err)
		}
	}
}

// TestStart: the guest is served when Start returns, and not any more when stop returns. A responder that hands over
// does not withdraw its router.
func TestStart(t *testing.T) {
	r := newServed(t)
	for _, handover := range []bool{true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var events eventLog
		start := func() (func(), error) {
			vm := phase2.New(r)
			vm.Notify = events.add
			return vm.Start(late{ctx})
		}
		stop, err := start()
		if err != nil {
			t.Fatal(err)
		}
		events.wait(t, "nic attached", " ready")
		if _, err := start(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a second Start: %v, want EBUSY", err)
		}
		if handover {
			cancel(dhcp.ErrHandover)
		}
		stop()
		stop()
		if withdrawn := slices.ContainsFunc(events.events, func(e phase2.Event) bool { return e.Kind == "router-withdrawn" }); withdrawn == handover {
			t.Errorf("handover %t, router withdrawn %t: %v", handover, withdrawn, events.events)
		}
		cancel(nil)
	}
}

// TestStopCause: Serve passes the cause ErrHandover to the loops. They cannot rely on their own contexts:
// the caller's context may be done before a derived one is, and the first cause counts.
func TestStopCause(t *testing.T) {
	for _, want := range []error{nil, dhcp.ErrHandover} {
		ctx, cancel := context.WithCancelCause(t.Context())
		if want != nil {
			cancel(want)
		}
		file, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		if got := phase2.StopCause(ctx, file); got != want {
			t.Errorf("the loops end because of %v, want %v", got, want)
		}
		cancel(nil)
	}
}

// TestBlocked: while the handler of Log or Notify blocks, no guest is answered. The guest is answered
// when it returns.
func TestBlocked(t *testing.T) {
	for name, block := range map[string]func(vm *phase2.VM, wait func(kind string)){
		"Log": func(vm *phase2.VM, wait func(string)) {
			vm.Log = slog.New(slog.NewTextHandler(writerFunc(func(line []byte) (int, error) {
				wait(string(line))
				return len(line), nil
			}), nil))
		},
		"Notify": func(vm *phase2.VM, wait func(string)) {
			vm.Notify = func(e phase2.Event) { wait(string(e.Kind)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			nic := phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}
			r, err := nic.Setup(t.Context(), infra.Spec{Binding: infra.Redirect{}, Owner: infra.Owner{Root: true}, State: n.State, DNS: &cache.DNS{}})
			if err != nil {
				t.Fatal(err)
			}
			vm := phase2.New(r)
			blocked, release := make(chan struct{}), make(chan struct{})
			var once sync.Once
			block(vm, func(text string) {
				if strings.Contains(text, "dhcpv4-leased") {
					once.Do(func() {
						close(blocked)
						<-release
					})
				}
			})
			ctx, stop := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- netns.Do(n.Pod.File, func() error { return vm.Serve(ctx) }) }()
			defer func() {
				stop()
				if served != nil {
					<-served
				}
			}()
			g := nstest.Boot(t, n.Pod.File, r, "guest")
			soon := func(limit time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				_, err := g.DHCPv4(ctx)
				return err
			}
			if err := soon(time.Minute); err != nil { // the answer is sent before it is reported
				t.Error(err)
			}
			<-blocked
			if err := soon(100 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("an answer while it blocks: %v", err)
			}
			close(release)
			if err := soon(time.Minute); err != nil {
				t.Errorf("no answer when it has returned: %v", err)
			}
			stop()
			if err := <-served; err != nil {
				t.Error(err)
			}
			served = nil
		})
	}
}

// TestServeDirectory: the state directory can be removed and made again. Other files in the directory cause
// no reading of the records. Otherwise a launcher that writes its log there would loop for ever: a damaged
// record causes a log line, and the line causes the next read.
func TestServeDirectory(t *testing.T) {
	parent := nstest.Dir(t)
	dir := filepath.Join(parent, "state")
	create := func(names ...string) {
		t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			writeRecords(t, dir, newRecord(name))
		}
	}
	create("eth0")
	vm, err := phase2.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	log := &syncBuffer{}
	noted := func(text string) int { return strings.Count(log.String(), text) }
	vm.Log = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		if err := os.WriteFile(filepath.Join(dir, "log"), p, 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		return log.Write(p)
	}), nil))
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- vm.Serve(ctx) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	waitForLog(t, log, "no responder")
	records := func(want int) {
		t.Helper()
		nstest.Eventually(t, func() error {
			if n := len(vm.Records()); n != want {
				return fmt.Errorf("%d records, want %d", n, want)
			}
			return nil
		})
	}
	writeRecords(t, dir, newRecord("net1"))
	records(2)
	if err := os.Rename(dir, filepath.Join(parent, "old")); err != nil { // not RemoveAll: the log is written there meanwhile
		t.Fatal(err)
	}
	waitForLog(t, log, "the records cannot be read")
	create("eth0", "net1", "net2")
	records(3)

	before := noted("the records cannot be read")
	damaged := filepath.Join(parent, "damaged")
	for _, err := range []error{os.WriteFile(damaged, []byte("{"), 0o644), os.Rename(damaged, filepath.Join(dir, "net1.json"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	nstest.Eventually(t, func() error {
		if noted("the records cannot be read") == before {
			return errors.New(log.String())
		}
		return nil
	})
	time.Sleep(500 * time.Millisecond)
	if n := noted("the records cannot be read"); n != before+1 {
		t.Errorf("%d lines about one damaged record", n-before)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
