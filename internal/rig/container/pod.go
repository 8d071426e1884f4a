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
	"github.com/guestwire/guestwire/internal/test/tutorial"
)

// PodImage is the name of the image of examples/kubernetes/vm, as its manifests have it.
const PodImage = "localhost/guestwire-vm:dev"

// KubernetesTutorial is the page that builds PodImage, and the image of guestwire-node.
const KubernetesTutorial = "docs/tutorials/kubernetes.md"

// onNode is the heading from which on KubernetesTutorial is typed on a node.
const onNode = "\n## 2. On the node\n"

// BuildImages types the first part of KubernetesTutorial, and returns the OCI archives that it builds, and what is left
// to type. The files are gone with the test.
func BuildImages(t testing.TB) (archives []string, rest string) {
	t.Helper()
	page := tutorial.Read(t, KubernetesTutorial)
	build, rest, ok := strings.Cut(page, onNode)
	if !ok {
		t.Fatalf("%s has no heading %q", KubernetesTutorial, onNode)
	}
	e := New(t, false)
	e.importQEMU(t)
	e.importGuest(t)
	tutorial.TypeAt(t, build, e.reader(t))
	dir := nstest.Dir(t)
	for _, name := range []string{"guestwire-node.tar", "guestwire-vm.tar"} {
		from, err := e.machine.Open(filepath.Join(nstest.Root(t), "bin", name))
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		to, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		if _, err := io.Copy(to, from); err != nil {
			t.Fatal(err)
		}
		archives = append(archives, to.Name())
	}
	return archives, rest
}

// PodGuest returns QEMU's arguments for the guest of PodImage, with that name. Its console is QEMU's standard output,
// and its web server is at port 8080.
func PodGuest(name string) []string {
	return []string{"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-machine", "q35", "-accel", "tcg,tb-size=64",
		"-cpu", "max", "-m", strconv.Itoa(vm.Memory), "-kernel", "/vm/kernel", "-initrd", "/vm/initramfs", "-append", "console=ttyS0 quiet no_timer_check hostname=" + name}
}

// importGuest makes the image localhost/debian-guest, of what the guest of PodImage is made from.
func (e *Engine) importGuest(t testing.TB) {
	t.Helper()
	guest := filepath.Join(nstest.Dir(t), "guest.tar")
	nstest.Run(t, "bash", "-c", packGuest, "guest", guest, unpacked.Path("busybox/bin/busybox"), unpacked.Path("kernel"))
	e.write(t, "/tmp/guest.tar", guest)
	e.MustPodman(t, "import --quiet /tmp/guest.tar localhost/debian-guest")
}

// packGuest writes an archive with the files from which the guest is made, at the places of Debian's packages. The
// kernel is the one that is unpacked already, as it boots 3 s sooner.
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
