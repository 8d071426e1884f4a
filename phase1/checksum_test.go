package phase1_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestChecksums: a station at the other end of a veth leaves checksums to its device, and so does the namespace. A
// reader of the guest's tap that takes no such frames gets them with complete checksums. A reader that takes them gets
// them as they were sent, which shows that there are such frames.
func TestChecksums(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}, infra.Routed{}} {
		for name, offloads := range map[string]int{"complete": 0, "as sent": unix.TUN_F_CSUM} {
			t.Run(string(b.Kind())+" "+name, func(t *testing.T) {
				t.Parallel()
				n := nstest.NewNetwork(t)
				setup(t, config(n, b))
				r := record(t, n)
				nic := r.MAC.String()
				if r.Binding == cache.BindingMasquerade {
					nic = linkField(t, n, "eth0", "address")
				}
				reader := openOffloads(t, n, r, offloads)
				for _, to := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
					n.World.IP(fmt.Sprintf("neigh replace %v lladdr %s dev pod nud permanent", to, nic))
					checkChecksum(t, n.World, to, reader, offloads != 0)
				}
				if r.Binding == cache.BindingMasquerade || r.Binding == cache.BindingRouted { // else the namespace is mute
					checkChecksum(t, n.Pod, r.IPv4.Address.Addr(), reader, offloads != 0)
					checkChecksum(t, n.Pod, r.IPv6.Address, reader, offloads != 0)
				}
			})
		}
	}
}

// openOffloads opens the guest's tap for a reader with these offloads.
func openOffloads(t *testing.T, n nstest.Network, r cache.Record, offloads int) *os.File {
	t.Helper()
	var files []*os.File
	err := netns.Do(n.Pod.File, func() (err error) {
		files, err = tap.OpenQueues(r.Tap, 1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { files[0].Close() })
	raw, err := files[0].SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if gone := raw.Control(func(fd uintptr) { err = unix.IoctlSetInt(int(fd), unix.TUNSETOFFLOAD, offloads) }); gone != nil || err != nil {
		t.Fatal(gone, err)
	}
	return files[0]
}

// checkChecksum sends datagrams from the namespace until one arrives at the tap, and looks at its checksum.
func checkChecksum(t *testing.T, from *nstest.Namespace, to netip.Addr, reader *os.File, partial bool) {
	t.Helper()
	const port, virtioHeader = 7777, 10
	frame := make([]byte, 2048)
	nstest.Eventually(t, func() error {
		q, err := from.Question("udp", netip.Addr{}, netip.AddrPortFrom(to, port), 100)
		if err != nil {
			return err
		}
		defer q.Close()
		if err := reader.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		for {
			size, err := reader.Read(frame)
			if err != nil {
				return fmt.Errorf("from %s to %v: %w", from.Name, to, err)
			}
			u, source, destination := udpOf(frame[virtioHeader:size])
			if u == nil || u.DestinationPort() != port {
				continue
			}
			valid := u.IsChecksumValid(source, destination, checksum.Checksum(u.Payload(), 0))
			if needs := frame[0]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0; needs != partial || valid == partial {
				t.Errorf("from %s to %v: left to the reader %v, valid %v", from.Name, to, needs, valid)
			}
			return nil
		}
	})
}

// udpOf returns the UDP datagram of the frame; nil: there is none.
func udpOf(frame []byte) (u header.UDP, source, destination tcpip.Address) {
	packet := frame[header.EthernetMinimumSize:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		if v4 := header.IPv4(packet); v4.TransportProtocol() == header.UDPProtocolNumber {
			return v4.Payload(), v4.SourceAddress(), v4.DestinationAddress()
		}
	case unix.ETH_P_IPV6:
		if v6 := header.IPv6(packet); v6.TransportProtocol() == header.UDPProtocolNumber {
			return v6.Payload(), v6.SourceAddress(), v6.DestinationAddress()
		}
	}
	return nil, source, destination
}
