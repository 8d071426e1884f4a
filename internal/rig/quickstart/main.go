// Quickstart demonstrates guestwire on a temporary network, for each of the bindings bridge, redirect, routed and
// masquerade: it gives a pod's network to a guest, tests the guest's connections, and restores the pod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/sandbox"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

const usage = `quickstart hands the network of a throw-away pod to a guest, and gives it back:
with each of the bindings bridge, redirect, routed and masquerade. It needs
root, and leaves the machine as it is.

  quickstart        with a small guest in this program
  quickstart -vm    with a Linux guest under an unprivileged libvirt (make
                    demo-vm installs what that needs)

Flags:
`

const intro = `guestwire gives the network of a pod to a guest, once with each binding.
The pod and the world around it are namespaces that end with this program.
`

func main() {
	if len(os.Args) == 3 && os.Args[1] == serveCommand {
		if err := serve(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "quickstart:", err)
			os.Exit(1)
		}
		return
	}
	withVM := flag.Bool("vm", false, "boot a Linux guest under libvirt")
	verbose := flag.Bool("v", false, "print the plans, too")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "quickstart: %q is no flag; see quickstart -help\n", flag.Arg(0))
		os.Exit(2)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "quickstart: it makes namespaces and links, and needs root: sudo make demo")
		os.Exit(1)
	}
	if err := sandbox.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := newStory(os.Stdout, *verbose)
	fmt.Fprint(s.out, intro)
	started := time.Now()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}} {
		if err := runBinding(ctx, s, b, *withVM); err != nil {
			fmt.Fprintf(s.out, "\n%s %v\n", s.in(red, "FAILED:"), err)
			os.Exit(1)
		}
	}
	fmt.Fprintf(s.out, "\n%s in %.1f s: all guests had the pod's network,\nand all namespaces are as they were.\n",
		s.in(bold, "Everything held,"), time.Since(started).Seconds())
}

// runBinding demonstrates one binding, from Plan to Teardown.
func runBinding(ctx context.Context, s story, b infra.Binding, withVM bool) (err error) {
	s.title(b)
	pod, world, err := createNetwork()
	if err != nil {
		return fmt.Errorf("create the network: %w", err)
	}
	defer func() { err = errors.Join(err, pod.File.Close(), world.File.Close()) }()
	s.step("a CNI plugin has created the pod's network; the pod has")
	before, err := describe(pod)
	if err != nil {
		return err
	}
	s.quote(before.addresses)

	boot := bootEmbedded
	owner := infra.Owner{UID: lab.User, GID: lab.User}
	if withVM {
		boot = bootLibvirt
		if owner, err = libvirtOwner(); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "guestwire-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // the launcher reads the record in it
		return err
	}
	nic := phase1.NIC{NetNS: pod.File, Name: "eth0"}
	spec := infra.Spec{
		Binding: b, Owner: owner, State: filepath.Join(dir, "vm1"),
		DNS: &cache.DNS{Servers: []netip.Addr{lab.Beyond4, lab.Beyond6}, Search: []string{"pod.example"}},
	}

	preview, err := nic.Plan(ctx, spec)
	if err != nil {
		return err
	}
	if s.verbose {
		s.step("Plan: %d operations, nothing is changed yet", len(preview.Steps))
		s.quoteCommands(preview.String())
	} else {
		s.step("Plan: %d operations, nothing is changed yet (-v prints them)", len(preview.Steps))
	}

	started := time.Now()
	if _, err := nic.Setup(ctx, spec); err != nil {
		return err
	}
	wired := true
	defer func() {
		if wired { // a step failed
			err = errors.Join(err, nic.Teardown(context.WithoutCancel(ctx), phase1.TeardownOptions{CutOff: true})) // the guest may be left
		}
	}()
	s.step("Setup, as root: done in %.1f ms; the pod has", float64(time.Since(started).Microseconds())/1000)
	after, err := describe(pod)
	if err != nil {
		return err
	}
	s.quote(after.addresses)

	launcher, err := startLauncher(pod, spec.State, owner)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, launcher.stop()) }()
	capabilities, err := launcher.capabilities()
	if err != nil {
		return err
	}
	s.step("phase2.Serve, as user %d, which has no capabilities", owner.UID)
	s.quote(capabilities)

	vm, err := phase2.Open(spec.State)
	if err != nil {
		return err
	}
	elements, err := vm.Interfaces()
	if err != nil {
		return err
	}
	xml, err := elements[0].Marshal()
	if err != nil {
		return err
	}
	s.step("phase2.Interfaces: what the VM's definition says")
	s.quote(xml)

	if withVM {
		s.step("a Linux guest boots under an unprivileged libvirt, without hardware help")
	}
	if err := checkNetwork(ctx, s, boot, pod, world, vm.Records()[0], owner, xml); err != nil {
		return fmt.Errorf("%w\nthe launcher said:\n%s", err, launcher.log.String())
	}
	if err := nic.Check(ctx); err != nil {
		return err
	}
	s.step("Check: the kernel is as recorded")

	if err := launcher.stop(); err != nil {
		return err
	}
	wired = false
	started = time.Now()
	if err := nic.Teardown(ctx, phase1.TeardownOptions{}); err != nil {
		return err
	}
	took := time.Since(started)
	if err := waitRestored(ctx, pod, before); err != nil {
		return err
	}
	s.step("Teardown: done in %.0f ms; the pod is what it was before", float64(took.Microseconds())/1000)
	return nil
}

// checkNetwork boots the guest and checks that it reaches, and is reached by, the world.
func checkNetwork(ctx context.Context, s story, boot bootFunc, pod, world lab.Namespace, r cache.Record, owner infra.Owner, xml string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	started := time.Now()
	g, err := boot(ctx, pod, r, owner, xml)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	description, err := g.describe(ctx)
	if err != nil {
		return err
	}
	s.step("the guest has booted and configured itself in %.1f s", time.Since(started).Seconds())
	s.quote(description)
	for _, to := range []netip.Addr{lab.Gateway4, lab.Gateway6, lab.Beyond4, lab.Beyond6} {
		if err := g.ping(ctx, to); err != nil {
			return fmt.Errorf("guest to %v: %w", to, err)
		}
		s.step("the guest pings %-16v answered", to)
	}
	for _, to := range []netip.Addr{lab.Pod4, lab.Pod6} {
		if _, err := world.Ping(ctx, to); err != nil {
			return fmt.Errorf("world to %v: %w", to, err)
		}
		answer, err := world.Ask(ctx, netip.AddrPortFrom(to, g.port()).String())
		if err != nil {
			return fmt.Errorf("world to %v: %w", to, err)
		}
		if !strings.Contains(answer, guestName) {
			return fmt.Errorf("world to %v: %q answered instead of the guest", to, answer)
		}
		s.step("the world pings %-16v answered", to)
		s.step("the world connects to %v: %q", to, answer)
	}
	return nil
}
