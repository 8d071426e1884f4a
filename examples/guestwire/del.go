package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// delArgs are those of a DEL. They are not read by skel, which refuses versions, variables and namespaces that do not
// matter to a DEL.
func delArgs() *skel.CmdArgs {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		say("DEL: standard input: %v", err)
	}
	return &skel.CmdArgs{
		ContainerID: os.Getenv("CNI_CONTAINERID"), Netns: os.Getenv("CNI_NETNS"), IfName: os.Getenv("CNI_IFNAME"),
		Args: os.Getenv("CNI_ARGS"), StdinData: text,
	}
}

// del gives back what add has wired for the attachment. To the engine it succeeds whatever happens: an error would keep
// the engine from calling the plugins before this one, the pod from ending, and the pod's addresses from being used
// again. What could not be given back is reported on standard error, and stays for the next DEL or GC. What cannot be
// read of the list counts as left out.
func del(ctx context.Context, args *skel.CmdArgs) error {
	p, wrong := readAnyPaths(args)
	if wrong != nil {
		wrong = fmt.Errorf("%w; DEL takes the state %s and the dir %s", wrong, p.State, p.Dir)
	}
	err := p.end(ctx, args)
	if wrong != nil && (err == nil || err == errNothing) {
		err = wrong
	} else if wrong != nil {
		err = errors.Join(wrong, err)
	}
	if err != nil && err != errNothing {
		say("DEL of %s in sandbox %s, which goes on without: %v%s", shown(args.IfName), shown(args.ContainerID), err, p.left(ctx, args))
	}
	return err
}

// shown is a text of the engine's as a log can show it.
func shown(text string) string {
	const most = 100
	if text == "" {
		return "no name"
	}
	return text[:min(len(text), most)]
}

// left names the journals that a DEL has meant and that are still there, and how they go. They are those of the
// sandbox, or, if its name cannot be read, of the namespace, which can be another sandbox's by now.
func (p paths) left(ctx context.Context, args *skel.CmdArgs) string {
	const most = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	defer cancel()
	wirings, err := phase1.List(ctx, p.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("; what is left is not known: %v", err)
	}
	text := ""
	for _, w := range wirings {
		meant := filepath.Base(w.State) == args.ContainerID
		if podsandbox.CheckID(args.ContainerID) != nil {
			meant = slices.Contains(w.FoundAt, args.Netns)
		}
		if !meant {
			continue
		}
		p.Dir = cmp.Or(p.Dir, phase1.DefaultDir)
		way := "guestwire-agent forget -namespace " + infra.ShellWord(w.Namespace) + " -dir " + infra.ShellWord(p.Dir)
		if len(w.FoundAt) > 0 {
			way = "guestwire-agent teardown -cut-off -state " + infra.ShellWord(w.State) + " -nic " + infra.ShellWord(w.NIC) + " -dir " + infra.ShellWord(p.Dir) // FoundAt is for people
		}
		text += fmt.Sprintf("; left: the journal %s of %s (%s)", filepath.Join(p.Dir, w.Namespace, w.NIC+".journal"), w.State, way)
	}
	return text
}

// end takes the attachment's NICs down. If the namespace has no path any more, the whole sandbox ends. Without such a
// NIC it returns errNothing.
func (p paths) end(ctx context.Context, args *skel.CmdArgs) error {
	dir, err := p.State.Dir(args.ContainerID)
	if err != nil {
		return fmt.Errorf("CNI_CONTAINERID: %w", err)
	}
	ns, noNS := phase1.OpenNetNS(args.Netns)
	if noNS == nil {
		defer ns.Close()
	}
	calls := sandboxCalls{p, args.ContainerID, dir, ns}
	nics, err := p.State.NICs(args.ContainerID)
	if err != nil {
		return err
	}
	var noPath *fs.PathError
	whole := errors.As(noNS, &noPath)
	if wrong := utils.ValidateInterfaceName(args.IfName); wrong != nil && !whole && len(nics) > 0 {
		return fmt.Errorf("CNI_IFNAME: %w", wrong)
	}
	var errs []error
	if len(nics) == 0 {
		err := calls.endLost(ctx, args.IfName)
		if _, absent := os.Lstat(dir); errors.Is(absent, fs.ErrNotExist) && !p.State.Leads(podOf(args), args.ContainerID) {
			return err
		}
		if err != errNothing {
			errs = append(errs, err)
		}
	}
	for _, nic := range nics {
		if whole || nic.BelongsTo(args.IfName) {
			errs = append(errs, calls.end(ctx, nic.Name))
		}
	}
	err = errors.Join(append(errs, p.State.Release(ctx, p.lock, args.ContainerID))...)
	if err == nil && len(errs) == 0 {
		return errNothing
	}
	return err
}
