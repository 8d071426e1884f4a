package node

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestNode: what is done in a node does not touch the machine.
func TestNode(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	sysctl, err := os.ReadFile("/proc/sys/kernel/panic")
	if err != nil {
		t.Fatal(err)
	}
	n := New(t, Config{Name: "worker"})
	out := n.MustRun(t, "sh", "-c", `hostname
		ip -brief link | cut -d' ' -f1
		stat -c %a /dev/net/tun
		echo 20 >/proc/sys/kernel/panic && cat /proc/sys/kernel/panic
		touch /etc/guestwire-test /var/lib/guestwire-test && mknod /dev/kvm c 10 232`)
	if want := "worker\nlo\n666\n20\n"; out != want {
		t.Errorf("the node says %q, want %q", out, want)
	}
	for _, path := range []string{"/etc/guestwire-test", "/var/lib/guestwire-test"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is on the machine", path)
		}
		if _, err := os.Stat(n.Path(path)); err != nil {
			t.Error(err)
		}
	}
	if now, err := os.Hostname(); err != nil || now != host {
		t.Errorf("the machine is called %s (%v), not %s", now, err, host)
	}
	if now, err := os.ReadFile("/proc/sys/kernel/panic"); err != nil || string(now) != string(sysctl) {
		t.Errorf("the machine's kernel.panic is %s (%v), not %s", now, err, sysctl)
	}
	for _, dir := range n.cgroups {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}

	p, err := n.Start("sleeper", "NAME=value", "sh", "-c", "echo $NAME; exec sleep inf")
	if err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		if said := strings.TrimSpace(p.Tail(1)); said != "value" {
			return fmt.Errorf("the log says %q", said)
		}
		return nil
	})
	if err := p.Kill(); err != nil || p.Err == nil {
		t.Errorf("%v, %v", err, p.Err)
	}
	if err := n.Kill(); err != nil {
		t.Error(err)
	}
	for _, dir := range n.cgroups {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
}
