package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// others are the calls of other programs that wire a NIC to a guest's tap, by the binding whose network is most like
// theirs: KubeVirt's virt-handler and tc-redirect-tap. They are the same calls of the same library, and the same
// processes, in the same order. What the programs do in addition is left out: their start, their looks for what is
// there already, their own files.
var others = map[string]func() error{
	"bridge":     kubevirtBridge,
	"masquerade": kubevirtMasquerade,
	"redirect":   redirectTap,
}

// inOrder calls each step, until one fails.
func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

const (
	kubevirtBridgeName = "k6t-eth0"
	otherTap           = "tap0"
	otherUser          = 107
)

// kubevirtBridge gives the NIC another name, its name and addresses to a dummy, and a bridge to NIC and tap. Where the
// kernel has no dummy, a bridge without ports stands for it.
func kubevirtBridge() error {
	link, addresses, err := lookAtNIC()
	if err != nil {
		return err
	}
	named := netlink.NewLinkAttrs()
	named.Name, named.MTU, named.HardwareAddr = nic, link.Attrs().MTU, link.Attrs().HardwareAddr
	var dummy netlink.Link = &netlink.Dummy{LinkAttrs: named}
	bridge := newBridge(nil, 0)
	random := net.HardwareAddr{2, 0, 0, 0, 0, 0}
	rand.Read(random[1:])
	return inOrder(
		func() error { return netlink.LinkSetDown(link) },
		func() (err error) {
			for _, a := range addresses {
				if a.IP.To4() != nil { // the kernel has removed those of IPv6 with the state up
					err = errors.Join(err, netlink.AddrDel(link, &a))
				}
			}
			return err
		},
		func() error { return netlink.LinkSetName(link, nic+"-nic") },
		func() error {
			err := netlink.LinkAdd(dummy)
			if errors.Is(err, unix.EOPNOTSUPP) {
				dummy = &netlink.Bridge{LinkAttrs: named}
				err = netlink.LinkAdd(dummy)
			}
			return err
		},
		func() (err error) {
			for _, a := range addresses {
				err = errors.Join(err, netlink.AddrAdd(dummy, &a))
			}
			return err
		},
		func() error { return setSysctl("ipv4/conf/all/arp_ignore") },
		func() error { return netlink.LinkSetHardwareAddr(link, random) },
		func() error { return netlink.LinkAdd(bridge) },
		func() error { return netlink.LinkSetMaster(link, bridge) },
		func() error { return netlink.LinkSetUp(bridge) },
		func() error { return addAddress(bridge, "169.254.75.10/32") }, // for its DHCP server
		func() error { return addTap(bridge, link.Attrs().MTU) },
		func() error { return netlink.LinkSetUp(link) },
		func() error { return netlink.LinkSetLearning(link, false) },
	)
}

// kubevirtMasquerade makes a bridge with the gateway's addresses, and the NAT by one process of nft(8) for each object.
func kubevirtMasquerade() error {
	link, _, err := lookAtNIC()
	if err != nil {
		return err
	}
	bridge := newBridge(net.HardwareAddr{2, 0, 0, 0, 0, 0}, link.Attrs().MTU)
	return inOrder(
		func() error { return netlink.LinkAdd(bridge) },
		func() error { return netlink.LinkSetUp(bridge) },
		func() error { return addAddress(bridge, "10.0.2.1/24") },
		func() error { return addAddress(bridge, "fd10:0:2::1/120") },
		func() error { return addTap(bridge, link.Attrs().MTU) },
		func() error { return setSysctl("ipv4/ip_forward") },
		func() error { return setSysctl("ipv4/conf/" + kubevirtBridgeName + "/route_localnet") },
		func() error { return setSysctl("ipv6/conf/all/forwarding") },
		func() error { return addNAT("ip", "127.0.0.1", "10.0.2.2", "10.0.2.1") },
		func() error { return addNAT("ip6", "::1", "fd10:0:2::2", "fd10:0:2::1") },
	)
}

// addNAT makes the rules for a guest all of whose ports are open, but those of a live migration: 15 processes.
func addNAT(family, loopback, guest, gateway string) error {
	const migration = "{ 49152, 49153 }"
	for _, words := range [][]string{
		{"add", "table", family, "nat"},
		{"add", "chain", family, "nat", "prerouting { type nat hook prerouting priority -100; }"},
		{"add", "chain", family, "nat", "input { type nat hook input priority 100; }"},
		{"add", "chain", family, "nat", "output { type nat hook output priority -100; }"},
		{"add", "chain", family, "nat", "postrouting { type nat hook postrouting priority 100; }"},
		{"add", "chain", family, "nat", "PREINBOUND"},
		{"add", "chain", family, "nat", "POSTINBOUND"},
		{"add", "rule", family, "nat", "postrouting", family, "saddr", guest, "counter", "masquerade"},
		{"add", "rule", family, "nat", "prerouting", "iifname", nic, "counter", "jump", "PREINBOUND"},
		{"add", "rule", family, "nat", "postrouting", "oifname", kubevirtBridgeName, "counter", "jump", "POSTINBOUND"},
		{"add", "rule", family, "nat", "output", "tcp", "dport", migration, family, "saddr", loopback, "counter", "return"},
		{"add", "rule", family, "nat", "POSTINBOUND", "tcp", "dport", migration, family, "saddr", loopback, "counter", "return"},
		{"add", "rule", family, "nat", "POSTINBOUND", family, "saddr", loopback, "counter", "snat", "to", gateway},
		{"add", "rule", family, "nat", "PREINBOUND", "counter", "dnat", "to", guest},
		{"add", "rule", family, "nat", "output", family, "daddr", loopback, "counter", "dnat", "to", guest},
	} {
		if out, err := exec.Command("nft", words...).CombinedOutput(); err != nil {
			return fmt.Errorf("nft %q: %w: %s", words, err, out)
		}
	}
	return nil
}

// redirectTap makes a tap, and sends what comes in on it out on the NIC, and the other way round.
func redirectTap() error {
	link, err := netlink.LinkByName(nic)
	if err != nil {
		return err
	}
	tap := newTap()
	return inOrder(
		func() error { return addIngress(link) },
		func() error { return netlink.LinkAdd(tap) },
		func() error { return closeAll(tap.Fds) },
		func() error { return netlink.LinkSetMTU(tap, link.Attrs().MTU) },
		func() error { return netlink.LinkSetUp(tap) },
		func() error { return addIngress(tap) },
		func() error { return addRedirect(tap, link) },
		func() error { return addRedirect(link, tap) },
	)
}

// newTap is the tap of a launcher's user.
func newTap() *netlink.Tuntap {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = otherTap
	return &netlink.Tuntap{LinkAttrs: attributes, Mode: netlink.TUNTAP_MODE_TAP, Queues: 1,
		Flags: netlink.TUNTAP_ONE_QUEUE | netlink.TUNTAP_VNET_HDR, Owner: otherUser, Group: otherUser}
}

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func addIngress(link netlink.Link) error {
	return netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_INGRESS}})
}

func addRedirect(from, to netlink.Link) error {
	return netlink.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: from.Attrs().Index, Parent: netlink.MakeHandle(0xffff, 0), Protocol: unix.ETH_P_ALL},
		Actions:     []netlink.Action{netlink.NewMirredAction(to.Attrs().Index)},
	})
}

// lookAtNIC reads the NIC, its addresses and its routes. It returns the addresses that were configured.
func lookAtNIC() (link netlink.Link, addresses []netlink.Addr, err error) {
	if link, err = netlink.LinkByName(nic); err != nil {
		return nil, nil, err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.AddrList(link, family)
		if err != nil {
			return nil, nil, err
		}
		for _, a := range list {
			if a.Scope != unix.RT_SCOPE_LINK {
				a.Label, a.Flags = "", a.Flags&^unix.IFA_F_PERMANENT
				addresses = append(addresses, a)
			}
		}
		if _, err := netlink.RouteList(link, family); err != nil {
			return nil, nil, err
		}
	}
	return link, addresses, nil
}

func newBridge(mac net.HardwareAddr, mtu int) *netlink.Bridge {
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU, attributes.HardwareAddr = kubevirtBridgeName, mtu, mac
	return &netlink.Bridge{LinkAttrs: attributes}
}

func addAddress(link netlink.Link, text string) error {
	address, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	return netlink.AddrAdd(link, address)
}

// setSysctl writes 1 to a file below /proc/sys/net.
func setSysctl(path string) error { return os.WriteFile("/proc/sys/net/"+path, []byte("1"), 0) }

// addTap makes a tap with the pod's MTU a port of the bridge.
func addTap(bridge netlink.Link, mtu int) error {
	tap := newTap()
	return inOrder(
		func() error { return netlink.LinkAdd(tap) },
		func() error { return closeAll(tap.Fds) },
		func() error { return netlink.LinkSetMTU(tap, mtu) },
		func() error { return netlink.LinkSetMaster(tap, bridge) },
		func() error { return netlink.LinkSetUp(tap) },
	)
}

// dump reads links, addresses and routes, and parses nothing.
func dump() error {
	for _, kind := range []int{unix.RTM_GETLINK, unix.RTM_GETADDR, unix.RTM_GETROUTE} {
		r := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
		r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		if _, err := r.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return err
		}
	}
	return nil
}
