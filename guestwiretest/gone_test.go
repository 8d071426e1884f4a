package guestwiretest_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// victim is set for a test process that ends badly: to how.
const victim = "GUESTWIRE_TEST_VICTIM"

// copyTests returns a copy of the test binary that every user can run.
func copyTests(t *testing.T) string {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(openDir(t), "tests")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// openDir is a directory that every user can enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(sandbox.Dir(), "tests-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// outside is the environment of a process that makes a sandbox of its own.
func outside(more ...string) []string {
	return append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GUESTWIRE_SANDBOX=") || strings.HasPrefix(v, "GUESTWIRE_REQUIRE=")
	}), more...)
}

// TestVictim wires a pod, says which namespaces there are, and ends badly.
func TestVictim(t *testing.T) {
	how := os.Getenv(victim)
	if how == "" {
		return // TestGone runs it
	}
	pod := guestwiretest.NewPod(t, guestwiretest.Veth)
	record, _ := wire(t, pod, infra.Bridge{}, 1)
	guestwiretest.NewGuest(t, pod, record)
	for _, n := range []*guestwiretest.Namespace{&pod.Namespace, pod.World} {
		id, err := netns.Identify(n.NetNS)
		if err == nil {
			err = n.Do(id.AddCookie)
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(os.Stderr, "namespace %s\n", text)
	}
	switch how {
	case "panic":
		panic("the moon is full")
	case "kill":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	select {} // until the parent kills the process that waits for this one
}

// TestGone: nothing is left of a test process that panics or is killed in the middle of a wiring.
func TestGone(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and -short is set")
	}
	guestwiretest.NewPod(t, guestwiretest.Veth) // or the test is skipped
	program := copyTests(t)
	for how, signal := range map[string]syscall.Signal{"panic": 0, "kill": 0, "wait, and be killed": syscall.SIGKILL, "wait, and be ended": syscall.SIGTERM, "wait, and quit": syscall.SIGQUIT, "wait, and hang up": syscall.SIGHUP} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.Command(program, "-test.run=^TestVictim$")
			temporary := openDir(t)
			cmd.Env = outside(victim+"="+how, "TMPDIR="+temporary)
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdout = cmd.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var said []string
			var namespaces []netns.Identity
			lines := bufio.NewScanner(stderr)
			for lines.Scan() {
				said = append(said, lines.Text())
				if text, ok := strings.CutPrefix(lines.Text(), "namespace "); ok {
					var id netns.Identity
					if err := json.Unmarshal([]byte(text), &id); err != nil {
						t.Error(err)
					}
					namespaces = append(namespaces, id)
				}
				if len(namespaces) == 2 && signal != 0 {
					if err := cmd.Process.Signal(signal); err != nil {
						t.Error(err)
					}
					signal = 0
				}
			}
			if err := cmd.Wait(); err == nil || len(namespaces) != 2 {
				t.Fatalf("the process has ended with %v, and said:\n%s", err, strings.Join(said, "\n"))
			}
			var found map[netns.Identity]*netns.Found
			for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				if found, _, err = netns.Find(t.Context(), namespaces); err != nil {
					t.Fatal(err)
				}
				if len(found) == 0 {
					break
				}
			}
			for _, namespace := range found {
				t.Errorf("a namespace is left: %v", namespace.Places())
			}
			for _, dir := range []string{temporary, "/run/netns", "/run/guestwire.lock"} {
				left, err := filepath.Glob(dir + "/*")
				if err != nil {
					t.Fatal(err)
				}
				if how == "wait, and be killed" && len(left) == 1 { // who waited could not remove it
					left, err = filepath.Glob(left[0] + "/*")
				}
				if len(left) > 0 || err != nil {
					t.Errorf("files are left: %v, %v", left, err)
				}
			}
		})
	}
}

// TestFirst: programs that start together on a machine where none has run before all get their sandbox.
func TestFirst(t *testing.T) {
	guestwiretest.NewPod(t, guestwiretest.Veth) // or the test is skipped
	if sandbox.OneUser() {
		t.Skip("an ordinary user's sandbox has a /run of its own")
	}
	const together = `mount -t tmpfs none /run; mount -t tmpfs none /dev/net
		for round in $(seq 8); do
			rm -rf /run/guestwire.lock
			for p in $(seq 4); do "$0" "$@" >/dev/null 2>/run/$p || cat /run/$p & done
			wait
		done`
	cmd := exec.Command("unshare", "-m", "/bin/sh", "-c", together, copyTests(t), "-test.run=^$")
	cmd.Env = outside()
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestSkips: a machine that cannot run the tests gets a message; with GUESTWIRE_REQUIRE that is a failure.
func TestSkips(t *testing.T) {
	guestwiretest.NewPod(t, guestwiretest.Veth) // or the test is skipped
	if sandbox.OneUser() {
		t.Skip("an ordinary user has no other user to run as")
	}
	program := copyTests(t)
	const user = "exec setpriv --reuid 65534 --regid 65534 --clear-groups "
	for name, c := range map[string]struct{ create, want string }{
		"no device":           {"mount -t tmpfs none /dev/net; " + user, "chmod 0666 /dev/net/tun (modprobe tun if there is none)"},
		"closed device":       {"mount -t tmpfs -o mode=755 none /dev/net; mknod -m 600 /dev/net/tun c 10 200; " + user, "open /dev/net/tun: permission denied: run the test as root"},
		"no user namespaces":  {"mount --rbind / /mnt; exec chroot /mnt /bin/sh -c '" + user + `"$0" "$@"' `, "network namespaces: neither root nor a user namespace"},
		"root without mounts": {"exec setpriv --bounding-set -sys_admin --inh-caps -sys_admin ", "network namespaces: root without CAP_SYS_ADMIN"},
		"no programs": {`bin=$(dirname "$0")/bin; mkdir -p $bin; for p in sh mount mkdir mknod cat env; do ln -sf "$(command -v $p)" $bin; done
			mount -t tmpfs none /usr/sbin; PATH=$bin exec `, "iproute2) and nft (nftables): ip, bridge, tc, nft: not in PATH"},
	} {
		for require, want := range map[string]string{"": "--- SKIP: TestDiff", "1": "--- FAIL: TestDiff"} {
			t.Run(name+require, func(t *testing.T) {
				cmd := exec.Command("unshare", "-m", "/bin/sh", "-c", "set -e; "+c.create+`"$0" "$@"`, program, "-test.run=^TestDiff$", "-test.v")
				cmd.Env = outside()
				if require != "" {
					cmd.Env = append(cmd.Env, "GUESTWIRE_REQUIRE="+require)
				}
				out, err := cmd.CombinedOutput()
				if !strings.Contains(string(out), want) || !strings.Contains(string(out), c.want) {
					t.Errorf("%v; want %q and %q:\n%s", err, want, c.want, out)
				}
			})
		}
	}
}
