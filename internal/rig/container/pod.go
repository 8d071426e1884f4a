package container

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// PodImage is the name of the image of examples/kubernetes/vm, as its manifests have it.
const PodImage = "localhost/guestwire-vm:dev"

// ExportPodImage builds PodImage by podman, and returns the file of an OCI archive for "ctr images import". The file is gone
// with the test.
func ExportPodImage(t testing.TB) (archive string) {
	t.Helper()
	e := New(t, false)
	e.buildPod(t)
	e.MustPodman(t, "save --quiet --format oci-archive --output /tmp/vm.tar "+PodImage)
	from, err := e.machine.Open("/tmp/vm.tar")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	archive = filepath.Join(nstest.Dir(t), "vm.tar")
	to, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	return archive
}

// PodGuest returns QEMU's arguments for the guest of PodImage, with that name. Its console is QEMU's standard output, and
// its web server is at port 8080.
func PodGuest(name string) []string {
	return []string{"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-machine", "q35", "-accel", "tcg,tb-size=64",
		"-cpu", "max", "-m", strconv.Itoa(vm.Memory), "-kernel", "/vm/kernel", "-initrd", "/vm/initramfs", "-append", "console=ttyS0 quiet hostname=" + name}
}

// buildPod builds PodImage by examples/kubernetes/vm/Containerfile. In the place of the stages that take packages from
// Debian's servers are this machine's QEMU, and the kernel and busybox that install.sh has unpacked.
func (e *Engine) buildPod(t testing.TB) {
	t.Helper()
	e.importBase(t)
	guest := filepath.Join(nstest.Dir(t), "guest.tar")
	nstest.Run(t, "bash", "-c", packGuest, "guest", guest, unpacked.Path("busybox/bin/busybox"), unpacked.Path("kernel"))
	e.write(t, "/tmp/guest.tar", guest)
	e.MustPodman(t, "import --quiet /tmp/guest.tar localhost/guest")

	context := filepath.Join(nstest.Root(t), "examples/kubernetes/vm")
	err := filepath.WalkDir(context, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		e.write(t, "/tmp/pod"+strings.TrimPrefix(path, context), path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	e.write(t, "/tmp/pod/launcher", nstest.Program(t, "examples/launcher"))
	e.MustPodman(t, "build --quiet --isolation chroot --build-arg BASE=localhost/base --build-arg GUEST=localhost/guest --tag "+PodImage+" /tmp/pod")
}

// packGuest writes an archive with the files from which the guest is made, at the places of Debian's packages. The kernel is
// the one that is unpacked already, as it boots 3 s sooner.
const packGuest = `set -euo pipefail
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
mkdir -p "$root"/{bin,dev,proc,sys,kernel/boot}
mkdir -m 1777 "$root/tmp"
cp "$2" "$root/bin/busybox"
for program in $("$2" --list); do
	[ "$program" = busybox ] || ln -s busybox "$root/bin/$program"
done
version=$(ls "$3/lib/modules")
cp "$3/boot/vmlinux-$version" "$root/kernel/boot/vmlinuz-$version"
cd "$3"
for file in lib/modules/*/modules.dep $(find lib/modules -name 'virtio*.ko' -o -name '*failover.ko' -o -name button.ko -o -name evdev.ko); do
	mkdir -p "$root/kernel/$(dirname "$file")"
	cp "$file" "$root/kernel/$file"
done
tar -C "$root" -cf "$1" .`
