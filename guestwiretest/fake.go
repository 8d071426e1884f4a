package guestwiretest

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/wiring"
	"github.com/guestwire/guestwire/phase1"
)

// FakeNIC has the methods of [phase1.NIC], and no network. It is for tests of a launcher's own code as an ordinary
// user: the launcher has the methods that it calls in an interface of its own. TestMain need not call Main.
//
// The plans, the records and the refusals are those of phase1 for a pod of the shape Veth. With infra.Macvtap the NIC
// is a macvtap, and with infra.SRIOV a virtual function. If Spec.State is set, the record is written there, for
// phase2.Open; there is no tap. A call whose context has ended returns its cause. The methods may be called at the same
// time.
//
// Hold and While keep nobody away: phase1.ErrHeld and phase1.ErrInUse come by Fail alone. The NIC that Hold returns is
// a real one without a namespace, as the type is that of phase1: its methods fail.
type FakeNIC struct {
	// Name is the NIC's name. Empty: eth0.
	Name string

	// Namespace is that of the record. The sides of a move have one each. Empty: 00000000-4026532000-1.
	Namespace string

	// Counted is what Counters returns, also as a part of Status. Open is what Flows returns.
	// Cut is what CutRefused returns.
	Counted phase1.Counters
	Open    []phase1.Flow
	Cut     int

	// Dropped and Followed are what FollowDrops and FollowFlows report before they wait for the
	// end of their context.
	Dropped  []phase1.Drop
	Followed []phase1.Flow

	mu    sync.Mutex
	calls []Call
	fails map[string][]error
	wired *wiring.Plan
}

// Call is a call of a method of phase1.NIC.
type Call struct {
	Method string
	Args   []any // without the context and functions, such as an infra.Spec
}

// Calls returns the calls so far. While is one call.
func (n *FakeNIC) Calls() []Call {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

// Fail makes the next calls of the method fail, with an error each, such as infra.ErrWired. A call that fails does
// nothing else. Nil: that call works. Fail panics if phase1.NIC has no such method.
func (n *FakeNIC) Fail(method string, errs ...error) {
	if _, has := reflect.TypeFor[phase1.NIC]().MethodByName(method); !has {
		panic(fmt.Sprintf("phase1.NIC has no method %q", method))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails == nil {
		n.fails = map[string][]error{}
	}
	n.fails[method] = append(n.fails[method], errs...)
}

// call notes the call, and returns the error that it has to return. Otherwise it calls f.
func (n *FakeNIC) call(ctx context.Context, f func() error, method string, args ...any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, Call{method, args})
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if errs := n.fails[method]; len(errs) > 0 {
		n.fails[method] = errs[1:]
		if errs[0] != nil {
			return errs[0]
		}
	}
	return f()
}

// ofWired is call for a method that returns ErrNotWired before Setup.
func (n *FakeNIC) ofWired(ctx context.Context, f func() error, method string, args ...any) error {
	return n.call(ctx, func() error {
		if n.wired == nil {
			return fmt.Errorf("NIC %s: %w", n.name(), phase1.ErrNotWired)
		}
		return f()
	}, method, args...)
}

func (n *FakeNIC) name() string { return cmp.Or(n.Name, lab.NIC) }

// plan is what phase1 plans.
func (n *FakeNIC) plan(spec infra.Spec, m phase1.Moving) (plan *wiring.Plan, err error) {
	if m.From != nil {
		if spec, err = wiring.TakeOver(spec, *m.From); err != nil {
			return nil, err
		}
	}
	namespace := cmp.Or(n.Namespace, "00000000-4026532000-1")
	if n.wired != nil {
		earlier := n.wired.Journal()
		if spec.For != earlier.Spec.For {
			return nil, fmt.Errorf("%w: for %q", phase1.ErrForAnother, earlier.Spec.For)
		}
		spec.State = cmp.Or(spec.State, earlier.Spec.State)
		if earlier.Spec, err = wiring.SameGuest(n.name(), earlier.Spec, spec); err != nil {
			return nil, err
		}
		plan, err = earlier.Plan()
	} else {
		if err := spec.Validate(); err != nil {
			return nil, err
		}
		var turn wiring.Turn
		if turn, err = wiring.FirstTurn(namespace, spec.Binding, m.From, m.Standby); err != nil {
			return nil, err
		}
		plan, err = wiring.Journal{NIC: n.name(), Found: pod(n.name(), spec.Binding), Spec: spec, Turn: turn}.First()
	}
	if err == nil {
		plan.Record.Namespace = namespace
	}
	return plan, err
}

// Plan returns what Setup would do.
func (n *FakeNIC) Plan(ctx context.Context, spec infra.Spec, options ...phase1.SetupOption) (preview *phase1.Preview, err error) {
	err = n.call(ctx, func() (err error) { preview, err = n.preview(spec, moving(options)); return err }, "Plan", args(spec, options)...)
	return preview, err
}

// moving is the last Moving of the options.
func moving(options []phase1.SetupOption) (m phase1.Moving) {
	for _, o := range options {
		switch o := o.(type) {
		case phase1.Moving:
			m = o
		case *phase1.Moving:
			m = *o
		}
	}
	return m
}

func args(spec infra.Spec, options []phase1.SetupOption) []any {
	list := []any{spec}
	for _, o := range options {
		list = append(list, o)
	}
	return list
}

func (n *FakeNIC) preview(spec infra.Spec, m phase1.Moving) (*phase1.Preview, error) {
	plan, err := n.plan(spec, m)
	if err != nil {
		return nil, err
	}
	p := &phase1.Preview{Record: plan.Record, Refused: append([]*infra.RefusedError{}, plan.Refused...)}
	if n.wired == nil {
		ops, err := plan.Steps(plan.Journal().Found)
		if err != nil {
			return nil, err
		}
		p.Steps = netstate.Steps(ops)
	}
	return p, nil
}

// Setup returns the record that phase1 would leave.
func (n *FakeNIC) Setup(ctx context.Context, spec infra.Spec, options ...phase1.SetupOption) (record cache.Record, err error) {
	err = n.call(ctx, func() (err error) { record, err = n.setup(spec, moving(options)); return err }, "Setup", args(spec, options)...)
	return record, err
}

func (n *FakeNIC) setup(spec infra.Spec, m phase1.Moving) (cache.Record, error) {
	plan, err := n.plan(spec, m)
	if err != nil {
		return cache.Record{}, err
	}
	return n.become(plan)
}

// become makes the plan that of the NIC, and writes its record.
func (n *FakeNIC) become(plan *wiring.Plan) (cache.Record, error) {
	if err := inState(plan, func(dir *os.Root) error { return cache.Write(dir, plan.Record) }); err != nil {
		return cache.Record{}, err
	}
	n.wired = plan
	return plan.Record, nil
}

// inState calls f with the plan's State, if there is one.
func inState(plan *wiring.Plan, f func(*os.Root) error) error {
	path := plan.Journal().Spec.State
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(dir)
}

// Repair returns the record of the last Setup.
func (n *FakeNIC) Repair(ctx context.Context) (record cache.Record, err error) {
	err = n.ofWired(ctx, func() (err error) { record, err = n.become(n.wired); return err }, "Repair")
	return record, err
}

// Check finds no drift.
func (n *FakeNIC) Check(ctx context.Context) error {
	return n.ofWired(ctx, func() error { return nil }, "Check")
}

// Status returns the record of the last Setup, and Counted.
func (n *FakeNIC) Status(ctx context.Context) (report *phase1.Report, err error) {
	err = n.ofWired(ctx, func() error {
		r, s := n.wired.Record, n.wired.Journal().Spec
		w := phase1.Wiring{NIC: n.name(), Namespace: r.Namespace, FoundAt: []string{}, State: s.State, Binding: r.Binding, Owner: s.Owner,
			For: s.For, Names: s.Names, NAT64: s.Options.NAT64, Role: r.Role, Turn: r.Turn}
		report = &phase1.Report{Wiring: w, Record: r, Counters: n.Counted, Egress: s.Egress, EgressWithin: s.EgressWithin}
		return nil
	}, "Status")
	return report, err
}

// Counters returns Counted.
func (n *FakeNIC) Counters(ctx context.Context) (counters *phase1.Counters, err error) {
	err = n.ofWired(ctx, func() error { c := n.Counted; counters = &c; return nil }, "Counters")
	return counters, err
}

// Flows returns Open.
func (n *FakeNIC) Flows(ctx context.Context) (flows []phase1.Flow, err error) {
	err = n.ofWired(ctx, func() error { flows = slices.Clone(n.Open); return nil }, "Flows")
	return flows, err
}

// FollowFlows calls f with each of Followed, and waits for the end of ctx.
func (n *FakeNIC) FollowFlows(ctx context.Context, f func(phase1.Flow)) error {
	return follow(n, ctx, &n.Followed, f, "FollowFlows")
}

// FollowDrops calls f with each of Dropped, and waits for the end of ctx.
func (n *FakeNIC) FollowDrops(ctx context.Context, f func(phase1.Drop)) error {
	return follow(n, ctx, &n.Dropped, f, "FollowDrops")
}

func follow[E any](n *FakeNIC, ctx context.Context, from *[]E, f func(E), method string) error {
	var list []E
	if err := n.ofWired(ctx, func() error { list = slices.Clone(*from); return nil }, method); err != nil {
		return err
	}
	for _, e := range list {
		f(e)
	}
	<-ctx.Done()
	return nil
}

// Pin does nothing.
func (n *FakeNIC) Pin(ctx context.Context, p phase1.Pin) error {
	return n.ofWired(ctx, func() error { return nil }, "Pin", p)
}

// CutRefused returns Cut.
func (n *FakeNIC) CutRefused(ctx context.Context) (cut int, err error) {
	err = n.ofWired(ctx, func() error { cut = n.Cut; return nil }, "CutRefused")
	return cut, err
}

// Deactivate returns a record with a higher Turn.
func (n *FakeNIC) Deactivate(ctx context.Context) (record cache.Record, err error) {
	err = n.ofWired(ctx, func() (err error) {
		record, err = n.turn(n.wired.Journal().Deactivated())
		return err
	}, "Deactivate")
	return record, err
}

// Activate returns a record with RoleActive.
func (n *FakeNIC) Activate(ctx context.Context, other phase1.Other) (record cache.Record, err error) {
	err = n.ofWired(ctx, func() (err error) {
		t, err := wiring.Activated(n.wired.Record, other.Inactive, other.Gone, func(namespace string) string { return namespace })
		if err == nil {
			record, err = n.turn(t)
		}
		return err
	}, "Activate", other)
	return record, err
}

func (n *FakeNIC) turn(t wiring.Turn) (cache.Record, error) {
	if err := n.wired.SetTurn(t); err != nil {
		return cache.Record{}, err
	}
	return n.become(n.wired)
}

// Teardown removes the record. A NIC that is not wired is an error only with Force.
func (n *FakeNIC) Teardown(ctx context.Context, o phase1.TeardownOptions) error {
	return n.call(ctx, func() error {
		switch {
		case o.Force && o.Discard:
			return &cache.FieldError{Field: "discard", Reason: "not with Force: it needs the journal"}
		case o.Force && n.wired == nil:
			return fmt.Errorf("NIC %s: %w", n.name(), phase1.ErrNotWired)
		case o.State != "" && n.wired != nil && o.State != n.wired.Journal().Spec.State:
			return &cache.FieldError{Field: "state", Reason: o.State + " is not that of the wiring"}
		case o.For != "" && n.wired != nil && o.For != n.wired.Journal().Spec.For:
			return fmt.Errorf("%w: not for %q", phase1.ErrForAnother, o.For)
		}
		return n.end()
	}, "Teardown", o)
}

func (n *FakeNIC) end() error {
	if n.wired == nil {
		return nil
	}
	err := inState(n.wired, func(dir *os.Root) error { return cache.Remove(dir, n.name()) })
	n.wired = nil
	return err
}

// Hold returns a NIC without a namespace.
func (n *FakeNIC) Hold(ctx context.Context) (held phase1.NIC, release func(), err error) {
	err = n.call(ctx, func() error {
		held, release = phase1.NIC{Name: n.name()}, func() {}
		return nil
	}, "Hold")
	return held, release, err
}

// While wires the NIC while f runs.
func (n *FakeNIC) While(ctx context.Context, spec infra.Spec, f func(cache.Record) error) error {
	var record cache.Record
	err := n.call(ctx, func() (err error) {
		spec.For = cmp.Or(spec.For, filepath.Base(os.Args[0]))
		record, err = n.setup(spec, phase1.Moving{})
		return err
	}, "While", spec)
	if err != nil {
		return err
	}
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		_ = n.end()
	}()
	return f(record)
}

// pod is a pod of the shape Veth, whose NIC is of the kind that the binding needs.
func pod(nic string, b infra.Binding) netstate.Snapshot {
	const index = 2
	everything4, everything6 := netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	mac, gatewayMAC := cache.MAC{0x02, 0, 0, 0, 0, 0x07}, cache.MAC{0x02, 0, 0, 0, 0, 0x01}
	network4, network6 := netip.PrefixFrom(lab.Pod4, 24), netip.PrefixFrom(lab.Pod6, 64)
	linkLocal := netip.MustParsePrefix("fe80::ff:fe00:7/64")
	link := netstate.Link{Index: index, Name: nic, Kind: "veth", MAC: mac, MTU: 1450, Up: true, Ethernet: true}
	switch b.(type) {
	case infra.Macvtap:
		link.Kind, link.Mode = "macvtap", "bridge"
	case infra.SRIOV:
		link.Kind, link.PCI = "", "0000:03:10.1"
	}
	s := netstate.Snapshot{
		Dummy: true, LocalSources: true, Checksums: []ip.Version{ip.V4, ip.V6},
		Links: []netstate.Link{{Index: 1, Name: "lo", MTU: 65536, Up: true, Loopback: true}, link},
		Neighbours: []netstate.Neighbour{
			{Link: index, Address: lab.Gateway4, MAC: gatewayMAC}, {Link: index, Address: lab.Gateway6, MAC: gatewayMAC},
		},
		Sysctls: map[string]string{
			"net/ipv4/ip_unprivileged_port_start": "1024", "net/ipv4/ping_group_range": "1 0",
			"net/ipv6/conf/all/forwarding": "0", "net/ipv6/conf/" + nic + "/accept_ra": "1",
		},
	}
	for _, p := range []netip.Prefix{network4, network6, linkLocal} {
		a := netstate.Address{Link: index, Prefix: p, ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever}
		r := netstate.Route{Link: index, Table: netstate.TableMain, Destination: p.Masked(), Type: netstate.RouteUnicast, Protocol: netstate.ProtocolKernel}
		switch {
		case p.Addr().Is4():
			a.Label, a.Broadcast, r.PrefSrc, r.Scope = nic, netip.MustParseAddr("10.244.1.255"), p.Addr(), netstate.ScopeLink
		case p == linkLocal:
			a.Scope, r.Metric = netstate.ScopeLink, 256
		default:
			r.Metric = 256
		}
		s.Addresses, s.Routes = append(s.Addresses, a), append(s.Routes, r)
	}
	for _, r := range []netstate.Route{{Destination: everything4, Gateway: lab.Gateway4}, {Destination: everything6, Gateway: lab.Gateway6, Metric: 1024}} {
		r.Link, r.Table, r.Type, r.Protocol = index, netstate.TableMain, netstate.RouteUnicast, netstate.ProtocolBoot
		s.Routes = append(s.Routes, r)
	}
	return s
}
