package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/phase2"
)

// runQEMU serves the guest, and runs QEMU with the guest's devices as soon as each request of the guest gets an answer.
// It returns when QEMU has ended and the guest is not served any more. The error is a statusError if QEMU ends with
// another status than 0. The devices are those of the records at the start. Of a record that comes or goes later,
// QEMU's device is plugged and unplugged at the buses; without a bus, runQEMU warns.
func runQEMU(ctx context.Context, vm *phase2.VM, shutdown time.Duration, buses, command []string) error {
	if slices.Contains(command, "-daemonize") || slices.Contains(command, "--daemonize") {
		return commandline.Errorf("-daemonize: leave it out, as QEMU has to stay in the foreground")
	}
	// What QEMU cannot have is reported before anything starts.
	records := vm.Records()
	ids := map[any]string{} // the records' names
	for _, r := range records {
		id, err := check(&r)
		if err == nil {
			err = checkShared(ctx, &r, command)
		}
		if err != nil {
			return err
		}
		if ids[id] != "" {
			return fmt.Errorf("NICs %s and %s both have the id %v in QEMU: name another device.alias in the configuration of one, and run guestwire-agent setup again", ids[id], r.Name, id)
		}
		ids[id] = r.Name
		if r.Role != cache.RoleActive && !slices.Contains(command, "-incoming") && !slices.Contains(command, "--incoming") {
			return fmt.Errorf("NIC %s is on standby, so its guest may be active in another namespace: to wait for that guest, give QEMU -incoming; to start a guest, end the standby first (guestwire-agent activate)", r.Name)
		}
	}
	plugger := newPlugger(vm, buses, command)
	notify := vm.Notify
	vm.Notify = func(e phase2.Event) {
		if notify != nil {
			notify(e)
		}
		switch {
		case len(buses) > 0:
			plugger.notify(e)
		case e.Kind == "record-added":
			vm.Log.Warn("QEMU has no device for the new record: to plug one, start the launcher with -plug", "nic", e.NIC)
		case e.Kind == "record-removed":
			vm.Log.Warn("QEMU keeps the device of the removed record", "nic", e.NIC)
		}
	}
	stop, err := vm.Start(context.WithoutCancel(ctx)) // the guest is served until QEMU has ended, also after a signal
	if err != nil {
		return notServed(err)
	}
	defer stop()
	if ctx.Err() != nil {
		return nil
	}
	return boot(ctx, records, plugger, newBackends(vm.Log, notify, command), shutdown, command)
}

// boot runs QEMU and waits for its end. When ctx is done, or a passt is lost, the guest has the time shutdown before
// QEMU gets SIGTERM.
func boot(ctx context.Context, records []cache.Record, plugger *plugger, backends *backends, shutdown time.Duration, command []string) error {
	log := plugger.log
	var files []*os.File // which QEMU inherits, from descriptor 3 on
	defer func() { closeAll(files) }()
	defer backends.stopAll()
	var args []string
	for _, r := range records {
		var o qemu.Options
		if r.Tap != "" {
			queues, err := phase2.OpenTap(r)
			if err != nil {
				return err
			}
			for i := range queues {
				o.FDs = append(o.FDs, strconv.Itoa(3+len(files)+i))
			}
			files = append(files, queues...)
			if o.Vhost, err = vhost(&r); err != nil {
				return err
			}
		}
		nic, err := backends.newNIC(ctx, &r, o)
		if err != nil {
			return err
		}
		more, err := nic.Args()
		if err != nil {
			return err
		}
		plugger.devices[r.Name] = plugged{nic: nic}
		args = append(args, more...)
	}
	var monitor *monitor
	if shutdown > 0 || len(plugger.buses) > 0 || commandline.Supervised() {
		m, end, err := newMonitor(log)
		if err != nil {
			return err
		}
		defer m.conn.Close()
		args = append(args, monitorArgs(3+len(files))...)
		monitor, files = m, append(files, end)
	}
	cmd := exec.Command(command[0], slices.Concat(command[1:], args)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, logged, files
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH) // guestwire-agent exec has it from the terminal
	defer signal.Stop(resized)
	vmm, err := start(cmd)
	if err != nil {
		return err
	}
	closeAll(files) // QEMU has its own: the taps are free when QEMU ends
	files = nil
	log.Info("QEMU runs", "process", cmd.Process.Pid)
	if len(plugger.buses) > 0 {
		plugger.monitor, plugger.backends = monitor, backends
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			plugger.run(running)
		}()
		defer func() {
			stop()
			<-ended
		}()
	}
	var greeted <-chan struct{} // nil: nobody waits for it
	if monitor != nil {
		greeted = monitor.greeted
	}
	var lost error
	for running := true; running; {
		end := func() {
			if shutdown == 0 || !monitor.shutDown(vmm, shutdown) {
				log.Info("QEMU is asked to end")
				vmm.stop()
			}
			running = false
		}
		select {
		case <-vmm.ended:
			running = false
		case <-greeted: // QEMU has made all that its command line names
			greeted = nil
			reportReady(log)
		case <-resized:
			_ = vmm.Process.Signal(syscall.SIGWINCH) // QEMU may have ended
		case lost = <-backends.lost:
			end()
		case <-ctx.Done():
			end()
		}
	}
	log.Info("QEMU ended", "status", cmd.ProcessState.String())
	if lost != nil {
		return lost
	}
	return vmm.err()
}
