package examples_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// hook calls agent hook as an OCI runtime does.
func (c container) hook(t *testing.T, state map[string]any) (string, error) {
	t.Helper()
	text, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), nstest.Program(t, "examples/agent"), "hook", "-nic", "eth0", "-binding", "redirect",
		"-uid", strconv.Itoa(nstest.LauncherUID), "-state", c.State, "-dir", c.dir)
	cmd.Stdin = strings.NewReader(string(text))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestHook: createRuntime wires the container's NIC, and poststop gives the namespace back, or forgets one that is
// gone. internal/rig/container has podman call it.
func TestHook(t *testing.T) {
	t.Parallel()
	c, before := newContainer(t)
	bundle := func(path string) string {
		dir := t.TempDir()
		config := fmt.Sprintf(`{"linux": {"namespaces": [{"type": "mount"}, {"type": "network", "path": %q}]}}`, path)
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	sleep := exec.CommandContext(t.Context(), "nsenter", "--net="+c.Pod.Path(), "sleep", "inf")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	created := map[string]any{"ociVersion": "1.0.2", "id": "c1", "status": "created", "pid": sleep.Process.Pid, "bundle": "/none"}
	stopped := func(bundle string) map[string]any {
		return map[string]any{"ociVersion": "1.0.2", "id": "c1", "status": "stopped", "bundle": bundle}
	}
	nstest.Eventually(t, func() error { // nsenter is in the namespace
		own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", sleep.Process.Pid))
		if pod, _ := os.Readlink("/proc/self/ns/net"); own == pod {
			return fmt.Errorf("still in %s, %v", own, err)
		}
		return err
	})
	for range 2 { // also if no poststop came
		if out, err := c.hook(t, created); err != nil || out != "" {
			t.Fatalf("%v, %s", err, out)
		}
	}
	c.Pod.Exec("ip", "link", "show", "eth0-tap")
	for _, row := range []struct {
		state map[string]any
		want  string
	}{
		{map[string]any{"id": "c1", "status": "created", "pid": os.Getpid()}, "container c1 has the machine's network"},
		{map[string]any{"id": "c1", "status": "created"}, "has no process"},
		{map[string]any{"id": "../c1", "status": "created", "pid": 1}, `id is "../c1"`},
		{map[string]any{"id": "c1", "status": "stopped", "bundle": "/none"}, "open /none/config.json"},
	} {
		if out, err := c.hook(t, row.state); err == nil || !strings.Contains(out, row.want) {
			t.Errorf("%v: %v, %s; want %s", row.state, err, out, row.want)
		}
	}
	if out, err := c.hook(t, stopped(bundle("/run/netns/none"))); err != nil || out != "" { // it is not gone
		t.Errorf("%v, %s", err, out)
	}
	c.Pod.Exec("ip", "link", "show", "eth0-tap")
	for range 2 {
		if out, err := c.hook(t, stopped(bundle(c.Pod.Path()))); err != nil {
			t.Fatalf("%v, %s", err, out)
		}
	}
	c.asFound(t, before)

	if out, err := c.hook(t, created); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	sleep.Process.Kill()
	sleep.Wait()
	c.Pod.End()
	for range 2 {
		if out, err := c.hook(t, stopped(bundle(c.Pod.Path()))); err != nil {
			t.Errorf("%v, %s", err, out)
		}
	}
	for _, dir := range []string{c.State, c.dir} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s has %v, %v; want nothing", dir, left, err)
		}
	}
}
