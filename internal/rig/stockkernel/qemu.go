package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// machine is the virtual one.
type machine struct {
	cpus      int
	memory    int    // MiB
	arguments string // for the kernel, in addition to its own
	functions bool   // has an IOMMU, and a card with virtual functions
	verbose   bool
}

// card is the MAC of the machine's network card, which is connected to nothing. The command knows it
// from the environment, and may do with the card what it likes.
const card = "02:63:61:72:64:00"

// wired are the MACs of two further cards, which a hub connects to each other. The command knows them from the
// environment too.
var wired = [2]string{"02:77:69:72:65:01", "02:77:69:72:65:02"}

// functions is the MAC of the card with virtual functions, an Intel 82576. The hub connects it to the two wired ones.
const functions = "02:66:75:6e:63:00"

// program returns QEMU, and the arguments that only some machines have. Virtual functions came with QEMU 8: that of
// Debian's backports, which has the firmware elsewhere.
func (m machine) program() (path string, args []string) {
	if !m.functions {
		return "qemu-system-x86_64", nil
	}
	return unpacked.Path("qemu/usr/bin/qemu-system-x86_64"), []string{
		"-L", "/usr/share/seabios", "-device", "intel-iommu,intremap=on", "-device", "pcie-root-port,id=functions,chassis=1",
		"-netdev", "hubport,id=functions,hubid=0", "-device", "igb,bus=functions,romfile=,netdev=functions,mac=" + functions,
	}
}

// bootTimeout is far beyond the few seconds that a boot takes on two idle cores.
const bootTimeout = 3 * time.Minute

// run boots k, has it do t, and returns the exit status of t's command.
func (m machine) run(outer context.Context, k kernel, t task) (status int, err error) {
	began := time.Now()
	initramfs, err := k.archive(t)
	if err != nil {
		return 0, fmt.Errorf("initramfs: %w", err)
	}
	// QEMU opens the descriptors again by /dev/fd. An unlinked file serves as well as a named
	// one, and does not have to be removed.
	initrd, err := os.CreateTemp("", "stockkernel")
	if err != nil {
		return 0, err
	}
	defer initrd.Close()
	if err := os.Remove(initrd.Name()); err != nil {
		return 0, err
	}
	if _, err := initrd.Write(initramfs); err != nil {
		return 0, fmt.Errorf("initramfs: %w", err)
	}
	channel, channelEnd, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer channel.Close()
	defer channelEnd.Close()

	console := &console{}
	if m.verbose {
		console.show = os.Stderr
	}
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	// One thread for all CPUs: with a thread for each, QEMU 7.2 may translate code while another CPU patches it, and go on
	// with the half of it for ever. The kernel patches itself whenever the first chain of a hook comes and the last one
	// goes.
	// no_timer_check: on a busy machine the kernel waits too short for its timer's interrupts, and panics.
	program, more := m.program()
	qemu := exec.CommandContext(ctx, program, append(more,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max",
		"-smp", strconv.Itoa(m.cpus), "-m", strconv.Itoa(m.memory),
		"-kernel", k.image, "-initrd", "/dev/fd/3", "-append", strings.TrimSpace("console=ttyS0 panic=-1 no_timer_check "+m.arguments),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", "file,id=channel,path=/dev/fd/4", "-device", "virtserialport,chardev=channel",
		"-device", "e1000e,romfile=,mac="+card,
		"-netdev", "hubport,id=wired0,hubid=0", "-device", "virtio-net-pci,romfile=,netdev=wired0,mac="+wired[0],
		"-netdev", "hubport,id=wired1,hubid=0", "-device", "virtio-net-pci,romfile=,netdev=wired1,mac="+wired[1],
		"-virtfs", "local,path=/,mount_tag="+mountTag+",security_model=none,readonly=on,multidevs=remap")...)
	qemu.ExtraFiles = []*os.File{initrd, channelEnd}
	qemu.Stdout, qemu.Stderr = console, console
	qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	fmt.Fprintf(os.Stderr, "stockkernel: booting %s\n", k.image)
	if err := qemu.Start(); err != nil {
		return 0, err
	}
	channelEnd.Close()

	tooSlow := time.AfterFunc(bootTimeout, func() {
		cancel(fmt.Errorf("no sign of life within %v", bootTimeout))
	})
	booted := false
	result, readErr := receive(channel, func(release []byte) {
		tooSlow.Stop()
		booted = true
		fmt.Fprintf(os.Stderr, "stockkernel: %s is up after %.1f s, running %s\n",
			release, time.Since(began).Seconds(), t.Args[0])
	})
	tooSlow.Stop()
	if readErr != nil {
		// QEMU has closed the channel, and with it has ended or is about to.
		waitErr := qemu.Wait()
		if cause := context.Cause(outer); cause != nil {
			return 0, fmt.Errorf("%s: %w; the end of the kernel's console:\n%s", t.Args[0], cause, console.tail())
		}
		cause := context.Cause(ctx)
		if cause == nil {
			cause = errors.Join(readErr, waitErr)
		}
		what := "kernel ended before the command"
		if !booted {
			what = "kernel did not boot"
		}
		return 0, fmt.Errorf("%s: %w; the end of its console:\n%s", what, cause, console.tail())
	}
	// Everything has arrived, and nothing in there is worth a shutdown.
	cancel(nil)
	var killed *exec.ExitError
	if err := qemu.Wait(); err != nil && !errors.As(err, &killed) && !errors.Is(err, context.Canceled) {
		return 0, fmt.Errorf("qemu: %w", err)
	}
	if result.fault != "" {
		return 0, fmt.Errorf("inside: %s", result.fault)
	}
	fmt.Fprintf(os.Stderr, "stockkernel: status %d after %.1f s\n", result.status, time.Since(began).Seconds())
	return result.status, nil
}

// result is how the command ended.
type result struct {
	status int
	fault  string // not empty: it could not be run
}

// receive passes on what comes from the guest until the command has ended.
func receive(r io.Reader, ready func(release []byte)) (result, error) {
	for {
		kind, body, err := readFrame(r)
		if err != nil {
			return result{}, fmt.Errorf("channel: %w", err)
		}
		switch kind {
		case frameReady:
			ready(body)
		case frameStdout:
			_, err = os.Stdout.Write(body)
		case frameStderr:
			_, err = os.Stderr.Write(body)
		case frameStatus:
			status, err := strconv.Atoi(string(body))
			return result{status: status}, err
		case frameFault:
			return result{fault: string(body)}, nil
		default:
			err = fmt.Errorf("channel: frame of unknown kind %q", kind)
		}
		if err != nil {
			return result{}, err
		}
	}
}

// console keeps the end of what is written to it.
type console struct {
	show io.Writer // may be nil
	mu   sync.Mutex
	text []byte
}

const consoleTail = 1 << 14

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, p...)
	if len(c.text) > 2*consoleTail {
		c.text = c.text[len(c.text)-consoleTail:]
	}
	if c.show != nil {
		return c.show.Write(p)
	}
	return len(p), nil
}

func (c *console) tail() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.TrimSpace(bytes.Clone(c.text[max(0, len(c.text)-consoleTail):]))
}
