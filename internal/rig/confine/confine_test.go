package confine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// vmm makes this program a VMM: it opens the tap with this name, and is the tap of a guest at its standard input, until
// that ends. Each packet of that socket is a frame.
const vmm = "GUESTWIRE_CONFINE_VMM"

// emulation is how long an emulated machine runs at most.
const emulation = 15 * time.Minute

func TestMain(m *testing.M) {
	if name := os.Getenv(vmm); name != "" {
		if err := beVMM(name); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(probe) != "" {
		beProbe()
		os.Exit(0)
	}
	leak.Allow(emulation)
	nstest.Main(m)
}

func beVMM(name string) error {
	port, err := tap.Open(name)
	if err != nil {
		return err
	}
	defer port.Close()
	go copyFrames(os.Stdin, port)
	copyFrames(port, os.Stdin)
	return nil
}

// copyFrames passes frames on until one of the files ends.
func copyFrames(to, from *os.File) {
	frame := make([]byte, 1<<16)
	for {
		n, err := from.Read(frame)
		if err == nil {
			_, err = to.Write(frame[:n])
		}
		if err != nil && !errors.Is(err, unix.EIO) { // a link that is down
			return
		}
	}
}

// inStockKernel runs the test that calls it under Debian's kernel with the arguments, as this package's test binary
// with further variables, and returns true there. In this process it returns false, after that run.
func inStockKernel(t *testing.T, arguments string, variables ...string) bool {
	t.Helper()
	if nstest.Emulated {
		return true
	}
	nstest.Need(t)
	nstest.NeedRoot(t, "the stock kernel's machine needs all files of this one")
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		nstest.Skip(t, "no qemu-system-x86_64: make install")
	}
	if _, err := os.Stat(unpacked.Path("kernel")); err != nil {
		nstest.Skip(t, "no stock kernel: make install")
	}
	programs := filepath.Dir(nstest.Program(t, "examples/guestwire-agent"))
	nstest.Program(t, "examples/guestwire-launcher")
	stockkernel := nstest.Program(t, "internal/rig/stockkernel")
	binary := filepath.Join(nstest.Dir(t), "confine.test")
	build := exec.Command("go", "test", "-c", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // without -race: the machine there is slow
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	args := []string{"-timeout", "6m", "-append", arguments}
	for _, v := range append(variables, "GUESTWIRE_BIN="+programs, "GUESTWIRE_SANDBOX=") {
		args = append(args, "-env", v)
	}
	out, err := exec.Command(stockkernel, append(args, "--", binary, "-test.v", "-test.run", "^"+t.Name()+"$")...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("under the stock kernel: %v\n%s", err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
	return false
}

// tool is the path of a program that install.sh has unpacked, with the libraries that it needs.
func tool(t *testing.T, path string, args ...string) *exec.Cmd {
	t.Helper()
	root := unpacked.Path("confine")
	if _, err := os.Stat(filepath.Join(root, path)); err != nil {
		nstest.Skip(t, err.Error()+": make install")
	}
	cmd := exec.Command(filepath.Join(root, path), args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+root+"/usr/lib/x86_64-linux-gnu:"+root+"/lib/x86_64-linux-gnu")
	return cmd
}

// unprivileged are the words that run a command in the pod as the launcher's user without capabilities, after a shell
// command.
func unprivileged(n nstest.Network, first string, args ...string) []string {
	uid := strconv.Itoa(nstest.LauncherUID)
	return append([]string{"nsenter", "--net=" + n.Pod.Path(), "sh", "-c", first + ` && exec "$@"`, "sh", "setpriv", "--reuid", uid, "--regid", uid,
		"--clear-groups", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs", "--pdeathsig", "KILL", "--"}, args...)
}

// output runs a command.
func output(args ...string) (string, error) {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	return string(out), err
}

// copyOfSelf is this program where every user can run it.
func copyOfSelf(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(nstest.Dir(t), "confine")
	nstest.Run(t, "cp", self, path)
	return path
}

// startGuest runs a copy of this program as a VMM, by the words of unprivileged, and configures a guest at its tap. It
// returns what the VMM says, and the guest's addresses.
func startGuest(n nstest.Network, first, self string, r cache.Record) (string, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(ends[0], true)
	}
	if err != nil {
		return "", err
	}
	port, stdin := os.NewFile(uintptr(ends[0]), "guest"), os.NewFile(uintptr(ends[1]), "VMM")
	words := unprivileged(n, first, self)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), vmm+"="+r.Tap)
	var out nstest.Output
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &out
	runtime.LockOSThread() // for setpriv's --pdeathsig: see start
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	stdin.Close()
	if err != nil {
		port.Close()
		return "", err
	}
	g, err := guest.Start(guest.Config{Port: port, MAC: r.MAC})
	if err != nil {
		port.Close()
		return "", errors.Join(err, cmd.Wait())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := g.Configure(ctx, guest.Families{IPv4: true, IPv6: true})
	if err == nil {
		fmt.Fprintf(&out, "guest has %v and %v\n", c.IPv4.Address, c.IPv6.Address)
	}
	err = errors.Join(err, g.Close(), cmd.Wait())
	return out.String(), err
}

// process is a program that runs until stop, or until the test ends.
type process struct {
	*exec.Cmd
	Output  nstest.Output
	ended   chan error
	stopped bool
}

func start(t *testing.T, words []string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(words[0], words[1:]...), ended: make(chan error, 1)}
	p.Stdout, p.Stderr = &p.Output, &p.Output
	started := make(chan error)
	go func() {
		// setpriv's --pdeathsig is sent when the thread ends that has started the program, so this one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.Start()
		started <- err
		if err == nil {
			p.ended <- p.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop(t) })
	return p
}

// stop ends the program by SIGTERM; it has to succeed.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if p.stopped {
		return
	}
	p.stopped = true
	if err := p.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	if err := <-p.ended; err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(p.Args, " "), err, p.Output.String())
	}
}
