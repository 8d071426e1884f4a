package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/domain/passt"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/phase2"
)

// again is the time after which an ended passt is started again. QEMU connects again as often.
const again = time.Second

// backends are the passt processes of a VM. They have to run as long as QEMU.
type backends struct {
	log     *slog.Logger
	notify  func(phase2.Event)
	command []string // that runs QEMU
	dir     string   // of their sockets; empty: there are none
	all     map[string]watched
	lost    chan error // has an element when QEMU cannot connect to its passt again
}

// watched is the passt of a NIC, with the goroutine that starts it again.
type watched struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

func newBackends(log *slog.Logger, notify func(phase2.Event), command []string) *backends {
	return &backends{log: log, notify: notify, command: command, all: map[string]watched{}, lost: make(chan error, 1)}
}

// newNIC returns QEMU's device for the record. For one of passt it first starts passt, and again when that ends, until
// stop.
func (b *backends) newNIC(ctx context.Context, r *cache.Record, o qemu.Options) (nic *qemu.NIC, err error) {
	if r.Passt == nil {
		return qemu.NewNIC(r, o)
	}
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "guestwire-passt-"); err != nil {
			return nil, fmt.Errorf("directory for passt's socket: %w: name one to which user %d can write by TMPDIR, such as TMPDIR=/tmp", err, os.Getuid())
		}
	}
	o.Socket = filepath.Join(b.dir, r.Name)
	if nic, err = qemu.NewNIC(r, o); err != nil {
		return nil, err
	}
	connects := connectAgain(ctx, b.command, nic)
	p, err := b.run(ctx, r, o.Socket)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := watched{cancel, make(chan struct{})}
	b.all[r.Name] = w
	go func() {
		defer close(w.ended)
		b.watch(running, r, p, o.Socket, connects)
	}()
	return nic, nil
}

// run starts passt, which writes its number to a file once it listens.
func (b *backends) run(ctx context.Context, r *cache.Record, socket string) (*process, error) {
	listens := socket + ".pid"
	for _, old := range []string{socket, listens} {
		if err := os.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	args, err := passt.Args(r, socket)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("passt", append(args, "--pid", listens)...)
	cmd.Stderr = logged
	p, err := start(cmd)
	if err != nil {
		return nil, fmt.Errorf("passt of %s: %w", r.Name, err)
	}
	b.log.Info("passt runs", "nic", r.Name, "process", cmd.Process.Pid)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if text, err := os.ReadFile(listens); err == nil && len(text) > 0 {
			return p, nil
		}
		select {
		case <-p.ended:
			hint := ""
			if r.Passt.VhostUser {
				hint = ": if it does not know --vhost-user, use a newer passt, such as Debian 13's, or run guestwire-agent teardown, and guestwire-agent setup without binding.passt.vhostUser"
			}
			return nil, fmt.Errorf("passt of %s: ended at its start: %v%s", r.Name, cmd.ProcessState, hint)
		case <-ctx.Done():
			p.stop()
			return nil, fmt.Errorf("passt of %s: does not listen: %w", r.Name, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// watch reports what becomes of a NIC's passt, and starts it again, until ctx is done. It then ends passt.
func (b *backends) watch(ctx context.Context, r *cache.Record, p *process, socket string, connects bool) {
	defer func() { p.stop() }()
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGCHLD)
	defer signal.Stop(changed)
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			b.sayStopped(r, p)
			continue
		case <-p.ended:
		}
		lost := fmt.Sprintf("passt has ended (%v): the guest has no network", p.ProcessState)
		// passt ends with 0 when QEMU closes the connection, as it does when it ends, or when the NIC is unplugged.
		failed := p.err() != nil
		if failed {
			b.say(r, "passt-lost", lost)
		}
		if (connects || !failed) && !sleep(ctx, again) {
			return
		}
		if !failed {
			b.say(r, "passt-lost", lost)
		}
		if !connects {
			select {
			case b.lost <- fmt.Errorf("NIC %s: %s, and QEMU cannot connect to another one: start the VM again; QEMU 8.0 and newer, as a program that is called qemu..., connects again", r.Name, lost):
			default: // QEMU ends for another NIC
			}
			return
		}
		for said := ""; ; {
			next, err := b.run(ctx, r, socket)
			if err == nil {
				p = next
				break
			}
			if text := err.Error(); text != said && ctx.Err() == nil {
				said = text
				b.say(r, "passt-failed", "passt cannot be started; trying again: "+text)
			}
			if !sleep(ctx, again) {
				return
			}
		}
		b.say(r, "passt-back", "passt runs again: QEMU connects to it, and the guest's connections start anew")
	}
}

// sayStopped reports that a signal has stopped passt, or that it goes on.
func (b *backends) sayStopped(r *cache.Record, p *process) {
	var child unix.Siginfo
	if unix.Waitid(unix.P_PID, p.Process.Pid, &child, unix.WSTOPPED|unix.WCONTINUED|unix.WNOHANG, nil) != nil {
		return // it has ended
	}
	switch child.Code {
	case cldStopped:
		b.say(r, "passt-lost", fmt.Sprintf("passt was stopped by a signal: the guest has no network until kill -CONT %d", p.Process.Pid))
	case cldContinued:
		b.say(r, "passt-back", "passt goes on")
	}
}

// The codes of a child whose state has changed (sigaction(2)).
const (
	cldStopped   = 5
	cldContinued = 6
)

// say logs what has become of a NIC's passt, and reports the event.
func (b *backends) say(r *cache.Record, kind dhcp.Kind, text string) {
	b.log.Warn(text, "nic", r.Name)
	if b.notify != nil {
		b.notify(phase2.Event{Time: time.Now(), NIC: r.Name, Kind: kind, Text: text})
	}
}

// sleep returns false if ctx is done before the time is over.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// stop ends the passt of a NIC, if it has one.
func (b *backends) stop(nic string) {
	if w, has := b.all[nic]; has {
		w.cancel()
		<-w.ended
		delete(b.all, nic)
	}
}

// stopAll ends what has not ended together with QEMU.
func (b *backends) stopAll() {
	for _, w := range b.all {
		w.cancel()
	}
	for nic := range b.all {
		b.stop(nic)
	}
	if b.dir != "" {
		if err := os.RemoveAll(b.dir); err != nil {
			b.log.Warn("files of passt are left", "error", err)
		}
	}
}

// connectAgain has QEMU connect again to a passt that was started again. It returns false if QEMU cannot.
func connectAgain(ctx context.Context, command []string, nic *qemu.NIC) bool {
	major, minor := versionOf(ctx, command)
	connection := nic.Netdev
	if nic.Chardev != nil {
		connection = nic.Chardev["backend"].(qemu.Object)["data"].(qemu.Object)
	}
	switch {
	case major > 9 || major == 9 && minor >= 2:
		connection["reconnect-ms"] = int(again.Milliseconds())
	case major >= 8:
		connection["reconnect"] = int(again.Seconds())
	default:
		return false
	}
	return true
}

// versionOf returns QEMU's version; 0: the program is not called QEMU, and may be one that runs QEMU, or does not say.
func versionOf(ctx context.Context, command []string) (major, minor int) {
	if !strings.HasPrefix(filepath.Base(command[0]), "qemu") {
		return 0, 0
	}
	out, err := exec.CommandContext(ctx, command[0], "-version").Output()
	if err != nil {
		return 0, 0 // its start says why
	}
	_, _ = fmt.Sscanf(string(out), "QEMU emulator version %d.%d", &major, &minor)
	return major, minor
}

// checkShared refuses a command with which passt could not share the guest's memory: QEMU would start, and the guest
// would have no network, or QEMU would crash.
func checkShared(ctx context.Context, r *cache.Record, command []string) error {
	if r.Passt == nil || !r.Passt.VhostUser {
		return nil
	}
	const instead = "or run guestwire-agent teardown, and guestwire-agent setup without binding.passt.vhostUser"
	shares := func(argument string) bool {
		return strings.Contains(argument, "share=on") || strings.Contains(argument, "share=yes")
	}
	if !slices.ContainsFunc(command, shares) {
		return fmt.Errorf("NIC %s: passt.vhostUser: QEMU does not share the guest's memory: add -object memory-backend-memfd,id=ram,share=on,size=SIZE -machine memory-backend=ram with the size of -m, %s", r.Name, instead)
	}
	if major, minor := versionOf(ctx, command); major != 0 && major < 8 {
		return fmt.Errorf("NIC %s: passt.vhostUser: QEMU %d.%d crashes with it: use QEMU 10, %s", r.Name, major, minor, instead)
	}
	return nil
}
