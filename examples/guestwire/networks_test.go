package main_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestNetworks: an entry a network, as with several networks of an engine: both NICs are in one sandbox, are added at
// once, and go one after the other.
func TestNetworks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := n.sandbox("u1")
	first := n.list("1.0.0", "one", n.flannel(), n.guestwire(owner("")))
	second := n.list("1.0.0", "two", n.bridge("cni1", "10.23.0.0/16", "fd00:23::/64"), n.guestwire(owner("")))
	annotations := []string{"guestwire/nic.eth0", "redirect", "guestwire/nic.net1", "masquerade"}
	eth0, net1 := s.runtime("eth0", annotations...), s.runtime("net1", annotations...)
	empty := s.ns.Settled()
	var adding sync.WaitGroup
	for list, rt := range map[*networkList]*runtimeConf{first: eth0, second: net1} {
		adding.Go(func() {
			if _, err := n.cni.AddNetworkList(t.Context(), list, rt); err != nil {
				t.Errorf("ADD of %s: %v", rt.IfName, err)
			}
		})
	}
	adding.Wait()
	s.wired("eth0", "net1")
	if err := errors.Join(n.cni.CheckNetworkList(t.Context(), first, eth0), n.cni.CheckNetworkList(t.Context(), second, net1)); err != nil {
		t.Error(err)
	}
	s.del(second, net1)
	s.wired("eth0")
	if text, err := os.Readlink(filepath.Join(n.state, "pods", "u1")); err != nil || text != "../"+s.id {
		t.Errorf("the pod's link: %q, %v", text, err)
	}
	s.del(first, eth0)
	n.clean()
	if err := nstest.Difference(empty, s.ns.Settled()); err != nil {
		t.Error(err)
	}
}

// TestEveryNIC: a fake main plugin plays Multus. It creates eth0 and net1 within one ADD, and moves the default route
// to net1 when both are there. Guestwire after it sees the routes that the pod keeps.
func TestEveryNIC(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.ns.IP("link add br0 type bridge")
	n.ns.IP("link set br0 up")
	n.plugin("fake-multus", `
cat >/dev/null
pod() { nsenter --net="$CNI_NETNS" ip "$@"; }
case $CNI_COMMAND in
ADD)
	n=0
	for nic in eth0 net1; do
		n=$((n + 1))
		pod link add $nic type veth peer name v$n || exit 1
		pod link set v$n up
		pod link set $nic up
		pod addr add 10.3$n.0.2/24 dev $nic
	done
	pod route add default via 10.31.0.1
	pod route replace default via 10.32.0.1
	echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}], "ips": [{"interface": 0, "address": "10.31.0.2/24"}]}' ;;
DEL) for nic in eth0 net1; do pod link del $nic 2>/dev/null; done; exit 0 ;;
CHECK) exit 0 ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}' ;;
esac
`)
	list := n.list("1.0.0", "podnet", `{"type": "fake-multus"}`, n.guestwire(owner("")+`, "everyNIC": true`))
	s := n.sandbox("u1")
	empty := s.ns.Settled()
	rt := s.runtime("eth0", "guestwire/nic.eth0", "redirect", "guestwire/nic.net1", "redirect")
	s.add(list, rt)
	s.wired("eth0", "net1")
	if r := s.record("eth0"); r.IPv4.Gateway().IsValid() {
		t.Errorf("eth0's guest gets the default route %v, which is net1's by now", r.IPv4.Gateway())
	}
	if r := s.record("net1"); r.IPv4.Gateway() != netip.MustParseAddr("10.32.0.1") {
		t.Errorf("net1's guest gets the default route %v", r.IPv4.Gateway())
	}
	if err := n.cni.CheckNetworkList(t.Context(), list, rt); err != nil {
		t.Error(err)
	}
	s.ns.IP("link del net1-tap")
	if err := n.cni.CheckNetworkList(t.Context(), list, rt); err == nil || !strings.Contains(err.Error(), "net1-tap") {
		t.Errorf("CHECK without a tap: %v", err)
	}
	// That the list has changed meanwhile does not matter to DEL.
	s.del(n.list("1.0.0", "podnet", `{"type": "fake-multus"}`, n.guestwire("")), rt)
	n.clean()
	if err := nstest.Difference(empty, s.ns.Settled()); err != nil {
		t.Error(err)
	}

	// Only eth0 is wanted; then a NIC that the pod does not have.
	s.add(list, s.runtime("eth0", "guestwire/nic.eth0", "redirect", "guestwire/nic.net1", "none"))
	s.wired("eth0")
	s.del(list, rt)
	for _, binding := range []string{"redirect", "masquerade", "bridge", "passt"} { // the loopback is no NIC of a guest
		if _, err := n.cni.AddNetworkList(t.Context(), list, s.runtime("eth0", "guestwire/nic.lo", binding)); err == nil {
			t.Errorf("%s of lo succeeded", binding)
		}
		n.clean()
		s.del(list, rt)
	}
	_, err := n.cni.AddNetworkList(t.Context(), list, s.runtime("eth0", "guestwire/nic.eth0", "redirect", "guestwire/nic.net7", "redirect"))
	if err == nil || !strings.Contains(err.Error(), "annotation guestwire/nic.net7: ") {
		t.Errorf("a NIC that is not there: %v", err)
	}
	n.clean()
	s.del(list, rt)
	n.clean()
}
