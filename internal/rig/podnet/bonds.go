package podnet

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// bonds are networks of pods whose NIC lies on other links of the pod, as Multus users add them, and those of netkit,
// as Cilium adds it.
var bonds = []Network{
	{Name: "bond", Origin: RealLink, Kind: "bond", Create: func(t testing.TB) *Instance { return onPorts(t, "", onBond("eth0")) }},
	{Name: "bond, VLAN", Origin: RealLink, Kind: "bond", Create: func(t testing.TB) *Instance {
		return onPorts(t, "802.1Q", func(t testing.TB, pod *nstest.Namespace) {
			onBond("bond0")(t, pod)
			pod.IP("link set bond0 up")
			pod.IP("link add link bond0 name eth0 type vlan id 5")
		})
	}},
	{Name: "team", Origin: RealLink, Kind: "team", Create: func(t testing.TB) *Instance { return onPorts(t, "", onTeam) }},
	{Name: "VLAN, 802.1ad", Origin: RealLink, Kind: "vlan", Create: func(t testing.TB) *Instance {
		return onPorts(t, "802.1ad", func(t testing.TB, pod *nstest.Namespace) {
			pod.IP("link set port0 up")
			pod.IP("link add link port0 name eth0 type vlan proto 802.1ad id 5")
		})
	}},
	{Name: "netkit L2", Origin: RealLink, Kind: "netkit", Create: func(t testing.TB) *Instance { return netkit(t, netlink.NETKIT_MODE_L2, false) }},
	{Name: "netkit L3", Origin: RealLink, Kind: "netkit", Create: func(t testing.TB) *Instance { return netkit(t, netlink.NETKIT_MODE_L3, false) }},
	{Name: "netkit L2, programs", Origin: RealLink, Kind: "netkit", Create: func(t testing.TB) *Instance { return netkit(t, netlink.NETKIT_MODE_L2, true) }},
	{Name: "netkit L3, programs", Origin: RealLink, Kind: "netkit", Create: func(t testing.TB) *Instance { return netkit(t, netlink.NETKIT_MODE_L3, true) }},
}

// onPorts creates a pod with two links to a switch, port0 and port1, which are down. The pod's eth0, which create makes
// of them, is on the LAN: what it sends has the tag 5 of that protocol; empty: no tag.
func onPorts(t testing.TB, tag string, create func(t testing.TB, pod *nstest.Namespace)) *Instance {
	_, router, stations := lan(t)
	pod := nstest.New(t, "pod")
	router.IP("link add switch0 type bridge")
	router.IP("link set switch0 up")
	for _, port := range []string{"port0", "port1"} {
		connectNamespaces(pod, port, router, port)
		router.IP("link set " + port + " master switch0")
		pod.IP("link set " + port + " down")
	}
	if tag == "" {
		router.IP("link add untagged type veth peer name tagged")
		router.IP("link set tagged master switch0 up")
	} else {
		router.IP("link add link switch0 name untagged type vlan proto " + tag + " id 5")
	}
	router.IP("link set untagged master lan0 up")
	create(t, pod)
	pod.IP("link set eth0 up")
	addAddresses(pod, "eth0", "10.22.0.10/24", "fd00:22::10/64")
	pod.IP("route add default via 10.22.0.1 dev eth0")
	pod.IP("route add default via fd00:22::1 dev eth0")
	pod.Settle("eth0")
	return &Instance{Pod: pod, NIC: "eth0", IPv4: addr("10.22.0.10"), IPv6: addr("fd00:22::10"), Stations: stations}
}

// onBond makes a bond of both ports, as the CNI plugin bond does.
func onBond(name string) func(t testing.TB, pod *nstest.Namespace) {
	return func(t testing.TB, pod *nstest.Namespace) {
		pod.IP("link add " + name + " type bond mode active-backup miimon 100")
		pod.IP("link set port0 master " + name)
		pod.IP("link set port1 master " + name)
	}
}

// onTeam makes a team of both ports that sends by port0, as teamd's runner activebackup does. teamd gives the ports the
// MAC of the team.
func onTeam(t testing.TB, pod *nstest.Namespace) {
	pod.IP("link add eth0 type team")
	setTeam(t, pod, "mode", nlaString, nl.ZeroTerminated("activebackup"))
	mac := linkOf(t, pod, "eth0").HardwareAddr.String()
	for _, port := range []string{"port0", "port1"} {
		pod.IP("link set " + port + " address " + mac)
		pod.IP("link set " + port + " master eth0")
	}
	setTeam(t, pod, "activeport", nlaU32, nl.Uint32Attr(uint32(linkOf(t, pod, "port0").Index)))
}

func linkOf(t testing.TB, pod *nstest.Namespace, name string) *netlink.LinkAttrs {
	var attrs *netlink.LinkAttrs
	err := netns.Do(pod.File, func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			attrs = link.Attrs()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return attrs
}

// Types of a team's options: NLA_U32 and NLA_STRING of the kernel (net/netlink.h).
const (
	nlaU32    = 3
	nlaString = 5
)

// setTeam sets an option of the team eth0, as ip(8) cannot. Source: linux/if_team.h.
func setTeam(t testing.TB, pod *nstest.Namespace, name string, kind byte, value []byte) {
	const set, ofLink, options, option, optionName, optionType, optionData = 1, 1, 2, 1, 1, 3, 4 // TEAM_CMD_OPTIONS_SET, TEAM_ATTR_*
	index := linkOf(t, pod, "eth0").Index
	err := netns.Do(pod.File, func() error {
		family, err := netlink.GenlFamilyGet("team")
		if err != nil {
			return err
		}
		request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
		request.AddData(&nl.Genlmsg{Command: set, Version: 1})
		request.AddData(nl.NewRtAttr(ofLink, nl.Uint32Attr(uint32(index))))
		list := nl.NewRtAttr(options|unix.NLA_F_NESTED, nil)
		one := list.AddRtAttr(option|unix.NLA_F_NESTED, nil)
		one.AddRtAttr(optionName, nl.ZeroTerminated(name))
		one.AddRtAttr(optionType, []byte{kind})
		one.AddRtAttr(optionData, value)
		request.AddData(list)
		if _, err = request.Execute(unix.NETLINK_GENERIC, 0); errors.Is(err, unix.ESRCH) {
			return nil // nobody listens for the event
		}
		return err
	})
	if err != nil {
		t.Fatalf("set the %s of a team: %v", name, err)
	}
}

// netkit creates a pod with a netkit, whose other end is on the node: a /32 and a /128, and the node's address as the
// gateway. Without programs it lets everything pass. With programs it is as Cilium makes it: the policy lets nothing
// pass, at both ends, and a program at each does.
func netkit(t testing.TB, mode netlink.NetkitMode, programs bool) *Instance {
	node, pod := nstest.New(t, "node"), nstest.New(t, "pod")
	far := addBehindRouter(t, node)
	policy := netlink.NETKIT_POLICY_FORWARD
	if programs {
		policy = netlink.NETKIT_POLICY_BLACKHOLE
	}
	addNetkit(t, node, pod, mode, policy)
	if programs {
		passNetkit(t, node)
	}
	for _, end := range []struct {
		in           *nstest.Namespace
		link         string
		own4, own6   string
		peer4, peer6 string
	}{{node, "lxc0", "10.22.0.1", "fd00:22::1", "10.22.0.10", "fd00:22::10"}, {pod, "eth0", "10.22.0.10", "fd00:22::10", "10.22.0.1", "fd00:22::1"}} {
		end.in.IP("link set " + end.link + " up")
		addAddresses(end.in, end.link, end.own4+"/32", end.own6+"/128")
		end.in.IP("route add " + end.peer4 + " dev " + end.link)
		end.in.IP("route add " + end.peer6 + " dev " + end.link)
	}
	pod.IP("route add default via 10.22.0.1 dev eth0")
	pod.IP("route add default via fd00:22::1 dev eth0")
	pod.Settle("eth0")
	return &Instance{Pod: pod, NIC: "eth0", IPv4: addr("10.22.0.10"), IPv6: addr("fd00:22::10"), Stations: append([]Station{
		newStation("gateway", node, "10.22.0.1", "fd00:22::1"),
	}, far...)}
}

// addNetkit connects the node's lxc0 and the pod's eth0. The policy decides about what no program does.
func addNetkit(t testing.TB, node, pod *nstest.Namespace, mode netlink.NetkitMode, policy netlink.NetkitPolicy) {
	t.Helper()
	err := netns.Do(node.File, func() error {
		own, peer := netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
		own.Name, peer.Name, peer.Namespace = "lxc0", "eth0", netlink.NsFd(pod.File.Fd())
		link := &netlink.Netkit{LinkAttrs: own, Mode: mode, Policy: policy, PeerPolicy: policy}
		link.SetPeerAttrs(&peer)
		return netlink.LinkAdd(link)
	})
	if err != nil {
		t.Fatalf("ip link add lxc0 type netkit: %v", err)
	}
}

// passNetkit attaches programs to lxc0 and its peer, until the test ends. What the node sends passes. What the pod
// sends is redirected to where it would come in, as Cilium's program redirects it.
func passNetkit(t testing.TB, node *nstest.Namespace) {
	t.Helper()
	index := linkOf(t, node, "lxc0").Index
	const redirect, ingress = 23, 1 // bpf_redirect, BPF_F_INGRESS
	for end, code := range map[uint32][]instruction{
		netkitPrimary: {{bpfSet, 0, 0, netkitPass}, {bpfExit, 0, 0, 0}},
		netkitPeer:    {{bpfSet, 1, 0, int32(index)}, {bpfSet, 2, 0, ingress}, {bpfCall, 0, 0, redirect}, {bpfExit, 0, 0, 0}},
	} {
		program := loadProgram(t, bpfSchedCls, 0, code)
		var attached int
		err := netns.Do(node.File, func() (err error) {
			attached, err = attachNetkit(program, index, end)
			return err
		})
		unix.Close(program)
		if err != nil {
			t.Fatalf("attach a BPF program to a netkit: %v", err)
		}
		t.Cleanup(func() { unix.Close(attached) })
	}
}
