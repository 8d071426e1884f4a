// Package phase1 is the privileged half: it wires a NIC that lies in a network namespace to a tap
// for a virtual machine, and leaves a record of it for package phase2.
//
// Setup, Check and Teardown work on one NIC of one namespace, by the state they keep in a
// directory. Whatever happens to one of them, Setup called again ends in the same state as an
// undisturbed run, and Teardown in the namespace as Setup found it.
package phase1

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netns"
)

// Config is one NIC, and what is wanted of it.
type Config struct {
	// NetNS is the namespace, open: /proc/PID/ns/net, /run/netns/NAME. It stays the caller's.
	NetNS *os.File
	// State is a directory that only root can write: the record lies there, which the
	// launcher's user reads, and the journal, which nobody else can. Setup creates it, mode
	// 0755, if its parent is there; nothing removes it.
	State string
	// NIC is the link's name in the namespace, 1 to 15 of A-Z a-z 0-9 _ . -
	NIC string
	// Binding is infra.Bridge, infra.Redirect or infra.Masquerade; or infra.Auto, which chooses among
	// them at the first Setup; or infra.Macvtap, infra.SRIOV or infra.Passt, with which somebody else
	// serves the guest, so that they take no DNS and no Options.
	Binding infra.Binding
	// Owner is the launcher's user, who can open the taps, where there are any. The zero value is root.
	Owner infra.Owner
	// Queues is the number of queue pairs of the tap, at most 256; 0 means 1.
	Queues int
	// DNS is the guest's resolver configuration; nil: Phase2 takes it from a resolv.conf.
	DNS *cache.DNS
	// Options is what else the guest is told.
	Options cache.Options
	// Device is how the guest sees the device.
	Device cache.Device
	// Guard is what the guest may send; the zero value lets it be itself and nobody else.
	Guard infra.Guard
}

func (c Config) spec() infra.Spec {
	return infra.Spec{NIC: c.NIC, Binding: c.Binding, Owner: c.Owner, Queues: c.Queues, DNS: c.DNS, Options: c.Options, Device: c.Device, Guard: c.Guard}
}

// MarshalJSON writes the configuration without NetNS. The binding is an object with one member,
// such as {"bridge": {}} or {"masquerade": {"ipv4": "10.0.2.0/24"}}.
func (c Config) MarshalJSON() ([]byte, error) {
	spec, err := json.Marshal(c.spec())
	if err != nil || c.State == "" {
		return spec, err
	}
	state, err := json.Marshal(map[string]string{"state": c.State})
	if err != nil {
		return nil, err
	}
	return append(append(spec[:len(spec)-1], ','), state[1:]...), nil
}

// UnmarshalJSON is the reverse of MarshalJSON; it leaves NetNS alone. Unknown fields are errors. The
// error is a *cache.FieldError, unless the text is no JSON.
func (c *Config) UnmarshalJSON(text []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return &cache.FieldError{Reason: "want an object"}
	}
	out := Config{NetNS: c.NetNS}
	if state, ok := members["state"]; ok {
		if err := json.Unmarshal(state, &out.State); err != nil {
			return &cache.FieldError{Field: "state", Reason: "want a string"}
		}
		delete(members, "state")
	}
	rest, err := json.Marshal(members)
	if err != nil {
		return err
	}
	var spec infra.Spec
	if err := json.Unmarshal(rest, &spec); err != nil {
		return err
	}
	out.NIC, out.Binding, out.Owner, out.Queues = spec.NIC, spec.Binding, spec.Owner, spec.Queues
	out.DNS, out.Options, out.Device, out.Guard = spec.DNS, spec.Options, spec.Device, spec.Guard
	*c = out
	return nil
}

// Errors to tell apart, beside those of infra.NewPlan, fs.ErrPermission and fs.ErrNotExist.
var (
	// ErrOwnNamespace: NetNS is the caller's own namespace, or that of the whole machine.
	ErrOwnNamespace = errors.New("the caller's own network namespace")
	// ErrNotWired: there is no journal of a Setup of this NIC in this namespace.
	ErrNotWired error = notWired{}
)

type notWired struct{}

func (notWired) Error() string        { return "not wired" }
func (notWired) Is(target error) bool { return target == fs.ErrNotExist }

// DriftError says that the kernel is not as recorded.
type DriftError struct {
	NIC string
	// Differs says in words what is otherwise: "eth0-tap is no port of eth0-br".
	Differs []string
	// Missing are the commands that would repair it; Setup carries them out.
	Missing []string
}

func (e *DriftError) Error() string {
	return fmt.Sprintf("NIC %s is not as it was set up:\n  %s\nSetup would repair it by:\n  %s",
		e.NIC, strings.Join(e.Differs, "\n  "), strings.Join(e.Missing, "\n  "))
}

// Setup wires the NIC, and writes the record. If it is wired already, it repairs what is missing,
// and changes nothing if nothing is. On an error the namespace is as it was found; if the error came
// when an earlier Setup was taken up, what stands is left to the guest that may use it.
//
// A wired NIC can get another DNS, Options and Device: the record changes, and a running Serve
// follows it. It can get another Guard, and a masquerade other Ports, Excluded, Loopback, Sidecar and
// MaxConnections: the rules are replaced at once, and connections that stand go on. What
// infra.SameGuest calls another guest, another Owner or number of Queues is infra.ErrWired.
//
// It needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN. It waits for other calls on the same namespace, of
// other processes too, until ctx ends; they have to share /run/guestwire.lock. The errors to tell
// apart: *cache.FieldError for a bad configuration, *infra.RefusedError if the binding cannot work on
// the NIC, infra.ErrNoNIC, infra.ErrWired, infra.ErrCollision, ErrOwnNamespace, fs.ErrPermission for
// a State that is not root's alone and for an Owner who cannot open /dev/net/tun.
func Setup(ctx context.Context, c Config) error {
	if err := c.checkOwner(); err != nil {
		return err
	}
	return c.do(ctx, createState, func(s *session) error {
		plan, now, taken, err := s.plan(ctx, c.spec())
		if err != nil {
			return err
		}
		ops, err := plan.Steps(now)
		if err != nil {
			return err
		}
		if err := s.writeJournal(plan.Journal()); err != nil {
			return err
		}
		if err = s.converge(ctx, plan, ops); err == nil {
			err = cache.Write(s.dir, plan.Record)
		}
		if err != nil && !taken {
			err = errors.Join(err, s.undoFailed(plan))
		}
		return err
	})
}

// Plan returns what Setup would do, and changes nothing in the namespace or in State. Of a wiring
// that is complete nothing is left to do. It needs what Setup needs, the lock too, and has its errors.
func Plan(ctx context.Context, c Config) (*Preview, error) {
	if err := c.checkOwner(); err != nil {
		return nil, err
	}
	var preview *Preview
	err := c.do(ctx, previewState, func(s *session) error {
		plan, now, _, err := s.plan(ctx, c.spec())
		if err != nil {
			return err
		}
		ops, err := plan.Steps(now)
		if err != nil {
			return err
		}
		preview = &Preview{Steps: ops, Record: plan.Record, Refused: plan.Refused}
		return nil
	})
	return preview, err
}

// Preview is what Setup would do, and the record that it would leave. It prints as the commands an
// administrator would type.
type Preview struct {
	Steps  []infra.Op
	Record cache.Record
	// Refused are why the bindings that infra.Auto would rather have had cannot work; none once the NIC
	// is wired.
	Refused []*infra.RefusedError
}

// String is the commands, a line each, with the binding, why not another, and the record's warnings
// as comments before them; and that there are none, if so.
func (p *Preview) String() string {
	var b strings.Builder
	b.WriteString("# binding: " + p.Record.Binding + "\n")
	for _, r := range p.Refused {
		b.WriteString("# not " + r.Binding + ": " + r.Reason + "\n")
	}
	for _, w := range p.Record.Warnings {
		b.WriteString("# warning: " + w + "\n")
	}
	if len(p.Steps) == 0 {
		b.WriteString("# nothing is left to do\n")
	}
	return b.String() + infra.Text(p.Steps)
}

// Check compares the kernel with what Setup left. The error is a *DriftError if something differs,
// or the record does, ErrNotWired if there was no Setup, infra.ErrNoNIC if the NIC has gone. It uses
// NetNS, State and NIC of the configuration only, and needs what Setup needs.
func Check(ctx context.Context, c Config) error {
	return c.do(ctx, previewState, func(s *session) error {
		journal, err := s.readJournal()
		if err != nil {
			return err
		}
		if journal == nil {
			return fmt.Errorf("NIC %s: %w by a Setup with the state directory %s", c.NIC, ErrNotWired, c.State)
		}
		plan, err := infra.NewPlan(journal.Found, journal.Spec)
		if err != nil {
			return fmt.Errorf("journal of NIC %s: %w", c.NIC, err)
		}
		if err := s.verify(plan); err != nil {
			return err
		}
		if record, err := cache.Read(s.dir, c.NIC); err != nil || !reflect.DeepEqual(record, plan.Record) {
			differs := fmt.Sprintf("record %s.json is not as it was written", c.NIC)
			if err != nil {
				differs = err.Error()
			}
			return &DriftError{NIC: c.NIC, Differs: []string{differs}, Missing: []string{"write the record " + c.NIC + ".json anew"}}
		}
		return nil
	})
}

// Teardown gives the namespace back as Setup found it, and removes record and journal. It is no
// error if there is nothing to take down. It uses NetNS, State and NIC of the configuration only. A
// nil NetNS says that the namespace is gone: then record and journals of the NIC are removed. The
// error is infra.ErrNoNIC if the NIC has gone; then everything else is removed.
func Teardown(ctx context.Context, c Config) error {
	if c.NetNS == nil {
		return forget(c)
	}
	return c.do(ctx, previewState, func(s *session) error {
		if s.dir == nil {
			return nil
		}
		journal, err := s.readJournal()
		if err != nil {
			return err
		}
		if journal == nil {
			return errors.Join(s.strangers(), s.removeJournal()) // an interrupted Setup may have begun to write one
		}
		plan, err := infra.NewPlan(journal.Found, journal.Spec)
		if err != nil {
			return fmt.Errorf("journal of NIC %s: %w", c.NIC, err)
		}
		return s.undo(plan)
	})
}

// strangers says whether the NIC is wired by a Setup of which nothing is known here.
func (s *session) strangers() error {
	names := infra.NamesFor(s.nic)
	now, err := s.ns.Snapshot(names, nil, nil)
	if err != nil {
		return err
	}
	for _, l := range now.Links {
		if l.Alias == infra.Mark(s.nic) {
			return fmt.Errorf("NIC %s: %w by a Setup with another state directory, as the alias of %s says: name that one", s.nic, infra.ErrWired, l.Name)
		}
	}
	return nil
}

// checkOwner says whether the user could open the device that hands out taps, if one is made.
func (c Config) checkOwner() error {
	o := c.Owner
	if o.UID == 1<<32-1 || o.GID == 1<<32-1 {
		return &cache.FieldError{Field: "owner", Reason: fmt.Sprintf("%d is nobody", uint32(1<<32-1))}
	}
	if infra.Direct(c.Binding) {
		return nil
	}
	const device = "/dev/net/tun"
	var stat unix.Stat_t
	if err := unix.Stat(device, &stat); err != nil {
		return fmt.Errorf("taps: %w", &fs.PathError{Op: "stat", Path: device, Err: err})
	}
	const readWrite = 6
	granted := stat.Mode & readWrite
	switch {
	case o.UID == 0:
		return nil
	case o.UID == stat.Uid:
		granted = stat.Mode >> 6 & readWrite
	case o.GID != 0 && o.GID == stat.Gid:
		granted = stat.Mode >> 3 & readWrite
	}
	if granted != readWrite {
		return fmt.Errorf("owner.uid: user %d cannot open %s (mode %04o, owner %d:%d), so its launcher could not use a tap: %w",
			o.UID, device, stat.Mode&0o777, stat.Uid, stat.Gid, fs.ErrPermission)
	}
	return nil
}

// session is one call on one namespace, on a thread in it, with the lock held.
type session struct {
	nic      string
	identity netns.Identity
	dir      *os.Root // nil: there is none, and none is needed
	ns       *kernel.Namespace
}

// do checks what all calls need and calls f in the namespace.
func (c Config) do(ctx context.Context, mode stateMode, f func(*session) error) error {
	if err := cache.CheckName("nic", c.NIC); err != nil {
		return err
	}
	if c.NetNS == nil {
		return &cache.FieldError{Field: "netns", Reason: "missing: open /proc/PID/ns/net or /run/netns/NAME"}
	}
	identity, err := netns.Identify(c.NetNS)
	if err != nil {
		return err
	}
	if err := foreign(identity); err != nil {
		return fmt.Errorf("namespace %s: %w", c.NetNS.Name(), err)
	}
	unlock, err := lock(ctx, identity)
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("namespace %s: user %d is not root: %w", c.NetNS.Name(), os.Geteuid(), err)
	}
	if err != nil {
		return fmt.Errorf("namespace %s: %w", c.NetNS.Name(), err)
	}
	defer unlock()
	dir, err := openState(c.State, mode)
	if err != nil {
		return err
	}
	if dir != nil {
		defer dir.Close()
	}
	return netns.Do(c.NetNS, func() error {
		ns, err := kernel.Open()
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := identity.AddCookie(); err != nil {
			return err
		}
		return f(&session{nic: c.NIC, identity: identity, dir: dir, ns: ns})
	})
}

// foreign refuses the namespaces in which a mistake would cost somebody's network: the caller's own
// and that of process 1.
func foreign(identity netns.Identity) error {
	for _, path := range []string{"/proc/thread-self/ns/net", "/proc/1/ns/net"} {
		var stat unix.Stat_t
		err := unix.Stat(path, &stat)
		if errors.Is(err, fs.ErrPermission) {
			continue // process 1 is another container's, and so is its namespace
		}
		if err != nil {
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		if stat.Dev == identity.Device && stat.Ino == identity.Inode {
			return fmt.Errorf("%w (%s): name the pod's", ErrOwnNamespace, path)
		}
	}
	return nil
}

// lockDir is root's alone: a lock that others could open, others could hold.
const lockDir = "/run/guestwire.lock"

// lock holds the namespace until the returned function is called, or the process ends.
func lock(ctx context.Context, identity netns.Identity) (func(), error) {
	if err := os.Mkdir(lockDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := rootOnly(lockDir, 0o077); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	path := fmt.Sprintf("%s/%d", lockDir, identity.Inode)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another call works on it: %w", context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// plan computes the wiring from the namespace as it was found, and says how it is now. If there is
// a journal, an earlier Setup is taken up.
func (s *session) plan(ctx context.Context, spec infra.Spec) (plan *infra.Plan, now infra.Snapshot, taken bool, err error) {
	journal, err := s.readJournal()
	if err != nil {
		return nil, now, false, err
	}
	if spec.Binding == nil {
		return nil, now, false, &cache.FieldError{Field: "binding", Reason: "missing, want one of infra's, such as bridge or auto"}
	}
	if journal == nil {
		now, err = s.ns.Snapshot(infra.NamesFor(spec.NIC), infra.SysctlPaths(spec.NIC, spec.Binding), nil)
		if err != nil {
			return nil, now, false, err
		}
		found := now
		if err := s.inherit(&found); err != nil {
			return nil, now, false, err
		}
		if err := s.complete(ctx, &found, spec); err != nil {
			return nil, now, false, err
		}
		if plan, err = infra.NewPlan(found, spec); err != nil {
			return nil, now, false, err
		}
		return plan, now, false, kernel.HavePrograms(plan.Tables())
	}
	if _, auto := spec.Binding.(infra.Auto); auto {
		spec.Binding = journal.Spec.Binding
	}
	// A tap that changes would be another one, and the guest has the old one.
	if old := journal.Spec; !infra.SameGuest(old.Binding, spec.Binding) || old.Owner != spec.Owner || max(1, old.Queues) != max(1, spec.Queues) {
		return nil, now, false, fmt.Errorf("NIC %s: %w with %s, queues %d, for user %d, group %d: Teardown first, or ask for the same",
			spec.NIC, infra.ErrWired, guestText(old.Binding), max(1, old.Queues), old.Owner.UID, old.Owner.GID)
	}
	if plan, err = infra.NewPlan(journal.Found, spec); err != nil {
		return nil, now, true, err
	}
	now, err = s.now(plan)
	return plan, now, true, err
}

// guestText is what infra.SameGuest compares.
func guestText(b infra.Binding) string {
	text := "the " + b.Kind() + " binding"
	if infra.Direct(b) {
		return text + fmt.Sprintf(" %+v", b)
	}
	if m, ok := b.(infra.Masquerade); ok {
		or := func(set bool, value fmt.Stringer) string {
			if !set {
				return "left out"
			}
			return value.String()
		}
		text += fmt.Sprintf(" (ipv4 %s, ipv6 %s, mac %s, firewall %q)",
			or(m.IPv4.IsValid(), m.IPv4), or(m.IPv6.IsValid(), m.IPv6), or(!m.MAC.IsZero(), m.MAC), m.Firewall)
	}
	return text
}

// inherit asks the journals of the namespace's other NICs, as far as they lie in the same directory, how
// the namespace was before them.
func (s *session) inherit(found *infra.Snapshot) error {
	others, err := s.others()
	for _, journal := range others {
		found.Inherit(journal.Journal)
	}
	return err
}

// complete finds out what a first plan needs besides what lies in the namespace.
func (s *session) complete(ctx context.Context, found *infra.Snapshot, spec infra.Spec) error {
	var err error
	switch spec.Binding.(type) {
	case infra.Masquerade, infra.Passt, infra.Auto:
		if found.Listeners, err = s.ns.Listeners(); err != nil {
			return err
		}
	}
	switch spec.Binding.(type) {
	case infra.Masquerade, infra.Macvtap, infra.SRIOV, infra.Passt:
		return nil
	case infra.Bridge, infra.Auto:
		if found.Dummy, err = s.ns.HasDummy(); err != nil {
			return err
		}
	}
	nic, ok := found.Named(spec.NIC)
	if !ok {
		return nil // NewPlan says so
	}
	for _, gateway := range infra.Gateways6(*found, nic) {
		neighbour, ok, err := s.ns.Resolve(ctx, nic.Index, gateway)
		if err != nil {
			return err
		}
		if ok {
			found.Neighbours = append(found.Neighbours, neighbour)
		}
	}
	return nil
}

func (s *session) apply(ctx context.Context, ops []infra.Op) error {
	if err := s.ns.Apply(ctx, ops); err != nil {
		return fmt.Errorf("NIC %s: %w", s.nic, err)
	}
	return nil
}

func (s *session) now(plan *infra.Plan) (infra.Snapshot, error) {
	return s.ns.Snapshot(infra.NamesFor(s.nic), infra.SysctlPaths(s.nic, plan.Binding()), plan.Tables())
}

// converge carries out the operations, and what is left to do then: the kernel takes and makes
// addresses and routes of its own when a damaged link goes down, comes up, or gets IPv6.
func (s *session) converge(ctx context.Context, plan *infra.Plan, ops []infra.Op) error {
	for range tries {
		if len(ops) == 0 {
			return nil
		}
		if err := s.apply(ctx, ops); err != nil {
			return err
		}
		now, err := s.now(plan)
		if err != nil {
			return err
		}
		if ops, err = plan.Steps(now); err != nil {
			return err
		}
	}
	return s.verify(plan)
}

// tries is more than the kernel is known to need.
const tries = 4

// verify looks at the kernel: a plan is carried out when nothing is left to do.
func (s *session) verify(plan *infra.Plan) error {
	now, err := s.now(plan)
	if err != nil {
		return err
	}
	drift, err := plan.Drift(now)
	if err != nil || drift == nil {
		return err
	}
	e := &DriftError{NIC: s.nic, Differs: drift.Differs}
	for _, op := range drift.Steps {
		e.Missing = append(e.Missing, op.String())
	}
	return e
}

// undoFailed is undo with sockets of its own: an answer that could not be read may still be under way
// to the old ones, and while it is, the kernel takes no other question there.
func (s *session) undoFailed(plan *infra.Plan) error {
	ns, err := kernel.Open()
	if err != nil {
		return fmt.Errorf("give the namespace back: %w", err)
	}
	defer ns.Close()
	fresh := *s
	fresh.ns = ns
	return fresh.undo(plan)
}

// undo gives the namespace back. The journal goes when all else has gone: without it, nobody would
// look for the rest.
func (s *session) undo(plan *infra.Plan) error {
	record := cache.Remove(s.dir, s.nic)
	err := s.giveBack(plan)
	if record == nil && (err == nil || errors.Is(err, infra.ErrNoNIC)) {
		err = errors.Join(err, s.removeJournal())
	}
	if err = errors.Join(record, err); err != nil {
		return fmt.Errorf("give the namespace back: %w", err)
	}
	return nil
}

// giveBack goes on whatever the caller's context says: half a way back is worse than a late one. If
// the NIC has gone, it says so when everything else is done.
func (s *session) giveBack(plan *infra.Plan) error {
	for range tries {
		now, err := s.now(plan)
		if err != nil {
			return err
		}
		if now.Needed, err = s.needed(now); err != nil {
			return err
		}
		ops, gone := plan.Undo(now)
		if gone != nil && !errors.Is(gone, infra.ErrNoNIC) {
			return gone
		}
		if len(ops) == 0 {
			return gone
		}
		if err := s.apply(context.Background(), ops); err != nil {
			return err
		}
	}
	return fmt.Errorf("NIC %s keeps changing", s.nic)
}

// needed are the sysctls that other NICs of the namespace need: all that the namespace shares, if one is
// wired by a Setup with another state directory.
func (s *session) needed(now infra.Snapshot) ([]string, error) {
	others, err := s.others()
	if err != nil {
		return nil, err
	}
	var needed []string
	known := map[string]bool{s.nic: true}
	for _, journal := range others {
		plan, err := infra.NewPlan(journal.Found, journal.Spec)
		if err != nil {
			return nil, fmt.Errorf("journal of NIC %s: %w", journal.Spec.NIC, err)
		}
		needed = append(needed, plan.Shared()...)
		known[journal.Spec.NIC] = true
	}
	for _, l := range now.Links {
		if nic, marked := infra.Marked(l.Alias); marked && !known[nic] {
			return infra.Shared(), nil
		}
	}
	return needed, nil
}
