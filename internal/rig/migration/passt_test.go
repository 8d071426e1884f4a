package migration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/domain/passt"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestMigrationPasst moves a guest whose memory passt reads and writes, to a pod with the same addresses. With
// passt-repair at both passts the guest's TCP connections go on. Without it they are reset, and new ones work.
func TestMigrationPasst(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	l := newLAN(t)
	l.world.IP(fmt.Sprintf("addr add %v/32 dev lo", nstest.Beyond4))
	from := l.passt(ctx)
	from.connect()
	var err error
	from.guest, err = vm.BootQEMU(ctx, from.vm, from.nic)
	destroyed(t, from.guest, err)
	for _, lease := range []func(context.Context, string) (map[string]string, error){from.guest.Lease4, from.guest.Lease6} {
		if _, err := lease(ctx, "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	for _, repair := range []bool{true, false} {
		streams := map[string]*Stream{
			"in, IPv4": l.in(ctx, nstest.Pod4), "in, IPv6": l.in(ctx, nstest.Pod6), "out": l.out(ctx, from.guest, nstest.Beyond4),
		}
		to := l.passt(ctx)
		if repair {
			for _, socket := range []string{from.socket, to.socket} {
				words := debian13("passt-repair")
				defer l.world.StartCommand(exec.Command(words[0], append(words[1:], socket+".repair")...)).Await(t)
			}
		}
		to.guest, err = vm.BootIncoming(ctx, to.vm, to.nic)
		destroyed(t, to.guest, err)
		movePasst(ctx, t, from, to)
		to.connect() // where passt does not have a connection yet, the pod's kernel would reset it
		for name, s := range streams {
			if !repair {
				if err := s.Ended(); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%s, without passt-repair: %v, want a reset", name, err)
				}
				continue
			}
			measured, err := s.End()
			if t.Logf("%s: %v", name, measured); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		from = to
	}
	if _, err := l.in(ctx, nstest.Pod4).End(); err != nil {
		t.Errorf("a new connection: %v", err)
	}
}

// movePasst moves the guest. The network forwards to neither pod then.
func movePasst(ctx context.Context, t testing.TB, from, to *passtPod) {
	t.Helper()
	m, err := vm.NewMigration(ctx, from.guest, to.guest, true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	preSwitchover(ctx, t, m)
	from.disconnect()
	if err := m.Continue(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.Finish(ctx); err != nil {
		t.Fatal(err)
	}
}

// passtPod is a pod with a passt that waits for QEMU.
type passtPod struct {
	*pod
	socket string
	vm     vm.Config
	nic    *qemu.NIC
	guest  *vm.Guest
}

// passt makes a pod for a guest of passt. It is no port of the layer 2 yet.
func (l *lan) passt(ctx context.Context) *passtPod {
	t := l.t
	t.Helper()
	uid, gid := vm.NeedGuest(t)
	p := &passtPod{pod: l.pod(otherMAC, podAddresses...)}
	p.vm = vm.Config{NetNS: p.Pod.File, UID: uid, GID: gid, VhostUser: true}
	r, err := (phase1.NIC{NetNS: p.Pod.File, Name: "eth0"}).Setup(ctx, infra.Spec{
		Binding: infra.Passt{VhostUser: true, MAC: guestMAC, Ports: []infra.Ports{{First: vm.EchoPort}}},
		State:   p.State, Owner: infra.Owner{UID: uint32(uid), GID: uint32(gid)},
	})
	dir := nstest.Dir(t)
	p.socket = filepath.Join(dir, "passt")
	var args []string
	if err == nil {
		args, err = passt.Args(&r, p.socket)
	}
	if err == nil {
		p.nic, err = qemu.NewNIC(&r, qemu.Options{Socket: p.socket})
	}
	if err := errors.Join(err, os.Chown(dir, uid, gid)); err != nil {
		t.Fatal(err)
	}
	// passt writes its number once it listens. A passt-repair that connects before that dies (SIGSYS).
	listens := filepath.Join(dir, "pid")
	p.Pod.Start(uid, append(append(debian13("passt"), args...), "--pid", listens)...)
	nstest.Eventually(t, func() error {
		number, err := os.ReadFile(listens)
		if err == nil && len(number) == 0 {
			err = errors.New("passt does not listen yet")
		}
		return err
	})
	return p
}

// debian13 begins the command line of a program of Debian 13, by the C library of its root.
func debian13(program string) []string {
	root := unpacked.Path("debian13/usr")
	return []string{root + "/lib64/ld-linux-x86-64.so.2", "--library-path", root + "/lib/x86_64-linux-gnu", root + "/bin/" + program}
}
