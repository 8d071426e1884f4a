package kubernetes

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// testLook is an operator with kubectl alone: the function of docs/how-to/kubernetes.md shows who serves a pod's guest,
// and a packet while it is dropped. It needs the DaemonSet of metrics, which stands in the place of install's
// meanwhile.
func (c *Cluster) testLook(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	function := regexp.MustCompile("(?s)```sh\n(look\\(\\) .*?)```").FindStringSubmatch(string(page))
	if function == nil {
		t.Fatal("the page has no function look")
	}
	look := func(args string) *exec.Cmd {
		cmd := c.Command(t.Context(), "bash", "-e", "-c", function[1]+"look "+args)
		cmd.Env = append(cmd.Env, "PATH="+Programs+":/usr/sbin:/usr/bin:/sbin:/bin", "KUBECONFIG="+dir+"/admin.conf")
		return cmd
	}
	before := c.leftovers(t)
	c.install(t, "metrics")
	t.Run("pods", func(t *testing.T) {
		c.namespace(t, "look", restricted)
		c.apply(t, "look", launcher{name: "vm"}.pod())
		p := c.pod(t, "look", "vm")
		nstest.Eventually(t, func() error {
			out, err := look("status look vm").Output()
			if err == nil || !regexp.MustCompile(`(?m)^VMM +none, .*\nresponder +process \d+ \(launcher\) has eth0-dhcp open`).Match(out) {
				return fmt.Errorf("status of a pod without a VM: %w\n%s", err, out)
			}
			return nil
		})
		c.boot(t, p, "eth0")

		master, terminal := nstest.Terminal(t)
		follow := look("drops look vm -nic eth0")
		var said nstest.Output
		follow.Stdin, follow.Stdout, follow.Stderr = terminal, &said, &said
		if err := follow.Start(); err != nil {
			t.Fatal(err)
		}
		nstest.Eventually(t, func() error {
			p.Exec("sh", "-c", "ping -c 1 -W 1 10.244.0.1 || true") // the address is the guest's
			if text := said.String(); !regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\.\d\d\d  namespace-output .*10\.244\.0\.1`).MatchString(text) {
				return fmt.Errorf("drops: %s", text)
			}
			return nil
		})
		if _, err := master.WriteString("\x03"); err != nil {
			t.Error(err)
		}
		if err := follow.Wait(); err != nil {
			t.Errorf("drops, after Ctrl-C: %v\n%s", err, said.String())
		}
		if left, err := c.Run("pgrep", "-f", "^/guestwire-agent drops"); err == nil {
			t.Errorf("drops runs on: process %s", left)
		}
	})
	c.gone(t, before)
	c.install(t, "install")
}
