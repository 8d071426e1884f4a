package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/passt"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/phase2"
)

// patience is the time that passt has to start, and QEMU to end after SIGTERM.
const patience = 10 * time.Second

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
			return fmt.Errorf("NICs %s and %s both have the id %v in QEMU: name another device.alias in the configuration of one, and run agent setup again", ids[id], r.Name, id)
		}
		ids[id] = r.Name
		if r.Standby && !slices.Contains(command, "-incoming") && !slices.Contains(command, "--incoming") {
			return fmt.Errorf("NIC %s is on standby, so its guest may be active in another namespace: to wait for that guest, give QEMU -incoming; to start a guest, end the standby first (agent activate)", r.Name)
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
	return boot(ctx, records, plugger, shutdown, command)
}

// boot runs QEMU and waits for its end. When ctx is done, the guest has the time shutdown before QEMU gets SIGTERM.
func boot(ctx context.Context, records []cache.Record, plugger *plugger, shutdown time.Duration, command []string) error {
	log := plugger.log
	var files []*os.File // which QEMU inherits, from descriptor 3 on
	defer func() { closeAll(files) }()
	backends := &backends{log: log}
	defer backends.stop()
	var args []string
	for _, r := range records {
		var o qemu.Options
		switch {
		case r.Tap != "":
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
		case r.Passt != nil:
			var err error
			if o.Socket, err = backends.start(ctx, &r); err != nil {
				return err
			}
		}
		nic, err := qemu.NewNIC(&r, o)
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
	if shutdown > 0 || len(plugger.buses) > 0 {
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
	signal.Notify(resized, syscall.SIGWINCH) // agent exec has it from the terminal
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
	for running := true; running; {
		select {
		case <-vmm.ended:
			running = false
		case <-resized:
			_ = vmm.Process.Signal(syscall.SIGWINCH) // QEMU may have ended
		case <-ctx.Done():
			if shutdown == 0 || !monitor.shutDown(vmm, shutdown) {
				log.Info("QEMU is asked to end")
				vmm.stop()
			}
			running = false
		}
	}
	log.Info("QEMU ended", "status", cmd.ProcessState.String())
	return vmm.err()
}

// check makes QEMU's arguments with options of the form that the record's real ones will have. It returns the device's
// id.
func check(r *cache.Record) (id any, err error) {
	var o qemu.Options
	if o.Vhost, err = vhost(r); err != nil {
		return nil, err
	}
	if r.Tap != "" {
		o.FDs = slices.Repeat([]string{"3"}, r.Queues)
	}
	if r.Passt != nil {
		o.Socket = "passt"
	}
	nic, err := qemu.NewNIC(r, o)
	if err != nil {
		return nil, err
	}
	_, err = nic.Args()
	return nic.Device["id"], err
}

// checkShared refuses a command with which passt could not share the guest's memory: QEMU would start, and the guest
// would have no network, or QEMU would crash.
func checkShared(ctx context.Context, r *cache.Record, command []string) error {
	if r.Passt == nil || !r.Passt.VhostUser {
		return nil
	}
	const instead = "or leave binding.passt.vhostUser out and run agent setup again"
	shares := func(argument string) bool {
		return strings.Contains(argument, "share=on") || strings.Contains(argument, "share=yes")
	}
	if !slices.ContainsFunc(command, shares) {
		return fmt.Errorf("NIC %s: passt.vhostUser: QEMU does not share the guest's memory: add -object memory-backend-memfd,id=ram,share=on,size=SIZE -machine memory-backend=ram with the size of -m, %s", r.Name, instead)
	}
	if !strings.HasPrefix(filepath.Base(command[0]), "qemu") {
		return nil // a program that runs QEMU
	}
	out, err := exec.CommandContext(ctx, command[0], "-version").Output()
	var version, minor int
	if _, failed := fmt.Sscanf(string(out), "QEMU emulator version %d.%d", &version, &minor); err != nil || failed != nil {
		return nil // its start says why
	}
	if version < 8 {
		return fmt.Errorf("NIC %s: passt.vhostUser: QEMU %d.%d crashes with it: use QEMU 10, %s", r.Name, version, minor, instead)
	}
	return nil
}

// vhost reports whether QEMU, as this process, can open the device of vhost for the record's tap. It is an error that
// QEMU cannot, if the record wants vhost.
func vhost(r *cache.Record) (bool, error) {
	if r.Tap == "" {
		return false, nil
	}
	f, err := os.OpenFile("/dev/vhost-net", os.O_RDWR, 0)
	if err == nil {
		return true, f.Close()
	}
	if r.Device.Driver == "vhost" {
		return false, fmt.Errorf("NIC %s: device.driver vhost: %w: let the launcher's user or one of its groups open it (agent exec -groups), or run Setup again with device.driver qemu", r.Name, err)
	}
	return false, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// backends are the passt processes of a VM.
type backends struct {
	log *slog.Logger
	dir string // of their sockets; empty: there are none
	all []*process
}

// start starts passt for the record and returns its socket. passt writes its number to a file once it listens.
func (b *backends) start(ctx context.Context, r *cache.Record) (socket string, err error) {
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "guestwire-passt-"); err != nil {
			return "", err
		}
	}
	socket, listens := filepath.Join(b.dir, r.Name), filepath.Join(b.dir, r.Name+".pid")
	args, err := passt.Args(r, socket)
	if err != nil {
		return "", err
	}
	cmd := exec.Command("passt", append(args, "--pid", listens)...)
	cmd.Stderr = logged
	p, err := start(cmd)
	if err != nil {
		return "", fmt.Errorf("passt of %s: %w", r.Name, err)
	}
	b.all = append(b.all, p)
	b.log.Info("passt runs", "nic", r.Name, "process", cmd.Process.Pid)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if text, err := os.ReadFile(listens); err == nil && len(text) > 0 {
			return socket, nil
		}
		select {
		case <-p.ended:
			hint := ""
			if r.Passt.VhostUser {
				hint = ": if it does not know --vhost-user, use a newer passt, such as Debian 13's, or leave binding.passt.vhostUser out and run agent setup again"
			}
			return "", fmt.Errorf("passt of %s: ended at its start: %v%s", r.Name, cmd.ProcessState, hint)
		case <-ctx.Done():
			return "", fmt.Errorf("passt of %s: does not listen: %w", r.Name, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stop ends what has not ended together with QEMU.
func (b *backends) stop() {
	for _, p := range b.all {
		p.stop()
	}
	if b.dir != "" {
		if err := os.RemoveAll(b.dir); err != nil {
			b.log.Warn("files of passt are left", "error", err)
		}
	}
}
