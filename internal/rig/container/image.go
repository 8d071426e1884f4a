package container

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/tutorial"
)

// Image is the name of the image of examples/container.
const Image = "localhost/vm"

// Build builds Image by examples/container/Containerfile. In the place of the Containerfile's first stage, which takes
// packages from Debian's servers, is an image of this machine's QEMU and of the programs that the entry point calls.
func (e *Engine) Build(t testing.TB) {
	t.Helper()
	e.importQEMU(t)
	for _, file := range []string{"Containerfile", "vm"} {
		e.write(t, "/tmp/context/"+file, filepath.Join("../../../examples/container", file))
	}
	for _, program := range []string{"guestwire-agent", "guestwire-launcher"} {
		e.write(t, "/tmp/context/"+program, nstest.Program(t, "examples/"+program))
	}
	e.replaceStages(t, "/tmp/context/Containerfile")
	e.MustPodman(t, "build --quiet --tag "+Image+" /tmp/context")
}

// replaceStages puts images of this machine in the place of the stages that take packages from Debian's servers, which
// the machine does not reach: localhost/debian-qemu (importQEMU) and localhost/debian-guest.
func (e *Engine) replaceStages(t testing.TB, files string) {
	t.Helper()
	const stages = `sed -i '/^FROM docker.io/,/^$/{s,^FROM .* AS \(.*\),FROM localhost/\1 AS \1\n,p;d}' `
	if out, err := e.machine.Run(stages + files); err != nil {
		t.Fatal(err, out)
	}
}

// importQEMU makes the image localhost/debian-qemu, of this machine's QEMU.
func (e *Engine) importQEMU(t testing.TB) {
	t.Helper()
	base := filepath.Join(nstest.Dir(t), "base.tar")
	nstest.Run(t, "bash", "-c", packBase, "base", base, unpacked.Path("busybox/bin/busybox"))
	e.write(t, "/tmp/base.tar", base)
	e.MustPodman(t, "import --quiet /tmp/base.tar localhost/debian-qemu")
}

// reader returns the shells of a tutorial's reader: root on the machine, in a copy of the repository.
func (e *Engine) reader(t testing.TB) tutorial.Shells {
	t.Helper()
	root := nstest.Root(t)
	e.replaceStages(t, root+"/examples/container/Containerfile "+root+"/examples/kubernetes/vm/Containerfile")
	// podman cannot divide control groups here: see prepare.
	env := append(tutorial.Environment(t), "HOME=/root", "BUILDAH_ISOLATION=chroot")
	return func(script string) *exec.Cmd {
		cmd := e.machine.Command(t.Context(), "bash", "-c", "cd "+root+" && "+script)
		cmd.Env = env
		return cmd
	}
}

// packBase writes an archive with the files of QEMU's packages at the same places, and busybox in the place of Debian's
// other programs.
const packBase = `set -euo pipefail
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
mkdir -p "$root"/{bin,etc,dev,proc,sys,run,usr/bin,usr/local/bin}
mkdir -m 1777 "$root/tmp"
cp "$2" "$root/bin/busybox"
for program in sh awk cat ip mkdir nc sleep wget; do
	ln -s busybox "$root/bin/$program"
done
qemu=$(command -v qemu-system-x86_64)
{ echo "$qemu"; ldd "$qemu" | grep -o '/[^ ]*'; printf '%s\n' /usr/share/qemu /usr/share/seabios /usr/lib/ipxe /usr/lib/x86_64-linux-gnu/qemu; } |
	tar -chP -T - | tar -C "$root" -x --strip-components=0 --transform 's,^/,,'
tar -C "$root" -cf "$1" .`

// write copies a file to the machine.
func (e *Engine) write(t testing.TB, to, from string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.machine.Write(to, content); err != nil {
		t.Fatal(err)
	}
}

// Guest brings the files of a Linux guest to the machine, in /vm, and returns QEMU's arguments for it. The guest is one
// of package vm, with that name. Its console is at port 4444 of the container's loopback.
func (e *Engine) Guest(t testing.TB, name string) (arguments string) {
	t.Helper()
	boot, err := vm.NewDirectBoot(nstest.Dir(t), name)
	if err != nil {
		t.Fatal(err)
	}
	e.write(t, "/vm/kernel", boot.Kernel)
	e.write(t, "/vm/initramfs", boot.Initramfs)
	return fmt.Sprintf("-nodefaults -no-user-config -no-reboot -display none -machine q35 -accel tcg,thread=multi -m %d"+
		" -serial tcp:127.0.0.1:4444,server=on,wait=off -kernel /vm/kernel -initrd /vm/initramfs -append '%s'", vm.Memory, boot.CommandLine)
}
