package main_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestNames: a pod's annotation has names, the engine's capability has the pod's DNS server, and guestwire-agent names
// -all asks that for the guest. A DEL ends the proxy, and nothing is left.
func TestNames(t *testing.T) {
	nstest.Need(t, "dig", "dnsmasq")
	nstest.NeedRoot(t, "the proxy is another user")
	n := newNode(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	nstest.Program(t, "examples/guestwire-launcher") // which is beside it
	entry := strings.Replace(n.guestwire(owner("")), `"capabilities": {`, `"capabilities": {"dns": true, `, 1)
	list := n.list("1.0.0", "podnet", n.flannel(), entry)
	s := n.sandbox("u1")
	rt := s.runtime("eth0", "guestwire/nic.eth0", `{"binding": {"masquerade": {}}, "egress": ["refuse all"], "names": ["good.example 443"]}`)
	rt.CapabilityArgs["dns"] = map[string]any{"servers": []string{"10.22.0.1"}, "searches": []string{"default.svc.cluster.local"}}
	s.add(list, rt)
	record := nstest.Record(t, filepath.Join(n.state, s.id), "eth0")
	if len(record.DNSProxy) == 0 || record.DNS == nil || fmt.Sprint(record.DNS.Servers, record.DNS.Search) != "[10.22.0.1] [default.svc.cluster.local]" {
		t.Fatalf("the proxy is at %v, the DNS is %v", record.DNSProxy, record.DNS)
	}
	n.ns.Exec("sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=53")
	n.ns.Start(nstest.LauncherUID, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file=", "--bind-interfaces",
		"--listen-address=10.22.0.1", "--local-ttl=60", "--host-record=good.example,198.51.100.9")
	names := n.ns.StartCommand(exec.Command(agent, "names", "-all", "-dir", n.dir))
	nstest.Eventually(t, func() error {
		text := s.ns.Exec("sh", "-c", fmt.Sprintf("dig +short +tries=1 +timeout=10 @%v -p %d good.example || true", record.DNSProxy[0].Addr(), record.DNSProxy[0].Port()))
		if text != "198.51.100.9\n" {
			return fmt.Errorf("the answer is %q\n%s", text, names.Output.String())
		}
		return nil
	})
	s.del(list, rt)
	nstest.Eventually(t, func() error {
		if left := nstest.Run(t, "ip", "netns", "pids", s.ns.Name); left != "" {
			return fmt.Errorf("processes after DEL: %s", left)
		}
		return nil
	})
	names.Stop(t)
	n.clean()
}
