package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// vms is the namespace of the manifests of examples/kubernetes/vm.
const vms = "vms"

// testVM applies the manifests of examples/kubernetes/vm, one after another: a Deployment with Linux in QEMU, which
// goes from one binding to the next by rolling updates. The engine has the image since testTutorial. The kubelet's
// probes reach the guest, or no update would end.
func (c *Cluster) testVM(t *testing.T) {
	before := c.leftovers(t)
	t.Run("manifests", func(t *testing.T) {
		t.Cleanup(func() { c.Kubectl(t, "", "delete", "namespace", vms, "--timeout="+patience.String()) })
		began := time.Now()
		c.manifests(t, "base")
		name := c.updated(t)
		c.took("Linux in QEMU is created as a Deployment, until its readiness probe is answered", began)
		t.Cleanup(func() {
			if t.Failed() {
				out, err := c.TryKubectl("", "describe", "--namespace="+vms, "pods")
				t.Log(out, err)
			}
		})
		c.apply(t, vms, idle("client"))
		c.Kubectl(t, "", "label", "--namespace="+vms, "pod", "client", "vm-client=true")

		if level := c.Kubectl(t, "", "get", "namespace", vms, `--output=jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}`); level != "restricted" {
			t.Errorf("Pod Security's level is %q", level)
		}
		p := c.pod(t, vms, name)
		c.page(t, name, fmt.Sprintf("client %v\n", c.pod(t, vms, "client").address), fmt.Sprintf("eth0 %v/24\n", p.address),
			"search vms.svc.cluster.local svc.cluster.local cluster.local\n", "nameserver 10.96.0.10\n")
		c.console(t, "echo answer-$((40 + 2))", "answer-42")
		// The kubelet starts the container again, in the pod that is wired already.
		c.Kubectl(t, "", "exec", "--namespace="+vms, name, "--", "busybox", "killall", "-KILL", "qemu-system-x86_64")
		c.wait(t, vms, "jsonpath={.status.containerStatuses[0].restartCount}=1", "pod/"+name)
		c.page(t, name, fmt.Sprintf("eth0 %v/24\n", p.address))
		log := c.follow(t, name)

		c.manifests(t, "overlays/masquerade")
		name = c.updated(t)
		if text := log(); !strings.Contains(text, "guest: powering off") {
			t.Errorf("the guest of the first pod was not shut down:\n%s", text)
		}
		c.page(t, name, "eth0 10.0.2.2/24\n")
		c.forward(t)

		c.manifests(t, "overlays/user-namespace")
		name = c.updated(t)
		c.page(t, name)
		if out := c.Kubectl(t, "", "exec", "--namespace="+vms, name, "--", "cat", "/proc/self/uid_map"); strings.Fields(out)[1] == "0" {
			t.Errorf("the pod has the node's users: %s", out)
		}

		// A node with NRI runs such a pod as well.
		c.manifests(t, "overlays/without-nri")
		name = c.updated(t)
		c.page(t, name)

		if _, err := os.Stat(c.Path("/dev/kvm")); err == nil {
			c.manifests(t, "overlays/kvm")
			c.page(t, c.updated(t))
		} else {
			c.manifests(t, "overlays/kvm")
			c.event(t, vms, c.newest(t), "the node has no /dev/kvm")
		}
		// TestVM of package node has two networks. Multus cannot be had here.
		for overlay, want := range map[string]string{"two-networks": "guestwire/nic.eth1: redirect", "multus": "kind: NetworkAttachmentDefinition"} {
			if text := c.Kubectl(t, "", "kustomize", directory(t, "overlays/"+overlay)); !strings.Contains(text, want) {
				t.Errorf("%s has no %q:\n%s", overlay, want, text)
			}
		}
	})
	c.gone(t, before)
}

// directory is that of an overlay of examples/kubernetes/vm.
func directory(t testing.TB, overlay string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../../examples/kubernetes/vm", overlay))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// manifests applies an overlay of examples/kubernetes/vm.
func (c *Cluster) manifests(t testing.TB, overlay string) {
	t.Helper()
	c.Kubectl(t, "", "apply", "--kustomize", directory(t, overlay))
}

// newest returns the name of the newest of the VM's pods, once the Deployment has made it.
func (c *Cluster) newest(t testing.TB) string {
	t.Helper()
	const last = "--output=jsonpath={.items[-1:].metadata.name}"
	var name string
	nstest.Eventually(t, func() error {
		generation := c.Kubectl(t, "", "get", "--namespace="+vms, "deployment", "vm",
			`--output=jsonpath={.metadata.generation}={.status.observedGeneration} {.metadata.annotations.deployment\.kubernetes\.io/revision}`)
		words := strings.Fields(generation)
		if made, seen, _ := strings.Cut(words[0], "="); made != seen || len(words) < 2 {
			return fmt.Errorf("the Deployment is not followed: %q", generation)
		}
		set := c.Kubectl(t, "", "get", "--namespace="+vms, "replicasets", `--sort-by=.metadata.annotations.deployment\.kubernetes\.io/revision`,
			"--output=jsonpath={.items[-1:].metadata.labels.pod-template-hash}")
		if name = c.Kubectl(t, "", "get", "--namespace="+vms, "pods", "--selector=pod-template-hash="+set, "--sort-by=.metadata.creationTimestamp", last); name == "" {
			return fmt.Errorf("no pod of revision %s", words[1])
		}
		return nil
	})
	return name
}

// updated waits until the Deployment has only pods as it wants them, and returns the name of its pod.
func (c *Cluster) updated(t testing.TB) string {
	t.Helper()
	c.Kubectl(t, "", "rollout", "status", "--namespace="+vms, "deployment/vm", "--timeout="+patience.String())
	return c.newest(t)
}

// page waits until the guest of a pod answers another pod at the Service's address, and wants parts of its page.
func (c *Cluster) page(t testing.TB, pod string, want ...string) {
	t.Helper()
	client, address := c.pod(t, vms, "client"), c.service(t, vms, "vm")
	var page string
	nstest.Eventually(t, func() (err error) {
		page, err = client.Get(fmt.Sprintf("http://%v/", address))
		if err == nil && !strings.HasPrefix(page, "guest "+pod+"\n") { // of the pod before the update
			err = fmt.Errorf("want the guest of %s:\n%s", pod, page)
		}
		return err
	})
	for _, part := range want {
		if !strings.Contains(page, part) {
			t.Errorf("the page has no %q:\n%s", part, page)
		}
	}
}

// follow returns a function that waits for a pod's end, and returns its log.
func (c *Cluster) follow(t testing.TB, pod string) func() string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	log := make(chan string, 1)
	go func() {
		out, err := c.kubectl(ctx, "", "logs", "--follow", "--namespace="+vms, "pod/"+pod).CombinedOutput()
		log <- fmt.Sprintf("%s%v", out, err)
	}()
	return func() string { return <-log }
}

// console types a line at the guest's console, and waits for its output, which is in the pod's log as well.
func (c *Cluster) console(t testing.TB, line, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := c.Command(ctx, "script", "--quiet", "--command",
		strings.Join([]string{Programs + "/kubectl", "--kubeconfig=" + dir + "/admin.conf", "attach", "--stdin", "--tty", "--namespace=" + vms, "deployment/vm"}, " "), "/dev/null")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cancel()
	nstest.Eventually(t, func() error {
		// What is typed before kubectl is attached is lost.
		if _, err := fmt.Fprintf(in, "%s\n", line); err != nil {
			t.Fatal(err)
		}
		if log := c.Kubectl(t, "", "logs", "--namespace="+vms, "deployment/vm"); !strings.Contains(log, want) {
			return fmt.Errorf("no %q in\n%s", want, log)
		}
		return nil
	})
}

// forward reaches the guest from the node by kubectl port-forward, which connects to the pod's loopback.
func (c *Cluster) forward(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := c.kubectl(ctx, "", "port-forward", "--namespace="+vms, "deployment/vm", "18080:8080")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cancel()
	nstest.Eventually(t, func() error {
		page, err := c.Network(t).Get("http://127.0.0.1:18080/")
		if err == nil && !strings.HasPrefix(page, "guest ") {
			err = fmt.Errorf("the port answers %q", page)
		}
		return err
	})
}
