package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestNames: run -names answers the names of a wired NIC, with the capabilities that the manifest has. It starts the
// proxy again when it starts again itself, and Teardown ends the proxy. The end of a pod of which nothing but its proxy
// is left, and which the sweep then removes, is TestUnheld of pins.
func TestNames(t *testing.T) {
	nstest.Need(t, "dig", "setpriv")
	nstest.NeedRoot(t, "the proxy is another user")
	n, p := newNode(t), nstest.NewNetwork(t)
	program, launcher := nstest.Program(t, "examples/guestwire-node"), nstest.Program(t, "examples/guestwire-launcher")
	nic := phase1.NIC{NetNS: p.Pod.File, Name: "eth0", Dir: n.dir}
	spec := infra.Spec{Binding: infra.Masquerade{}, Owner: infra.Owner{Root: true}, State: p.State, Egress: []infra.Egress{{Refuse: true, To: "all"}}}
	var name infra.Name
	if err := name.UnmarshalText([]byte("host.internal = 192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	spec.Names = append(spec.Names, name)
	if _, err := nic.Setup(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Teardown(context.Background(), phase1.TeardownOptions{}) })

	_, manifest := render(t, "../kubernetes/names")
	var rights []string
	for _, right := range manifest.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add {
		rights = append(rights, "+"+strings.ToLower(right))
	}
	have := strings.Join(rights, ",")
	start := func() *nstest.Process {
		args := append([]string{"--net=" + p.World.Path(), "setpriv", "--bounding-set", "-all," + have, "--inh-caps", "-all", "--no-new-privs", program},
			n.args("run", "-nri=", "-cni-bin=", "-cni-conf=", "-metrics", "127.0.0.1:9476", "-names", launcher)...)
		return p.World.StartCommand(exec.Command("nsenter", args...))
	}
	proxies := func(want int) {
		t.Helper()
		eventually(t, func() error {
			var found []string
			for pid := range strings.FieldsSeq(p.Pod.Exec("ip", "netns", "pids", p.Pod.Name)) {
				if text, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); err == nil && strings.HasPrefix(string(text), launcher+"\x00names\x00") {
					found = append(found, pid)
				}
			}
			if len(found) != want {
				return fmt.Errorf("proxies %v, want %d", found, want)
			}
			return nil
		})
	}
	answers := func() {
		t.Helper()
		eventually(t, func() error {
			if text := p.Pod.Exec("sh", "-c", "dig +short +tries=1 +timeout=10 @10.0.2.1 -p 15353 host.internal || true"); text != "192.0.2.1\n" {
				return fmt.Errorf("the answer is %q", text)
			}
			return nil
		})
	}
	// served is what the metrics say of running proxies.
	served := func(want string) {
		t.Helper()
		eventually(t, func() error {
			text, err := p.World.Get("http://127.0.0.1:9476/metrics")
			if err == nil && !strings.Contains(text, want) {
				err = fmt.Errorf("no %q in\n%s", want, text)
			}
			return err
		})
	}
	run := start()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(run.Output.String())
		}
	})
	answers()
	proxies(1)
	served("\nguestwire_dns_proxies 1\n")
	served("\nguestwire_named_nics 1\n")
	run.Stop(t)
	proxies(0)
	run = start()
	answers()
	if err := nic.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil {
		t.Fatal(err)
	}
	proxies(0)
	served("\nguestwire_dns_proxies 0\n")
	served("\nguestwire_named_nics 0\n")
	if out := run.Output.String(); strings.Contains(out, "level=WARN") {
		t.Errorf("run has said\n%s", out)
	}
}
