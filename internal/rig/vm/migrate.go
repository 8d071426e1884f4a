package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/domain/qemu"
)

// BootIncoming starts a QEMU that waits for a guest: of another QEMU (NewMigration), or of a file (Restore). The
// configuration and the NICs are those with which BootQEMU has started the guest, except for the namespace.
func BootIncoming(ctx context.Context, cfg Config, nics ...*qemu.NIC) (*Guest, error) {
	g, err := launchQEMU(cfg, nics, "-incoming", "defer")
	if err != nil {
		return nil, err
	}
	q, err := g.awaitQMP(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("QEMU that waits for guest %s: %w; QEMU said: %q", g.name, err, tail(g.vmm.log())), g.Destroy())
	}
	return g, q.Close()
}

// awaitQMP connects to QEMU as soon as QEMU listens.
func (g *Guest) awaitQMP(ctx context.Context) (*QMP, error) {
	for {
		q, err := g.QMP(ctx)
		var refused *net.OpError
		if err == nil || !errors.As(err, &refused) && !errors.Is(err, fs.ErrNotExist) {
			return q, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-g.vmm.done:
			return nil, errEnded
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Kill ends the guest's VMM at once, as a crash does. Destroy is still to be called.
func (g *Guest) Kill() error { return g.vmm.kill() }

// Freeze stops the VMM of BootQEMU or BootIncoming, which then answers nothing until Thaw or Kill. The guest's clock
// goes on meanwhile, and does not after Stop.
func (g *Guest) Freeze() error { return g.signal(unix.SIGSTOP) }

// Thaw lets the VMM go on.
func (g *Guest) Thaw() error { return g.signal(unix.SIGCONT) }

// signal signals the VMM.
func (g *Guest) signal(signal unix.Signal) error {
	first := g.vmm.cmd.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", first))
	if err != nil {
		return err
	}
	for _, child := range strings.Fields(string(children)) {
		pid, err := strconv.Atoi(child)
		if err == nil {
			err = unix.Kill(pid, signal)
		}
		if err != nil {
			return fmt.Errorf("VMM of guest %s: %w", g.name, err)
		}
	}
	return nil
}

// Capabilities of a migration (MigrationCapability of QEMU's QMP reference).
const (
	// returnPath lets the target refuse the guest. Without it the source says "completed", and no QEMU runs the guest.
	returnPath = "return-path"
	// pauseBeforeSwitchover stops the guest in the state pre-switchover until migrate-continue.
	pauseBeforeSwitchover = "pause-before-switchover"
	events                = "events"
	// Postcopy starts the guest at the target before its memory is there. QEMU's user needs /dev/userfaultfd for it, which
	// the QEMU of Config.Backport opens.
	Postcopy = "postcopy-ram"
)

// States of a migration (MigrationStatus).
const (
	StateSetup         = "setup"
	StateActive        = "active"
	StatePreSwitchover = "pre-switchover"
	StateDevice        = "device"
	StateCompleted     = "completed"
	// StatePostcopyActive: the guest runs at the target, with a part of its memory. StatePostcopyPaused: the connection of
	// the two has ended meanwhile, and no QEMU has the whole guest.
	StatePostcopyActive = "postcopy-active"
	StatePostcopyPaused = "postcopy-paused"
	StateFailed         = "failed"
	StateCancelled      = "cancelled"
)

// Migration moves a guest from one QEMU to another one, by a Unix socket.
type Migration struct {
	source, target       *Guest
	sourceQMP, targetQMP *QMP
	socket               string
	capabilities         []string
	sourceState          string
}

// NewMigration connects to the source, and to the target of BootIncoming. If pause is set the source stops the guest in
// StatePreSwitchover and waits for Continue. Further capabilities: Postcopy. The caller calls Close.
func NewMigration(ctx context.Context, source, target *Guest, pause bool, capabilities ...string) (m *Migration, err error) {
	m = &Migration{source: source, target: target, capabilities: append([]string{returnPath, events}, capabilities...)}
	if pause {
		m.capabilities = append(m.capabilities, pauseBeforeSwitchover)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("migration of guest %s: %w", source.name, err), m.Close())
		}
	}()
	if m.sourceQMP, err = source.QMP(ctx); err != nil {
		return m, err
	}
	if m.targetQMP, err = target.QMP(ctx); err != nil {
		return m, err
	}
	m.socket = filepath.Join(target.dir, "migration")
	return m, errors.Join(
		m.sourceQMP.setCapabilities(ctx, m.capabilities),
		m.targetQMP.setCapabilities(ctx, m.capabilities),
		m.targetQMP.Execute(ctx, "migrate-incoming", qemu.Object{"uri": "unix:" + m.socket}),
	)
}

// Close closes the connections. It ends neither QEMU nor the migration.
func (m *Migration) Close() error {
	var errs []error
	for _, q := range []*QMP{m.sourceQMP, m.targetQMP} {
		if q != nil {
			errs = append(errs, q.Close())
		}
	}
	m.sourceQMP, m.targetQMP = nil, nil
	return errors.Join(errs...)
}

// Begin starts the migration. With Postcopy the switch is next, as the source is too slow to have sent the memory
// before.
func (m *Migration) Begin(ctx context.Context) error {
	migrate := func() error { return m.sourceQMP.Execute(ctx, "migrate", qemu.Object{"uri": "unix:" + m.socket}) }
	if !slices.Contains(m.capabilities, Postcopy) {
		return migrate()
	}
	return errors.Join(
		m.sourceQMP.Execute(ctx, "migrate-set-parameters", qemu.Object{"max-bandwidth": 1 << 20}),
		migrate(),
		m.sourceQMP.Execute(ctx, "migrate-start-postcopy", nil),
	)
}

// Slow makes the source send a page a second after Postcopy's switch, and what the target asks for.
func (m *Migration) Slow(ctx context.Context) error {
	return m.sourceQMP.Execute(ctx, "migrate-set-parameters", qemu.Object{"max-postcopy-bandwidth": os.Getpagesize()})
}

// Await waits until the source's migration is in one of the states, and returns the state. A migration that has ended
// in another state is an error.
func (m *Migration) Await(ctx context.Context, states ...string) (string, error) {
	for {
		if slices.Contains(states, m.sourceState) {
			return m.sourceState, nil
		}
		if slices.Contains([]string{StateCompleted, StateFailed, StateCancelled}, m.sourceState) {
			var info struct {
				Error string `json:"error-desc"`
			}
			text, err := m.sourceQMP.Ask(ctx, "query-migrate", nil)
			if err == nil {
				err = json.Unmarshal(text, &info)
			}
			return m.sourceState, errors.Join(fmt.Errorf("migration of guest %s: %s, want %q: %s", m.source.name, m.sourceState, states, info.Error), err)
		}
		data, err := m.sourceQMP.Await(ctx, "MIGRATION")
		if err != nil {
			return "", fmt.Errorf("migration of guest %s: %w", m.source.name, err)
		}
		var event struct{ Status string }
		if err := json.Unmarshal(data, &event); err != nil {
			return "", err
		}
		m.sourceState = event.Status
	}
}

// Continue ends StatePreSwitchover: the source sends the rest of the guest.
func (m *Migration) Continue(ctx context.Context) error {
	return m.sourceQMP.Execute(ctx, "migrate-continue", qemu.Object{"state": StatePreSwitchover})
}

// Cancel ends the migration. The source goes on with the guest.
func (m *Migration) Cancel(ctx context.Context) error {
	if err := m.sourceQMP.Execute(ctx, "migrate_cancel", nil); err != nil {
		return err
	}
	_, err := m.Await(ctx, StateCancelled, StateFailed)
	return err
}

// Finish waits until the guest runs at the target. From then on the target's Run works.
func (m *Migration) Finish(ctx context.Context) error {
	if _, err := m.Await(ctx, StateCompleted); err != nil {
		return err
	}
	if _, err := m.targetQMP.Await(ctx, "RESUME"); err != nil {
		return fmt.Errorf("guest %s at the target: %w; QEMU said: %q", m.target.name, err, tail(m.target.vmm.log()))
	}
	m.target.console.commands = m.source.console.commands
	return nil
}

// SourceStatus returns the source's run state: running, finish-migrate, postmigrate (RunState).
func (m *Migration) SourceStatus(ctx context.Context) (string, error) {
	return m.sourceQMP.status(ctx)
}

func (q *QMP) status(ctx context.Context) (string, error) {
	var status struct{ Status string }
	text, err := q.Ask(ctx, "query-status", nil)
	if err == nil {
		err = json.Unmarshal(text, &status)
	}
	return status.Status, err
}

func (q *QMP) setCapabilities(ctx context.Context, names []string) error {
	var list []qemu.Object
	for _, n := range names {
		list = append(list, qemu.Object{"capability": n, "state": true})
	}
	return q.Execute(ctx, "migrate-set-capabilities", qemu.Object{"capabilities": list})
}

// Saved is a guest in a file.
type Saved struct {
	file     string
	commands int
}

// Stop stops the guest's CPUs.
func (g *Guest) Stop(ctx context.Context) error { return g.execute(ctx, "stop", nil) }

func (g *Guest) execute(ctx context.Context, command string, arguments any) (err error) {
	q, err := g.QMP(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	return q.Execute(ctx, command, arguments)
}

// Save writes the guest, which Stop has stopped, to a new file. The guest's QEMU is of no use afterwards.
func (g *Guest) Save(ctx context.Context, file string) (saved Saved, err error) {
	q, err := g.QMP(ctx)
	if err != nil {
		return Saved{}, err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return Saved{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	m := &Migration{source: g, sourceQMP: q}
	err = errors.Join(
		q.setCapabilities(ctx, []string{events}),
		q.Execute(ctx, "getfd", qemu.Object{"fdname": "saved"}, f),
		q.Execute(ctx, "migrate", qemu.Object{"uri": "fd:saved"}),
	)
	if err == nil {
		_, err = m.Await(ctx, StateCompleted)
	}
	return Saved{file, g.console.commands}, err
}

// Restore reads the guest into the QEMU, which BootIncoming has started, and lets the guest go on.
func (g *Guest) Restore(ctx context.Context, saved Saved) (err error) {
	q, err := g.QMP(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	f, err := os.Open(saved.file)
	if err != nil {
		return err
	}
	defer f.Close()
	m := &Migration{source: g, sourceQMP: q}
	err = errors.Join(
		q.setCapabilities(ctx, []string{events}),
		q.Execute(ctx, "getfd", qemu.Object{"fdname": "saved"}, f),
		q.Execute(ctx, "migrate-incoming", qemu.Object{"uri": "fd:saved"}),
	)
	if err == nil {
		_, err = m.Await(ctx, StateCompleted)
	}
	if err != nil {
		return fmt.Errorf("%w; QEMU said: %q", err, tail(g.vmm.log()))
	}
	g.console.commands = saved.commands
	return q.Execute(ctx, "cont", nil)
}
