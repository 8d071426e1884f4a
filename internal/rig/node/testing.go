package node

import (
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

// logLines is how much of each log a failed test shows.
const logLines = 40

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

// StartEngine starts a containerd in the node, with the images PauseImage, BusyboxImage and LauncherImage. It ends with
// the node. The test is skipped if the engine is not unpacked. EngineConfig.CRI is set.
func (n *Node) StartEngine(t testing.TB, c EngineConfig) *Engine {
	t.Helper()
	for _, dir := range []string{"containerd", "busybox"} {
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
	launcher.Name, launcher.Entrypoint = LauncherImage, []string{"/bin/launcher"}
	launcher.Files = maps.Clone(launcher.Files)
	launcher.Files["/bin/launcher"] = File{From: nstest.Program(t, "examples/launcher")}
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
