package main

import (
	"github.com/guestwire/guestwire/examples/commandline"
)

// program is the launcher's command line.
var program = commandline.Program[options]{
	Name: "guestwire-launcher", Short: "describe and serve the interfaces of a virtual machine",
	Before: `guestwire-launcher describes and serves the interfaces of a virtual machine, and
runs QEMU. It needs no privileges.
`,
	Verbs: []verb{
		{
			Name: "xml", Short: "print the libvirt <interface> elements", Flags: "state", Do: printXML,
			Example: `  guestwire-launcher xml -state /run/guestwire/vm1
`,
			Long: `xml prints an element for each NIC that guestwire-agent setup has wired.
`,
		},
		{
			Name: "serve", Short: "answer the guest's DHCP and router solicitations", Flags: "state resolv-conf events quiet log", Do: serve,
			Example: `  guestwire-launcher serve -state /run/guestwire/vm1
`,
			Long: `serve answers until SIGTERM, SIGINT or, without -log, SIGHUP. The log is on
standard error. -events prints what Serve did and what the guest got, as
lines of JSON on standard output:

  {"time": ..., "nic": "eth0", "event": "dhcpv4-leased", "text": ...,
   "address": ...}

A reader of either that stops or ends does not end or delay the guest. It gets
the number of lines that were lost, as a line of the log or as the event
events-lost.

-log FILE is rotated by copytruncate of logrotate(8), and so are events that a
shell appends (>>FILE). With -log, SIGHUP opens the file again, and ends
nothing.

If NOTIFY_SOCKET is set, serve reports there that the guest is served (READY=1
of sd_notify(3)).
`,
		},
		{
			Name: "qemu", Short: "answer the guest, and run QEMU with it", Flags: "state resolv-conf events quiet log shutdown plug", Command: true, Do: runGuest,
			Example: `  guestwire-launcher qemu -state /run/guestwire/vm1 -- \
      qemu-system-x86_64 -m 1G disk.img
`,
			Long: `qemu answers the guest as serve does, and runs QEMU, with -netdev and -device
for each interface that has a record at the start.

They end together: SIGTERM, SIGINT and, without -log, SIGHUP end QEMU in order,
and the exit code is QEMU's. Further ones change nothing; SIGQUIT is a power
cut. With -shutdown 50s the guest has that time to shut down first, as by its
power button. A script in QEMU's place has to exec QEMU.

A passt that ends is started again, and QEMU connects to it. QEMU before 8.0,
and a script in QEMU's place, cannot: QEMU ends then, and the exit code is 1.
The log and -events report it (passt-lost, passt-back, passt-failed).

On standby QEMU starts only with -incoming, to wait for the guest that moves
here.

-plug rp1,rp2 names root ports of QEMU's command line (-device
pcie-root-port,id=rp1,chassis=1). There QEMU gets the NICs that are set up while
it runs. When a record is removed (rm DIR/net1.json), the NIC is unplugged, also
one of the start that lies at a root port, as soon as the guest gives the device
up; then guestwire-agent teardown -nic net1 succeeds.

If NOTIFY_SOCKET is set, qemu reports there that QEMU runs, as soon as QEMU's
monitor answers (READY=1 of sd_notify(3)).
`,
		},
		{
			Name: "names", Short: "answer the guest's questions about the names of a list", Flags: "state nic resolv-conf quiet", Do: serveNames,
			Example: `  guestwire-launcher names -state /run/guestwire/vm1 -nic eth0
`,
			Long: `names is the DNS proxy without privileges. It answers what the guest asks about
the names of the configuration, and refuses the rest without asking anybody.
guestwire-agent names and guestwire-agent run start it, and have the addresses
pinned that it finds; it does not work alone. The servers that it asks are those
of dns in the configuration, or of the resolv.conf.
`,
		},
		{
			Name: "config", Short: "print the configuration of a guest without DHCP", Flags: "state resolv-conf format device out", Do: config,
			Example: `  guestwire-launcher config -state /run/guestwire/vm1 -format networkd
`,
			Long: `config prints it in the -format: cloud-init (network-config version 2),
networkd, kernel (ip=). -out writes the files: of cloud-init those of a NoCloud
disk. What the format leaves out is reported on standard error.
`,
		},
	},
	After: `-state is the agent's state directory, in a Kubernetes pod /run/guestwire. serve
and qemu run in the pod's namespace as the user of guestwire-agent setup:

  guestwire-agent exec -netns /run/netns/pod -uid 107 -- \
      guestwire-launcher serve -state /run/guestwire/vm1

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
