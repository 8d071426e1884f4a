package container

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/tutorial"
)

// TestKrun: the page's commands give a guest of krun the container's network, and podman takes it away at each end of
// the container. The runtime is a stand-in (krun/main.go), whose VMM opens the tap as libkrun does. The guest gets the
// container's command at its console. -own is for a machine that is in a PID namespace of its own.
func TestKrun(t *testing.T) {
	e := New(t, false)
	e.importQEMU(t)
	arguments := e.Guest(t, "box")
	e.write(t, "/usr/bin/krun", nstest.Program(t, "internal/rig/container/krun"))
	page := tutorial.Read(t, "docs/how-to/krun.md")
	_, command, ok := strings.Cut(page, "sh -c '")
	command, _, ends := strings.Cut(command, "&& exec nginx ")
	if !ok || !ends {
		t.Fatal("the page has no command that ends with nginx")
	}
	for old, text := range map[string]string{
		`"guestwire-agent", "hook",`:     `"guestwire-agent", "hook", "-own",`,
		"docker.io/library/nginx:alpine": `--volume /vm:/vm:ro --env KRUN_QEMU="` + arguments + `" localhost/debian-qemu`,
		"--publish 8080:80 ":             "--publish 8080:8000 ",
	} {
		if page = strings.Replace(page, old, text, 1); !strings.Contains(page, text) {
			t.Fatalf("the page has no %q", old)
		}
	}
	wire, end, ok := strings.Cut(page, "The container answers")
	if !ok {
		t.Fatal("the page does not say that the container answers")
	}
	shells := e.reader(t)
	tutorial.TypeAt(t, wire, shells)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.Podman("logs vm1"))
		}
	})

	// shows wants the guest to print all words for a line. It boots, and drops what is typed before; then it prints the
	// answers to earlier lines first.
	shows := func(line string, words ...string) {
		t.Helper()
		inside := e.Namespace(t, "vm1")
		nstest.Eventually(t, func() error {
			said, err := tryInGuest(inside, line)
			for _, word := range words {
				if err == nil && !strings.Contains(said, word) {
					err = fmt.Errorf("the guest says %q, want %q", said, word)
				}
			}
			return err
		})
	}
	configured := func() {
		t.Helper()
		shows("killall udhcpc; echo booted $((6*7))", "booted 42")
		inGuest(t, e.Namespace(t, "vm1"), strings.ReplaceAll(command, "\n", " "))
		answer(t, e.Host, "127.0.0.1:8080")
	}
	configured()
	e.Host.Listen("host", "10.88.0.1:9000")
	shows("nc 10.88.0.1 9000 </dev/null; ip addr show eth0", "host sees 10.88.0.", "link/ether 02:00:00:00:00:07 ", "permaddr 26:23:22:84:e4:9c")
	e.MustPodman(t, "kill vm1")
	nstest.Eventually(t, func() error { // conmon's podman calls poststop
		_, err := e.machine.Run("test -z \"$(ls -A /run/guestwire/vm1 /run/guestwire.lock | grep -v :$)\"")
		return err
	})
	e.MustPodman(t, "start vm1")
	configured()
	tutorial.TypeAt(t, end, shells)
}
