package phase1

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/wiring"
)

// session is one call on one NIC of one namespace, on a thread in it. A call that changes something holds the
// namespace's lock throughout, a reader while it looks (see look).
type session struct {
	nic      string
	identity netns.Identity
	node     node
	ns       *kernel.Namespace
	state    state // the zero value: not opened
	report   progress
	held     bool   // by the caller
	journal  []byte // as written
	sight    sight  // of the journal that was read; the zero value: none
	reader   *reader
}

// do checks what all calls need, locks the namespace, and calls f on a thread in it. It makes the node's directory.
func (n NIC) do(ctx context.Context, f func(*session) error) error {
	return n.open(ctx, openNode, false, f)
}

// doWired is do for a call that wires nothing, and so does not make the node's directory.
func (n NIC) doWired(ctx context.Context, f func(*session) error) error {
	return n.open(ctx, lookNode, false, f)
}

// read is doWired for a call that changes nothing that others plan by, and that so keeps no other call waiting for more
// than a look (session.look). If another call changes what f has seen, f begins again.
func (n NIC) read(ctx context.Context, f func(*session) error) error {
	for {
		if err := n.open(ctx, lookNode, true, f); !errors.Is(err, errChanged) {
			return err
		}
	}
}

func (n NIC) open(ctx context.Context, nodeAt func(path string) (node, error), reads bool, f func(*session) error) error {
	if ctx == nil { // else the thread in the namespace would panic, where no caller can recover
		return &cache.FieldError{Field: "ctx", Reason: "nil: pass context.Background() or a context that ends"}
	}
	n, release, err := n.openOwn()
	if err != nil {
		return err
	}
	defer release()
	identity, err := n.identify()
	if err != nil {
		return err
	}
	if err := n.checkForeign(identity); err != nil {
		return fmt.Errorf("namespace %s: %w", n.NetNS.Name(), err)
	}
	if err := checkRoot(); err != nil {
		return fmt.Errorf("namespace %s: %w", n.NetNS.Name(), err)
	}
	if err := n.checkNetAdmin(); err != nil {
		return err
	}
	node, err := nodeAt(n.Dir)
	if err != nil {
		return err
	}
	defer node.Close()
	lock := func() (unlock func(), err error) {
		unlock, err = node.lockNamespace(ctx, identity, n.Progress)
		if err != nil {
			return nil, fmt.Errorf("namespace %s: %w", n.NetNS.Name(), err)
		}
		return unlock, nil
	}
	var r *reader
	if reads {
		r = &reader{ctx: ctx, lock: lock}
	} else {
		unlock, err := lock()
		if err != nil {
			return err
		}
		defer unlock()
	}
	return n.inNamespace(func(ns *kernel.Namespace) error {
		if err := n.checkNotFirst(); err != nil {
			return err
		}
		if err := identity.AddCookie(); err != nil {
			return err
		}
		s := &session{nic: n.Name, identity: identity, node: node, ns: ns, report: n.Progress, held: n.holds(identity.Inode), reader: r}
		if reads {
			ns.EndWith(ctx, n.MostRead)
		}
		defer func() { s.state.close() }()
		return f(s)
	})
}

// failed adds the operation and the NIC to the error of a verb.
func (n NIC) failed(operation string, err error) error {
	switch {
	case err == nil:
		return nil
	case n.checkNIC() != nil:
		return fmt.Errorf("%s: %w", operation, err)
	}
	return fmt.Errorf("%s %s: %w", operation, n.Name, err)
}

// openOwn sets NetNS to the calling thread's namespace if Own asks for it. The goroutine stays on the thread, and NetNS
// open, until release is called.
func (n NIC) openOwn() (opened NIC, release func(), err error) {
	if !n.Own {
		return n, func() {}, nil
	}
	if n.NetNS != nil {
		return n, nil, &cache.FieldError{Field: "netns", Reason: "not beside own, which is the caller's own namespace"}
	}
	runtime.LockOSThread()
	n.NetNS, err = os.Open(ownPath)
	if err != nil {
		runtime.UnlockOSThread()
		return n, nil, fmt.Errorf("the caller's own network namespace: %w", err)
	}
	release = func() {
		n.NetNS.Close()
		runtime.UnlockOSThread()
	}
	if err := n.checkNotFirst(); err != nil {
		release()
		return n, nil, err
	}
	return n, release, nil
}

const ownPath = "/proc/thread-self/ns/net"

// identify checks NIC and NetNS, and returns the namespace's identity without the cookie.
func (n NIC) identify() (netns.Identity, error) {
	if err := n.checkNIC(); err != nil {
		return netns.Identity{}, err
	}
	if n.NetNS == nil {
		return netns.Identity{}, &cache.FieldError{Field: "netns", Reason: "missing: open /proc/PID/ns/net or /run/netns/NAME, or set own; what is left of a namespace that is gone is removed by Forget"}
	}
	return netns.Identify(n.NetNS)
}

// inspect calls f on a thread in the namespace, for a question that needs no lock and no state.
func (n NIC) inspect(f func(*kernel.Namespace) error) error {
	n, release, err := n.openOwn()
	if err != nil {
		return err
	}
	defer release()
	if _, err := n.identify(); err != nil {
		return err
	}
	return n.inNamespace(f)
}

// inNamespace calls f on a thread in the namespace.
func (n NIC) inNamespace(f func(*kernel.Namespace) error) error {
	open := func() error {
		ns, err := kernel.Open()
		if err != nil {
			return err
		}
		defer ns.Close()
		return f(ns)
	}
	if n.Own {
		return open() // to enter a namespace needs CAP_SYS_ADMIN, also the one in which the thread is
	}
	return netns.Visit(n.NetNS, open)
}

// checkNetAdmin refuses a caller's own namespace if the caller lacks the capability, in the words of container engines.
// In a namespace that is entered, the process may get the capability by entering, so there the kernel decides.
func (n NIC) checkNetAdmin() error {
	if !n.Own {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if sets[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return fmt.Errorf("CAP_NET_ADMIN is missing, which reads and changes the namespace (in a container, --cap-add NET_ADMIN): %w", fs.ErrPermission)
	}
	return nil
}

func checkRoot() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("user %d is not root: run as root with CAP_NET_ADMIN, and CAP_SYS_ADMIN to enter a namespace: %w", uid, fs.ErrPermission)
	}
	return nil
}

// checkNIC checks the NIC's name, of which those of files are made.
func (n NIC) checkNIC() error {
	if err := syntax.CheckLinkName(n.Name); err != nil {
		return &cache.FieldError{Field: "nic", Reason: err.Error()}
	}
	return nil
}

// checkForeign refuses the namespaces in which a mistake would cost the machine its network: the caller's own
// and that of process 1. With Own the caller has said that its namespace is meant, which is that of process 1 in a
// container.
func (n NIC) checkForeign(identity netns.Identity) error {
	if n.Own {
		return nil
	}
	for _, path := range []string{ownPath, "/proc/1/ns/net"} {
		var stat unix.Stat_t
		err := unix.Stat(path, &stat)
		if errors.Is(err, fs.ErrPermission) {
			continue // process 1 is another container's, and so is its namespace
		}
		if err != nil {
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		if stat.Dev == identity.Device && stat.Ino == identity.Inode {
			if path == ownPath && n.checkNotFirst() == nil {
				return fmt.Errorf("%w (%s): name the pod's, or say that the caller's own is meant, as in a container whose network is the guest's (NIC.Own, guestwire-agent -own)", ErrOwnNamespace, path)
			}
			return fmt.Errorf("%w (%s): name the pod's", ErrOwnNamespace, path)
		}
	}
	return nil
}

// checkNotFirst refuses the machine's own namespace. In a PID namespace of its own a program does not see the machine's
// process 1, of which checkForeign asks. Call it in the namespace.
func (n NIC) checkNotFirst() error {
	first, err := netns.IsFirst(n.NetNS)
	if err == nil && first && n.Own {
		return fmt.Errorf("own: %w (the machine's own) is never wired: run inside of a namespace, as in a container with a network of its own, or name one (NetNS, guestwire-agent -netns)", ErrOwnNamespace)
	}
	if err == nil && first {
		err = fmt.Errorf("namespace %s: %w (the machine's own): name the pod's", n.NetNS.Name(), ErrOwnNamespace)
	}
	return err
}

// forgetOlder has the kernel forget the connections that are older than the wiring. If a policy's guest begins, it
// is an error if the kernel cannot, and after a kill or an error the next call does it. The pins of a guest of an
// earlier Setup end as well. What was diverted ends with its targets, by the same rules.
func (s *session) forgetOlder(ctx context.Context, plan *wiring.Plan, earlier *journal, j journal) error {
	if !j.Begins {
		s.forgetConnections(ctx, plan.OlderConnections(false))
		if len(j.Cut) == 0 {
			return nil
		}
		if err := s.ns.Apply(ctx, netstate.Ops(j.Cut)); err != nil {
			return fmt.Errorf("connections that earlier diverts have led to their targets are open, and the next call ends them: %w", err)
		}
		return s.writeForgotten(plan, j)
	}
	older := slices.Concat(plan.OlderConnections(true), j.Cut)
	if earlier != nil {
		if err := s.ns.Tables.Unpin(plan.Names().Table); err != nil {
			return fmt.Errorf("pins of an earlier guest: %w", err)
		}
	}
	older = append(older, router.NetworkConnections(j.Made.Guests)...)
	if err := s.ns.Apply(ctx, netstate.Ops(older)); err != nil {
		return fmt.Errorf("connections that are older than the policy are open: %w", err)
	}
	return s.writeForgotten(plan, j)
}

// writeForgotten writes the journal when nothing older is open.
func (s *session) writeForgotten(plan *wiring.Plan, j journal) error {
	j.Begins, j.Cut = false, nil // so of leaves out the networks of an earlier guest
	if err := s.writeJournal(s.withState(j.of(plan))); err != nil {
		return err
	}
	s.writeSight()
	return nil
}

// forgetConnections has the kernel forget tracked connections. A failure is reported, and is no error: the wiring
// is as it must be without them, and a way back that cannot end would be worse than an exchange that is lost.
func (s *session) forgetConnections(ctx context.Context, connections []netstate.ConnectionsDel) {
	if err := s.ns.Apply(ctx, netstate.Ops(connections)); err != nil {
		s.report.say("NIC %s: exchanges that the kernel tracks may keep their destination for as long as they go on: %v", s.nic, err)
	}
}

// read returns the namespace as it is now, as far as it concerns the plan, and with more sysctls.
func (s *session) read(plan *wiring.Plan, sysctls ...string) (netstate.Snapshot, error) {
	now, err := s.ns.Snapshot(plan.Names(), append(plan.SysctlPaths(), sysctls...), plan.Tables)
	if err == nil && plan.Resolver().IsValid() {
		now.Listeners, err = s.ns.Listeners()
	}
	return now, err
}

// request is what one call of Setup or Plan asks for.
type request struct {
	NIC
	infra.Spec
	Moving
	newGuest bool // the guest is another one than that of an earlier Setup
	noFwd    bool // this kernel's rules cannot forward frames
	repairs  bool // the Spec is that of the last Setup
}

// guestBegins reports whether the operations wire a guest that was not there before. Where the guest's tap is made, a
// guest of an earlier Setup has lost its NIC.
func (c request) guestBegins(earlier *journal, plan *wiring.Plan, ops []netstate.Op) bool {
	return c.newGuest || earlier == nil || earlier.Begins || slices.ContainsFunc(ops, func(op netstate.Op) bool {
		add, is := op.(netstate.TapAdd)
		return is && add.Link == plan.Record.Tap
	})
}

// state is the caller's directory for records. The zero value is none.
type state struct {
	*os.Root
	unlock func() // nil: not locked
}

func (s state) close() {
	if s.unlock != nil {
		s.unlock()
	}
	if s.Root != nil {
		s.Root.Close()
	}
}
