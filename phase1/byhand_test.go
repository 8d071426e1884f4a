package phase1_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestByHand runs the commands of docs/how-to/rescue-by-hand.md that take a NIC down without guestwire.
func TestByHand(t *testing.T) {
	const page = "../docs/how-to/rescue-by-hand.md"
	nstest.KernelDecides(t, "the commands of "+page+" have to fit a dummy")
	t.Parallel()
	parts := map[cache.Kind][]string{
		cache.BindingBridge:     {"Bridge"},
		cache.BindingRedirect:   {"Redirect"},
		cache.BindingRouted:     {"Routed", "Masquerade"},
		cache.BindingMasquerade: {"Masquerade"},
	}
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		n.Pod.Exec("sysctl", "-qw", "net.ipv4.conf.eth0.forwarding=0") // a namespace inherits the machine's
		if b.Kind() == cache.BindingMasquerade {                       // accept_ra becomes 2
			n.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.all.forwarding=0", "net.ipv6.conf.eth0.accept_ra=1")
			n.Pod.IP("-6 route add 2001:db8:9::/64 via fe80::1 dev eth0 proto ra")
		}
		before := settled(t, n)
		c := config(n, b)
		if k := b.Kind(); k == cache.BindingRouted || k == cache.BindingMasquerade {
			c.Egress = policy(t, "divert all 443 127.0.0.1:8443", "divert all 80 :8080", "allow 198.51.100.9 53/udp", "refuse all")
		}
		setup(t, c)
		if now := strings.TrimSpace(n.Pod.Exec("cat", "/proc/sys/net/ipv6/conf/eth0/accept_ra")); b.Kind() == cache.BindingMasquerade && now != "2" {
			t.Errorf("accept_ra is %s: the page's last line of masquerade has nothing to do", now)
		}
		journal(t, n)
		script := "set -eu\n" + nstest.Commands(t, page, "All bindings")
		for _, heading := range parts[b.Kind()] {
			script += nstest.Commands(t, page, heading)
		}
		script += nstest.Commands(t, page, "The files")
		script = strings.NewReplacer("-n pod ", "-n "+n.Pod.Name+" ", "exec pod ", "exec "+n.Pod.Name+" ", "/run/netns/pod", n.Pod.Path(), "/run/guestwire/vm1", n.State).Replace(script)
		if out, err := exec.Command("bash", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s\n%s", err, out, script)
		}
		asFound(t, n, before)
		if err := nothingOfOurs(n); err != nil {
			t.Error(err)
		}
		for _, left := range journals(t, n) {
			if strings.HasSuffix(left, ".journal") {
				t.Errorf("%s is left", left)
			}
		}
		setup(t, config(n, b))
		teardown(t, n, config(n, b), before)
	})
}
