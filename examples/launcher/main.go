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

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/logqueue"
	"github.com/guestwire/guestwire/phase2"
)

// options are the values of the flags.
type options struct {
	state, resolvConf, plug, format, out, logTo string
	events, quiet                               bool
	shutdown                                    time.Duration
	command                                     []string
}

// verb is what the launcher can do.
type verb = commandline.Verb[options]

// program is the launcher's command line.
var program = commandline.Program[options]{
	Name: "launcher", Short: "describe and serve the interfaces of a virtual machine",
	Before: `launcher describes and serves the interfaces of a virtual machine, and runs
QEMU. It needs no privileges.
`,
	Verbs: []verb{
		{
			Name: "xml", Short: "print the libvirt <interface> elements", Flags: "state", Do: printXML,
			Example: `  launcher xml -state /run/guestwire/vm1
`,
			Long: `xml prints an element for each NIC that agent setup has wired.
`,
		},
		{
			Name: "serve", Short: "answer the guest: DHCP, DHCPv6 and router advertisements", Flags: "state resolv-conf events quiet log", Do: serve,
			Example: `  launcher serve -state /run/guestwire/vm1
`,
			Long: `serve answers until SIGTERM, SIGINT or SIGHUP. The log is on standard error.
-events prints what Serve did and what the guest got, as lines of JSON on
standard output:

  {"time": ..., "nic": "eth0", "event": "dhcpv4-leased", "text": ...,
   "address": ...}

A reader of either that stops or ends does not end or delay the guest. It gets
the number of lines that were lost, as a line of the log or as the event
events-lost.
`,
		},
		{
			Name: "qemu", Short: "answer the guest, and run QEMU with it", Flags: "state resolv-conf events quiet log shutdown plug", Command: true, Do: runGuest,
			Example: `  launcher qemu -state /run/guestwire/vm1 -- qemu-system-x86_64 -m 1G disk.img
`,
			Long: `qemu answers the guest as serve does, and runs QEMU, with -netdev and -device
for each interface that has a record at the start.

They end together: SIGTERM, SIGINT and SIGHUP end QEMU in order, and the exit
code is QEMU's. Further ones change nothing; SIGQUIT is a power cut. With
-shutdown 50s the guest has that time to shut down first, as by its power
button. A script in QEMU's place has to exec QEMU.

On standby QEMU starts only with -incoming, to wait for the guest that moves
here.

-plug rp1,rp2 names root ports of QEMU's command line (-device
pcie-root-port,id=rp1,chassis=1). There QEMU gets the NICs that are set up while
it runs. When a record is removed (rm DIR/net1.json), the NIC is unplugged, also
one of the start that lies at a root port, as soon as the guest gives the device
up; then agent teardown -nic net1 succeeds.
`,
		},
		{
			Name: "config", Short: "print the network configuration of a guest without DHCP", Flags: "state resolv-conf format out", Do: config,
			Example: `  launcher config -state /run/guestwire/vm1 -format networkd
`,
			Long: `config prints it in the -format: cloud-init (network-config version 2),
networkd, kernel (ip=). -out writes the files: of cloud-init those of a NoCloud
disk. What the format leaves out is reported on standard error.
`,
		},
	},
	After: `-state is the agent's state directory, in a Kubernetes pod /run/guestwire. serve
and qemu run in the pod's namespace as the user named in agent setup -uid:

  agent exec -netns /run/netns/pod -uid 107 -- \
      launcher serve -state /run/guestwire/vm1

The exit code is 0: done, 1: failed, 2: a flag is wrong.
`,
	FlagSet: (*options).flagSet,
	Values: func(_, flag string, _ *options) []string {
		if flag == "format" {
			return formats
		}
		return nil
	},
}

// flagSet has the verb's flags.
func (o *options) flagSet(v verb) *flag.FlagSet {
	set := flag.NewFlagSet(v.Name, flag.ContinueOnError)
	for _, name := range strings.Fields(v.Flags) {
		switch name {
		case "state":
			set.StringVar(&o.state, name, "", "the agent's state `DIR`")
		case "resolv-conf":
			set.StringVar(&o.resolvConf, name, "", "the `FILE` with the guest's DNS configuration, if the record has none; changes are followed; without it /etc/resolv.conf, if it exists")
		case "events":
			set.BoolVar(&o.events, name, false, "print events as lines of JSON")
		case "quiet":
			set.BoolVar(&o.quiet, name, false, "log warnings and errors alone")
		case "log":
			set.StringVar(&o.logTo, name, "", "append the log to the `FILE`, in place of standard error")
		case "shutdown":
			set.Func(name, "the `TIME` that the guest has to shut down after such a signal, before QEMU is ended, such as 50s; without it none", commandline.Time(&o.shutdown, "50s"))
		case "plug":
			set.StringVar(&o.plug, name, "", "the `BUSES` for NICs that come while QEMU runs, ids with commas between, one for each NIC")
		case "format":
			set.StringVar(&o.format, name, formats[0], "the `FORMAT`: "+strings.Join(formats, ", "))
		case "out":
			set.StringVar(&o.out, name, "", "the `DIR` to which the files are written, in place of standard output")
		}
	}
	return set
}

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
	text := commandline.Called(fmt.Sprintln("launcher:", err))
	fmt.Fprint(stderr, text)
	if logged != stderr {
		fmt.Fprint(logged, text)
	}
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

// stderr is standard error, and logged is where the log goes: the same, or the file of -log. While a guest is served
// they are queues, and so are the events.
var (
	stderr io.Writer = os.Stderr
	logged           = stderr
	queues []*logqueue.Queue
)

// newQueue returns a queue for the file.
func newQueue(file *os.File, lost func(lines int) string) io.Writer {
	q := logqueue.New(file, lost)
	queues = append(queues, q)
	return q
}

func linesLost(lines int) string {
	return commandline.Called(fmt.Sprintf("launcher: %d lines were lost: the reader of standard error was too slow, or gone\n", lines))
}

func eventsLost(lines int) string {
	return eventLine(phase2.Event{Time: time.Now(), Kind: "events-lost", Text: fmt.Sprintf("%d events were lost: their reader was too slow, or gone", lines)})
}

func run(args []string) error {
	v, o, flags, err := program.Parse(stdout, args)
	switch {
	case v == nil:
		return err
	case o.shutdown < 0:
		return commandline.Errorf("-shutdown %v is negative: name the time that the guest has to shut down, such as 50s", o.shutdown)
	case v.Has("format") && !slices.Contains(formats, o.format):
		return commandline.Errorf("-format %q is none of %s", o.format, strings.Join(formats, ", "))
	case o.state == "":
		return commandline.Errorf("-state is missing: name the agent's state directory; in a Kubernetes pod it is /run/guestwire")
	}
	o.command = flags.Args()
	return v.Do(context.Background(), o)
}

// open reads the records. The log goes to standard error.
func open(o *options) (*phase2.VM, error) {
	vm, err := phase2.Open(o.state)
	if err != nil {
		return nil, notOpened(err)
	}
	vm.ResolvConf = o.resolvConf
	level := slog.LevelInfo
	if o.quiet {
		level = slog.LevelWarn
	}
	vm.Log = slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: level}))
	return vm, nil
}

// openLasting is open for a guest that is served: log and events wait for no reader.
func openLasting(o *options) (*phase2.VM, error) {
	stderr = newQueue(os.Stderr, linesLost)
	logged = stderr
	if o.logTo != "" {
		file, err := os.OpenFile(o.logTo, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o644) // a FIFO without a reader is an error
		if err != nil {
			return nil, commandline.Errorf("-log: %w", err)
		}
		logged = newQueue(file, linesLost)
	}
	vm, err := open(o)
	if err == nil && o.events {
		lines := newQueue(os.Stdout, eventsLost)
		vm.Notify = func(e phase2.Event) { io.WriteString(lines, eventLine(e)) }
	}
	return vm, err
}

func printXML(_ context.Context, o *options) error {
	vm, err := open(o)
	if err != nil {
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
		fmt.Fprintln(stdout, xml)
	}
	return nil
}

func serve(ctx context.Context, o *options) error {
	ctx, stop := commandline.Signals(ctx)
	defer stop()
	vm, err := openLasting(o)
	if err != nil {
		return err
	}
	if err := vm.Serve(ctx); err != nil {
		return notServed(err) // from the start: no guest was served
	}
	logCounters(vm)
	return nil
}

func runGuest(ctx context.Context, o *options) error {
	ctx, stop := commandline.Signals(ctx)
	defer stop()
	vm, err := openLasting(o)
	if err != nil {
		return err
	}
	err = runQEMU(ctx, vm, o.shutdown, strings.FieldsFunc(o.plug, func(c rune) bool { return c == ',' }), o.command)
	logCounters(vm)
	return err
}

func config(_ context.Context, o *options) error {
	vm, err := open(o)
	if err != nil {
		return err
	}
	return printConfig(vm, o.format, o.state, o.out)
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
