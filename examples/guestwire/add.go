package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// add wires what is wanted, and prints the result of the plugins before this one. Called again it repairs what is
// missing. After an error nothing of the sandbox is left that was not there before. If nothing is wanted, it returns
// errNothing.
func add(ctx context.Context, args *skel.CmdArgs) error {
	c, err := readConfig(args)
	if err != nil {
		return err
	}
	result, err := c.result()
	if err != nil {
		return err
	}
	nics, err := c.wanted(args)
	if err != nil {
		return err
	}
	var withTap *current.Result
	if c.TapResult && len(nics) > 0 {
		if withTap, err = c.readForTap(result, args, nics); err != nil {
			return err
		}
	}
	if len(nics) > 0 {
		records, err := c.wire(ctx, args, nics)
		if err != nil {
			return err
		}
		if record, ok := records[args.IfName]; ok && withTap != nil {
			if result, err = c.addTap(withTap, args, record); err != nil {
				return err
			}
		}
	}
	c.sayUnwired(args, nics)
	if _, err = os.Stdout.Write(append(result, '\n')); err == nil && len(nics) == 0 {
		return errNothing
	}
	return err
}

// sayUnwired says what an ADD does not wire though somebody may expect it: it succeeds, as it cannot know of the
// networks to come. An engine's log has it.
func (c config) sayUnwired(args *skel.CmdArgs, nics []wantedNIC) {
	if _, says := c.Capabilities[podsandbox.Capability]; !says && len(nics) == 0 && c.Args.CNI.Guestwire == nil {
		say(`this entry of the CNI list wires nothing, as its spec names no binding, and it does not ask for the pod's annotations: `+
			`give it "capabilities": {"%[1]s": true}, or {"%[1]s": false} if nothing is meant`, podsandbox.Capability)
		return
	}
	annotated, _ := podsandbox.Read(c.RuntimeConfig.Annotations) // wanted has had its error
	before, _ := c.State.NICs(args.ContainerID)                  // what cannot be read is no NIC of this sandbox
	for _, nic := range annotated.Named() {
		is := func(name string) bool { return name == nic }
		if slices.ContainsFunc(nics, func(n wantedNIC) bool { return is(n.name) }) || slices.ContainsFunc(before, func(n podsandbox.NIC) bool { return is(n.Name) }) {
			continue
		}
		say("NIC %s of the annotation %s%s is not wired by this call, which is about NIC %s alone: that of %[1]s's own network wires it, if its list ends with guestwire; or this entry, behind Multus, needs \"everyNIC\": true",
			nic, podsandbox.NICPrefix, nic, args.IfName)
	}
}

// wire wires the NICs of a sandbox, and returns their records by their names.
func (c config) wire(ctx context.Context, args *skel.CmdArgs, nics []wantedNIC) (map[string]cache.Record, error) {
	dir, err := c.State.Dir(args.ContainerID)
	if err != nil {
		return nil, fmt.Errorf("CNI_CONTAINERID: %w", err)
	}
	pod := podOf(args)
	if _, err := c.State.PodDirs(pod); err != nil {
		return nil, fmt.Errorf("K8S_POD_UID, or K8S_POD_NAMESPACE and K8S_POD_NAME of CNI_ARGS: %w", err)
	}
	ns, err := phase1.OpenNetNS(args.Netns)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, "guestwire: CNI_NETNS: "+err.Error(), "")
	}
	defer ns.Close()
	before, err := c.State.NICs(args.ContainerID)
	if err != nil {
		return nil, err
	}
	calls := sandboxCalls{c.paths, args.ContainerID, dir, ns}
	if c.ofKubeVirt() && nics[0].name == args.IfName {
		c.nameForKubeVirt(ctx, calls, &nics[0])
	}
	// Without this lock a note could not be removed. A call that is killed here leaves the lock's file, and each later
	// call of the node removes it: a lock of the sandbox would have a file for each killed call.
	unlock, err := c.lock(ctx, c.State.Links())
	if err != nil {
		return nil, err
	}
	unlock()
	for _, nic := range nics {
		if slices.ContainsFunc(before, func(n podsandbox.NIC) bool { return n.Name == nic.name }) {
			calls.forgetKilled(ctx, nic.name)
		}
	}
	var begun []string
	records := map[string]cache.Record{}
	err = func() error {
		for _, nic := range nics {
			if err := c.State.Begin(args.ContainerID, nic.name, podsandbox.Attachment{Network: c.Name, IfName: args.IfName}); errors.Is(err, fs.ErrExist) && c.ofKubeVirt() {
				return fmt.Errorf("network %s has no NIC of its own, as one of a resourceClaim: %w", c.Args.CNI.LogicNetworkName, err)
			} else if err != nil {
				return err
			}
			begun = append(begun, nic.name)
			nic.spec.State = dir
			record, err := calls.nic(nic.name).Setup(ctx, nic.spec)
			if err != nil {
				return c.setupError(ctx, nic.name, args, err)
			}
			records[nic.name] = record
			for _, l := range record.Losses {
				say("NIC %s: lost: %v", nic.name, l)
			}
			for _, warning := range record.Warnings {
				say("NIC %s: warning: %s", nic.name, warning)
			}
		}
		return c.State.Link(ctx, c.lock, pod, args.ContainerID)
	}()
	if err == nil {
		return records, nil
	}
	// What was wired before this call stays: a guest may be using it. The way back has time of its own.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), delTime, fmt.Errorf("no end after %v", delTime))
	defer cancel()
	for _, nic := range begun {
		if wasWired(before, nic) {
			continue
		}
		if undo := calls.undo(ctx, nic); undo != nil {
			err = errors.Join(err, undo)
		}
	}
	if undo := c.State.Release(ctx, c.lock, args.ContainerID); undo != nil {
		err = errors.Join(err, undo)
	}
	return nil, err
}

// undo ends a NIC with which a failed ADD has begun. Without a journal Setup has given all back, or was refused; the
// NIC can be that of another sandbox.
func (s sandboxCalls) undo(ctx context.Context, nic string) error {
	wirings, err := phase1.List(ctx, s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !slices.ContainsFunc(wirings, func(w phase1.Wiring) bool { return w.NIC == nic && sameDir(w.State, s.dir) }) {
		return s.ended(nic)
	}
	return s.teardown(ctx, nic)
}

func wasWired(before []podsandbox.NIC, nic string) bool {
	for _, n := range before {
		if n.Name == nic {
			return n.Record
		}
	}
	return false
}

// wiredAt reports whether the namespace at the path has a wiring of the NIC. Else what is wired is another namespace's,
// or a name is taken, and Setup's text has the way out.
func (c config) wiredAt(ctx context.Context, path, nic string) bool {
	want, err := os.Stat(path)
	if err != nil {
		return false
	}
	wirings, _ := phase1.List(ctx, c.Dir) // without an answer there is no further text
	for _, w := range wirings {
		for _, at := range w.FoundAt {
			if have, err := os.Stat(at); err == nil && w.NIC == nic && os.SameFile(have, want) {
				return true
			}
		}
	}
	return false
}

// setupError adds what a pod's author can do about an error of Setup.
func (c config) setupError(ctx context.Context, nic string, args *skel.CmdArgs, err error) error {
	if errors.Is(err, infra.ErrWired) && c.wiredAt(ctx, args.Netns, nic) {
		return fmt.Errorf("%w; a NIC that guestwire has wired ends with a DEL: delete the pod; or on the node: %s", err, c.agentCall("teardown", args.Netns, nic))
	}
	if errors.Is(err, infra.ErrNoNIC) && nic != args.IfName && !c.ofKubeVirt() {
		return &podsandbox.WishError{Where: "annotation " + podsandbox.NICPrefix + nic, Err: fmt.Errorf("%w: the pod's networks make no such NIC", err)}
	}
	var refused *infra.RefusedError
	if errors.As(err, &refused) && refused.Instead != "" && c.ofKubeVirt() {
		return fmt.Errorf(`%w: write it into the binding's NetworkAttachmentDefinition: "spec": {"binding": {%q: {}}}`, err, refused.Instead)
	}
	if errors.As(err, &refused) && refused.Instead != "" {
		return fmt.Errorf("%w: annotate the pod with %s%s=%s", err, podsandbox.NICPrefix, nic, refused.Instead)
	}
	return err
}
