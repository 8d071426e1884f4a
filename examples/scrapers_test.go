package examples_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestHostileScrapers: whoever reaches the port of the node's metrics ends them for nobody. Twelve clients at once, of
// each kind that stays, asks without end or reads nothing, cost a proper scrape neither its answer nor the time that
// Prometheus gives it, also while a look at the node takes seconds. Memory stays below what the DaemonSet may have.
func TestHostileScrapers(t *testing.T) {
	nstest.Long(t)
	nstest.Need(t, "ss")
	const (
		address, request = "127.0.0.1:9476", "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"
		attackers, kept  = 12, 100 // connections that each attacker has at most
		pods             = 2000    // whose names make an answer longer than a socket's buffers
		limit            = 128 << 20
	)
	n := nstest.NewNetwork(t)
	n.State += "/vm1"
	agent, node := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-node")
	dir := filepath.Join(nstest.Dir(t), "dir")
	if out, status := run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-uid", "0", "-binding", "redirect", "-state", n.State, "-dir", dir); status != 0 {
		t.Fatal(out)
	}
	state := filepath.Dir(n.State)
	if err := os.MkdirAll(filepath.Join(state, "pods"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if err := os.Symlink(fmt.Sprintf("../%0200d", i), filepath.Join(state, "pods", fmt.Sprintf("uid-%0200d", i))); err != nil {
			t.Fatal(err)
		}
	}
	server := n.World.Start(0, node, "run", "-nri=", "-cni-bin=", "-cni-conf=", "-metrics", address, "-dir", dir, "-state", state)
	dial := func(ctx context.Context) (net.Conn, error) { return n.World.DialTCP(ctx, address) }
	proper := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{ // Prometheus' default
		DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}}
	scrape := func() error {
		r, err := proper.Get("http://" + address + "/metrics")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK || strings.Count(string(body), "\nguestwire_pod_info{") != pods+1 || !strings.Contains(string(body), "\nguestwire_wired_nics 1\n") {
			return fmt.Errorf("%s, %d octets, %v", r.Status, len(body), err)
		}
		return nil
	}
	nstest.Eventually(t, scrape)

	say := func(text string) func(net.Conn) bool { // stays
		return func(c net.Conn) bool { _, err := io.WriteString(c, text); return err == nil }
	}
	for name, attack := range map[string]func(c net.Conn) (stays bool){
		"says nothing":   func(net.Conn) bool { return true },
		"reads nothing":  say(request),
		"half a request": say(request[:30]),
		"a long header":  say("GET /metrics HTTP/1.1\r\nA: " + strings.Repeat("a", 1<<20)),
		"pipelines":      say(strings.Repeat(request, 1000)),
		"with a body":    say("GET /metrics HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000000\r\n\r\n" + strings.Repeat("a", 1<<18)),
		"gives up":       func(c net.Conn) bool { say(request)(c); return false },
		"scrapes": func(c net.Conn) bool {
			say(strings.Replace(request, "1.1", "1.0", 1))(c)
			_, _ = io.Copy(io.Discard, c)
			return false
		},
	} {
		for _, slow := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, slow %v", name, slow), func(t *testing.T) {
				if slow {
					defer holdNamespace(t, n.Pod, dir)()
				}
				ctx, cancel := context.WithCancel(t.Context())
				var working sync.WaitGroup
				var attacks atomic.Int64
				defer working.Wait()
				defer cancel()
				for range attackers {
					working.Go(func() {
						var open []net.Conn
						defer func() {
							for _, c := range open {
								c.Close()
							}
						}()
						for ctx.Err() == nil {
							c, err := dial(ctx)
							if err != nil {
								continue
							}
							_ = c.SetDeadline(time.Now().Add(time.Minute))
							stop := context.AfterFunc(ctx, func() { c.Close() })
							defer stop()
							attacks.Add(1)
							if !attack(c) {
								c.Close()
								continue
							}
							if open = append(open, c); len(open) > kept {
								open[0].Close()
								open = open[1:]
							}
						}
					})
				}
				nstest.Eventually(t, func() error {
					if n := attacks.Load(); n < 600 { // more than the connections that guestwire-node keeps
						return fmt.Errorf("%d attacks", n)
					}
					return nil
				})
				failed := 0
				var last error
				for range 5 {
					if err := scrape(); err != nil {
						failed, last = failed+1, err
					}
				}
				if failed > 0 {
					t.Errorf("%d of 5 scrapes failed: %v", failed, last)
				}
				used, connections := used(t, n.World, server.Process.Pid, address)
				t.Logf("%d MiB, %d connections", used>>20, connections)
				if used > limit {
					t.Errorf("%d octets, want at most %d", used, limit)
				}
			})
		}
	}
	nstest.Eventually(t, scrape)
}

// holdNamespace holds the lock of a namespace, as a call does that works on it: a look at it takes three seconds.
func holdNamespace(t *testing.T, ns *nstest.Namespace, dir string) (unlock func()) {
	t.Helper()
	info, err := os.Stat(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { lock.Close() }
}

// used is the memory of a process, with that of the connections to its address, and how many these are.
func used(t *testing.T, ns *nstest.Namespace, pid int, address string) (octets, connections int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	sum := func(text, pattern string, unit int) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			for _, digits := range m[1:] {
				number, err := strconv.Atoi(digits)
				if err != nil {
					t.Fatal(err)
				}
				octets += number * unit
			}
		}
	}
	sum(string(status), `VmHWM:\s+(\d+) kB`, 1<<10)
	if octets == 0 {
		t.Fatalf("no VmHWM in %s", status)
	}
	sockets := ns.Exec("ss", "-tanmOH", "src", address)
	sum(sockets, `skmem:\(r(\d+),rb\d+,t\d+,tb\d+,f\d+,w(\d+),`, 1)
	return octets, strings.Count(sockets, "\n") - 1 // the listener
}
