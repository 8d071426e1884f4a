package podnet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestVPC: the VPC is distributed. Each node is the gateway of its own pods, each node is reached by its own ovn0,
// and packets between the nodes' pods pass the tunnel. Otherwise the row of Kube-OVN would prove no more than a
// network of one node.
func TestVPC(t *testing.T) {
	t.Parallel()
	l, v := createKubeOVN(t, true)
	station := func(name string) Station {
		for _, s := range l.Stations {
			if s.Name == name {
				return s
			}
		}
		t.Fatalf("no station %q", name)
		return Station{}
	}
	l.listen()
	remote := station("another node's pod")
	node4, node6 := nodeAddress(0)
	other4, other6 := nodeAddress(1)
	wire := v.router.Sniff(t)
	for _, test := range []struct {
		from   *nstest.Namespace
		to     string
		v4, v6 string // that it sees
	}{
		{l.Pod, "outside", node4, node6},
		{remote.Namespace, "outside", other4, other6},
		{l.Pod, "node", ovnDefault.IPv4(7), ovnDefault.IPv6(7)},
		{l.Pod, "another node", ovnDefault.IPv4(7), ovnDefault.IPv6(7)},
		{remote.Namespace, "node", ovnDefault.IPv4(9), ovnDefault.IPv6(9)},
		{l.Pod, "another node's pod", ovnDefault.IPv4(7), ovnDefault.IPv6(7)},
	} {
		to := station(test.to)
		for at, want := range map[netip.Addr]string{to.IPv4: test.v4, to.IPv6: test.v6} {
			nstest.Eventually(t, func() error {
				answer, err := test.from.Ask(netip.AddrPortFrom(at, stationPort).String())
				if err != nil {
					return err
				}
				if got, err := withoutPort(answer); err != nil || got != test.to+" sees "+want {
					return fmt.Errorf("%s to %s: %q, %v; want %s", test.from.Name, test.to, got, err, want)
				}
				return nil
			})
		}
	}
	// Each packet between the pods is in the tunnel: UDP to Geneve's port, which contains the inner frame (RFC 8926).
	const ipv4, geneve = 0x0800, 6081
	inner := remote.IPv4.AsSlice()
	seen := wire.Until(func(s nstest.Sniffed) bool {
		return binary.BigEndian.Uint16(s.Frame[12:]) == ipv4 && binary.BigEndian.Uint16(s.Frame[36:]) == geneve && bytes.Contains(s.Frame[42:], inner)
	}, func() { l.Pod.Ask(netip.AddrPortFrom(remote.IPv4, stationPort).String()) })
	for _, s := range seen {
		if binary.BigEndian.Uint16(s.Frame[12:]) == ipv4 && bytes.Equal(s.Frame[30:34], inner) {
			t.Errorf("a packet between the pods is not in the tunnel: % x", s.Frame)
		}
	}
}
