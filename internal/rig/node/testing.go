package node

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/sandbox"
	"github.com/guestwire/guestwire/internal/test/tutorial"
)

// New starts a node for as long as the test. If the test fails, the ends of the logs are shown. The test is skipped if
// there can be no node.
func New(t testing.TB, c Config) *Node {
	t.Helper()
	nstest.Need(t)
	nstest.NeedRoot(t, "a node has cgroups and devices of its own")
	n, err := Open(c)
	if errors.Is(err, errNoCgroup) {
		nstest.Skip(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := n.Kill()
		if t.Failed() {
			t.Log(n.Logs())
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return n
}

// Dir is a directory for Config.Dir, for as long as the test, on a file system that can hold the upper directory of an
// overlay. Make it before the first node.
func Dir(t testing.TB) string {
	t.Helper()
	nstest.Need(t)
	dir, err := os.MkdirTemp(sandbox.Dir(), "nodes-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Logs returns the end of each log of the node: those of Start, and those of containers.
func (n *Node) Logs() string {
	var b strings.Builder
	for _, pattern := range []string{"*.log", "pods/*/*.log", "pods/*/*/*.log"} {
		paths, err := filepath.Glob(filepath.Join(n.Dir, "var/log", pattern))
		if err != nil {
			return err.Error()
		}
		for _, path := range paths {
			fmt.Fprintf(&b, "== %s\n%s\n", strings.TrimPrefix(path, n.Dir), tail(path, logLines))
		}
	}
	return b.String()
}

// StartEngine starts an engine in the node, with the images PauseImage, BusyboxImage and LauncherImage. It ends with
// the node. The test is skipped if the engine is not unpacked. EngineConfig.CRI is set.
func (n *Node) StartEngine(t testing.TB, c EngineConfig) *Engine {
	t.Helper()
	for _, dir := range []string{cmp.Or(c.Runtime, Containerd).unpacked, "busybox"} {
		if _, err := os.Stat(unpacked.Path(dir)); err != nil {
			nstest.Skip(t, "no "+unpacked.Path(dir)+": make install")
		}
	}
	c.CRI = nstest.Program(t, "internal/rig/node/cri")
	launcher, err := Busybox()
	if err != nil {
		t.Fatal(err)
	}
	busybox := launcher
	launcher.Name, launcher.Entrypoint = LauncherImage, []string{"/bin/guestwire-launcher"}
	launcher.Files = maps.Clone(launcher.Files)
	launcher.Files["/bin/guestwire-launcher"] = File{From: nstest.Program(t, "examples/guestwire-launcher")}
	e, err := NewEngine(n, c)
	if err == nil {
		err = e.Start()
	}
	if err == nil {
		err = e.Load(Pause(), busybox, launcher)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Reader returns the shells of a tutorial's reader: root on the node, in the repository, whose bin has the files that
// were built elsewhere. More are environment variables, NAME=VALUE.
func (e *Engine) Reader(t testing.TB, built []string, more ...string) tutorial.Shells {
	t.Helper()
	clone := nstest.Root(t)
	bin := e.Node.Path(clone + "/bin")
	nstest.Run(t, "mkdir", "-p", bin)
	nstest.Run(t, "cp", append(built, bin)...)
	return func(script string) *exec.Cmd {
		cmd := e.Node.Command(t.Context(), "bash", "-c", "cd "+clone+" && "+script)
		cmd.Env = append(append(cmd.Env, "PATH="+e.config.Programs+":/usr/sbin:/usr/bin:/sbin:/bin", "TERM=vt100"), more...)
		return cmd
	}
}

// MustRun is Run for what has to succeed.
func (n *Node) MustRun(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := n.Run(program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Network returns the node's network namespace for as long as the test.
func (n *Node) Network(t testing.TB) *nstest.Namespace {
	t.Helper()
	return nstest.Adopt(t, "node", fmt.Sprintf("/proc/%d/ns/net", n.Pid))
}

// Gate is a script in the place of a CNI plugin. It can hold a call of ADD before the plugin begins.
type Gate struct{ node *Node }

// The files of a gate. While gateClosed is there, the next ADD writes gateReached. It waits while gateHeld and its
// container's ID is a file. Each call is a line of gateCalls.
const (
	gateClosed  = "/run/gate-closed"
	gateReached = "/run/gate-reached"
	gateHeld    = "/run/gate-held-"
	gateCalls   = "/run/gate-calls"
)

const gateScript = `#!/bin/bash
echo "$CNI_COMMAND" >>` + gateCalls + `
if [ "$CNI_COMMAND" = ADD ] && mv ` + gateClosed + " " + gateHeld + `$CNI_CONTAINERID 2>/dev/null; then
	echo "$$ $CNI_CONTAINERID $CNI_NETNS" >/run/gate-new && mv /run/gate-new ` + gateReached + `
	while [ -e ` + gateHeld + `$CNI_CONTAINERID ]; do sleep 0.02; done
fi
exec -a "$0" "$0-real"
`

// NewGate puts a gate before a plugin of CNIBin for as long as the test.
func (n *Node) NewGate(t testing.TB, plugin string) Gate {
	t.Helper()
	plugin = filepath.Join(CNIBin, plugin)
	n.MustRun(t, "ln", plugin, plugin+"-real") // an engine that finds no plugin for a moment is not ready
	t.Cleanup(func() { n.MustRun(t, "mv", plugin+"-real", plugin) })
	if err := n.WriteFile(plugin, gateScript, 0o755); err != nil {
		t.Fatal(err)
	}
	return Gate{n}
}

// Calls returns the commands (CNI_COMMAND) of the calls since the last Calls, without repetitions.
func (g Gate) Calls(t testing.TB) []string {
	t.Helper()
	return strings.Fields(g.node.MustRun(t, "sh", "-c", `mv "$0" "$0-read" 2>/dev/null && sort -u "$0-read"; true`, gateCalls))
}

// Close holds the next call of ADD, and no other.
func (g Gate) Close(t testing.TB) {
	t.Helper()
	g.node.MustRun(t, "touch", gateClosed)
}

// Held is a call of ADD at a gate.
type Held struct {
	// Pid is the plugin's process in the node.
	Pid int
	// ID is the container's.
	ID string
	// NetNS is CNI_NETNS, open for as long as the test.
	NetNS *os.File

	gate Gate
}

// Reached waits for the call that the gate holds.
func (g Gate) Reached(t testing.TB) *Held {
	t.Helper()
	h := &Held{gate: g}
	var path string
	nstest.Eventually(t, func() error {
		text, err := os.ReadFile(g.node.Path(gateReached))
		if err == nil {
			_, err = fmt.Sscan(string(text), &h.Pid, &h.ID, &path)
		}
		return err
	})
	g.node.MustRun(t, "rm", gateReached)
	var err error
	if h.NetNS, err = os.Open(g.node.Path(path)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.NetNS.Close() })
	return h
}

// Open lets the call go on.
func (h *Held) Open(t testing.TB) {
	t.Helper()
	h.gate.node.MustRun(t, "rm", gateHeld+h.ID)
}

// Ended waits until the call has ended.
func (h *Held) Ended(t testing.TB) {
	t.Helper()
	nstest.Eventually(t, func() error {
		if _, err := os.Stat(h.gate.node.Path(fmt.Sprintf("/proc/%d", h.Pid))); err == nil {
			return fmt.Errorf("process %d runs", h.Pid)
		}
		return nil
	})
}
