package phase1

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/resolvconf"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/undo"
	"github.com/guestwire/guestwire/internal/wiring"
)

// Setup wires the NIC, writes the record into spec.State, if that is set, and returns the record. Setup of a wired
// NIC repairs what is missing. If a first Setup fails, the namespace is as it was found. If a later Setup fails, the
// wiring stays. If State has the record of a namespace that is gone, Setup replaces it, and removes that wiring's
// journal. If a first Setup has Egress or EgressWithin, the open connections of the guest's addresses end.
//
// A wired NIC can get another DNS, Options, Device, MTU, Guard and Limits. Under masquerade and routed it can also get
// other Ports, Excluded, Loopback, Sidecar, MaxConnections, Egress and EgressWithin. A running Serve follows the
// record. Connections go on. UDP flows to a port that becomes forwarded switch to the guest. Any other change is
// infra.ErrWired. State and AcceptLosses may be left out: they stay. With Auto the binding stays. Under bridge an
// address that came to the NIC after the first Setup is removed, and Progress names it. What else came later, and the
// guest has not, Setup leaves: Progress names it, and Check returns it as differences of the kind later.
//
// Setup may wait for a gateway: it asks for the MAC of an IPv6 gateway that has a global address, and of an IPv4
// gateway outside of the guest's network. A first Setup waits at most 5 s for each, a later one 1 s. On standby it asks
// none.
//
//	*cache.FieldError    a field of the Spec or the NIC is wrong
//	*infra.RefusedError  the binding cannot work on the NIC
//	infra.ErrNoNIC       the namespace has no such link
//	infra.ErrWired       the NIC is wired in a way that spec cannot change
//	infra.ErrWired       the record in State is another namespace's
//	ErrForAnother        the NIC is wired for another one than spec.For
//	infra.ErrCollision   a network of the Spec is in use
//	ErrOwnNamespace      the namespace is the caller's, or the machine's
//	*infra.StepError     the kernel refused an operation
//	fs.ErrPermission     a capability is missing
//	fs.ErrPermission     another user can write State, or Owner cannot read it
//	fs.ErrPermission     Owner cannot open /dev/net/tun or /dev/vhost-net
//	fs.ErrPermission     the SELinux policy keeps Setup from Owner.SELinux
//
// With the option Moving there are further errors:
//
//	ErrActive          Moving does not allow its From
//	*cache.FieldError  spec contradicts From, such as by another MAC or a smaller MTU
//	infra.ErrWired     the NIC is wired for another guest than that of From
func (n NIC) Setup(ctx context.Context, spec infra.Spec, options ...SetupOption) (cache.Record, error) {
	record, err := n.request(spec, options).setup(ctx)
	return record, n.failed("setup", err)
}

// SetupOption is an option of Setup and Plan: [Moving]. Of two of one type the last one counts.
type SetupOption interface{ apply(*request) }

func (m Moving) apply(r *request) { r.Moving = m }

func (n NIC) request(spec infra.Spec, options []SetupOption) request {
	r := request{NIC: n, Spec: spec}
	for _, o := range options {
		o.apply(&r)
	}
	return r
}

func (c request) setup(ctx context.Context) (cache.Record, error) {
	taken, owner, err := c.check(ctx)
	if err != nil {
		return cache.Record{}, err
	}
	var record cache.Record
	again := c
	err = c.do(ctx, func(s *session) error {
		s.ns.EndWith(ctx, c.MostRead) // undoFailed has sockets of its own
		earlier, plan, now, err := s.plan(ctx, c, taken, owner)
		if err != nil {
			return err
		}
		ops, err := plan.Steps(now)
		if err != nil {
			return err
		}
		spec := plan.Journal().Spec
		if err := s.takeState(ctx, spec.State, owner); err != nil {
			return err
		}
		switch {
		case earlier == nil:
			s.reportChanges(c.From, plan.Record)
		case hasEgress(earlier.Spec) && !hasEgress(spec):
			s.report.say("NIC %s: egress is taken away, as this Setup names none: the guest may go everywhere", s.nic)
		case c.Standby && plan.Record.Role == cache.RoleActive:
			s.report.say("NIC %s is active, and Setup leaves it so: Deactivate (guestwire-agent deactivate) makes the guest inactive", s.nic)
		}
		j := journal{From: c.From}
		var later []cache.Finding
		if earlier != nil {
			j = *earlier
			for _, one := range plan.CutOff(earlier.Spec) {
				same := func(before netstate.ConnectionsDel) bool { return reflect.DeepEqual(before, one) }
				if !slices.ContainsFunc(j.Cut, same) { // of a Setup that has failed
					j.Cut = append(j.Cut, one)
				}
			}
			if later, err = plan.Later(ctx, now); err != nil {
				return err
			}
		}
		j.Begins = hasEgress(spec) && c.guestBegins(earlier, plan, ops)
		j = s.withState(j.of(plan))
		if err := s.writeJournal(j); err != nil {
			return err
		}
		if earlier != nil {
			s.reportRemoved(earlier, ops)
			for _, one := range later {
				s.report.say("NIC %s: %v", s.nic, one)
			}
			s.resetTap(plan, now)
		}
		if err = s.converge(ctx, plan, ops); err == nil {
			err = s.forgetOlder(ctx, plan, earlier, j)
		}
		if err == nil {
			err = s.giveFlowsBack(ctx, j)
		}
		if err == nil {
			s.forgetEarlier()
			err = s.writeRecord(plan.Record)
		}
		if err == nil && earlier != nil {
			err = plan.Hindered(now) // all else is repaired
		}
		if err != nil && earlier == nil {
			left := s.undoFailed(&j)
			again.noFwd = left == nil && s.lacksFwd(plan)
			err = errors.Join(err, left)
		}
		if err == nil {
			record = plan.Record
		}
		return err
	})
	if again.noFwd && !c.noFwd {
		progress(c.Progress).say("NIC %s: this kernel's rules cannot forward frames (modprobe nft_fwd_netdev): Setup has undone what it did, and begins again without", c.Name)
		return again.setup(ctx)
	}
	return record, err
}

// lacksFwd reports whether the plan's rules forward frames and this kernel's cannot. Setup asks after it has failed, as
// the answer takes a kernel without modules some milliseconds, and Plan before. Where the question fails, Setup's own
// error says more.
func (s *session) lacksFwd(plan *wiring.Plan) bool {
	forwards := false
	for _, t := range plan.Tables() {
		t.Resolve(func(string) int { forwards = true; return 0 })
	}
	if !forwards {
		return false
	}
	has, err := s.ns.Tables.HasFwd()
	return err == nil && !has
}

// reportRemoved names the NIC's addresses that came after the first Setup, and that a later one removes. Under bridge
// the namespace must have none but those that the guest has.
func (s *session) reportRemoved(earlier *journal, ops []netstate.Op) {
	for _, op := range ops {
		del, ok := op.(netstate.AddressDel)
		found := ok && slices.ContainsFunc(earlier.Found.Addresses, func(a netstate.Address) bool { return a.Prefix == del.Address.Prefix })
		if ok && !found && del.Link == s.nic {
			s.report.say("NIC %s: address %v came after the first Setup, and is removed: if the guest needs it, call Teardown, add it, and call Setup again (guestwire-agent teardown, guestwire-agent setup)", s.nic, del.Address.Prefix)
		}
	}
}

// check refuses a bad configuration before the namespace is looked at. It returns the Spec with what From says.
func (c request) check(ctx context.Context) (infra.Spec, resolvedOwner, error) {
	if c.From != nil {
		var err error
		if c.Spec, err = wiring.TakeOver(c.Spec, *c.From); err != nil {
			return c.Spec, resolvedOwner{}, err
		}
	}
	if err := c.Spec.Validate(); err != nil {
		return c.Spec, resolvedOwner{}, err
	}
	if err := checkNewState(c.State, c.Name); err != nil {
		return c.Spec, resolvedOwner{}, err
	}
	owner, err := c.resolveOwner(ctx)
	if err != nil && c.Owner.Inside {
		return c.Spec, owner, err // its numbers here are not known
	}
	err = errors.Join(err, checkVhost(owner, c.Device))
	if wiring.MakesTaps(c.Binding) {
		err = errors.Join(err, checkTaps(owner))
	}
	return c.Spec, owner, err
}

// plan computes the wiring of c, whose Spec with what From says is taken, and reads the namespace as it is now. If
// there is a journal, the plan is made of the namespace as the first Setup found it.
func (s *session) plan(ctx context.Context, c request, taken infra.Spec, owner resolvedOwner) (earlier *journal, plan *wiring.Plan, now netstate.Snapshot, err error) {
	err = s.look(func() (err error) {
		if earlier, err = s.readJournal(); err == nil {
			err = c.isLast(earlier)
		}
		return err
	})
	if err != nil {
		return nil, nil, now, err
	}
	if earlier == nil {
		c.Spec = taken
		plan, now, err = s.firstPlan(ctx, c, owner)
	} else {
		if taken, err = earlier.takeOver(c, taken); err != nil {
			return nil, nil, now, err
		}
		plan, now, err = s.nextPlan(ctx, earlier, taken)
		if err == nil {
			err = earlier.sameGuest(c.From, plan.Record)
		}
	}
	if err != nil {
		return nil, nil, now, err
	}
	plan.Record.Namespace = s.identity.Name()
	return earlier, plan, now, nil
}

// nextPlan computes the wiring of a NIC that has a journal.
func (s *session) nextPlan(ctx context.Context, earlier *journal, spec infra.Spec) (*wiring.Plan, netstate.Snapshot, error) {
	if err := s.checkFor(earlier.Spec.For, spec.For); err != nil { // first: after other errors While takes the wiring down
		return nil, netstate.Snapshot{}, err
	}
	if earlier.Salvaged {
		return nil, netstate.Snapshot{}, fmt.Errorf("%w, and its forced Teardown was interrupted: call Teardown first (guestwire-agent teardown)", infra.ErrWired)
	}
	if err := earlier.checkState(spec.State); err != nil {
		return nil, netstate.Snapshot{}, fmt.Errorf("%w: %w", infra.ErrWired, err)
	}
	spec, err := wiring.SameGuest(s.nic, earlier.Spec, spec)
	if err != nil {
		return nil, netstate.Snapshot{}, err
	}
	spec.State, spec.For = earlier.Spec.State, earlier.Spec.For
	again := earlier.Journal
	again.Spec = spec
	if again.Found.FlowTables {
		watched, err := s.ns.Tables.Watched()
		if err != nil {
			return nil, netstate.Snapshot{}, err
		}
		again.Found.FlowTables = !watched
	}
	if spec.Flows {
		if err := s.askFlows(&again.Found, earlier.Made); err != nil {
			return nil, netstate.Snapshot{}, err
		}
	}
	if hasEgress(spec) { // the first policy may come with this Setup
		if err := s.askPolicy(&again.Found); err != nil {
			return nil, netstate.Snapshot{}, err
		}
	}
	if err := s.askShaper(&again.Found, spec.Limits.ToGuest != (cache.Shape{})); err != nil {
		return nil, netstate.Snapshot{}, err
	}
	plan, err := again.Plan()
	if err != nil {
		return nil, netstate.Snapshot{}, err
	}
	end := s.report.during("asks for the MACs of the guest's gateways")
	plan, _, err = s.askGateways(ctx, plan, false)
	end()
	if err != nil {
		return nil, netstate.Snapshot{}, err
	}
	s.expect(earlier, plan)
	var now netstate.Snapshot
	err = s.look(func() (err error) {
		now, err = s.read(plan, plan.Hinders()...)
		return err
	})
	if err != nil {
		return nil, now, err
	}
	plan, now, changed, err := plan.Present(now)
	for _, one := range changed {
		if wiring.NamesNetworks(earlier.Spec) {
			s.report.say("NIC %s: %v", s.nic, one)
		}
	}
	return plan, now, err
}

// firstPlan computes the wiring of a NIC that has no journal.
func (s *session) firstPlan(ctx context.Context, c request, owner resolvedOwner) (*wiring.Plan, netstate.Snapshot, error) {
	spec := c.Spec
	turn, err := wiring.FirstTurn(s.identity.Name(), spec.Binding, c.From, c.Standby)
	if err != nil {
		return nil, netstate.Snapshot{}, err
	}
	planWith := func(make func(wiring.Journal) (*wiring.Plan, error), spec infra.Spec, questions wiring.Questions, earlier []netstate.Neighbour) (*wiring.Plan, netstate.Snapshot, []netstate.Neighbour, error) {
		now, found, err := s.readFirst(ctx, c, owner, questions, earlier)
		if err != nil {
			return nil, now, nil, err
		}
		plan, err := make(wiring.Journal{NIC: c.Name, Found: found, Spec: spec, Turn: turn})
		return plan, now, found.Neighbours, err
	}
	first := wiring.FirstTry(spec)
	plan, now, neighbours, err := planWith(wiring.Journal.Try, first, wiring.Ask(c.Name, first), nil)
	if more, needed := wiring.AskOthers(c.Name, spec, plan, err); needed {
		plan, now, _, err = planWith(wiring.Journal.First, spec, more, neighbours)
	}
	if errors.Is(err, infra.ErrWired) {
		return nil, now, s.explainMark(now, err)
	}
	if err != nil {
		return nil, now, err
	}
	return plan, now, kernel.HavePrograms(plan.Tables())
}

// readFirst reads the namespace for a first plan: as it is now, and as it was found, which has the answers and what an
// earlier wiring of another NIC has changed.
func (s *session) readFirst(ctx context.Context, c request, owner resolvedOwner, questions wiring.Questions, known []netstate.Neighbour) (now, found netstate.Snapshot, err error) {
	read := func() {
		now, err = s.ns.Snapshot(netstate.NamesFor(c.Name, c.Tap), questions.Hinders, nil, questions.Sysctls...)
	}
	var others []*journal
	err = s.look(func() error {
		if questions.Tracking {
			if err := s.ns.Tables.LoadTracking(); err != nil {
				return err
			}
		}
		if read(); err == nil && lacksLinkLocal(now, c.Name) {
			// A NIC that has just come up gets its link-local address when the kernel notices the carrier. An address
			// that comes after this look would be none that Teardown gives back.
			tap.NoticeCarrier(c.Name)
			read()
		}
		if err == nil {
			others, _, err = s.otherJournals() // one that cannot be read concerns its own NIC
		}
		return err
	})
	if err != nil {
		return now, found, err
	}
	found = now
	found.NoFwd = c.noFwd
	for _, n := range known {
		same := func(o netstate.Neighbour) bool { return o.Link == n.Link && o.Address == n.Address }
		if !slices.ContainsFunc(found.Neighbours, same) {
			found.Neighbours = append(slices.Clip(found.Neighbours), n)
		}
	}
	if link, ok := found.Named(c.Name); ok && c.From != nil {
		if err := c.checkMovedMTU(link.MTU); err != nil {
			return now, found, err
		}
		if questions.Gateways {
			wiring.KnownGateways(&found, link, *c.From)
		}
	}
	questions.Gateways = questions.Gateways && !c.Standby // to ask is to send
	if c.Owner.Inside {
		found.OnNode = infra.Owner{UID: owner.UID, GID: owner.GID}
	}
	link, _ := now.Named(c.Name)
	for _, other := range others {
		if wired := other.Made.NIC; link.Index == wired.Index && wired.Index != 0 && !wired.IsReplacement(other.Found, link) {
			return now, found, wiring.RenamedError(other.NIC)
		}
		undo.Inherit(&found, other.Found, other.Made)
	}
	return now, found, s.answer(ctx, &found, c.Name, questions)
}

// lacksLinkLocal reports whether a link that is up has no IPv6 link-local address, though it makes one.
func lacksLinkLocal(now netstate.Snapshot, name string) bool {
	link, ok := now.Named(name)
	if !ok || !link.Up || link.NoIPv6 || link.AddrGen == netstate.AddrGenNone || link.AddrGen == netstate.AddrGenNoIPv6 {
		return false
	}
	return !slices.ContainsFunc(now.Addresses, func(a netstate.Address) bool {
		return a.Link == link.Index && a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast()
	})
}

// answer adds to the snapshot what a first plan needs too.
func (s *session) answer(ctx context.Context, found *netstate.Snapshot, nic string, questions wiring.Questions) error {
	var err error
	if questions.Listeners {
		if found.Listeners, err = s.ns.Listeners(); err != nil {
			return err
		}
	}
	if questions.Connections {
		ports, err := s.ns.LocalPorts()
		if err != nil {
			return err
		}
		found.Connections = wiring.OutsideClients(*found, ports)
	}
	if questions.Dummy {
		if found.Dummy, err = s.ns.HasDummy(); err != nil {
			return err
		}
	}
	if questions.Log {
		has, err := s.ns.Tables.HasLog()
		if err != nil {
			return err
		}
		found.NoLog = !has
	}
	if questions.FlowTables && !found.NoNFTables {
		if found.FlowTables, err = s.ns.Tables.CanOffload(); err != nil {
			return err
		}
	}
	if questions.Checksums {
		if err := s.askPolicy(found); err != nil {
			return err
		}
	}
	if err := s.askShaper(found, questions.Shaper); err != nil {
		return err
	}
	if questions.LoopbackDNS && wiring.MayResolve(found.Listeners) {
		found.LoopbackDNS = s.loopbackDNS()
	}
	link, ok := found.Named(nic)
	if !ok || !questions.Gateways {
		return nil // without the NIC, the plan says so
	}
	for _, gateway := range wiring.Gateways(*found, link) {
		end := s.report.during("asks for the MAC of the gateway %v, for up to five seconds", gateway)
		neighbour, ok, err := s.resolve(ctx, found, link, gateway)
		end()
		if err != nil {
			return err
		}
		if ok {
			found.Neighbours = append(found.Neighbours, neighbour)
		}
	}
	return nil
}

// loopbackDNS is the resolver on loopback that the namespace's resolv.conf names, as far as this process sees the file;
// zero: there is none. Whether one listens there shows whether the file is this namespace's.
func (s *session) loopbackDNS() netip.Addr {
	text, err := resolvconf.Read(resolvconf.Path(s.identity.Inode))
	if err != nil {
		return netip.Addr{}
	}
	dns, _ := resolvconf.Parse(text)
	return wiring.FirstLoopback(dns.Servers)
}

// resolve asks for the MAC of a gateway. At a link without a link-local address the kernel asks for no IPv6 neighbour
// unless it has a packet for it.
func (s *session) resolve(ctx context.Context, found *netstate.Snapshot, link netstate.Link, gateway netip.Addr) (netstate.Neighbour, bool, error) {
	var source netip.Addr
	for _, a := range found.Addresses {
		switch at := a.Prefix.Addr(); {
		case a.Link != link.Index || at.Is4() || gateway.Is4() || a.Duplicate:
		case at.IsLinkLocalUnicast():
			return s.ns.Resolve(ctx, link.Index, gateway)
		default:
			source = at
		}
	}
	if !source.IsValid() {
		return s.ns.Resolve(ctx, link.Index, gateway)
	}
	mac, ok, err := s.ns.Solicit(ctx, kernel.Solicitation{Link: link.Index, MAC: link.MAC, Source: source, Target: gateway})
	return netstate.Neighbour{Link: link.Index, Address: gateway, MAC: mac}, ok, err
}

// askPolicy adds to the snapshot what a plan with a policy needs. What the kernel has by then is in use, and stays.
func (s *session) askPolicy(found *netstate.Snapshot) (err error) {
	if !found.LocalSources {
		if found.LocalSources, err = s.ns.Tables.MatchesLocalSources(); err != nil {
			return err
		}
	}
	if found.Checksums, err = s.ns.Tables.CompletesChecksums(); err == nil {
		found.EarlyChecksums, found.ClearsChecksums, err = s.ns.EarlyChecksums()
	}
	return err
}

// askShaper adds to the snapshot what a plan with a limit toward the guest needs.
func (s *session) askShaper(found *netstate.Snapshot, asked bool) error {
	found.NoShaper = false
	if !asked {
		return nil
	}
	has, err := s.ns.HasShaper()
	found.NoShaper = !has
	return err
}

// resetTap undoes what a VMM that has ended left at the guest's tap, as most of it is not to be seen (tap.Initial).
func (s *session) resetTap(plan *wiring.Plan, now netstate.Snapshot) {
	spec := plan.Journal().Spec
	l, there := now.Named(plan.Record.Tap)
	if !there || l.Tap == nil || !wiring.MakesTaps(spec.Binding) {
		return
	}
	reset := netstate.TapReset{Index: l.Index, Link: l.Name, MultiQueue: l.Tap.MultiQueue, Context: spec.Owner.SELinux}
	if err := s.ns.ResetTap(reset); err != nil {
		s.report.say("what a VMM that has ended set at tap %s may still be set: %v", l.Name, err)
	}
}

// tries is how often the namespace is looked at again, which is more than the kernel is known to need.
const tries = 4

// converge carries out the operations, and what is left to do then: the kernel removes and adds
// addresses and routes of its own when a damaged link goes down, comes up, or gets IPv6.
func (s *session) converge(ctx context.Context, plan *wiring.Plan, ops []netstate.Op) error {
	for range tries {
		if len(ops) == 0 {
			s.writeSight()
			return nil
		}
		if err := s.ns.Apply(ctx, ops); err != nil {
			return err
		}
		now, err := s.read(plan)
		if err != nil {
			return err
		}
		if ops, err = plan.Steps(now); err != nil {
			return err
		}
	}
	return s.verify(plan)
}

func hasEgress(s infra.Spec) bool { return len(s.Egress)+len(s.EgressWithin) > 0 }
