package main

import (
	"github.com/guestwire/guestwire/examples/commandline"
)

var verbs = []verb{
	{
		Name: "setup", Short: "wire a NIC to a tap, and write the launcher's record",
		Flags: "netns own nic binding state for uid gid inside from standby cut config json dir", Do: setup,
		Example: `  guestwire-agent setup -netns /run/netns/pod -nic eth0 -binding bridge \
      -state /run/guestwire/vm1 -uid 107
`,
		Long: `setup wires the NIC, and writes the record into the -state directory. It creates
that directory, but not its parent (mkdir -p /run/guestwire). Called again with
the same configuration, it repairs what is missing, as guestwire-agent repair
does. On an error of a first setup the namespace is as it was found. -json
prints the record. Another egress holds for new connections; with -cut also for
those that are open, and setup reports on standard error how many it has cut.
-for says for whom the NIC is wired. A setup for another one is refused.

In a Kubernetes pod with hostUsers: false, the launcher's user 107 is another
one on the node. With -inside, setup finds out which, and plan and status show
both numbers.

A guest that moves here from another namespace: -from names its record there, a
copy of the file NIC.json in that -state directory, and -standby keeps the
guest's tap down until guestwire-agent activate. What the configuration leaves
out is taken from the record, except guard, egress, egressWithin, names and what
a masquerade forwards: these are in no record, so name the source's -config as
well. What the guest will notice is reported on standard error. Both flags count
at the first setup; a later one keeps what the first one took over. Under
routed, macvtap, sriov, passt and slirp a guest cannot move.

  guestwire-agent setup -netns /run/netns/pod -nic eth0 -from source.json \
      -standby -state /run/guestwire/vm1 -uid 107

` + kinds + `
FILE.json holds the configuration. docs/reference/configuration.md describes its
fields, and guestwire-agent config -schema prints its JSON schema. tap names the
guest's tap. guard.vlans lets VLAN tags pass, under bridge and redirect.
subdomain of options and the first search domain make the guest's own domain.
mtu is for a guest with a smaller MTU than the NIC's, and noDefaultRoute of
options for a second NIC that must not take the first one's traffic.

  {"binding": {"masquerade": {"ipv4": "10.0.2.0/24",
                              "ports": ["80", "8080-8090/udp"]}},
   "owner": {"uid": 107}, "queues": 2, "guard": {"open": ["53/udp"]},
   "device": {"model": "virtio"}, "mtu": 1400,
   "limits": {"fromGuest": {"bitsPerSecond": 100000000},
              "toGuest": {"bitsPerSecond": 1000000000}},
   "options": {"hostname": "vm1", "subdomain": "vms",
               "dhcpv4": {"252": "http://wpad/x", "43": "0x0102"}}}
`,
	},
	{
		Name: "plan", Short: "print what setup would do, and change nothing",
		Flags: "netns own nic binding state for uid gid inside from standby config full json dir", Do: plan,
		Example: `  guestwire-agent plan -netns /run/netns/pod -nic eth0 -binding auto -uid 107
`,
		Long: `plan prints the commands that setup would carry out, after comments that name
the binding, the entries of egress and egressWithin, why an earlier binding
cannot work, and what the guest does not get. A table of rules is one line,
which says what the table does and to where it diverts; -full prints the rules.
-json prints all steps with their rules, the record, the refused bindings and
both lists.

` + kinds,
	},
	{
		Name: "config", Short: "check a configuration, or print the JSON schema of all",
		Flags: "binding state uid gid inside config schema", Do: config,
		Example: `  guestwire-agent config -config vm1.json
  guestwire-agent config -schema >guestwire.schema.json
`,
		Long: `config checks the form of a configuration without a namespace; setup checks
more. -schema prints the JSON schema, by which an editor completes and checks a
FILE.json.
`,
	},
	{
		Name: "deactivate", Short: "make a guest inactive that will be active elsewhere",
		Flags: "netns own nic json dir", Do: deactivate,
		Example: `  guestwire-agent deactivate -netns /run/netns/pod -nic eth0 -json \
      >inactive.json
`,
		Long: `deactivate takes the guest's tap down, so that nothing passes between the guest
and the network, and writes the record with the role inactive. The wiring
stays, and QEMU can keep the tap open. -json prints the record: it is the proof
that guestwire-agent activate asks for on the guest's other side. Each call
gives the record a higher turn, and so the records of the guest that were made
before allow activate here no more.

A NIC where the guest never was active stays on standby. Its record proves
nothing, except on the side that its setup had -from.
`,
	},
	{
		Name: "activate", Short: "end a standby, once the guest is inactive elsewhere",
		Flags: "netns own nic inactive gone json dir", Do: activate,
		Example: `  guestwire-agent activate -netns /run/netns/pod -nic eth0 \
      -inactive inactive.json
`,
		Long: `activate brings the guest's tap up, after it has repaired what of the wiring is
missing. The guest must be inactive everywhere else: -inactive names the record
that guestwire-agent deactivate -json printed there, or - for standard input.
-gone instead vouches that the guest is active in no other namespace and will
not be: the other node is fenced, the namespace is gone, or the guest is
restored from a file. Nothing checks that, and two active guests with one
address harm the network. A NIC that is active already stays so. -json prints
the record.

If a move is given up, the way back to the source is the same: guestwire-agent
deactivate on the target, whose record allows guestwire-agent activate on the
source.
`,
	},
	{
		Name: "check", Short: "compare the kernel with what setup left",
		Flags: "netns own nic json dir", Do: check,
		Example: `  guestwire-agent check -netns /run/netns/pod -nic eth0
`,
		Long: `check exits with 0 only if kernel and record still are as setup left them, with
4 if they differ, and with 3 if the NIC is not wired. A NIC that is gone is an
error (1). -json prints the differences, and the steps by which setup would
repair them.
`,
	},
	{
		Name: "repair", Short: "wire a NIC again as the last setup did",
		Flags: "netns own state nic all dir", Do: repair,
		Example: `  guestwire-agent repair -netns /run/netns/pod -nic eth0
  guestwire-agent repair -all
`,
		Long: `repair is a setup with the configuration of the last one, which the journal has:
binding, owner, ports, egress and all else. It prints what it has repaired. What
came to the namespace after the first setup, and the guest has not, it leaves,
as setup does, and names it on standard error. With -all it repairs each NIC of
the node, and the code is that of the first one which could not be repaired.
`,
	},
	{
		Name: "status", Short: "report who wired a NIC and who serves its guest",
		Flags: "netns own state nic all json dir", Do: status,
		Example: `  guestwire-agent status -netns /run/netns/pod -nic eth0
  guestwire-agent status -state /run/guestwire/vm1
  guestwire-agent status -all
`,
		Long: `status prints what the journal and the kernel know of one NIC, or with -all of
each one of the node: who wired it, what differs, and the counters. It names the
processes that have the guest's tap and the responder's open, as far as the
agent can see them.

The exit code is that of check. If that is 0, it is 8 if a VMM is attached and
no responder, or a responder and no VMM. With options.noResponder the guest
needs no responder; on standby it needs neither. With -all the code is that of
the first NIC which has another than 0. The program exporter prints the same of
all NICs as metrics.
`,
	},
	{
		Name: "doctor", Short: "look for what would be a fault later",
		Flags: "netns own nic binding state uid gid inside config json dir", Do: doctor,
		Example: `  guestwire-agent doctor -uid 107
  guestwire-agent doctor -uid 107 -netns /run/netns/pod -nic eth0
`,
		Long: `doctor prints a line for each thing that it has looked at: ok, warning or fault.
A warning and a fault have their way out. It looks at the kernel, the journals,
namespaces that are gone, and who serves the guests of the node. It wires a NIC
with each binding in a namespace of its own, for the launcher's user, and so the
kernel may load modules. With -nic it also looks how that NIC is wired, or how
it would be. Nothing on the node changes.

The exit code is 1 if there is a fault: what makes a setup fail, or leaves a
wired NIC not as recorded. It is 0 if there are warnings alone.
`,
	},
	{
		Name: "list", Short: "list the wired NICs of the node",
		Flags: "state for json dir", Do: list,
		Example: `  guestwire-agent list
  guestwire-agent list -state /run/guestwire/pods/default_vm1
`,
		Long: `list prints a line for each wired NIC of the node, also of namespaces that are
gone. ATTACHED says which of VMM and responder is attached to its tap.
guestwire-agent status -all names the processes. POD is NAMESPACE/NAME of a
Kubernetes pod that the CNI plugin has wired. The plugin keeps a link of that
name, pods/NAMESPACE_NAME, for -state: of list, status, drops, flows and
repair.
`,
	},
	{
		Name: "drops", Short: "follow what a NIC's rules drop, with the reason",
		Flags: "netns own state nic json dir", Do: drops,
		Example: `  guestwire-agent drops -netns /run/netns/pod -nic eth0
  guestwire-agent drops -state /run/guestwire/vm1
`,
		Long: `drops prints a line for each packet that is dropped, until it is interrupted:
time, reason, and who sent what. The kernel reports 20 packets a second of each
reason; guestwire-agent status has the counters, which count all. The network
namespace lives as long as drops runs. With -state, drops ends with 3 when the
record is gone.
`,
	},
	{
		Name: "flows", Short: "list a guest's connections, or follow them",
		Flags: "netns own state nic follow json dir", Do: flows,
		Example: `  guestwire-agent flows -netns /run/netns/pod -nic eth0
  guestwire-agent flows -state /run/guestwire/vm1 -follow -json
`,
		Long: `flows prints a line for each connection of the guest that is open, and for each
exchange of UDP and ping: since when, who opened it to where, how many octets
it has carried, and the entry of egress or egressWithin that decides. Addresses
are those that the guest has, and in brackets those that the network has, if
they differ. Of a diverted connection these have the target.

With -follow it prints a line when a flow begins, and one when it ends, until it
is interrupted. Any number of calls can follow. A report that is lost, as the
output is too slow, is counted on standard error, and in JSON in the next line
(lost). What egress refuses does not begin: guestwire-agent drops shows it. The
network namespace lives as long as flows runs. With -state, it ends with 3 when
the record is gone.

Octets and times need "flows": true in the configuration of guestwire-agent
setup, under masquerade or routed. Without it, flows also lacks the end of what
began before the call. -json prints a JSON object a line, whose fields
docs/how-to/flows.md describes.
`,
	},
	{
		Name: "pin", Short: "let the guest connect to addresses for a time, past egress",
		Flags: "netns own nic addresses ports life name", Do: pin,
		Example: `  guestwire-agent pin -netns /run/netns/pod -nic eth0 \
      -addresses 198.51.100.7,2001:db8::7 -ports 443,53/udp -life 5m \
      -name registry.example
`,
		Long: `pin lets the guest open connections to the ports of the addresses for a time,
where only the last entry of egress, "refuse all", refuses them. What an earlier
entry or egressWithin refuses is left out: the exit code is 1, the error names
these addresses, and the others are pinned. What is pinned already keeps the
longer time, with the name that it has. guestwire-agent flows and nft show the
-name.
`,
	},
	{
		Name: "names", Short: "answer the guest by a list of names, and pin what it gets",
		Flags: "netns own state nic all names-uid launcher dir", Do: serveNames,
		Example: `  guestwire-agent names -netns /run/netns/pod -nic eth0
  guestwire-agent names -all
`,
		Long: `names runs the DNS proxy of each NIC whose configuration has names, until it is
interrupted. The proxy is guestwire-launcher names, as another user without
capabilities; the agent pins the addresses that it finds. names follows setup
and teardown: another list takes effect within a second. With -all it serves the
node, also the NICs that are wired later. guestwire-agent run needs no names.

  {"binding": {"masquerade": {}}, "owner": {"uid": 107},
   "egress": ["refuse metadata", "refuse all"],
   "names": ["registry.example 443", "*.github.com 443 80",
             "db.internal 5432 private", "host.internal = 10.0.2.1"]}

What the guest asks at port 53, wherever, goes to the proxy. The proxy asks the
servers of dns in the configuration, or of the namespace's resolv.conf. A name
that is not in the list is refused, and nobody is asked. Where the configuration
has egressWithin, that has to allow the proxy: "allow gateway 15353/udp", "allow
gateway 15353/tcp".
`,
	},
	{
		Name: "run", Short: "wire a NIC while a command runs, as an entry point",
		Flags: "netns own nic binding state uid gid groups config names-uid launcher dir", Command: true, Do: runWired,
		Example: `  guestwire-agent run -own -nic eth0 -binding redirect -state /run/vm1 \
      -uid 107 -- \
      guestwire-launcher serve -state /run/vm1
`,
		Long: `run is setup, exec and teardown. It wires the NIC, runs the command without
capabilities as the -uid, in the same namespace, and gives the namespace back
when the command has ended. Signals are passed on as by exec. As process 1 of a
container it waits for orphans, too. The exit code is the command's, and 128 and
the signal's number if a signal ended the command; without a command's end, it
is that of setup.

run holds the NIC: as long as it lives, another run is refused, and teardown
without -cut-off. If run was killed, the next run finds the wiring and uses it;
one of another configuration is taken down first. A wiring of guestwire-agent
setup is refused. A setup beside a run that lives leaves the wiring run's; after
a killed run, setup is refused until teardown.
With -own it also removes the record and the journal of an earlier container's
network from -state and -dir, which therefore have to be the container's own.

As a service of systemd's Type=notify, or wherever NOTIFY_SOCKET is set, run
reports that the start is complete as soon as the command does:
guestwire-launcher serve when the guest is served, guestwire-launcher qemu when
QEMU runs as well.

` + kinds,
	},
	{
		Name: "hook", Short: "wire a container's NIC while it lives, as an OCI hook",
		Flags: "nic binding state uid gid config own dir", Do: hook,
		Example: `  guestwire-agent hook -nic eth0 -binding redirect -uid 107
`,
		Long: `An OCI runtime, or podman, calls hook with the container's state on standard
input. As a createRuntime hook it does what setup does, in the container's
network namespace. As a poststop hook it does what teardown -cut-off does, or
what forget does if the namespace is gone. It finds the namespace by the
journal, and so what a hook that was killed has left.

The container's annotation guestwire/state names the directory of the record,
one in the -state directory, which is there already, and which the container
mounts. The NIC is wired for the container's id, as list -json shows. Another
container with the same directory is refused as long as the first one's network
is alive.

Why hook failed is on standard error, which crun drops, and in the -state
directory: hook.log has a line for each failure, and the time.

-own is for an engine that itself runs in a container. docs/how-to/oci-hook.md
has a hook of podman's.

` + kinds,
	},
	{
		Name: "exec", Short: "run a command in a namespace, as a user without privileges",
		Flags: "netns uid gid groups", Command: true, Do: execute,
		Example: `  guestwire-agent exec -netns /run/netns/pod -uid 107 -- \
      guestwire-launcher serve -state /run/guestwire/vm1
`,
		Long: `exec runs a command without capabilities, in the namespace and as the user that
are named. Without -netns the command stays in the agent's own. SIGTERM, SIGINT,
SIGQUIT, SIGHUP and SIGWINCH are passed on to the command; other signals and
Ctrl-Z do nothing. If the agent is killed, the command is, too. The exit code is
the command's, and 128 and the signal's number if a signal ended the command.

/sys shows the links of the namespace that is named, if the agent may mount it.
Most containers may not. The files of /etc/netns/NAME are in /etc, as ip netns
exec has them. Of a container's namespace /etc is the agent's own: the guest
gets the container's DNS servers by the field dns of guestwire-agent setup. The
variables TMPDIR, HOME and XDG_RUNTIME_DIR are left out if the user cannot write
there.

The command has a session of its own, so it cannot push input into the agent's
terminal. But it can read what is typed at a terminal that it gets as standard
input, output or error. Its child processes can, too, when it has ended: let a
command that is not trusted with that have pipes or files.
`,
	},
	{
		Name: "teardown", Short: "give the namespace back as setup found it",
		Flags: "netns own nic state for force cut-off discard dir", Do: teardown,
		Example: `  guestwire-agent teardown -state /run/guestwire/vm1 -nic eth0
`,
		Long: `teardown gives the namespace back as setup found it, and removes the record.
Stop the VM first, or detach the NIC from the VM: teardown deletes the VM's tap,
and the tap of a later setup is another one. As long as a process has the tap
open, teardown changes nothing and exits with 7, and so as long as
guestwire-agent run, or another launcher that holds the NIC, lives; -cut-off
deletes the tap nevertheless. A NIC that is not wired is no error. -state and
-for are not needed; what is named has to be that of setup.

Without -netns, teardown finds the namespace by the journal that has this
-state: perhaps no process is left in the namespace, or the processes are not
trusted. If the namespace is gone, teardown does what forget does.

-force does without the journal: it removes what bears guestwire's mark, gives
the NIC its name, MAC and addresses back as far as the kernel still shows them,
and prints what is not known and stays as it is, such as sysctls of forwarding.
It exits with 3 if the NIC is not wired. -state lets it remove the record, too,
if the journal does not say where the record is.

-discard is for a namespace that is deleted right after: it removes record and
journal alone, and leaves the wiring to end with the namespace. If the NIC
outlives the namespace, as a PCI device does, the whole teardown is done, and so
with -cut-off if a process has the tap open. If the namespace stays
nevertheless, teardown -force gives it back as far as the kernel still knows it:
under bridge without the NIC's routes. -discard and -force exclude each other.
`,
	},
	{
		Name: "forget", Short: "remove what is left of wirings whose namespace is gone",
		Flags: "namespace state nic for own dir", Do: forget,
		Example: `  guestwire-agent forget -state /run/guestwire/vm1 -nic eth0
`,
		Long: `forget removes journals, records and locks of namespaces that are gone, and
prints what it removes. It looks for the namespace first, in all processes and
mounts, and refuses if the namespace is there. Without flags it does so for all
wirings of the node. In a container it cannot see the node's processes, and
refuses, unless -own says that the journals are the container's own.
`,
	},
}

const kinds = `KIND is redirect, bridge, routed or masquerade, or auto for the first of these
four that can work and loses least:

  redirect    the guest is the pod, and the NIC stays as it is, for CNI's CHECK
  bridge      the guest is the pod: NIC and tap are ports of a bridge
  routed      the guest has the pod's addresses, and the namespace routes: for
              service meshes, and NICs without Ethernet
  masquerade  the guest is behind the pod, in a network of its own

The configuration (-config) can give the guest another MAC than the pod's under
bridge and redirect, {"binding": {"bridge": {"mac": "02:00:00:00:00:07"}}}, and
name the guest, {"guest": "default/vm1"}: then masquerade gives it the same MAC
in each pod. Under routed all ports of the pod's addresses are the guest's
except those of {"binding": {"routed": {"excluded": ["15008"]}}}.

With the other kinds libvirt or QEMU attaches the guest, and guestwire neither
serves nor filters it:

  macvtap     the NIC is a macvtap; the launcher's user needs its device to read
              and write (docs/bindings/macvtap.md)
  sriov       the NIC is a virtual function, or was:
              {"binding": {"sriov": {"pci": "0000:03:10.1", "vlan": 42}}}
  passt       the guest uses the namespace's sockets:
              {"binding": {"passt": {"ports": ["80:8080", "53/udp"]}}};
              without ports nothing reaches the guest
  slirp       QEMU uses the namespace's sockets itself:
              {"binding": {"slirp": {"ports": ["80:8080"]}}};
              libvirt forwards no ports
`

// program is the agent's command line.
var program = commandline.Program[options]{
	Name: "guestwire-agent", Short: "wire a NIC of a network namespace to a tap for a virtual machine",
	Before: `guestwire-agent wires a NIC of a network namespace to a tap for a virtual
machine, and gives it back. It runs as root.
`,
	Verbs: verbs,
	After: `For example, with a pod's namespace in /run/netns/pod:

  mkdir -p /run/guestwire
  guestwire-agent plan -netns /run/netns/pod -nic eth0 -binding auto -uid 107
  guestwire-agent setup -netns /run/netns/pod -nic eth0 -binding auto -uid 107 \
      -state /run/guestwire/vm1
  guestwire-agent status -netns /run/netns/pod -nic eth0
  guestwire-agent teardown -netns /run/netns/pod -nic eth0

The exit code is 0: done, 1: failed, 2: a flag or a field of the configuration
is wrong, 3: the NIC is not wired, 4: the kernel is not as recorded, 5: the
binding cannot work on the NIC, or loses a family, 6: the guest may be active
elsewhere, 7: a process has the guest's tap open, or another process holds the
NIC, 8: status: one of VMM and responder is missing. That of exec and run is
their command's. What takes longer than a second is reported on standard error.
`,
	FlagSet: (*options).flagSet, Values: values,
}
