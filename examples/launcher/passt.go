package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/passt"
)

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
				hint = ": if it does not know --vhost-user, use a newer passt, such as Debian 13's, or run agent teardown, and agent setup without binding.passt.vhostUser"
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

// checkShared refuses a command with which passt could not share the guest's memory: QEMU would start, and the guest
// would have no network, or QEMU would crash.
func checkShared(ctx context.Context, r *cache.Record, command []string) error {
	if r.Passt == nil || !r.Passt.VhostUser {
		return nil
	}
	const instead = "or run agent teardown, and agent setup without binding.passt.vhostUser"
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
