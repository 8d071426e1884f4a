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
	"strconv"
	"strings"
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
	dir, err := s.build("examples/guestwire-launcher")
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
		booting.Go(func() { errs[i] = machines[i].boot(s.ctx, filepath.Join(dir, "guestwire-launcher"), program) })
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
		rate, cpu := newRow(use.name+", "+use.rate, len(machines)), newRow(use.name+", "+use.cpu, len(machines))
		err := s.inTurns(rounds, len(machines), func(_, i int) error {
			got, err := machines[i].measure(s.ctx, use)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", use.name, names[i], err)
			}
			rate.add(i, got.count*use.scale/got.wall.Seconds())
			cpu.add(i, us(got.cpu)/got.count/use.scale)
			return nil
		})
		if err != nil {
			return err
		}
		rows = append(rows, rate, cpu)
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
	if err != nil {
		return err
	}
	lease, err := m.guest.Lease4(ctx, nic)
	if err == nil && lease["mtu"] != "1500" {
		err = fmt.Errorf("the guest's MTU is %s, want 1500", lease["mtu"])
	}
	if err == nil {
		_, err = m.guest.Lease6(ctx, nic)
	}
	return err
}

// use is what a TCP connection does. The guest answers each unit of octets with one octet; 0: it sends alone.
type use struct {
	name, rate, cpu string
	unit            int
	scale           float64 // of what the server receives: Mbit in an octet, or exchanges
}

const streamUnit = 1 << 18

var uses = []use{
	{"TCP from the guest", "Mbit/s", "us of CPU a Mbit", 0, 8e-6},
	{"TCP to the guest", "Mbit/s", "us of CPU a Mbit", streamUnit, 8e-6 * streamUnit},
	{"TCP, an octet and its answer", "1/s", "us of CPU", 1, 1},
}

// brought is how many octets the server has received, and what they took.
type brought struct {
	cost
	count float64
}

// cpu is the CPU time of all processes in the pod.
func (m machine) cpu() (total time.Duration, err error) {
	own, err := m.File.Stat()
	if err != nil {
		return 0, err
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, path := range all {
		namespace, err := os.Stat(path)
		if err != nil || !os.SameFile(own, namespace) {
			continue // another's, or a process that has ended
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			return 0, err
		}
		used, err := cpuOf(pid)
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, err
}

// count waits until the server has received something in the counted time, and longer if it has received nothing.
func (m machine) count(ctx context.Context, octets *counter) (got brought, err error) {
	if err := sleep(ctx, streamWarm); err != nil {
		return got, err
	}
	used, err := m.cpu()
	had, begin := octets.Load(), time.Now()
	for err == nil && got.count == 0 {
		err = sleep(ctx, streamCounted)
		got.count = float64(octets.Load() - had)
	}
	got.wall = time.Since(begin)
	if err == nil {
		got.cpu, err = m.cpu()
	}
	got.cpu -= used
	return got, err
}

// measure returns what a connection of the use brings.
func (m machine) measure(ctx context.Context, u use) (got brought, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	at := netip.AddrPortFrom(lab.Beyond4, serverPort)
	var listener *net.TCPListener
	err = m.world.Do(func() (err error) {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		return got, err
	}
	defer listener.Close()
	end, _ := ctx.Deadline()
	err = listener.SetDeadline(end)
	if err == nil {
		_, err = m.guest.Run(ctx, fmt.Sprintf("stream %v %d %d >/dev/null 2>&1 &", at.Addr(), at.Port(), u.unit))
	}
	if err != nil {
		return got, err
	}
	conn, err := listener.AcceptTCP()
	if err != nil {
		return got, err
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
	got, err = m.count(ctx, &octets)
	abort(conn)
	running.Wait()
	if err == nil {
		_, err = m.guest.Until(ctx, "! pidof stream")
	}
	return got, err
}
