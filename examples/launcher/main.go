// Launcher is the unprivileged half of a VM launcher: it describes the interfaces that the agent has
// wired, answers the guest, and runs QEMU with the guest.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/phase2"
)

const usage = `launcher describes and serves the interfaces of a virtual machine, and runs QEMU. It needs no privileges.

  launcher xml   -state DIR    the libvirt <interface> elements
  launcher serve -state DIR    DHCP, DHCPv6 and router advertisements until SIGTERM, SIGINT or SIGHUP; the log is on standard
                               error; -events prints what Serve did and what the guest got, as lines of JSON on standard output:
                               {"time": ..., "nic": "eth0", "event": "dhcpv4-leased", "text": ..., "address": ...}
                               A reader of either that stops or ends does not end or delay the guest. It gets the number of
                               lines that were lost, as a line of the log or as the event events-lost
  launcher qemu  -state DIR -- qemu-system-x86_64 ARGS...
                               serves the guest and runs QEMU, with -netdev and -device for each interface that has a
                               record at the start. They end together: SIGTERM, SIGINT and SIGHUP end QEMU in order, and the exit
                               code is QEMU's. Further ones change nothing; SIGQUIT is a power cut.
                               On standby QEMU starts only with -incoming, to wait for the guest that moves here.
                               -plug rp1,rp2 names root ports of QEMU's command line (-device pcie-root-port,id=rp1,chassis=1):
                               there QEMU gets the NICs that are set up while it runs. When a record is removed
                               (rm DIR/net1.json), the NIC is unplugged, also one of the start that lies at a root port,
                               as soon as the guest gives the device up; then agent teardown -nic net1 succeeds.
                               -shutdown 50s gives the guest that time to shut down first, as by its power button.
                               A script in QEMU's place has to exec QEMU. -events as with serve
  launcher config -state DIR   the network configuration of a guest without DHCP, by -format: cloud-init (network-config
                               version 2), networkd, kernel (ip=). -out writes the files: of cloud-init those of a NoCloud
                               disk. What the format leaves out is reported on standard error
  launcher version             the program's version and revision
  launcher help                this text

DIR is the agent's state directory, in a Kubernetes pod /run/guestwire. serve and qemu run in the pod's namespace as the user
named in agent setup -uid:

  agent exec -netns /run/netns/pod -uid 107 -- launcher serve -state /run/guestwire/vm1

The exit code is 0: done, 1: failed, 2: a flag is wrong.

Flags:
`

func main() {
	err := run(os.Args[1:])
	if err == nil {
		err = stdout.failed
	}
	status := exitStatus(err)
	var closing sync.WaitGroup
	for _, q := range queues {
		closing.Go(func() { _ = q.Close() }) // what the reader has not taken is lost
	}
	closing.Wait()
	os.Exit(status)
}

// exitStatus prints the error, unless QEMU has said why.
func exitStatus(err error) int {
	var status statusError
	var usage *commandline.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return status.status
	}
	fmt.Fprintln(stderr, "launcher:", err)
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// stdout is standard output; failed is the first error of a write.
var stdout = &output{}

type output struct{ failed error }

func (o *output) Write(b []byte) (int, error) {
	n, err := os.Stdout.Write(b)
	o.failed = cmp.Or(o.failed, err)
	return n, err
}

// stderr is standard error. While a guest is served it is a queue, and so are the events.
var (
	stderr io.Writer = os.Stderr
	queues []*commandline.Queue
)

// newQueue returns a queue for the file.
func newQueue(file *os.File, lost func(lines int) string) io.Writer {
	q := commandline.NewQueue(file, lost)
	queues = append(queues, q)
	return q
}

func linesLost(lines int) string {
	return fmt.Sprintf("launcher: %d lines were lost: the reader of standard error was too slow, or gone\n", lines)
}

func eventsLost(lines int) string {
	return eventLine(phase2.Event{Time: time.Now(), Kind: "events-lost", Text: fmt.Sprintf("%d events were lost: their reader was too slow, or gone", lines)})
}

func run(args []string) error {
	verb := ""
	if len(args) > 0 && len(args[0]) > 0 && args[0][0] != '-' {
		verb, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("launcher", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error is printed once, by main
	state := flags.String("state", "", "the agent's state directory")
	resolvConf := flags.String("resolv-conf", "", "the file with the guest's DNS configuration, if the record has none; changes are followed (default /etc/resolv.conf, if it exists)")
	events := flags.Bool("events", false, "serve, qemu: print events as lines of JSON")
	shutdown := new(time.Duration)
	flags.Func("shutdown", "qemu: the `TIME` that the guest has to shut down after such a signal, before QEMU is ended, such as 50s (default 0: none)", func(text string) (err error) {
		if *shutdown, err = time.ParseDuration(text); err != nil {
			return errors.New("want a time with its unit, such as 50s")
		}
		return nil
	})
	plug := flags.String("plug", "", "qemu: the `BUSES` for NICs that come while QEMU runs, ids with commas between, one for each NIC (default: none)")
	format := flags.String("format", formats[0], "config: "+strings.Join(formats, ", "))
	out := flags.String("out", "", "config: the directory to which the files are written (default: standard output)")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp), verb == "help":
		fmt.Fprint(stdout, usage)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return nil
	case err != nil:
		return commandline.Errorf("%w; see launcher -help", err)
	case verb == "" && len(args) > 0:
		return commandline.Errorf("%q before the verb: the verb comes first, then its flags; see launcher -help", args[0])
	case verb == "":
		return commandline.Errorf("a verb is missing: xml, serve, qemu, config, version, help; see launcher -help")
	case verb != "xml" && verb != "serve" && verb != "qemu" && verb != "config" && verb != "version":
		return commandline.Errorf("%q is none of xml, serve, qemu, config, version, help; see launcher -help", verb)
	case verb == "qemu" && flags.NArg() == 0:
		return commandline.Errorf("QEMU's command line is missing: name it after --, such as -- qemu-system-x86_64 -m 1G")
	case verb != "qemu" && flags.NArg() > 0:
		return commandline.Errorf("%q is no flag; see launcher -help", flags.Arg(0))
	case verb == "version":
		fmt.Fprintln(stdout, "launcher", commandline.Version())
		return nil
	case *shutdown < 0:
		return commandline.Errorf("-shutdown %v is negative: name the time that the guest has to shut down, such as 50s", *shutdown)
	case !slices.Contains(formats, *format):
		return commandline.Errorf("-format %q is none of %s", *format, strings.Join(formats, ", "))
	case *state == "":
		return commandline.Errorf("-state is missing: name the agent's state directory; in a Kubernetes pod it is /run/guestwire")
	}
	ctx, stop := context.Background(), func() {}
	if verb == "serve" || verb == "qemu" {
		ctx, stop = commandline.Signals(ctx)
		stderr = newQueue(os.Stderr, linesLost)
	}
	defer stop()
	vm, err := phase2.Open(*state)
	if err != nil {
		return notOpened(err)
	}
	vm.ResolvConf = *resolvConf
	vm.Log = slog.New(slog.NewTextHandler(stderr, nil))
	if *events && (verb == "serve" || verb == "qemu") {
		lines := newQueue(os.Stdout, eventsLost)
		vm.Notify = func(e phase2.Event) { io.WriteString(lines, eventLine(e)) }
	}
	switch verb {
	case "serve":
		if err := vm.Serve(ctx); err != nil {
			return notServed(err) // from the start: no guest was served
		}
		logCounters(vm)
		return nil
	case "qemu":
		err := runQEMU(ctx, vm, *shutdown, strings.FieldsFunc(*plug, func(c rune) bool { return c == ',' }), flags.Args())
		logCounters(vm)
		return err
	case "config":
		return printConfig(vm, *format, *state, *out)
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
		fmt.Fprintln(stdout, xml)
	}
	return nil
}

// logCounters logs each NIC's counters.
func logCounters(vm *phase2.VM) {
	for nic, c := range vm.Counters() {
		vm.Log.Info("served", "nic", nic, "received", c.Received, "sent", c.Sent, "failed", c.Failed, "ignored", c.Ignored)
	}
}

// eventLine is the event as a line of JSON.
func eventLine(e phase2.Event) string {
	text, err := json.Marshal(e)
	if err != nil {
		text = []byte(strconv.Quote(err.Error()))
	}
	return string(text) + "\n"
}
