package phase2_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/resolvconf"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase2"
)

// TestRereadResolvConf: an empty file changes nothing. A guest with an infinite lease that asks while the
// file is rewritten would otherwise be without DNS for ever.
func TestRereadResolvConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	old := cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	if got := phase2.RereadResolvConf(path, old); !reflect.DeepEqual(got, old) {
		t.Errorf("no file: %v", got)
	}
	for _, c := range []struct {
		text string
		want cache.DNS
	}{
		{"", old},
		{"nameserver 192.0.2.2", cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}},
		{"# none\n", cache.DNS{}},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := phase2.RereadResolvConf(path, old); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %v, want %v", c.text, got, c.want)
		}
	}
}

// TestResolvConfWithoutServer: a file that names no server is said, except the one that never does, if a guest needs
// it.
func TestResolvConfWithoutServer(t *testing.T) {
	const warning = "names no DNS server"
	path := filepath.Join(t.TempDir(), "resolv.conf")
	for text, want := range map[string]bool{
		"": true, "# nameserver 192.0.2.1\n": true, "; Managed by a program\noptions ndots:5\n": true, "search a.example\n": true, "nameserver none\n": true,
		"nameserver 192.0.2.1\n": false, "nameserver ::1": false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		vm := phase2.New(cache.Record{ResponderTap: "eth0-dhcp"})
		vm.ResolvConf, vm.Log = path, slog.New(slog.NewTextHandler(&log, nil))
		if _, err := vm.Guest(); err != nil || strings.Contains(log.String(), warning) != want {
			t.Errorf("%q: %v, %s; want %t", text, err, log.String(), want)
		}
		log.Reset()
		vm.ResolvConf = os.DevNull
		if _, err := vm.Guest(); err != nil || log.String() != "" {
			t.Errorf("%v, %s; want no warning", err, log.String())
		}
		served := phase2.New(cache.Record{ResponderTap: "eth0-dhcp", DNS: &cache.DNS{}})
		served.ResolvConf, served.Log = path, vm.Log
		if _, err := served.Guest(); err != nil || log.String() != "" {
			t.Errorf("%q beside a record with DNS: %v, %s; want no warning", text, err, log.String())
		}
	}
	var log strings.Builder
	vm := phase2.New(cache.Record{ResponderTap: "eth0-dhcp"})
	vm.ResolvConf, vm.Log = t.TempDir(), slog.New(slog.NewTextHandler(&log, nil))
	if _, err := vm.Guest(); err == nil || log.String() != "" {
		t.Errorf("a file that cannot be read: %v, %s; want the error alone", err, log.String())
	}
}

// TestResolvConfWaits: what a reader could wait for is an error, at the start and later. A launcher that waits answers
// no guest. /dev/null is a file without servers.
func TestResolvConfWaits(t *testing.T) {
	dir := t.TempDir()
	fifo, socket := filepath.Join(dir, "fifo"), filepath.Join(dir, "socket")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for path, words := range map[string]string{fifo: "is a FIFO", socket: "no such device", dir: "is a directory", os.DevNull: ""} {
		if err := phase2.ReadResolvConf(path); (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", path, err, words)
		}
	}
}

// FuzzResolvConf: dhcp.New accepts the configuration of any file.
func FuzzResolvConf(f *testing.F) {
	for _, text := range []string{
		"nameserver 192.0.2.1\nsearch a.example B.EXAMPLE. _tcp.x 1.2.3.4 .", "search " + strings.Repeat("x.", 200),
		"domain \x00\xff", "nameserver ::ffff:1.2.3.4%x\nnameserver 255.255.255.255\nnameserver ff02::1",
		"search " + strings.Repeat("averyveryverylonglabel.", 9) + " a..b -.- " + strings.Repeat("y", 64),
	} {
		f.Add([]byte(text))
	}
	r := newRecord("eth0")
	r.ResponderTap, r.ResponderMAC = "eth0-dhcp", cache.MAC{2, 0, 0, 0, 0, 2}
	r.IPv4 = &cache.IPv4{Address: netip.MustParsePrefix("10.0.2.2/24"), Server: netip.MustParseAddr("10.0.2.1")}
	r.IPv6 = &cache.IPv6{Address: netip.MustParseAddr("fd00::2")}
	f.Fuzz(func(t *testing.T, text []byte) {
		dns, _ := resolvconf.Parse(text)
		if _, err := dhcp.New(r, dns); err != nil {
			t.Fatal(err)
		}
	})
}

// follower is a FollowResolvConf that runs until the test ends.
type follower struct {
	t        *testing.T
	changes  chan cache.DNS
	watching chan struct{} // closed when changes are noticed
}

func follow(t *testing.T, path string, dns cache.DNS) *follower {
	t.Helper()
	f := &follower{t, make(chan cache.DNS, 10), make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- phase2.FollowResolvConf(ctx, path, dns, func(dns cache.DNS) { f.changes <- dns }, func() { close(f.watching) })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

// expect waits for a change to one server.
func (f *follower) expect(what, server string) {
	f.t.Helper()
	select {
	case got := <-f.changes:
		if fmt.Sprint(got.Servers) != "["+server+"]" {
			f.t.Errorf("%s: %v, want %s", what, got, server)
		}
	case <-time.After(20 * time.Second):
		f.t.Fatalf("%s: nothing is reported, want %s", what, server)
	}
}

// TestFollowResolvConf changes the file in each way that programs do.
func TestFollowResolvConf(t *testing.T) {
	dir := nstest.Dir(t)
	write := func(name, server string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("nameserver "+server+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(dir, "run"), 0o755))
	path := filepath.Join(dir, "resolv.conf")
	write("resolv.conf", "192.0.2.1")

	f := follow(t, path, cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	write("resolv.conf", "192.0.2.2")
	f.expect("written in place", "192.0.2.2")
	write("new", "192.0.2.3")
	must(os.Rename(filepath.Join(dir, "new"), path))
	f.expect("replaced", "192.0.2.3")
	write("resolv.conf", "192.0.2.4")
	f.expect("written in place after that", "192.0.2.4")
	must(os.Remove(path))
	write("resolv.conf", "192.0.2.5")
	f.expect("removed and made again", "192.0.2.5")
	write("run/target", "192.0.2.6")
	must(os.Symlink("run/target", filepath.Join(dir, "link")))
	must(os.Rename(filepath.Join(dir, "link"), path))
	f.expect("replaced by a link", "192.0.2.6")
	write("run/target", "192.0.2.7")
	f.expect("the link's target written", "192.0.2.7")
	write("run/new", "192.0.2.8")
	must(os.Rename(filepath.Join(dir, "run/new"), filepath.Join(dir, "run/target")))
	f.expect("the link's target replaced", "192.0.2.8")

	write("run/target", "192.0.2.8")
	write("unrelated", "192.0.2.99")
	select {
	case got := <-f.changes:
		t.Errorf("the same configuration again is reported as a change: %v", got)
	case <-time.After(300 * time.Millisecond):
	}
}

// TestFollowLinks: a path can lead to another file without a change in the path's own directory, and the
// file may not exist at first.
func TestFollowLinks(t *testing.T) {
	for _, c := range []struct {
		name        string
		path        string            // relative to the test's directory
		from, links map[string]string // name to target: links before and after the change
		made        string            // directory to create; empty: none
		file        string            // file to write after that; empty: none
	}{
		{name: "relative", path: "resolv.conf", file: "resolv.conf"},
		{name: "a link to nothing", path: "etc/resolv.conf", from: map[string]string{"etc/resolv.conf": "../v1/none"}, file: "v1/none"},
		{name: "a link into no directory", path: "etc/resolv.conf", from: map[string]string{"etc/resolv.conf": "../new/file"}, made: "new", file: "new/file"},
		{name: "the second link", path: "etc/resolv.conf", from: map[string]string{"etc/resolv.conf": "../v1/link", "v1/link": "../v1/none"}, links: map[string]string{"v1/link": "../v2/file"}},
		{name: "a directory's link", path: "etc/resolv.conf", from: map[string]string{"etc/resolv.conf": "../current/file", "current": "v1"}, links: map[string]string{"current": "v2"}},
		{name: "a directory's link in the path", path: "current/file", from: map[string]string{"current": "v1"}, links: map[string]string{"current": "v2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(nstest.Dir(t))
			link := func(links map[string]string) {
				t.Helper()
				for name, target := range links {
					for _, err := range []error{os.Symlink(target, "link"), os.Rename("link", name)} {
						if err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			const text = "nameserver 192.0.2.2\n"
			for _, err := range []error{
				os.Mkdir("etc", 0o755), os.Mkdir("v1", 0o755), os.Mkdir("v2", 0o755), os.WriteFile("v2/file", []byte(text), 0o644),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			link(c.from)
			f := follow(t, c.path, cache.DNS{})
			<-f.watching
			if c.made != "" {
				if err := os.Mkdir(c.made, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			link(c.links)
			if c.file != "" {
				if err := os.WriteFile(c.file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			f.expect(c.name, "192.0.2.2")
		})
	}
}

// TestFollowBindMount: in a container resolv.conf is a bind mount. A change of the source is no event in the
// directory of the mount.
func TestFollowBindMount(t *testing.T) {
	nstest.Need(t)
	dir := nstest.Dir(t)
	source, path := filepath.Join(dir, "source"), filepath.Join(dir, "etc", "resolv.conf")
	for _, err := range []error{
		os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(source, []byte("nameserver 192.0.2.1\n"), 0o644), os.WriteFile(path, nil, 0o644),
		unix.Mount(source, path, "", unix.MS_BIND, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil { // a process that another test has forked may hold our files
			t.Error(err)
		}
	})
	f := follow(t, path, cache.DNS{})
	for _, want := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		if err := os.WriteFile(source, []byte("nameserver "+want+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		f.expect("the source", want)
	}
}

// TestServeFollows changes the resolv.conf of a running responder. The guest gets the new servers with its
// next renewal, and Notify is called with the guest's events.
func TestServeFollows(t *testing.T) {
	n := nstest.NewNetwork(t)
	vm := wire(t, n)
	vm.ResolvConf = filepath.Join(n.State, "resolv.conf.test")
	if err := netns.Do(n.Pod.File, func() error { return vm.Serve(t.Context()) }); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), vm.ResolvConf) {
		t.Errorf("without the file: %v, want fs.ErrNotExist and the path", err)
	}
	if err := os.WriteFile(vm.ResolvConf, []byte("nameserver 192.0.2.1\nsearch one.example\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	log := &syncBuffer{}
	vm.Log = slog.New(slog.NewTextHandler(log, nil))
	var mu sync.Mutex
	events := map[dhcp.Kind]netip.Addr{}
	vm.Notify = func(e phase2.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.NIC != "eth0" && e.Kind != "ready" && e.Kind != "resolv-conf-changed" && e.Kind != "resolv-conf-failed" {
			t.Errorf("an event of %q: %+v", e.NIC, e)
		}
		events[e.Kind] = e.Address
	}
	serving, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- netns.Do(n.Pod.File, func() error { return vm.Serve(serving) }) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if _, ok := events["router-withdrawn"]; !ok {
			t.Error("the router is not withdrawn at the end")
		}
	}()

	g := nstest.Boot(t, n.Pod.File, vm.Records()[0], "guest")
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got, err := g.Configure(ctx, guest.Families{IPv4: true, IPv6: true})
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got.IPv4.DNS, got.IPv4.Search) != "[192.0.2.1] [one.example]" {
		t.Errorf("DNS %v %v", got.IPv4.DNS, got.IPv4.Search)
	}
	nstest.Eventually(t, func() error { // Notify is called after the frame is sent
		mu.Lock()
		defer mu.Unlock()
		if events["dhcpv4-leased"] != nstest.Pod4 || events["dhcpv6-leased"] != nstest.Pod6 {
			return fmt.Errorf("events %v, want leases of %v and %v", events, nstest.Pod4, nstest.Pod6)
		}
		return nil
	})

	if err := os.WriteFile(vm.ResolvConf, []byte("nameserver 192.0.2.2\nnameserver 2001:db8::2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		if !strings.Contains(log.String(), "the DNS configuration has changed") {
			return errors.New(log.String())
		}
		return nil
	})
	lease, err := g.Renew4(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(lease.DNS, lease.Search) != "[192.0.2.2] []" {
		t.Errorf("DNS after the change %v %v", lease.DNS, lease.Search)
	}
	// A resolv.conf that cannot be read is reported, and changes nothing.
	if err := os.Remove(vm.ResolvConf); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(vm.ResolvConf, 0o755); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if _, ok := events["resolv-conf-failed"]; !ok {
			return fmt.Errorf("events %v", events)
		}
		return nil
	})
	nstest.Eventually(t, func() error {
		c := vm.Counters()["eth0"]
		if c.Events["dhcpv4-renewed"] < 1 || c.Events["router-advertised"] < 2 || c.Sent == 0 || c.Received == 0 || c.Failed != 0 {
			return fmt.Errorf("counters %+v", c)
		}
		return nil
	})
}

// syncBuffer is a log that can be read while another goroutine writes it.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
