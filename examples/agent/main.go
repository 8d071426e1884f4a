// Agent is the privileged half of a VM launcher: it wires a NIC that lies in a namespace to a tap.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

const usage = `agent wires a NIC of a network namespace to a tap for a virtual machine, and gives it back.

  agent setup    -netns PATH -nic NAME -binding KIND -state DIR [-uid N -gid N] [-config FILE.json]
  agent plan     the same flags; prints what setup would do, and changes nothing
  agent check    -netns PATH -nic NAME -state DIR    exit 0 only if the kernel still is as recorded
  agent teardown -netns PATH -nic NAME -state DIR    the namespace is as setup found it
  agent version                                      the program's version and revision

KIND is bridge, redirect or masquerade, or auto for the first of these three that can work. With the other kinds libvirt
attaches the guest, and guestwire neither serves nor filters it:

  macvtap   the NIC is a macvtap; the launcher's user needs its device to read and write (go doc infra.Macvtap)
  sriov     the NIC is a virtual function, or was: {"sriov": {"pci": "0000:03:10.1", "mac": "02:00:00:00:00:07", "vlan": 42}}
  passt     the guest uses the namespace's sockets: {"passt": {"ports": ["80:8080", "53/udp"]}}; without ports nothing reaches the guest

The agent runs as root. DIR holds the records for the launcher, and only root may be able to write there. setup creates
DIR, but not its parent (mkdir -p /run/guestwire).

For example, with a pod's namespace in /run/netns/pod:

  agent plan  -netns /run/netns/pod -nic eth0 -binding auto   -state /run/guestwire/vm1 -uid 107
  agent setup -netns /run/netns/pod -nic eth0 -binding bridge -state /run/guestwire/vm1 -uid 107

FILE.json holds the whole configuration; a flag takes precedence over its field there. go doc describes the fields:
infra.Spec, infra.Masquerade, infra.SRIOV, infra.Passt, infra.Ports, infra.Guard, cache.Options, cache.Device.

  {"nic": "eth0", "binding": {"masquerade": {"ipv4": "10.0.2.0/24", "ports": ["80", "8080-8090/udp"]}}, "owner": {"uid": 107},
   "queues": 2, "guard": {"open": ["53/udp"]}, "options": {"hostname": "vm1", "dhcpv4": {"252": "http://wpad/x", "43": "0x0102"}}, "device": {"model": "virtio"}}

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	verb := ""
	if len(args) > 0 && len(args[0]) > 0 && args[0][0] != '-' {
		verb, args = args[0], args[1:]
	}
	c, err := parse(verb, args)
	if err != nil {
		return err
	}
	if c.NetNS != nil {
		defer c.NetNS.Close()
	}
	switch verb {
	case "setup":
		if _, err := phase1.Setup(ctx, c); err != nil {
			return err
		}
		return warn(c)
	case "plan":
		preview, err := phase1.Plan(ctx, c)
		if err != nil {
			return err
		}
		fmt.Print(preview)
		return nil
	case "check":
		return phase1.Check(ctx, c)
	case "version":
		fmt.Println("agent", version())
		return nil
	case "teardown":
		err := phase1.Teardown(ctx, c) // also of a namespace that is gone
		if errors.Is(err, infra.ErrNoNIC) {
			fmt.Fprintf(os.Stderr, "agent: %s has gone; everything else is removed\n", c.NIC)
			return nil
		}
		return err
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

// warn prints what the record says that the guest does not get.
func warn(c phase1.Config) error {
	root, err := os.OpenRoot(c.State)
	if err != nil {
		return err
	}
	defer root.Close()
	record, err := cache.Read(root, c.NIC)
	if err != nil {
		return err
	}
	if _, auto := c.Binding.(infra.Auto); auto {
		fmt.Fprintln(os.Stderr, "agent: binding:", record.Binding)
	}
	for _, w := range record.Warnings {
		fmt.Fprintln(os.Stderr, "agent: warning:", w)
	}
	return nil
}

// number is a user's or a group's; an earlier error stays.
func number(name string, value uint, err error) (uint32, error) {
	if err == nil && uint64(value) >= 1<<32-1 {
		err = fmt.Errorf("-%s %d: want less than %d", name, value, uint32(1<<32-1))
	}
	return uint32(value), err
}

// parse makes a configuration out of the file, if one is named, and the flags that were given.
func parse(verb string, args []string) (phase1.Config, error) {
	var c phase1.Config
	flags := flag.NewFlagSet("agent", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	netns := flags.String("netns", "", "the network namespace, such as /run/netns/pod or /proc/PID/ns/net")
	nic := flags.String("nic", "", "the NIC's name in the namespace")
	binding := flags.String("binding", "", "bridge: the guest is the pod; redirect: the guest is the pod, and the NIC stays as it is, for CNI's CHECK; masquerade: the guest is behind the pod; auto: the first of these that can work (plan says which one, and why not an earlier one); macvtap, sriov, passt: see above")
	state := flags.String("state", "", "the directory for the record and the journal")
	uid := flags.Uint("uid", 0, "the launcher's user; root if it is not given")
	gid := flags.Uint("gid", 0, "the launcher's group; 0: any group")
	file := flags.String("config", "", "the whole configuration as JSON")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if !slices.Contains([]string{"setup", "plan", "check", "teardown", "version"}, verb) {
		return c, fmt.Errorf("%q is none of setup, plan, check, teardown, version; agent -help tells more", verb)
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("%q is no flag; agent -help tells more", flags.Arg(0))
	}
	if verb == "version" {
		return c, nil
	}
	if *file != "" {
		text, err := os.ReadFile(*file)
		if err != nil {
			return c, fmt.Errorf("configuration: %w", err)
		}
		if err := json.Unmarshal(text, &c); err != nil {
			return c, fmt.Errorf("configuration %s: %w", *file, err)
		}
	}
	var err error
	flags.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "nic":
			c.NIC = *nic
		case "binding":
			if c.Binding == nil || c.Binding.Kind() != *binding {
				c.Binding, err = infra.NewBinding(*binding)
			}
		case "state":
			c.State = *state
		case "uid":
			c.Owner.UID, err = number(f.Name, *uid, err)
		case "gid":
			c.Owner.GID, err = number(f.Name, *gid, err)
		}
	})
	if err != nil {
		return c, err
	}
	if *netns == "" {
		return c, errors.New("-netns is missing: name the network namespace, such as /run/netns/pod")
	}
	c.NetNS, err = os.Open(*netns)
	if err != nil {
		return c, fmt.Errorf("network namespace: %w", err)
	}
	return c, nil
}
