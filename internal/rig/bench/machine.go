package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/lab"
)

//go:embed guest/stream.c
var streamSource []byte

// measureMachines measures what a program in a virtual machine gets by TCP through redirect, and through passt by a
// socket and by vhost-user. The machines are alike, share their memory, and run at once. QEMU, which emulates them, is
// that of Debian's backports, and passt is Debian 13's.
func measureMachines(s *scope, w io.Writer, rounds int) error {
	dir, err := s.build("examples/launcher")
	if err != nil {
		return err
	}
	source, program := filepath.Join(dir, "stream.c"), filepath.Join(dir, "stream")
	if err := os.WriteFile(source, streamSource, 0o600); err != nil {
		return err
	}
	if out, err := exec.CommandContext(s.ctx, "gcc", "-O2", "-Wall", "-Wextra", "-static", "-s", "-o", program, source).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w: %s", err, out)
	}
	names := []string{"redirect", "socket", "vhostuser"}
	machines := make([]machine, len(names))
	for i, binding := range []infra.Binding{infra.Redirect{}, infra.Passt{}, infra.Passt{VhostUser: true}} {
		_, pods, err := s.newWorld(1)
		if err != nil {
			return err
		}
		machines[i].pod = pods[0]
		_, err = pods[0].setup(s.ctx, infra.Spec{Binding: binding, Owner: infra.Owner{UID: lab.User, GID: lab.User}})
		if err := errors.Join(err, pods[0].gateway(), pods[0].world.World()); err != nil {
			return fmt.Errorf("%s: %w", names[i], err)
		}
	}
	var booting sync.WaitGroup
	errs := make([]error, len(machines))
	for i := range machines {
		booting.Go(func() { errs[i] = machines[i].boot(s.ctx, filepath.Join(dir, "launcher"), program) })
	}
	booting.Wait()
	for i, m := range machines {
		if m.guest != nil {
			s.atEnd(m.guest.Destroy)
		}
		if errs[i] != nil {
			return fmt.Errorf("%s: %w", names[i], errs[i])
		}
	}
	var rows []row
	for _, use := range uses {
		got := newRow(use.name, len(machines))
		err := s.inTurns(rounds, len(machines), func(_, i int) error {
			value, err := machines[i].measure(s.ctx, use)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", use.name, names[i], err)
			}
			got.add(i, value)
			return nil
		})
		if err != nil {
			return err
		}
		rows = append(rows, got)
	}
	printTable(w, "IPv4, MTU 1500, an emulated guest", names, rows)
	return nil
}

// machine is a pod with a virtual machine, whose server is beyond the pod's gateway. passt translates the gateway's
// address.
type machine struct {
	*pod
	guest *vm.Guest
}

// boot boots the guest, and waits until it has its addresses.
func (m *machine) boot(ctx context.Context, launcher, program string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	temp := filepath.Join(m.world.dir, "temp")
	err := errors.Join(os.Mkdir(temp, 0o700), os.Chown(temp, lab.User, lab.User))
	if err != nil {
		return err
	}
	m.guest, err = vm.BootQEMU(ctx, vm.Config{
		NetNS: m.pod.File, UID: lab.User, GID: lab.User, VhostUser: true, Program: program,
		Launcher: []string{"env", "TMPDIR=" + temp, launcher, "qemu", "-state", m.state, "--"},
	})
	if err == nil {
		_, err = m.guest.Lease4(ctx, nic)
	}
	if err == nil {
		_, err = m.guest.Lease6(ctx, nic)
	}
	return err
}

// use is what a TCP connection does. The guest answers each unit of octets with one octet; 0: it sends alone.
type use struct {
	name  string
	unit  int
	count float64 // for each octet that the server receives
}

const streamUnit = 1 << 18

var uses = []use{
	{"TCP from the guest, Mbit/s", 0, 8e-6},
	{"TCP to the guest, Mbit/s", streamUnit, 8e-6 * streamUnit},
	{"an octet and its answer by TCP, 1/s", 1, 1},
}

// measure returns what the use brings in a second.
func (m machine) measure(ctx context.Context, u use) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	at := netip.AddrPortFrom(lab.Beyond4, serverPort)
	var listener *net.TCPListener
	err := m.world.Do(func() (err error) {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	end, _ := ctx.Deadline()
	err = listener.SetDeadline(end)
	if err == nil {
		_, err = m.guest.Run(ctx, fmt.Sprintf("stream %v %d %d >/dev/null 2>&1 &", at.Addr(), at.Port(), u.unit))
	}
	if err != nil {
		return 0, err
	}
	conn, err := listener.AcceptTCP()
	if err != nil {
		return 0, err
	}
	var octets counter
	var running sync.WaitGroup
	switch u.unit {
	case 0:
		running.Go(func() { _, _ = io.CopyBuffer(&octets, struct{ io.Reader }{conn}, make([]byte, streamUnit)) })
	case 1:
		running.Go(func() {
			for data := make([]byte, 1); ; octets.Add(1) {
				if _, err := conn.Write(data); err != nil {
					return
				}
				if _, err := io.ReadFull(conn, data); err != nil {
					return
				}
			}
		})
	default:
		running.Go(func() { _, _ = io.Copy(&octets, conn) })
		running.Go(func() {
			for data := make([]byte, streamUnit); ; {
				if _, err := conn.Write(data); err != nil {
					return
				}
			}
		})
	}
	rate, err := octets.rate(ctx)
	abort(conn)
	running.Wait()
	if err == nil {
		_, err = m.guest.Until(ctx, "! pidof stream")
	}
	return rate * u.count, err
}
