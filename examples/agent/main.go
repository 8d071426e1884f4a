// Agent is the privileged half of a VM launcher: it wires a NIC that lies in a namespace to a tap.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/schema"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// The exit codes.
const (
	exitDone = iota
	exitFailed
	exitUsage    // a flag, a field of the configuration, or a path that does not open
	exitNotWired // there was no Setup of this NIC in this namespace
	exitDrift    // kernel or record are not as recorded
	exitRefused  // the binding cannot work on this NIC
	exitActive   // the guest may be active in another namespace
	exitInUse    // a process has the guest's tap open, or another process holds the NIC
	exitHalf     // of VMM and responder one is attached, and the other one is not
)

func main() {
	// A verb lives some milliseconds and allocates a few MiB. At 4 MiB, Go's first collection would come in the middle
	// of it.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	ctx, stop := commandline.Signals(context.Background())
	defer stop()
	err := run(ctx, os.Args[1:])
	if stdout.failed != nil && (err == nil || errors.Is(err, errSaid)) {
		err = stdout.failed
	}
	if err != nil && !errors.Is(err, errSaid) {
		fmt.Fprintln(stderr, "agent:", err)
		if len(os.Args) > 1 && os.Args[1] == "hook" {
			if kept := keepReason(os.Args[2:], err); kept != nil {
				fmt.Fprintln(stderr, "agent:", kept)
			}
		}
	}
	if log != nil {
		_ = log.Close() // what the reader has not taken is lost
	}
	os.Exit(exitCode(err))
}

// errSaid is wrapped by an error that is on standard output already.
var errSaid = errors.New("said")

func exitCode(err error) int {
	var (
		usage   *commandline.Error
		field   *cache.FieldError
		drift   *phase1.DriftError
		refused *infra.RefusedError
		command commandError
		half    halfError
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &command):
		return command.status
	case errors.Is(err, phase1.ErrNotWired):
		return exitNotWired
	case errors.Is(err, phase1.ErrActive):
		return exitActive
	case errors.As(err, &drift):
		return exitDrift
	case errors.As(err, &refused):
		return exitRefused
	case errors.Is(err, phase1.ErrInUse), errors.Is(err, phase1.ErrHeld):
		return exitInUse
	case errors.As(err, &half):
		return exitHalf
	case errors.As(err, &usage), errors.As(err, &field):
		return exitUsage
	}
	return exitFailed
}

func run(ctx context.Context, args []string) error {
	v, o, flags, err := program.Parse(stdout, args)
	if v == nil {
		return err
	}
	if err := o.fill(ctx, flags); err != nil {
		return commandline.Errorf("%w", err)
	}
	// Without -netns, status says where to find one, and exec runs the command in the agent's own namespace.
	optional := slices.Contains([]string{"status", "doctor", "exec", "teardown"}, v.Name)
	named, byState := o.Own, false
	flags.Visit(func(f *flag.Flag) { // an empty one, of an empty variable, is a mistake
		named = named || f.Name == "netns"
		byState = byState || f.Name == "state" && slices.Contains([]string{"status", "drops"}, v.Name)
	})
	if byState && (named || o.all) {
		return commandline.Errorf("-state stands instead of -netns, -own and -all: name one of them")
	}
	if byState {
		if err := o.openWired(ctx); err != nil {
			return err
		}
		defer o.NetNS.Close()
	} else if v.Has("netns") && !o.all && (named || !optional) {
		if v.Has("nic") && o.Name == "" && named {
			return commandline.Errorf("-nic is missing: name the NIC in the namespace, such as eth0")
		}
		if err := o.openNetNS(); err != nil {
			return commandline.Errorf("%w", err)
		}
		defer o.NetNS.Close()
	}
	return v.Do(ctx, o)
}

// options are the values of the flags.
type options struct {
	phase1.NIC
	infra.Spec
	phase1.Moving
	down                            phase1.TeardownOptions
	netns, binding, file, namespace string
	groups                          []uint32
	addresses                       []netip.Addr
	ports                           []infra.Ports
	life                            time.Duration
	command                         []string
	uid, gid                        uint32
	inside                          bool
	json, full, schema, force       bool
	inactive, from                  string
	all                             bool
	gone, cut                       bool
}

// flagSet has the verb's flags.
func (o *options) flagSet(v verb) *flag.FlagSet {
	set := flag.NewFlagSet(v.Name, flag.ContinueOnError)
	for _, name := range strings.Fields(v.Flags) {
		switch name {
		case "netns":
			set.StringVar(&o.netns, name, "", "the network namespace: a `PATH` such as /run/netns/pod or /proc/PID/ns/net")
		case "own":
			usage := "instead of -netns: the network namespace in which the agent runs, as in a container whose network is the guest's"
			if v.Name == "forget" || v.Name == "hook" {
				usage = "the -dir is the container's own, so a namespace that no process here can see is gone"
			}
			set.BoolVar(&o.Own, name, false, usage)
		case "all":
			set.BoolVar(&o.all, name, false, "all wired NICs of the node, instead of -netns and -nic")
		case "nic":
			set.StringVar(&o.Name, name, "", "the NIC's `NAME` in the namespace")
		case "state":
			dir, usage := "", "the `DIR` of the record, an absolute path"
			switch v.Name {
			case "hook":
				dir, usage = hookState, "the `DIR` that has the containers' directories, an absolute path"
			case "status", "drops":
				usage = "instead of -netns: the `DIR` of the record, or a link to it; without -nic its only NIC"
			}
			set.StringVar(&o.State, name, dir, usage)
		case "dir":
			set.StringVar(&o.Dir, name, phase1.DefaultDir, "the node's `DIR` for journals and locks, the same for all calls")
		case "binding":
			set.StringVar(&o.binding, name, "", "the `KIND` of the binding: bridge, redirect, routed, masquerade, auto, macvtap, sriov, passt, slirp")
		case "uid":
			set.Func(name, "the launcher's user, a `NUMBER`; 0 is root", parseNumber(&o.uid, "id -u USER"))
		case "gid":
			set.Func(name, "the launcher's group, a `NUMBER`; without it any group may use the tap, and exec and run take the user's own", parseNumber(&o.gid, "getent group GROUP | cut -d: -f3"))
		case "inside":
			set.BoolVar(&o.inside, name, false, "the launcher's user and group are numbers inside of the user namespace that owns the network namespace, as in a pod with hostUsers: false")
		case "groups":
			set.Func(name, "the supplementary groups, `NUMBERS` with commas between, such as the one of /dev/kvm; without it none", parseList(&o.groups, parseGroup))
		case "addresses":
			set.Func(name, "`ADDRESSES` with commas between", parseList(&o.addresses, netip.ParseAddr))
		case "ports":
			set.Func(name, "`PORTS` with commas between, such as 443,53/udp,8000-8100; without a protocol they are those of TCP", parseList(&o.ports, parsePorts))
		case "life":
			set.Func(name, "the `TIME` for which the pins live: 1s to 168h", commandline.Time(&o.life, "5m: 1s to 168h"))
		case "config":
			set.StringVar(&o.file, name, "", "the configuration, a `FILE` with JSON (infra.Spec); a flag takes precedence over its field")
		case "namespace":
			set.StringVar(&o.namespace, name, "", "the namespace's `NAME`, as agent list -json has it")
		case "schema":
			set.BoolVar(&o.schema, name, false, "print the JSON schema of configurations")
		case "json":
			set.BoolVar(&o.json, name, false, "print JSON")
		case "full":
			set.BoolVar(&o.full, name, false, "print the rules of the tables, too")
		case "from":
			set.StringVar(&o.from, name, "", "the guest moves here: its record of the other side, a `FILE`, - for standard input; what the configuration leaves out is taken from it")
		case "standby":
			set.BoolVar(&o.Standby, name, false, "at the first setup: the guest's tap stays down until agent activate")
		case "inactive":
			set.StringVar(&o.inactive, name, "", "the record of the guest's other side, as agent deactivate -json prints it: a `FILE`, - for standard input")
		case "gone":
			set.BoolVar(&o.gone, name, false, "the guest is active in no other namespace, and will not be")
		case "cut":
			set.BoolVar(&o.cut, name, false, "end the guest's open connections that egress would refuse now")
		case "force":
			set.BoolVar(&o.force, name, false, "without the journal: by what the namespace still shows")
		case "cut-off":
			set.BoolVar(&o.down.CutOff, name, false, "delete the guest's tap also if a process has it open, or another process holds the NIC")
		case "discard":
			set.BoolVar(&o.down.Discard, name, false, "the namespace is about to be deleted: remove record and journal alone")
		}
	}
	return set
}

// fill makes the configuration of the file, if one is named, and the flags that were given.
func (o *options) fill(ctx context.Context, flags *flag.FlagSet) error {
	state := o.State
	if o.file != "" {
		text, err := readFile(ctx, o.file)
		if err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		if err := json.Unmarshal(text, &o.Spec); err != nil {
			return fmt.Errorf("configuration %s%w", o.file, explained(err, text))
		}
	}
	var err error
	flags.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "binding":
			if o.Binding == nil || o.Binding.Kind() != cache.Kind(o.binding) {
				o.Binding, err = infra.NewBinding(cache.Kind(o.binding))
			}
		case "state":
			o.State = state
		case "uid":
			o.Owner.UID, o.Owner.Root = o.uid, o.uid == 0
		case "gid":
			o.Owner.GID = o.gid
		case "inside":
			o.Owner.Inside = o.inside
		}
	})
	if o.from != "" && err == nil {
		from, failed := readRecord(ctx, o.from)
		if failed != nil {
			return fmt.Errorf("-from %s: %w", o.from, failed)
		}
		o.From = &from
	}
	o.command = flags.Args()
	o.Progress = func(text string) { fmt.Fprintln(stderr, "agent:", text) }
	return err
}

// explained adds where in the text the error is, or where its field belongs. The text begins after the file's name.
func explained(err error, text []byte) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		before := string(text[:min(len(text), int(syntax.Offset))])
		return fmt.Errorf(":%d:%d: %w%s", 1+strings.Count(before, "\n"), len(before)-1-strings.LastIndex(before, "\n"), err, remedy(before, err.Error()))
	}
	var field *cache.FieldError
	if errors.As(err, &field) && field.Reason == "no such field in this version" {
		name := field.Field[strings.LastIndex(field.Field, ".")+1:]
		if places := schema.New(infra.Spec{}).Places(name); len(places) > 0 {
			return fmt.Errorf(": %w: it stands at %s", err, strings.Join(places, " or "))
		}
	}
	return fmt.Errorf(": %w", err)
}

// remedy is what to do about a syntax error, whose text ends at the wrong character.
func remedy(text, err string) string {
	if text == "" {
		return " (the file is empty)"
	}
	last, before := text[len(text)-1], strings.TrimSpace(text[:len(text)-1])
	switch {
	case (last == '}' || last == ']') && strings.HasSuffix(before, ","):
		return " (leave out the comma before it)"
	case (last == '/' || last == '#') && strings.HasPrefix(err, "invalid character"):
		return " (JSON has no comments)"
	case last == '\'':
		return ` (want ")`
	case last == '"' && strings.Contains(err, " after "):
		return " (a comma is missing before it)"
	}
	return ""
}

// parseList parses words with commas between.
func parseList[T any](to *[]T, parse func(word string) (T, error)) func(text string) error {
	return func(text string) error {
		for word := range strings.SplitSeq(text, ",") {
			one, err := parse(word)
			if err != nil {
				return err
			}
			*to = append(*to, one)
		}
		return nil
	}
}

func parsePorts(word string) (p infra.Ports, err error) {
	err = p.UnmarshalText([]byte(word))
	return p, err
}

func parseGroup(word string) (uint32, error) {
	number, err := strconv.ParseUint(word, 10, 32)
	if err != nil || number == 1<<32-1 {
		return 0, fmt.Errorf("%q is no group's number, such as getent group GROUP | cut -d: -f3 prints", word)
	}
	return uint32(number), nil
}

// parseNumber parses the number of a user or a group, which the shell command prints.
func parseNumber(to *uint32, command string) func(text string) error {
	return func(text string) error {
		number, err := strconv.ParseUint(text, 10, 32)
		if err != nil || number == 1<<32-1 { // which chown(2) takes for no change
			return fmt.Errorf("want a number less than %d, such as %s prints", uint32(1<<32-1), command)
		}
		*to = uint32(number)
		return nil
	}
}

// openNetNS opens the namespace that is named; -own needs none.
func (o *options) openNetNS() error {
	if o.Own && o.netns != "" {
		return errors.New("-netns and -own: name one of them")
	}
	if o.Own {
		return nil
	}
	if o.netns == "" {
		return errors.New("-netns is missing: name the network namespace, such as /run/netns/pod, or -own for the agent's own")
	}
	var err error
	o.NetNS, err = phase1.OpenNetNS(o.netns)
	if named := "/run/netns/" + o.netns; errors.Is(err, fs.ErrNotExist) && !strings.Contains(o.netns, "/") && exists(named) {
		return fmt.Errorf("network namespace: %w (want a path: -netns %s)", err, named)
	}
	if err != nil {
		return fmt.Errorf("network namespace: %w (ip netns list shows those in /run/netns, agent list where the wired ones are; agent forget removes what is left of one that is gone)", err)
	}
	return nil
}

// openWired opens the namespace of the NIC that is wired with the State.
func (o *options) openWired(ctx context.Context) error {
	wirings, err := o.wirings(ctx)
	switch {
	case err != nil:
		return err
	case len(wirings) == 0:
		return fmt.Errorf("-state %s: %w: no NIC %swith this directory (agent list shows the directory of each NIC)", o.State, phase1.ErrNotWired, strings.TrimLeft(o.Name+" ", " "))
	case len(wirings) > 1:
		return commandline.Errorf("-nic is missing: name one of the NICs that are wired with -state %s, such as %s", o.State, wirings[0].NIC)
	}
	o.Name = wirings[0].NIC
	if o.NetNS, err = wirings[0].Open(ctx); err != nil {
		return fmt.Errorf("%w (agent forget removes what is left of a namespace that is gone)", err)
	}
	return nil
}

// wirings are the NICs that are wired with the State, and have the Name if there is one.
func (o *options) wirings(ctx context.Context) ([]phase1.Wiring, error) {
	if !filepath.IsAbs(o.State) {
		return nil, commandline.Errorf("-state %q: want an absolute path, such as /run/guestwire/vm1", o.State)
	}
	if real, err := filepath.EvalSymlinks(o.State); err == nil { // journals have the real path
		o.State = real
	}
	wirings, err := phase1.List(ctx, o.Dir)
	return slices.DeleteFunc(wirings, func(w phase1.Wiring) bool {
		return w.State != o.State || o.Name != "" && w.NIC != o.Name
	}), err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
