// Launcher is the unprivileged half of a VM launcher: it describes the interfaces that the agent has
// wired, and answers the guest.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"

	"github.com/guestwire/guestwire/phase2"
)

const usage = `launcher describes and serves the interfaces of a virtual machine. It needs no privileges.

  launcher xml   -state DIR    the libvirt <interface> elements
  launcher serve -state DIR    DHCP, DHCPv6 and router advertisements until SIGTERM; the log is on standard error;
                               -events prints what Serve did and what the guest got, as lines of JSON on standard output:
                               {"time": ..., "nic": "eth0", "event": "dhcpv4-leased", "text": ..., "address": ...}
  launcher version             the program's version and revision

DIR is the agent's state directory. serve runs in the pod's namespace as the user named in agent setup -uid:

  nsenter --net=/run/netns/pod setpriv --reuid 107 --regid 107 --clear-groups --bounding-set -all --inh-caps -all --no-new-privs \
    launcher serve -state /run/guestwire/vm1

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process even if its standard output blocks
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "launcher:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	verb := ""
	if len(args) > 0 && len(args[0]) > 0 && args[0][0] != '-' {
		verb, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("launcher", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	state := flags.String("state", "", "the agent's state directory")
	resolvConf := flags.String("resolv-conf", "", "the file with the guest's DNS configuration, if the record has none; changes are followed (default /etc/resolv.conf, if it exists)")
	events := flags.Bool("events", false, "serve: print events as lines of JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag; launcher -help tells more", flags.Arg(0))
	}
	if verb == "version" {
		fmt.Println("launcher", version())
		return nil
	}
	if verb != "xml" && verb != "serve" {
		return fmt.Errorf("%q is none of xml, serve, version; launcher -help tells more", verb)
	}
	if *state == "" {
		return errors.New("-state is missing: name the agent's state directory")
	}
	vm, err := phase2.Open(*state)
	if err != nil {
		return err
	}
	vm.ResolvConf = *resolvConf
	if verb == "serve" {
		vm.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
		if *events {
			vm.Notify = printEvent
		}
		err := vm.Serve(ctx)
		for nic, c := range vm.Counters() {
			vm.Log.Info("served", "nic", nic, "received", c.Received, "sent", c.Sent, "failed", c.Failed, "ignored", c.Ignored)
		}
		return err
	}
	elements, err := vm.Interfaces()
	if err != nil {
		return err
	}
	for _, element := range elements {
		xml, err := element.Marshal()
		if err != nil {
			return err
		}
		fmt.Println(xml)
	}
	return nil
}

// version is the program's version and revision, as the go command noted them: "v0.1.0, revision 1f3a...".
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	text := info.Main.Version
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			text += ", revision " + s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			text += ", modified"
		}
	}
	return text + ", " + info.GoVersion
}

// printEvent writes a line at once.
func printEvent(e phase2.Event) {
	text, err := json.Marshal(e)
	if err != nil {
		text = []byte(strconv.Quote(err.Error()))
	}
	os.Stdout.Write(append(text, '\n'))
}
