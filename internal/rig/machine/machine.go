// Package machine copies this machine for a test: its files, with Debian packages as well, and processes of its own.
package machine

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// Machine is a copy of this one on the links of a namespace: what programs write to files, the
// host's name, and the processes that they leave, are gone with the test.
type Machine struct {
	pid int // of its first process
}

// New makes one in which Debian packages are unpacked too: directories of the cache that the
// install.sh fill. The test is skipped if one is missing, or if the kernel has no overlay.
func New(t testing.TB, n *nstest.Namespace, packages ...string) *Machine {
	t.Helper()
	return create(t, n, "/", packages)
}

// NewDebian13 makes a machine with the files that guests/debian13.sh has unpacked. Of this machine it has the kernel
// alone.
func NewDebian13(t testing.TB, n *nstest.Namespace) *Machine {
	t.Helper()
	root := unpacked.Path("debian13")
	if _, err := os.Stat(root); err != nil {
		nstest.Skip(t, "no "+root+": make install")
	}
	return create(t, n, root, nil)
}

func create(t testing.TB, n *nstest.Namespace, root string, packages []string) *Machine {
	t.Helper()
	nstest.NeedRoot(t, "a copy of the machine has files of several users")
	// It is a module in some kernels.
	_ = exec.Command("modprobe", "-q", "overlay").Run()
	if filesystems, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(filesystems), "\toverlay\n") {
		nstest.Skip(t, "no overlay in this kernel")
	}
	args := []string{"--net=" + n.Path(), "/bin/sh", "-c", createMachine, "machine", root}
	for _, p := range packages {
		dir := unpacked.Path(p)
		if _, err := os.Stat(dir); err != nil {
			nstest.Skip(t, "no "+dir+": make install")
		}
		args = append(args, dir)
	}
	cmd := exec.Command("nsenter", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS}
	StartReady(t, "machine", cmd)
	return &Machine{cmd.Process.Pid}
}

// StartReady starts a command and waits until it prints "ready". The command has to end when its standard input
// closes: that happens at the end of the test, and when the test process is killed. What names the command in
// errors.
func StartReady(t testing.TB, what string, cmd *exec.Cmd) {
	t.Helper()
	var complaints nstest.Output
	cmd.Stderr = &complaints
	life, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Cleanup(func() {
		life.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", what, err, complaints.String())
		}
	})
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%s: %q, %v\n%s", what, line, err, complaints.String())
	}
}

// createMachine makes a root of its own of the first argument, with the packages of the others. It is called localhost,
// as clients leave another name alone, and has no DNS. Its /host is the directory for the temporary files of this one.
const createMachine = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 machine /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir="$1",upperdir=/mnt/upper,workdir=/mnt/work machine /mnt/root
cd /mnt/root
shift
for package; do
	tar -C "$package" -c . | tar -x --keep-directory-symlink
done
mount --rbind /dev dev
mount -t proc machine proc
mount -t sysfs machine sys
mount -t tmpfs -o mode=755 machine run
mkdir host
mount --bind "${TMPDIR:-/tmp}" host
: >etc/resolv.conf
hostname localhost
pivot_root . mnt
umount -l mnt
echo ready
exec cat`

// Run runs a shell's command in the machine and returns what it printed, to either output.
func (m *Machine) Run(command string) (string, error) { return m.run(nil, command) }

// Command returns a command that runs a program in the machine.
func (m *Machine) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(m.pid), "--mount", "--uts", "--net", "--pid", program}, args...)...)
}

// Write makes a file that can be executed.
func (m *Machine) Write(path string, content []byte) error {
	_, err := m.run(bytes.NewReader(content), "mkdir -p $(dirname "+path+") && cat >"+path+" && chmod 755 "+path)
	return err
}

// Open opens a file of the machine.
func (m *Machine) Open(path string) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/%d/root%s", m.pid, path))
}

// Adopt returns the network namespace of a process of the machine, for as long as the test. The number is the process's
// in the machine.
func (m *Machine) Adopt(t testing.TB, name string, pid int) *nstest.Namespace {
	t.Helper()
	return nstest.Adopt(t, name, fmt.Sprintf("/proc/%d/root/proc/%d/ns/net", m.pid, pid))
}

func (m *Machine) run(in io.Reader, command string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := m.Command(ctx, "/bin/sh", "-c", command)
	cmd.WaitDelay = time.Second
	cmd.Stdin = in
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return string(out), err
}
