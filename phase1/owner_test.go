package phase1_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestVhost: a network device by vhost needs /dev/vhost-net, and an owner who can open it: Setup says so before it
// changes anything. The devices are files of a /dev of the agent's own.
func TestVhost(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	nstest.NeedRoot(t, "the owner is another user")
	n := nstest.NewNetwork(t)
	n.NeedTaps()
	before := settled(t, n)
	configuration := filepath.Join(nstest.Dir(t), "vm1.json")
	ownedBy := func(owner string) {
		writeFile(t, configuration, `{"binding": {"redirect": {}}, "owner": `+owner+`, "device": {"driver": "vhost"}, "state": "`+n.State+`"}`)
	}
	// run has the guestwire-agent plan or set up where the shell commands have made a /dev/vhost-net.
	run := func(verb, device string) (string, error) {
		const prepare = `set -e
			mount -t tmpfs dev /mnt
			mkdir /mnt/net
			mount --bind /dev/net /mnt/net
			for f in null urandom; do : >/mnt/$f; mount --bind /dev/$f /mnt/$f; done
			mount --rbind /mnt /dev
			eval "$1"
			shift
			exec "$@"`
		out, err := exec.Command("unshare", "-m", "sh", "-c", prepare, "sh", device,
			nstest.Program(t, "examples/guestwire-agent"), verb, "-netns", n.Pod.Path(), "-nic", "eth0", "-config", configuration).CombinedOutput()
		return string(out), err
	}
	granted := filepath.Join(nstest.Dir(t), "vhost-net") // to a user, by its access control list
	nstest.Run(t, "mknod", "-m", "600", granted, "c", "10", "238")
	nstest.Grant(t, granted, 107)
	const inGroup = `{"uid": 107, "gid": 36}`
	for _, c := range []struct{ owner, device, want string }{
		{inGroup, "", "device.driver vhost: stat /dev/vhost-net: no such file or directory: want the device of vhost (modprobe vhost_net; in a container, --device /dev/vhost-net); or device.driver qemu"},
		{inGroup, "mknod /dev/vhost-net c 10 238; chmod 600 /dev/vhost-net",
			"owner: permission denied: user 107, group 36 cannot open /dev/vhost-net (mode 0600, owner 0:0), so the launcher could not start the VM with vhost: chmod 0666 /dev/vhost-net; or device.driver qemu"},
		{`{"uid": 108}`, "cp -a " + granted + " /dev", "user 108 (no group named) cannot open /dev/vhost-net (mode 0660, owner 0:0)"},
		{`{"uid": 107}`, "mknod /dev/vhost-net c 10 238; chmod 660 /dev/vhost-net", "owner: permission denied: user 107 (no group named) cannot open /dev/vhost-net (mode 0660, owner 0:0)"},
		{inGroup, ": >/dev/vhost-net", "device.driver vhost: /dev/vhost-net is a regular file: no such device: rm -d /dev/vhost-net; mknod -m 666 /dev/vhost-net c 10 238 ("},
		{inGroup, "mount -t tmpfs net /dev/net; mkdir /dev/net/tun", "taps: /dev/net/tun is a directory: no such device: rm -d /dev/net/tun; mknod -m 666 /dev/net/tun c 10 200 ("},
		{inGroup, "mount -t tmpfs net /dev/net; mknod -m 666 /dev/net/tun c 1 3", "taps: /dev/net/tun is another device: no such device: rm -d /dev/net/tun"},
	} {
		ownedBy(c.owner)
		for _, verb := range []string{"plan", "setup"} {
			if out, err := run(verb, c.device); err == nil || !strings.Contains(out, c.want) {
				t.Errorf("%s for %s with %q: %v, %s; want %s", verb, c.owner, c.device, err, out, c.want)
			}
		}
	}
	ownedBy(inGroup)
	asFound(t, n, before)
	if left := journals(t, n); len(left) > 0 {
		t.Errorf("the refused setups leave %v", left)
	}
	ownedBy(`{"uid": 107, "ownDevices": true}`) // its devices are elsewhere
	if out, err := run("setup", ""); err != nil {
		t.Errorf("setup for an owner with devices of its own: %v, %s", err, out)
	}
	teardown(t, n, config(n, nil), before)
	ownedBy(inGroup)
	for _, device := range []string{"mknod /dev/vhost-net c 10 238; chmod 666 /dev/vhost-net", "mknod /dev/vhost-net c 10 238; chmod 660 /dev/vhost-net; chgrp 36 /dev/vhost-net", "cp -a " + granted + " /dev",
		"mkdir /dev/vhost-net; rm -d /dev/vhost-net; mknod -m 666 /dev/vhost-net c 10 238"} {
		if out, err := run("setup", device); err != nil {
			t.Errorf("setup with %q: %v, %s", device, err, out)
		}
	}
	teardown(t, n, config(n, nil), before)
}
