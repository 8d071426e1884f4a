package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/node"
	"github.com/guestwire/guestwire/phase1"
)

// starts is how often the CNI plugin is measured.
type starts struct {
	calls int // rounds of calls of the plugin, each in fresh namespaces
	pods  int // rounds of pods that an engine starts
}

// mostAdded is how much longer a pod's start may take with the plugin.
const mostAdded = 20 * time.Millisecond

// measurePlugin measures the CNI plugin, called as an engine calls it, and by an engine.
func measurePlugin(ctx context.Context, w io.Writer, s starts) (err error) {
	if s.calls < 1 || s.pods < 1 {
		return fmt.Errorf("%d rounds of calls and %d of pods, want 1 or more", s.calls, s.pods)
	}
	for _, program := range []string{"go", "ip", "nsenter", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: make install, or install it", program)
		}
	}
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The plugin's directories are on a tmpfs, like /run.
	if err := unix.Mount("guestwire", dir, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("tmpfs on %s: %w", dir, err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	plugin, err := build(ctx, dir, "guestwire", "examples/cni")
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "The CNI plugin, in milliseconds. Linux %s, %d CPUs, %s, a load of %s before.\n"+
		"%d rounds of calls and %d of pods, in each of which every way has a turn: medians of the times, and of the rounds' differences.\n\n",
		release(), runtime.NumCPU(), runtime.Version(), loadAverage(), s.calls, s.pods)
	if err := measureCalls(ctx, w, dir, plugin, s.calls); err != nil {
		return fmt.Errorf("calls of the plugin: %w", err)
	}
	if err := measurePods(ctx, w, dir, plugin, s.pods); err != nil {
		return fmt.Errorf("pods: %w", err)
	}
	return nil
}

// build builds the program of a folder of the repository, in the module of the folder.
func build(ctx context.Context, dir, name, folder string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/guestwire/guestwire").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	return buildIn(ctx, filepath.Join(strings.TrimSpace(string(root)), folder), filepath.Join(dir, name))
}

func buildIn(ctx context.Context, folder, path string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "build", "-C", folder, "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w: %s", folder, err, out)
	}
	return path, nil
}

// buildNothing builds a Go program that ends at once.
func buildNothing(ctx context.Context, dir string) (string, error) {
	folder := filepath.Join(dir, "nothing.go")
	err := os.Mkdir(folder, 0o700)
	for name, text := range map[string]string{"main.go": "package main\n\nfunc main() {}\n", "go.mod": "module nothing\n"} {
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600)
		}
	}
	if err != nil {
		return "", err
	}
	return buildIn(ctx, folder, filepath.Join(dir, "nothing"))
}

// caller calls a plugin as an engine does.
type caller struct {
	plugin, dir string
}

// call calls the plugin for a pod, which is also the sandbox's identifier. Wish is the annotation of its NIC.
func (c caller) call(ctx context.Context, program, command, wish string, p *pod) (time.Duration, error) {
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "bench", "type": "guestwire", "state": c.state(), "dir": filepath.Join(c.dir, "node"),
		"spec":          map[string]any{"owner": map[string]any{"uid": launcherUID, "gid": launcherUID}},
		"runtimeConfig": map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{"guestwire/nic." + nic: wish}},
		"prevResult": map[string]any{"cniVersion": "1.0.0",
			"interfaces": []any{map[string]string{"name": nic, "sandbox": p.path()}},
			"ips":        []any{map[string]any{"interface": 0, "address": "10.244.1.7/24"}, map[string]any{"interface": 0, "address": "fd00:10:244:1::7/64"}}},
	})
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.name, "CNI_NETNS=" + p.path(), "CNI_IFNAME=" + nic,
		"CNI_PATH=" + c.dir, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + p.name + ";K8S_POD_UID=" + p.name}
	cmd.Stdin = strings.NewReader(string(config))
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return took, nil
}

func (c caller) state() string { return filepath.Join(c.dir, "state") }

// check returns an error unless the plugin has left a record for the pod, or none.
func (c caller) check(p *pod, wanted bool) error {
	_, err := os.Stat(filepath.Join(c.state(), p.name, nic+".json"))
	if there := err == nil; there != wanted {
		return fmt.Errorf("a record is there: %t, want %t", there, wanted)
	}
	return nil
}

// measureCalls measures the plugin's process, beside one that does nothing and beside a Setup within this process.
func measureCalls(ctx context.Context, w io.Writer, dir, plugin string, rounds int) (err error) {
	nothing, err := buildNothing(ctx, dir)
	if err != nil {
		return err
	}
	c := caller{plugin, dir}
	if err := os.Mkdir(c.state(), 0o755); err != nil {
		return err
	}
	add := func(name, wish string, wired bool) way {
		return way{name: name, run: func(ctx context.Context, p *pod) (time.Duration, error) {
			took, err := c.call(ctx, c.plugin, "ADD", wish, p)
			if err == nil {
				err = c.check(p, wired)
			}
			return took, err
		}}
	}
	ways := []way{
		{name: "a Go program that does nothing", run: func(ctx context.Context, p *pod) (time.Duration, error) {
			return c.call(ctx, nothing, "ADD", "none", p)
		}},
		add("ADD, not wanted", "none", false),
		add("ADD, redirect", "redirect", true),
		add("ADD, masquerade", "masquerade", true),
		add("ADD, bridge", "bridge", true),
		{name: "Setup alone, redirect, within this process", run: func(ctx context.Context, p *pod) (time.Duration, error) {
			spec := infra.Spec{NIC: nic, Binding: infra.Redirect{}, State: p.state, Owner: infra.Owner{UID: launcherUID, GID: launcherUID}}
			begin := time.Now()
			_, err := phase1.Setup(ctx, phase1.Config{NetNS: p.file, Dir: filepath.Join(dir, "node"), Spec: spec})
			return time.Since(begin), err
		}},
	}
	const del = 2 // the pod whose DEL is measured
	deletions := []way{{name: "DEL, redirect"}}
	samples, deleted := make([][]time.Duration, len(ways)), make([][]time.Duration, 1)
	var all []*pod
	defer func() { err = errors.Join(err, closePods(all)) }()
	for round := -warmUp; round < rounds; round++ {
		first := len(all)
		for range ways {
			p, err := newPod(ctx, dir)
			if err != nil {
				return err
			}
			all = append(all, p)
		}
		pods := all[first:]
		for _, p := range pods {
			if err := p.waitSettled(ctx); err != nil {
				return err
			}
		}
		if err := sleep(ctx, settleTime); err != nil {
			return err
		}
		for i := range ways {
			i = (i + round + warmUp) % len(ways)
			took, err := ways[i].run(ctx, pods[i])
			if err != nil {
				return fmt.Errorf("%s: %w", ways[i].name, err)
			}
			if round >= 0 {
				samples[i] = append(samples[i], took)
			}
		}
		took, err := c.call(ctx, c.plugin, "DEL", "redirect", pods[del])
		if err == nil {
			err = c.check(pods[del], false)
		}
		if err != nil {
			return err
		}
		if round >= 0 {
			deleted[0] = append(deleted[0], took)
		}
	}
	fmt.Fprintln(w, "A call of the plugin, in namespaces with an IPv4 and an IPv6 address")
	reportAdded(w, append(ways, deletions...), append(samples, deleted...), "does nothing", nil)
	fmt.Fprintln(w)
	return nil
}

// podList is a CNI list of Debian's bridge plugin, and what is chained to it.
func podList(name string, chained string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam":
		{"type": "host-local", "dataDir": "/run/cni/ipam", "ranges": [[{"subnet": "10.244.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}%s]}`, name, chained)
}

// chainedEntry is the plugin's entry in a list.
const chainedEntry = `, {"type": "guestwire", "capabilities": {"io.kubernetes.cri.pod-annotations": true}}`

// podEngine is Debian's containerd in a node. Pods of its handler "chained" have the plugin in their list.
type podEngine struct {
	*node.Engine
	count int
}

func startEngine(ctx context.Context, dir, plugin string, images ...node.Image) (_ *podEngine, stop func() error, err error) {
	cri, err := build(ctx, dir, "cri", "internal/rig/node/cri")
	if err != nil {
		return nil, nil, err
	}
	n, err := node.Open(node.Config{})
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	program, err := os.ReadFile(plugin)
	if err != nil {
		return nil, nil, err
	}
	const chained = "/etc/cni/chained"
	for _, f := range []struct {
		path, content string
		mode          os.FileMode
	}{
		{node.CNIBin + "/guestwire", string(program), 0o755},
		{node.CNIConf + "/10-pods.conflist", podList("pods", ""), 0o644},
		{chained + "/10-pods.conflist", podList("pods", chainedEntry), 0o644},
	} {
		if err := n.WriteFile(f.path, f.content, f.mode); err != nil {
			return nil, nil, err
		}
	}
	e, err := node.NewEngine(n, node.EngineConfig{CRI: cri, Handlers: map[string]string{"chained": chained}})
	if err == nil {
		err = e.Start()
	}
	if err == nil {
		err = e.Load(append(images, node.Pause())...)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w (make install unpacks Debian's containerd)", err)
	}
	return &podEngine{Engine: e}, n.Close, nil
}

// run starts a pod's sandbox. Wish is the annotation of its NIC; empty: the pod's list has no plugin.
func (e *podEngine) run(wish string) (*node.Pod, time.Duration, error) {
	e.count++
	c := node.PodConfig{Name: fmt.Sprintf("pod%d", e.count), UID: fmt.Sprintf("uid%d", e.count)}
	if wish != "" {
		c.Handler = "chained"
		c.Annotations = map[string]string{"guestwire/nic." + nic: wish}
	}
	begin := time.Now()
	p, err := e.RunPod(c)
	return p, time.Since(begin), err
}

// measurePods measures how long an engine takes to start a pod, with and without the plugin in the pod's list.
func measurePods(ctx context.Context, w io.Writer, dir, plugin string, rounds int) (err error) {
	e, stop, err := startEngine(ctx, dir, plugin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	wishes := []string{"", "none", "redirect", "masquerade", "bridge"}
	ways := []way{{name: "not chained"}, {name: "chained, not wanted"}, {name: "redirect"}, {name: "masquerade"}, {name: "bridge"}}
	var client []time.Duration
	samples := make([][]time.Duration, len(ways))
	for round := -warmUp; round < rounds; round++ {
		for i := range wishes {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			i = (i + round + warmUp) % len(wishes)
			p, took, err := e.run(wishes[i])
			if err != nil {
				return fmt.Errorf("%s: %w", ways[i].name, err)
			}
			_, err = os.Stat(e.Node.Path("/run/guestwire/" + p.ID + "/" + nic + ".json"))
			if there, want := err == nil, i > 1; there != want {
				return fmt.Errorf("%s: a record is there: %t, want %t", ways[i].name, there, want)
			}
			if err := p.End(); err != nil {
				return err
			}
			if round >= 0 {
				samples[i] = append(samples[i], took)
			}
		}
		begin := time.Now()
		if err := errors.Join(e.CRI("Version", nil, nil), e.CRI("Version", nil, nil)); err != nil {
			return err
		}
		if round >= 0 {
			client = append(client, time.Since(begin))
		}
	}
	fmt.Fprintf(w, "A pod's sandbox, by containerd %s, with the list [bridge] or [bridge, guestwire]\n", e.Version)
	reportAdded(w, ways, samples, "not chained", map[string]time.Duration{"redirect": mostAdded})
	fmt.Fprintf(w, "  Each time has two calls of a program that asks the engine, which take %.1f.\n\n", ms(median(client)))
	return nil
}

// reportAdded prints each way's times, and what it takes more than the first way: the median of the rounds' differences.
func reportAdded(out io.Writer, ways []way, samples [][]time.Duration, than string, atMost map[string]time.Duration) {
	fmt.Fprintf(out, "  %-44s %8s %8s %8s   more than %q\n", "", "median", "least", "most", than)
	for i, way := range ways {
		line := fmt.Sprintf("  %-44s %8.1f %8.1f %8.1f", way.name, ms(median(samples[i])), ms(slices.Min(samples[i])), ms(slices.Max(samples[i])))
		if i > 0 {
			var more []time.Duration
			for round := range samples[i] {
				more = append(more, samples[i][round]-samples[0][round])
			}
			added := ms(median(more))
			line += fmt.Sprintf("   %8.1f, ratio %.2f", added, pairs(samples[i], samples[0]))
			if limit, ok := atMost[way.name]; ok {
				line += "   " + verdict("%.0f", added, ms(limit), false)
			}
		}
		fmt.Fprintln(out, line)
	}
}
