package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os/user"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/nameproxy"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// verb is what the agent can do.
type verb = commandline.Verb[options]

// hookState is the directory that has the containers' directories, unless -state names another one.
const hookState = "/run/guestwire"

// options are the values of the flags.
type options struct {
	phase1.NIC
	infra.Spec
	phase1.Moving
	down                            phase1.TeardownOptions
	netns, binding, file, namespace string
	groups                          []uint32
	pinned                          phase1.Pin
	follows                         bool
	command                         []string
	uid, gid                        uint32
	inside                          bool
	byName                          string // a user or a group that is named so
	json, full, schema              bool
	inactive, from                  string
	all, byState                    bool
	gone, cut                       bool
	namesUID                        uint32 // of the DNS proxy
	launcher                        string
}

// flagSet has the verb's flags.
func (o *options) flagSet(v verb) *flag.FlagSet {
	set := commandline.NewFlags(v)
	set.String(&o.netns, "netns", "", "the network namespace: a `PATH` such as /run/netns/pod or /proc/PID/ns/net")
	usage := "instead of -netns: the network namespace in which the agent runs, as in a container whose network is the guest's"
	if v.Name == "forget" || v.Name == "hook" {
		usage = "the -dir is the container's own, so a namespace that no process here can see is gone"
	}
	set.Bool(&o.Own, "own", usage)
	set.Bool(&o.all, "all", "all wired NICs of the node, instead of -netns and -nic")
	set.String(&o.Name, "nic", "", "the NIC's `NAME` in the namespace")
	dir, usage := "", "the `DIR` of the record, an absolute path"
	switch v.Name {
	case "hook":
		dir, usage = hookState, "the `DIR` that has the containers' directories, an absolute path"
	case "status", "drops", "flows", "repair", "names":
		usage = "instead of -netns: the `DIR` of the record, or a link to it; without -nic its only NIC"
	case "list":
		usage = "only the NICs of this `DIR` of records, or of a link to it, such as /run/guestwire/pods/NAMESPACE_NAME of a Kubernetes pod"
	}
	set.String(&o.State, "state", dir, usage)
	set.String(&o.Dir, "dir", phase1.DefaultDir, "the node's `DIR` for journals and locks, the same for all calls")
	set.String(&o.For, "for", "", "the `ONE` for whom the NIC is wired, such as a container's id; without it teardown, forget and list take all")
	set.String(&o.binding, "binding", "", "the `KIND` of the binding: bridge, redirect, routed, masquerade, auto, macvtap, sriov, passt, slirp")
	set.Func("uid", "the launcher's `USER`, a number or a name; 0 is root", o.parseID(&o.uid, userOf))
	o.namesUID = nameproxy.User
	set.Func("names-uid", "the DNS proxy's `USER`, a number or a name, and not the launcher's; without it 65534, nobody", o.parseID(&o.namesUID, userOf))
	set.String(&o.launcher, "launcher", "", "the `PATH` of guestwire-launcher, whose verb names is the DNS proxy; without it the one beside the agent, or in $PATH")
	set.Func("gid", "the launcher's `GROUP`, a number or a name; without it any group may use the tap, and exec and run take the user's own", o.parseID(&o.gid, namedGroupOf))
	set.Bool(&o.inside, "inside", "the launcher's user and group are numbers inside of the user namespace that owns the network namespace, as in a pod with hostUsers: false")
	set.Func("groups", "the supplementary `GROUPS`, numbers or names with commas between, such as kvm; without it none", parseList(&o.groups, groupOf))
	set.Func("addresses", "`ADDRESSES` with commas between", parseList(&o.pinned.Addresses, netip.ParseAddr))
	set.Func("ports", "`PORTS` with commas between, such as 443,53/udp,8000-8100; without a protocol they are those of TCP", parseList(&o.pinned.Ports, parsePorts))
	set.Func("life", "the `TIME` for which the pins live: 1s to 168h", commandline.Time(&o.pinned.Life, "5m: 1s to 168h"))
	set.String(&o.pinned.Name, "name", "", "the `NAME` by which guestwire-agent flows calls the addresses, such as registry.example")
	set.Bool(&o.follows, "follow", "print each flow that begins and that ends, until interrupted")
	set.String(&o.file, "config", "", "the configuration, a `FILE` with JSON (infra.Spec); a flag takes precedence over its field")
	set.String(&o.namespace, "namespace", "", "the namespace's `NAME`, as guestwire-agent list -json has it")
	set.Bool(&o.schema, "schema", "print the JSON schema of configurations")
	set.Bool(&o.json, "json", "print JSON")
	set.Bool(&o.full, "full", "print the rules of the tables, too")
	set.String(&o.from, "from", "", "the guest moves here: its record of the other side, a `FILE`, - for standard input; what the configuration leaves out is taken from it")
	set.Bool(&o.Standby, "standby", "at the first setup: the guest's tap stays down until guestwire-agent activate")
	set.String(&o.inactive, "inactive", "", "the record of the guest's other side, as guestwire-agent deactivate -json prints it: a `FILE`, - for standard input")
	set.Bool(&o.gone, "gone", "the guest is active in no other namespace, and will not be")
	set.Bool(&o.cut, "cut", "end the guest's open connections that egress would refuse now")
	set.Bool(&o.down.Force, "force", "without the journal: by what the namespace still shows")
	set.Bool(&o.down.CutOff, "cut-off", "delete the guest's tap also if a process has it open, or another process holds the NIC")
	set.Bool(&o.down.Discard, "discard", "the namespace is about to be deleted: remove record and journal alone")
	return set.FlagSet
}

// fill makes the configuration of the file, if one is named, and the flags that were given.
func (o *options) fill(ctx context.Context, flags *flag.FlagSet) error {
	state, whom := o.State, o.For
	if o.file != "" {
		text, err := readFile(ctx, o.file)
		if err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		if err := json.Unmarshal(text, &o.Spec); err != nil {
			return fmt.Errorf("configuration %s%w", o.file, explained(err, text))
		}
		o.State = cmp.Or(o.State, state) // hook has one without the flag
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
		case "for":
			if o.For = whom; whom == "" { // of an empty variable: teardown and forget would take all
				err = fmt.Errorf("-for is empty: name the one, or leave the flag out")
			}
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
	if o.Owner.Inside && o.byName != "" && err == nil {
		return fmt.Errorf("-inside: %q is a name of this machine: want the number inside of the user namespace", o.byName)
	}
	o.command = flags.Args()
	o.Progress = func(text string) { fmt.Fprintln(stderr, "guestwire-agent:", text) }
	return err
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

// parseID parses the number or the name of a user or a group.
func (o *options) parseID(to *uint32, of func(word string) (uint32, error)) func(text string) error {
	return func(text string) (err error) {
		*to, err = of(text)
		if _, number := strconv.Atoi(text); number != nil {
			o.byName = text
		}
		return err
	}
}

func userOf(word string) (uint32, error) {
	return idOf(word, "user", func() (id string, err error) {
		u, err := user.Lookup(word)
		if err == nil {
			id = u.Uid
		}
		return id, err
	})
}

func groupOf(word string) (uint32, error) {
	return idOf(word, "group", func() (id string, err error) {
		g, err := user.LookupGroup(word)
		if err == nil {
			id = g.Gid
		}
		return id, err
	})
}

// namedGroupOf is groupOf for -gid, whose 0 would be any group.
func namedGroupOf(word string) (uint32, error) {
	gid, err := groupOf(word)
	if err == nil && gid == 0 {
		err = fmt.Errorf("%q is the group 0, which cannot be named: leave the flag out, and any group may use the tap", word)
	}
	return gid, err
}

// idOf is the word if it is a number, or else the number that the machine's files have for it.
func idOf(word, what string, lookup func() (string, error)) (uint32, error) {
	if word == "" {
		return 0, fmt.Errorf("empty: want the %s's name or number (for the unit guestwire@NAME, OWNER= in /etc/guestwire/NAME.env)", what)
	}
	number, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		if id, failed := lookup(); failed == nil {
			number, err = strconv.ParseUint(id, 10, 32)
		}
	}
	if err != nil || number == 1<<32-1 { // which chown(2) takes for no change
		return 0, fmt.Errorf("%q is no %s of this machine: want a name, or a number less than %d", word, what, uint32(1<<32-1))
	}
	return uint32(number), nil
}
