// Kvmcheck boots guests on KVM with each of the bindings bridge, masquerade, redirect and routed, under each VMM that
// is installed, and prints a report to paste into an issue.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/sandbox"
)

const usage = `kvmcheck boots guests on KVM with each binding and each VMM that is installed, in
namespaces of its own. Progress goes to standard error, and a report to paste into an
issue to standard output. It needs root, and what internal/rig/vm/install.sh installs;
make kvm-check calls both.

  kvmcheck -plan    print what make kvm-check changes, and change nothing

Flags:
`

// changes is what make kvm-check does to the machine.
const changes = `make kvm-check changes this machine:

  stays   Debian packages: QEMU, libvirt, passt and what they need. In /var/cache/guestwire:
          a kernel and programs for guests. No service is started. internal/rig/vm/install.sh
          has the list, and does nothing if all is there.
  stays   modules that the kernel loads by itself, for links, taps, nftables and vhost-net.
  ends    network namespaces with links of their own, mounts that this program alone has,
          files in %s, VMMs and responders as user libvirt-qemu.

It does not touch the machine's links, addresses, routes, firewall and sysctls, nor the
modes of its devices. The report has versions, the CPU's model, and the texts of faults.

`

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kvmcheck:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) == 3 && os.Args[1] == serveCommand {
		return serve(os.Args[2])
	}
	var c check
	plan := flag.Bool("plan", false, "print what make kvm-check changes, and change nothing")
	flag.BoolVar(&c.emulated, "emulated", false, "do without KVM; the report says so")
	flag.StringVar(&c.agent, "agent", "agent", "the agent's `PATH`; what its doctor says is in the report")
	flag.StringVar(&c.only, "only", "", "boot guests with this `BINDING`, and plan the others")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("%q is no flag; see kvmcheck -help", flag.Arg(0))
	}
	if c.only != "" && !slices.ContainsFunc(bindings, func(b infra.Binding) bool { return string(b.Kind()) == c.only }) {
		return fmt.Errorf("-only %s: want bridge, masquerade, redirect or routed", c.only)
	}
	if *plan {
		fmt.Fprintf(os.Stderr, changes, os.TempDir())
		for _, v := range vmms {
			what := v.missing()
			if what == "" {
				what = "will run"
			}
			fmt.Fprintf(os.Stderr, "%-18s %s\n", v.name, what)
		}
		fmt.Fprintln(os.Stderr)
	}
	if os.Geteuid() != 0 {
		return errors.New("it makes namespaces and links, and needs root: sudo make kvm-check")
	}
	if err := checkKVM(); err != nil && !c.emulated {
		return err
	}
	if *plan {
		return nil
	}
	if err := sandbox.Enter(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return c.report(ctx, os.Stdout)
}
