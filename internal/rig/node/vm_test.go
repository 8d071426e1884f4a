package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/container"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/tutorial"
)

// TestVM: the image that docs/tutorials/kubernetes.md builds and imports, in a pod with two networks: Linux in QEMU,
// under the settings of Pod Security "restricted". Another pod reaches the guest, which has the pod's addresses and
// name servers. At the pod's end the guest shuts down.
func TestVM(t *testing.T) {
	archives, rest := container.BuildImages(t)
	imports, _, ok := strings.Cut(rest, "\n## 3. ")
	if !ok {
		t.Fatalf("%s has no section 3", container.KubernetesTutorial)
	}
	x := newEngine(t, Config{}, EngineConfig{MaxConf: 2}, map[string]string{
		"10-first.conflist":  list("first", 0, entry),
		"20-second.conflist": list("second", 1, entry),
	})
	tutorial.TypeAt(t, imports, x.Reader(t, archives))
	x.must(x.listed(container.PodImage))
	client := x.pod(PodConfig{Name: "client"})
	from := nstest.Adopt(t, "client", x.Node.Path(client.NetNS))
	p := x.pod(PodConfig{Name: "vm", Annotations: map[string]string{"guestwire/nic.eth0": "redirect", "guestwire/nic.eth1": "redirect"},
		Servers: []string{"10.96.0.10"}, Searches: []string{"default.svc.cluster.local", "svc.cluster.local"}})
	config := p.Launcher(state)
	config.Image = container.PodImage
	config.Command = append([]string{"guestwire-launcher", "qemu", "-state", "/run/guestwire", "-shutdown", "8s", "--", "qemu-system-x86_64"}, container.PodGuest("box")...)
	c, err := p.StartContainer(config)
	x.must(err)
	log := func() string { return x.Node.MustRun(t, "cat", c.Log) }
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log())
		}
	})

	var page string
	nstest.Eventually(t, func() (err error) {
		page, err = from.Get(fmt.Sprintf("http://%v:8080/", p.Addresses[0]))
		return err
	})
	for _, want := range []string{
		"guest box\n", fmt.Sprintf("client %v\n", client.Addresses[0]), fmt.Sprintf("eth0 %v/24\n", p.Addresses[0]), "eth1 10.244.1.",
		"default via 10.244.0.1 dev eth0", "search default.svc.cluster.local svc.cluster.local\n", "nameserver 10.96.0.10\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the guest's page has no %q:\n%s", want, page)
		}
	}
	x.must(c.Stop())
	var answer struct {
		Status struct {
			ExitCode int `json:"exit_code"`
		}
	}
	x.must(x.CRI("ContainerStatus", map[string]string{"container_id": c.ID}, &answer))
	if text := log(); answer.Status.ExitCode != 0 || !strings.Contains(text, "guest: box has booted") || !strings.Contains(text, "guest: powering off") {
		t.Errorf("the launcher ended with %d:\n%s", answer.Status.ExitCode, text)
	}
	x.must(p.End())
	x.must(client.End())
	x.nothingLeft()
}
