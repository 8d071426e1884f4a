package podnet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/nstest"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// switches are the networks with an Open vSwitch whose flows an agent on the node writes.
var switches = []Network{openShiftSDN}

var openShiftSDN = Network{Name: "OpenShift SDN", Lay: laySDN}

// vswitch is an Open vSwitch in a node's namespace. It forwards in user space (datapath_type=netdev), so it needs
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
	nstest.StartReady(t, "Open vSwitch", cmd)
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
start ovs-vswitchd --disable-system
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
	v.node.Exec("nft", "add table netdev ovs; add chain netdev ovs "+port+" { type filter hook ingress device "+port+" priority 0; policy drop; }")
	pod.Exec("ethtool", "-K", "eth0", "tx", "off")
	v.node.IP("link set " + port + " addrgenmode none up")
	v.vsctl("add-port "+bridge+" "+port, "set interface "+port+" "+settings)
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

// laySDN lays a node of OpenShift SDN with its network policies, and pods. One pod is on another node, whose
// switch is in the same namespace, connected by a patch port instead of VXLAN. There is no IPv6.
//
// github.com/openshift/sdn: pkg/network/node/ovscontroller.go, cmd/sdn-cni-plugin/openshift-sdn_linux.go
func laySDN(t testing.TB) *Laid {
	node, outside := newNode(t, "10.128.0.0/14")
	v := startOVS(t, node, false)
	for _, n := range []struct{ bridge, subnet, gateway, other, otherSubnet string }{
		{"br0", "10.128.0.0/23", "10.128.0.1", "br1", "10.130.0.0/23"},
		{"br1", "10.130.0.0/23", "10.130.0.1", "br0", "10.128.0.0/23"},
	} {
		v.vsctl("add-br "+n.bridge, "set bridge "+n.bridge+" datapath_type=netdev fail_mode=secure protocols=OpenFlow13",
			"add-port "+n.bridge+" to-"+n.other, "set interface to-"+n.other+" type=patch options:peer=to-"+n.bridge+" ofport_request=1")
		v.addFlows(n.bridge, strings.NewReplacer("SUBNET", n.subnet, "GATEWAY", n.gateway, "REMOTE", n.otherSubnet).Replace(sdnFlows))
	}
	v.vsctl("add-port br0 tun0", "set interface tun0 type=internal mtu_request=1450 ofport_request=2")
	addAddresses(node, "tun0", "10.128.0.1/23")
	node.IP("link set tun0 up")
	node.IP("route add 10.128.0.0/14 dev tun0")

	pod := sdnPod(v, "br0", "vethpod", 3, "10.128.0.5", "10.128.0.1")
	peer := sdnPod(v, "br0", "vethpeer", 4, "10.128.0.6", "10.128.0.1")
	other := sdnPod(v, "br1", "vethother", 3, "10.130.0.5", "10.130.0.1")
	return &Laid{
		Pod: pod, NIC: "eth0", IPv4: addr("10.128.0.5"),
		Stations: []Station{
			{Name: "gateway", Namespace: node, IPv4: addr("10.128.0.1")},
			{Name: "peer", Namespace: peer, IPv4: addr("10.128.0.6")},
			{Name: "other node's pod", Namespace: other, IPv4: addr("10.130.0.5")},
			{Name: "outside", Namespace: outside.Namespace, IPv4: outside.IPv4},
		},
		Delete: func(t testing.TB) { v.removePort(t, "br0", "vethpod") },
	}
}

// sdnPod creates a pod. Its routes have an MTU below the link's, as during a change of the cluster's MTU.
func sdnPod(v *vswitch, bridge, port string, number int, address, gateway string) *nstest.Namespace {
	v.t.Helper()
	pod := nstest.New(v.t, "pod")
	v.addPort(pod, 1450, bridge, port, fmt.Sprintf("external_ids:sandbox=%s external_ids:ip=%s ofport_request=%d", port, address, number))
	mac := addressMAC(address)
	v.addFlows(bridge, strings.NewReplacer("PORT", strconv.Itoa(number), "ADDRESS", address, "MAC", "00:00"+mac[5:]+"/00:00:ff:ff:ff:ff").Replace(sdnPodFlows))
	pod.IP("link set eth0 address " + mac)
	pod.IP("addr add " + address + "/23 broadcast + dev eth0")
	pod.IP("link set eth0 up")
	pod.IP("route add default via " + gateway + " dev eth0 mtu 1400")
	pod.IP("route add 10.128.0.0/14 dev eth0 scope global mtu 1400")
	pod.IP("route add 224.0.0.0/4 dev eth0 scope global")
	pod.IP("route add 172.30.0.0/16 via " + gateway + " dev eth0 mtu 1400")
	return pod
}

// addFlows adds flows to a bridge in one transaction.
func (v *vswitch) addFlows(bridge, flows string) {
	v.t.Helper()
	v.run(flows, "ovs-ofctl", "-O", "OpenFlow13", "--bundle", "add-flows", bridge, "-")
}

// sdnFlows are the flows of a node, without services, egress policies and multicast.
const sdnFlows = `
# Table 0: where from. Port 1 is the other nodes, 2 the node, and all else are pods.
table=0, priority=1000, ip, ct_state=-trk, actions=ct(table=0)
table=0, priority=200, in_port=1, arp, nw_src=10.128.0.0/14, nw_dst=SUBNET, actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],goto_table:10
table=0, priority=200, in_port=1, ip, nw_src=10.128.0.0/14, actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],goto_table:10
table=0, priority=200, in_port=1, ip, nw_dst=10.128.0.0/14, actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],goto_table:10
table=0, priority=150, in_port=1, actions=drop
table=0, priority=400, in_port=2, ip, nw_src=GATEWAY, actions=goto_table:30
table=0, priority=300, in_port=2, ip, nw_src=SUBNET, nw_dst=10.128.0.0/14, actions=goto_table:25
table=0, priority=250, in_port=2, ip, nw_dst=224.0.0.0/4, actions=drop
table=0, priority=200, in_port=2, arp, nw_src=GATEWAY, nw_dst=10.128.0.0/14, actions=goto_table:30
table=0, priority=200, in_port=2, ip, actions=goto_table:30
table=0, priority=150, in_port=2, actions=drop
table=0, priority=100, arp, actions=goto_table:20
table=0, priority=100, ip, actions=goto_table:20
table=0, priority=0, actions=drop

# Table 10: from another node, which a patch is not asked for. Table 20: from a pod, which is checked.
table=10, priority=100, actions=goto_table:30
table=20, priority=300, udp, udp_dst=4789, actions=drop
table=20, priority=0, actions=drop
table=21, priority=200, ip, nw_dst=10.128.0.0/14, ct_state=-rpl, actions=ct(commit,nat(src=0.0.0.0),table=30)
table=21, priority=0, actions=goto_table:30
table=25, priority=0, actions=drop

# Table 30: where to.
table=30, priority=300, arp, nw_dst=GATEWAY, actions=output:2
table=30, priority=200, arp, nw_dst=SUBNET, actions=goto_table:40
table=30, priority=100, arp, nw_dst=10.128.0.0/14, actions=goto_table:50
table=30, priority=300, ip, nw_dst=GATEWAY, actions=output:2
table=30, priority=250, ip, nw_dst=SUBNET, ct_state=+rpl, actions=ct(nat,table=70)
table=30, priority=200, ip, nw_dst=SUBNET, actions=goto_table:70
table=30, priority=100, ip, nw_dst=10.128.0.0/14, actions=goto_table:90
table=30, priority=0, ip, actions=goto_table:101
table=30, priority=0, arp, actions=drop

# ARP to a pod of this node, and of another one.
table=40, priority=0, actions=drop
table=50, priority=100, arp, nw_dst=REMOTE, actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],output:1
table=50, priority=0, actions=drop

# IP to a pod of this node, which policies of the network may forbid; of another one; and to outside.
table=70, priority=0, actions=drop
table=80, priority=300, ip, nw_src=GATEWAY/32, actions=output:NXM_NX_REG2[]
table=80, priority=200, ip, ct_state=+rpl, actions=output:NXM_NX_REG2[]
table=80, priority=50, reg1=0, actions=output:NXM_NX_REG2[]
table=80, priority=0, actions=drop
table=90, priority=100, ip, nw_dst=REMOTE, actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],output:1
table=90, priority=0, actions=drop
table=101, priority=0, actions=output:2
`

// sdnPodFlows are the flows of a pod. They check the pod's MAC in ARP only.
const sdnPodFlows = `
table=20, priority=100, in_port=PORT, arp, nw_src=ADDRESS, arp_sha=MAC, actions=load:0->NXM_NX_REG0[],goto_table:21
table=20, priority=100, in_port=PORT, ip, nw_src=ADDRESS, actions=load:0->NXM_NX_REG0[],goto_table:21
table=25, priority=100, ip, nw_src=ADDRESS, actions=load:0->NXM_NX_REG0[],goto_table:30
table=40, priority=100, arp, nw_dst=ADDRESS, actions=output:PORT
table=70, priority=100, ip, nw_dst=ADDRESS, actions=load:0->NXM_NX_REG1[],load:PORT->NXM_NX_REG2[],goto_table:80
`
