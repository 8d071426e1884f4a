// Qemu is a whole launcher in one file: it gives eth0 of a network namespace to QEMU, and takes it back when QEMU ends.
//
//	qemu /run/netns/pod qemu-system-x86_64 -accel kvm -m 512 -kernel vmlinuz -initrd initrd.img -nographic ...
//
// It runs as root. QEMU and the responder run as user 107 in the namespace, without privileges. Unlike the programs agent
// and launcher, one program is both sides, so the unprivileged process contains the privileged side's code.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: qemu NETNS QEMU ARGUMENTS...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	side := launch
	if os.Args[1] == "serve" {
		side, os.Args = serve, os.Args[1:]
	}
	if err := side(ctx, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "qemu:", err)
		os.Exit(1)
	}
}

// launch is the privileged side: it wires the NIC for as long as this program runs again, without privileges.
func launch(ctx context.Context, netns string, vmm []string) error {
	ns, err := phase1.OpenNetNS(netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	nic := phase1.NIC{NetNS: ns, Name: "eth0"}
	spec := infra.Spec{Binding: infra.Auto{}, Owner: infra.Owner{UID: 107, GID: 107}, State: "/run/guestwire/vm1"}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"serve", spec.State}, vmm...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return nic.While(ctx, spec, func(cache.Record) error { return phase1.Run(cmd, ns, spec.Owner) })
}

// serve is the unprivileged side: it answers the guest, and runs QEMU on the guest's taps.
func serve(ctx context.Context, state string, vmm []string) error {
	vm, err := phase2.Open(state)
	if err != nil {
		return err
	}
	cmd := exec.Command(vmm[0], vmm[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	for _, record := range vm.Records() {
		taps, err := phase2.OpenTap(record)
		if err != nil {
			return err
		}
		var o qemu.Options
		for _, tap := range taps {
			o.FDs = append(o.FDs, strconv.Itoa(3+len(cmd.ExtraFiles))) // see exec.Cmd.ExtraFiles
			cmd.ExtraFiles = append(cmd.ExtraFiles, tap)
		}
		nic, err := qemu.NewNIC(&record, o)
		if err != nil {
			return err
		}
		args, err := nic.Args()
		if err != nil {
			return err
		}
		cmd.Args = append(cmd.Args, args...)
	}

	serving, stop := context.WithCancel(context.WithoutCancel(ctx)) // until QEMU has ended
	defer stop()
	ready, served := make(chan struct{}), make(chan error, 1)
	vm.Notify = func(e phase2.Event) {
		if e.Kind == phase2.Ready {
			close(ready)
		}
	}
	go func() { served <- vm.Serve(serving) }()
	select {
	case err := <-served:
		return err
	case <-ready: // the guest's first request gets its answer
	}
	// Launch once more, so that QEMU ends if this process is killed.
	if err := phase1.Launch(cmd, nil, infra.Owner{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}); err != nil {
		return err
	}
	for _, tap := range cmd.ExtraFiles {
		tap.Close() // QEMU has its own
	}
	defer context.AfterFunc(ctx, func() { cmd.Process.Signal(syscall.SIGTERM) })()
	err = cmd.Wait()
	stop() // the guest is gone
	return errors.Join(err, <-served)
}
