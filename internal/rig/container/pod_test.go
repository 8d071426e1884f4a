package container

import (
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

// TestPod: the image of examples/kubernetes/vm in a pod under the settings of Pod Security "restricted", as a CNI plugin and
// an engine would make it: the pod's network is wired before the container starts, and the container has the records read
// only, /dev/net/tun, and nothing else.
func TestPod(t *testing.T) {
	e := New(t, false)
	e.BuildPod(t)
	e.write(t, "/usr/local/bin/agent", nstest.Program(t, "examples/agent"))
	e.MustPodman(t, "network create --disable-dns --subnet 10.89.8.0/24 pods")
	e.MustPodman(t, "run --detach --name pause --network pods --ip 10.89.8.8 --user 0 --entrypoint sleep"+
		" --dns 10.96.0.10 --dns-search default.svc.cluster.local --dns-search svc.cluster.local --dns-option ndots:5 "+PodImage+" inf")
	pid := e.MustPodman(t, "inspect --format '{{.State.Pid}}' pause")
	if out, err := e.machine.Run("mkdir /run/guestwire && agent setup -netns /proc/" + pid + "/ns/net -nic eth0 -binding redirect -uid 107 -state /run/guestwire/pod"); err != nil {
		t.Fatal(err, out)
	}
	e.MustPodman(t, "run --detach --name vm --network container:pause --user 107:107 --cap-drop all --security-opt no-new-privileges"+
		" --read-only --read-only-tmpfs=false --device /dev/net/tun --volume /run/guestwire/pod:/run/guestwire:ro "+PodImage+
		" qemu -state /run/guestwire -shutdown 50s -- qemu-system-x86_64 -nodefaults -no-user-config -display none -serial stdio"+
		" -machine q35 -accel tcg,tb-size=64 -cpu max -m 192 -kernel /vm/kernel -initrd /vm/initramfs -append 'console=ttyS0 quiet hostname=box'")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.Podman("logs vm"))
		}
	})
	var page string
	nstest.Eventually(t, func() (err error) {
		page, err = e.Host.Get("http://10.89.8.8:8080/")
		return err
	})
	for _, want := range []string{
		"guest box\n", "client 10.89.8.1\n", "eth0 10.89.8.8/24\n", "default via 10.89.8.1 dev eth0",
		"search default.svc.cluster.local svc.cluster.local\n", "nameserver 10.96.0.10\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the guest's page has no %q:\n%s", want, page)
		}
	}
	begin := time.Now()
	e.MustPodman(t, "stop --time 60 vm")
	if code := e.MustPodman(t, "inspect --format '{{.State.ExitCode}}' vm"); code != "0" || time.Since(begin) > 40*time.Second {
		t.Errorf("ended with %s after %v, want 0 after a shutdown", code, time.Since(begin))
	}
	if log := e.MustPodman(t, "logs vm"); !strings.Contains(log, "guest: powering off") || !strings.Contains(log, "guest: box has booted") {
		t.Errorf("%s\nwant the guest's boot and end", log)
	}
}
