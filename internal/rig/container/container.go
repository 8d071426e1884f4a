// Package container runs podman for tests, rootful and rootless, and makes the image of examples/container. install.sh
// unpacks podman; nothing is installed.
package container

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// Engine is a podman on a copy of this machine. Containers, images and processes are gone with the test.
type Engine struct {
	// Host is the network namespace in which published ports are.
	Host *nstest.Namespace

	machine  *machine.Machine
	command  string // the command line up to podman's own arguments
	rootless bool
	guest    string
}

// user runs rootless podman, with the subordinate ids 100000 to 165535.
const user = 5000

// New starts an Engine in a new network namespace. The test is skipped if podman is not unpacked.
func New(t testing.TB, rootless bool) *Engine {
	t.Helper()
	nstest.Need(t)
	nstest.NeedTaps(t)
	return NewIn(t, nstest.New(t, "host"), rootless)
}

// NewIn starts an Engine in a network namespace.
func NewIn(t testing.TB, host *nstest.Namespace, rootless bool) *Engine {
	t.Helper()
	e := &Engine{Host: host, rootless: rootless}
	e.machine = machine.New(t, e.Host, "podman")
	if out, err := e.machine.Run(fmt.Sprintf(prepare, user, nstest.Root(t))); err != nil {
		t.Fatalf("podman's machine: %v\n%s", err, out)
	}
	e.command = "cd / && exec env -i PATH=/usr/sbin:/usr/bin HOME=/root podman"
	if rootless {
		e.command = fmt.Sprintf("cd / && exec setpriv --reuid %[1]d --regid %[1]d --clear-groups --inh-caps=-all"+
			" env -i PATH=/usr/sbin:/usr/bin HOME=/home/vm USER=vm XDG_RUNTIME_DIR=/run/user/%[1]d podman --storage-driver overlay", user)
	}
	return e
}

// prepare makes of the machine what podman needs. podman's storage is an overlay, which does not lie on the machine's
// own overlay, so its directories are on a tmpfs. podman works without control groups, as not every machine's can be
// divided, and with limits that need no CAP_SYS_RESOURCE.
const prepare = `set -e
mount --make-rshared /
mkdir /clone
mount --bind %[2]s /clone # which may lie below /tmp
for dir in /home /var/lib/containers; do
	mkdir -p $dir
	mount -t tmpfs -o mode=755 machine $dir
done
for dir in /tmp /var/tmp /dev/shm; do
	mount -t tmpfs -o mode=1777 machine $dir
done
mkdir -p %[2]s
mount --bind /clone %[2]s
umount /clone
mount -t cgroup2 machine /sys/fs/cgroup
echo vm:x:%[1]d:%[1]d::/home/vm:/bin/sh >>/etc/passwd
echo vm:x:%[1]d: >>/etc/group
echo vm:100000:65536 | tee /etc/subuid >/etc/subgid
install -d -o %[1]d -g %[1]d -m 700 /home/vm /run/user/%[1]d
cat >/etc/containers/containers.conf <<-END
	[containers]
	cgroups = "disabled"
	default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
	[engine]
	cgroup_manager = "cgroupfs"
	events_logger = "file"
END`

// Podman runs podman with a line of words, as a shell reads it, and returns what it printed to either output.
func (e *Engine) Podman(line string) (string, error) {
	out, err := e.machine.Run(e.command + " " + line)
	return strings.TrimSpace(out), err
}

// MustPodman is Podman for what has to succeed.
func (e *Engine) MustPodman(t testing.TB, line string) string {
	t.Helper()
	out, err := e.Podman(line)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Namespace returns the network namespace of a container, for as long as the test.
func (e *Engine) Namespace(t testing.TB, container string) *nstest.Namespace {
	t.Helper()
	pid, err := strconv.Atoi(e.MustPodman(t, "inspect --format '{{.State.Pid}}' "+container))
	if err != nil {
		t.Fatal(err)
	}
	return e.machine.Adopt(t, container, pid)
}
