package podnet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// vswitch is an Open vSwitch in a node's namespace. A bridge with datapath_type=netdev forwards in user space and needs
// no kernel module. All its files are in one directory.
type vswitch struct {
	t        testing.TB
	node     *nstest.Namespace
	dir      string
	programs string // directory of the unpacked packages
}

// startOVS starts an Open vSwitch in the node's namespace, with OVN if wanted. It ends with the test, also if the
// test process is killed.
func startOVS(t testing.TB, node *nstest.Namespace, ovn bool) *vswitch {
	t.Helper()
	nstest.Need(t, "ethtool", "nsenter")
	nstest.NeedTaps(t) // a datapath of userspace opens the device
	v := &vswitch{t, node, nstest.Dir(t), unpacked.Path("openvswitch", "usr")}
	if _, err := os.Stat(filepath.Join(v.programs, "bin/ovn-controller")); err != nil {
		nstest.Skip(t, "no Open vSwitch and OVN in "+v.programs+": make install")
	}
	args := []string{"--net=" + node.Path(), "/bin/sh", "-c", runDaemons, "vswitch", v.programs}
	if ovn {
		args = append(args, "ovn")
	}
	cmd := exec.Command("nsenter", args...)
	cmd.Dir = v.dir
	cmd.Env = v.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	t.Cleanup(func() { // after the daemons have ended
		if t.Failed() {
			logs, _ := exec.Command("grep", "-rhE", "--include=*.log", `\|(WARN|ERR|EMER)\|`, v.dir).Output()
			t.Logf("Open vSwitch said:\n%s", logs)
		}
	})
	machine.StartReady(t, "Open vSwitch", cmd)
	return v
}

// environment returns the variables by which the programs create and find all files in the directory.
func (v *vswitch) environment() []string {
	db := "unix:" + v.dir + "/db.sock"
	env := append(os.Environ(), "OVN_NB_DB="+db, "OVN_SB_DB="+db)
	for _, name := range []string{"OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR", "OVN_RUNDIR", "OVN_LOGDIR", "OVN_DBDIR", "OVN_SYSCONFDIR"} {
		env = append(env, name+"="+v.dir)
	}
	return env
}

// runDaemons runs in the directory as process 1 of a PID namespace, so the daemons end with it. One ovsdb-server
// serves all databases.
const runDaemons = `set -e
usr=$1
PATH=$usr/sbin:$usr/bin:$usr/lib/openvswitch-switch:$PATH
mount --make-rprivate /
mount -t proc proc /proc
start() {
	"$@" --detach --no-chdir --pidfile="$PWD/$1.pid" --log-file="$PWD/$1.log" -vconsole:off -vsyslog:off
}
ovsdb-tool create conf.db "$usr/share/openvswitch/vswitch.ovsschema"
ovsdb-tool create nb.db "$usr/share/ovn/ovn-nb.ovsschema"
ovsdb-tool create sb.db "$usr/share/ovn/ovn-sb.ovsschema"
start ovsdb-server --remote=punix:"$PWD/db.sock" conf.db nb.db sb.db
ovs-vsctl --timeout=30 --no-wait init
start ovs-vswitchd
if [ "$2" = ovn ]; then
	ovs-vsctl --timeout=30 add-br br-int -- set bridge br-int datapath_type=netdev fail_mode=secure -- \
		set open . external_ids:system-id=node external_ids:ovn-remote="$OVN_SB_DB" \
		external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=127.0.0.1
	# ovn-controller falls over a database without its only row, which ovn-northd writes late.
	ovn-sbctl --timeout=30 init
	start ovn-northd
	start ovn-controller
fi
echo ready
exec cat`

// run runs a program with the input, and ends the test if it fails.
func (v *vswitch) run(input, program string, args ...string) {
	v.t.Helper()
	cmd := exec.Command(filepath.Join(v.programs, "bin", program), append([]string{"--timeout=30"}, args...)...)
	cmd.Env = v.environment()
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		v.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// vsctl runs ovs-vsctl(8) with lines of words, each a command of one transaction.
func (v *vswitch) vsctl(commands ...string) {
	v.t.Helper()
	v.run("", "ovs-vsctl", transaction(commands)...)
}

// transaction returns the arguments of ovs-vsctl or ovn-nbctl for several commands. A word with blanks is in
// single quotes.
func transaction(commands []string) (args []string) {
	for i, command := range commands {
		if i > 0 {
			args = append(args, "--")
		}
		for j, part := range strings.Split(command, "'") {
			if j%2 == 1 {
				args = append(args, part)
			} else {
				args = append(args, strings.Fields(part)...)
			}
		}
	}
	return args
}

// addPort creates a veth between the pod's eth0, which is down, and a port of the bridge, with settings of its
// Interface.
//
// The datapath in user space and the node's kernel both receive the port's frames, so a rule drops them in the
// kernel. The datapath does not complete checksums, so the pod's end must, as Kube-OVN does with this datapath
// (pkg/daemon/ovs_linux.go, turnOffNicTxChecksum).
func (v *vswitch) addPort(pod *nstest.Namespace, mtu int, bridge, port, settings string) {
	v.t.Helper()
	v.node.IP(fmt.Sprintf("link add %s mtu %d type veth peer name eth0 mtu %d netns %s", port, mtu, mtu, pod.Name))
	v.dropInKernel(port)
	pod.Exec("ethtool", "-K", "eth0", "tx", "off")
	v.node.IP("link set " + port + " addrgenmode none up")
	v.vsctl("add-port "+bridge+" "+port, "set interface "+port+" "+settings)
}

// addInternalPort creates a port of the bridge that is the pod's eth0 itself (type=internal), with settings of its
// Interface.
func (v *vswitch) addInternalPort(pod *nstest.Namespace, mtu int, bridge, port, settings string) {
	v.t.Helper()
	v.vsctl("add-port "+bridge+" "+port, fmt.Sprintf("set interface %s type=internal mtu_request=%d %s", port, mtu, settings))
	v.node.IP("link set " + port + " netns " + pod.Name + " name eth0")
}

// dropInKernel keeps frames that a port of the bridge receives from the node's own stack.
func (v *vswitch) dropInKernel(port string) {
	v.t.Helper()
	v.node.Exec("nft", "add table netdev ovs; add chain netdev ovs "+port+" { type filter hook ingress device "+port+" priority 0; policy drop; }")
}

// removePort does what a CNI DEL does: it removes the port from the bridge, and the veth.
func (v *vswitch) removePort(t testing.TB, bridge, port string) {
	t.Helper()
	v.vsctl("--with-iface del-port " + bridge + " " + port)
	v.node.IP("link del " + port)
}

// newNode creates a forwarding node, and a host outside the cluster with routes to the node's pods.
func newNode(t testing.TB, pods ...string) (node *nstest.Namespace, outside Station) {
	t.Helper()
	nstest.Need(t)
	node, outside = nstest.New(t, "node"), Station{"outside", nstest.New(t, "outside"), nstest.Beyond4, nstest.Beyond6}
	enableForwarding(node)
	connectNamespaces(node, "uplink", outside.Namespace, "eth0")
	addAddresses(node, "uplink", "198.51.100.1/24", "2001:db8:9::1/64")
	addAddresses(outside.Namespace, "eth0", nstest.Beyond4.String()+"/24", nstest.Beyond6.String()+"/64")
	addNarrow(outside.Namespace)
	routeNarrow(node, nstest.Beyond4.String(), nstest.Beyond6.String())
	for _, p := range pods {
		via := "198.51.100.1"
		if strings.Contains(p, ":") {
			via = "2001:db8:9::1"
		}
		outside.Namespace.IP("route add " + p + " via " + via)
	}
	return node, outside
}

// addressMAC returns the MAC that OpenShift SDN and OVN-Kubernetes derive from a pod's IPv4 address.
func addressMAC(address string) string {
	b := addr(address).As4()
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// addFlows adds flows to a bridge in one transaction.
func (v *vswitch) addFlows(bridge, flows string) {
	v.t.Helper()
	v.run(flows, "ovs-ofctl", "-O", "OpenFlow13", "--bundle", "add-flows", bridge, "-")
}
