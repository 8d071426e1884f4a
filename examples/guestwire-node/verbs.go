package main

import (
	"github.com/guestwire/guestwire/examples/commandline"
)

var verbs = []verb{
	{
		Name: "run", Short: "install, follow the CNI lists, serve the engine",
		Flags: "from cni-bin cni-conf list-to list-name state dir spec trust-pods every-nic nri devices dev device-plugins metrics names sweep repair ready", Do: runNode,
		Example: `  guestwire-node run
  guestwire-node run -spec '{"owner": {"uid": 107}, "queues": 2}' \
      -devices kvm,vhost-net
`,
		Long: `run does what install does, and again whenever other programs change the node's
CNI lists. As an NRI plugin it gives the containers of VM pods what their
launcher needs: the pod's records at /run/guestwire, read only, and the devices
/dev/net/tun and, where the pod's annotation guestwire/devices asks for them,
/dev/kvm and /dev/vhost-net.

No guest depends on it: run can end and start while guests run. New VM pods wait
for it, as their launchers find no record. It starts before the engine and the
kubelet as well, says what is missing, and connects when they come. It ends with
1 where a mounted directory of the node was removed or renamed, so that the
kubelet starts its container with the one that is there now.

An engine without NRI (containerd before 1.7) needs device plugins instead, and
the pod mounts its records itself:

  guestwire-node run -nri= -device-plugins /var/lib/kubelet/device-plugins

A guest whose configuration has names asks a DNS proxy for them. Run starts one
beside each such guest, which asks dns.servers of the configuration, or else the
servers of the /etc/resolv.conf that run sees:

  guestwire-node run -names /usr/bin/guestwire-launcher

To leave all pods alone except those of one RuntimeClass (containerd), give its
handler a cni_conf_dir of its own:

  guestwire-node run -list-to /etc/cni/guestwire.d
`,
	},
	{
		Name: "install", Short: "install the binaries and extend the CNI list, once",
		Flags: "from cni-bin cni-conf list-to list-name state dir spec trust-pods every-nic", Do: install,
		Example: `  guestwire-node install
`,
		Long: `install copies guestwire and guestwire-agent to the -cni-bin. Then it
reads the list that the engine takes from -cni-conf, the first file of the
directory, with its drop-ins (NAME/*.conf there, of libcni 1.3), adds guestwire
as the last plugin, and writes the result as 00-guestwire.conflist, which the
engine takes from then on. The first file and the drop-ins stay as they are. All
files are replaced in one step.
`,
	},
	{
		Name: "uninstall", Short: "remove what install has installed",
		Flags: "cni-bin cni-conf list-to list-name state dir wait stay ready keep-plugin force", Do: uninstall,
		Example: `  guestwire-node uninstall -wait
`,
		Long: `uninstall removes the derived list and the binaries. While pods are wired both
stay, as the engine calls guestwire when these pods end, but new pods are not
wired any more: call uninstall again after the last one, or with -wait. Stop run
first.
`,
	},
	{
		Name: "ready", Short: "exit with 0 if run has done its work: a probe",
		Flags: "ready", Do: ready,
		Example: `  guestwire-node ready -ready /ready/guestwire-node
`,
		Long: `ready looks whether the file is there that run or uninstall make by the flag of
the same name.
`,
	},
}

// program is guestwire-node's command line.
var program = commandline.Program[options]{
	Name: "guestwire-node", Short: "make a Kubernetes node wire the NICs of VM pods",
	Before: `guestwire-node makes a Kubernetes node wire the NICs of VM pods. It runs as
root, best as a DaemonSet (examples/kubernetes).
`,
	Verbs: verbs,
	After: `A pod asks for it by annotations; eth0 is the name of the NIC in the pod:

  guestwire/nic.eth0: redirect  the binding, or JSON as of guestwire-agent setup
                                -config, or none
  guestwire/devices: kvm        what the launcher gets beside /dev/net/tun: kvm,
                                vhost-net
  guestwire/container: vm       the launcher's container; without it all
                                containers of the pod

The exit code is 0: done, 1: failed, 2: a flag is wrong.
`,
	FlagSet: (*options).flagSet,
}
