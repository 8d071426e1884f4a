package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// verb is what guestwire-node can do.
type verb struct {
	name  string
	short string // a line for the list of verbs
	flags string // the names of its flags, in the order of the help
	long  string // what the help of the verb says before the flags
	do    func(context.Context, *options) error
}

var verbs []verb

func init() { // help, which they name, lists them
	verbs = []verb{
		{
			name: "run", short: "install, keep the node's CNI list extended, and serve the engine, until SIGTERM",
			flags: "from cni-bin cni-conf list-to list-name state dir spec trust-pods every-nic nri devices dev device-plugins metrics sweep ready", do: runNode,
			long: `run does what install does, and again whenever other programs change the node's CNI lists. As an NRI plugin it gives the
containers of VM pods what their launcher needs: the pod's records at /run/guestwire, read only, and the devices
/dev/net/tun and, where the pod's annotation guestwire/devices asks for them, /dev/kvm and /dev/vhost-net.

No guest depends on it: run can end and start while guests run. New VM pods wait for it, as their launchers find no record.
It starts before the engine and the kubelet as well, says what is missing, and connects when they come.

  guestwire-node run
  guestwire-node run -spec '{"owner": {"uid": 107}, "queues": 2}' -devices kvm,vhost-net

An engine without NRI (containerd before 1.7) needs device plugins instead, and the pod mounts its records itself:

  guestwire-node run -nri= -device-plugins /var/lib/kubelet/device-plugins

To leave all pods alone except those of one RuntimeClass (containerd), give its handler a cni_conf_dir of its own:

  guestwire-node run -list-to /etc/cni/guestwire.d
`,
		},
		{
			name: "install", short: "install the binaries and extend the node's CNI list, once",
			flags: "from cni-bin cni-conf list-to list-name state dir spec trust-pods every-nic", do: install,
			long: `install copies guestwire, and agent as guestwire-agent, to the -cni-bin. Then it reads the list that the engine takes from
-cni-conf, the first file of the directory, adds guestwire as the last plugin, and writes the result as 00-guestwire.conflist,
which the engine takes from then on. The first file stays as it is. All files are replaced in one step.

  guestwire-node install
`,
		},
		{
			name: "uninstall", short: "remove what install has installed",
			flags: "cni-bin cni-conf list-to list-name state dir wait stay ready keep-plugin force", do: uninstall,
			long: `uninstall removes the derived list and the binaries. While pods are wired both stay, as the engine calls guestwire when
these pods end, but new pods are not wired any more: call uninstall again after the last one, or with -wait. Stop run first.

  guestwire-node uninstall -wait
`,
		},
		{
			name: "ready", short: "exit with 0 if run has done its work, for a readiness probe",
			flags: "ready", do: ready,
			long: `ready looks whether the file is there that run or uninstall make by the flag of the same name.

  guestwire-node ready -ready /ready/guestwire-node
`,
		},
		{
			name: "version", short: "print the version", do: func(_ context.Context, o *options) error {
				_, err := fmt.Fprintln(o.stdout, version())
				return err
			},
		},
	}
}

func verbNames() string {
	var names []string
	for _, v := range verbs {
		names = append(names, v.name)
	}
	return strings.Join(names, ", ")
}

func help(w io.Writer, args []string) error {
	if len(args) > 1 {
		return usageError{errors.New("help takes one verb")}
	}
	for _, v := range verbs {
		if len(args) == 1 && args[0] == v.name {
			fmt.Fprintf(w, "guestwire-node %s: %s\n\n%s", v.name, v.short, v.long)
			if v.flags != "" {
				fmt.Fprint(w, "\nFlags:\n")
				flags := new(options).flagSet(v)
				flags.SetOutput(w)
				flags.PrintDefaults()
			}
			return nil
		}
	}
	if len(args) == 1 && args[0] != "help" {
		return usageError{fmt.Errorf("%q is none of %s", args[0], verbNames())}
	}
	fmt.Fprint(w, `guestwire-node makes a Kubernetes node wire the NICs of VM pods. It runs as root, best as a DaemonSet
(examples/kubernetes).

`)
	for _, v := range verbs {
		fmt.Fprintf(w, "  guestwire-node %-9s %s\n", v.name, v.short)
	}
	fmt.Fprint(w, `  guestwire-node help VERB  print the flags of a verb, and more about it

A pod asks for it by annotations; eth0 is the name of the NIC in the pod:

  guestwire/nic.eth0: redirect       the binding, or JSON as of agent setup -config, or none
  guestwire/devices: kvm             what the launcher gets beside /dev/net/tun: kvm, vhost-net
  guestwire/container: vm            the launcher's container; without it all containers of the pod

The exit code is 0: done, 1: failed, 2: a flag is wrong.
`)
	return nil
}

func ready(_ context.Context, o *options) error {
	if o.ready == "" {
		return usageError{errors.New("-ready is missing: name the file of run's -ready")}
	}
	_, err := os.Stat(o.ready)
	return err
}
