package phase1_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestProtocolsOfAGuest tries what docs/how-to/troubleshooting.md says of protocols: a client's port below 1024 (NFS),
// a packet for one hop (BGP), multicast of VRRP and its address, and frames to addresses of bridges (LLDP, LACP).
func TestProtocolsOfAGuest(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	nstest.Need(t, "ping")
	virtual, router := netip.MustParseAddr("10.244.1.99"), cache.MAC{0, 0, 0x5e, 0, 1, 7}
	for _, c := range []struct {
		binding          infra.Binding
		off              bool
		oneHop           bool
		vrrp, lldp, lacp bool
	}{
		{binding: infra.Bridge{}, oneHop: true, vrrp: true},
		{binding: infra.Redirect{}, oneHop: true, vrrp: true},
		{binding: infra.Bridge{}, off: true, oneHop: true, vrrp: true},
		{binding: infra.Redirect{}, off: true, oneHop: true, vrrp: true, lldp: true, lacp: true},
		{binding: infra.Routed{}},
		{binding: infra.Masquerade{}},
	} {
		t.Run(fmt.Sprintf("%s, guard.off %v", c.binding.Kind(), c.off), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			nic := config(n, c.binding)
			nic.Guard.Off = c.off
			if c.vrrp && !c.off {
				nic.Guard.Prefixes, nic.Guard.MACs = []netip.Prefix{netip.PrefixFrom(virtual, 32)}, []cache.MAC{router}
			}
			setup(t, nic)
			r := record(t, n)
			guest := recordsGuest(t, n, r, 1450)
			guest.Settle("eth0")

			const low = 800
			server := listen(t, n.World, netip.AddrPortFrom(nstest.Gateway4, 2049))
			client, err := dialFrom(t, guest, low, netip.AddrPortFrom(nstest.Gateway4, 2049))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			accepted, err := server.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer accepted.Close()
			if from := netip.MustParseAddrPort(accepted.RemoteAddr().String()); from.Port() != low {
				t.Errorf("port %d of the guest arrives as %v", low, from)
			}

			err = exec.Command("ip", "netns", "exec", guest.Name, "ping", "-q", "-c1", "-t1", "-W10", nstest.Gateway4.String()).Run()
			if (err == nil) != c.oneHop {
				t.Errorf("a packet for one hop: %v", err)
			}

			world := n.World.Sniff(t)
			send := func(to, from cache.MAC, rest ...byte) []byte {
				frame := slices.Concat(to[:], from[:], rest)
				frame = append(frame, make([]byte, max(0, 60-len(frame)))...)
				guest.Send(t, "eth0", frame)
				return frame
			}
			source := r.IPv4.Address.Addr().As4()
			vrrp := append([]byte{8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 255, 112, 0, 0}, source[:]...)
			vrrp = append(vrrp, 224, 0, 0, 18)
			sum := uint32(0)
			for i := 2; i < 22; i += 2 {
				sum += uint32(vrrp[i])<<8 | uint32(vrrp[i+1])
			}
			for sum > 0xffff {
				sum = sum>>16 + sum&0xffff
			}
			vrrp[12], vrrp[13] = byte(^sum>>8), byte(^sum)
			address := virtual.As4()
			announcement := slices.Concat([]byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, router[:], address[:], make([]byte, 6), address[:])
			frames := map[string][]byte{
				"VRRP": send(cache.MAC{1, 0, 0x5e, 0, 0, 18}, r.MAC, vrrp...),
				"VIP":  send(cache.MAC{255, 255, 255, 255, 255, 255}, router, announcement...),
				"LLDP": send(cache.MAC{1, 0x80, 0xc2, 0, 0, 0x0e}, r.MAC, 0x88, 0xcc),
				"LACP": send(cache.MAC{1, 0x80, 0xc2, 0, 0, 2}, r.MAC, 0x88, 0x09),
			}
			got := map[string]bool{}
			ask := func() {
				// Errors are those of a busy machine: it is called again.
				_ = exec.Command("ip", "netns", "exec", guest.Name, "ping", "-q", "-c1", "-W1", "-s333", nstest.Gateway4.String()).Run()
			}
			ask()
			world.Until(func(s nstest.Sniffed) bool {
				for name, frame := range frames {
					got[name] = got[name] || bytes.Equal(s.Frame[:14], frame[:14])
				}
				return len(s.Frame) == 14+20+8+333
			}, ask)
			for name, want := range map[string]bool{"VRRP": c.vrrp, "VIP": c.vrrp, "LLDP": c.lldp, "LACP": c.lacp} {
				if got[name] != want {
					t.Errorf("%s arrives: %v, want %v", name, got[name], want)
				}
			}
		})
	}
}

// TestNICsOfOneNetwork: a Linux guest with two NICs of one network answers ARP for an address by either, and sends from
// each by the NIC of its route. The filter of a NIC knows the NIC's own address alone, unless guard.prefixes has the
// other one's.
func TestNICsOfOneNetwork(t *testing.T) {
	nstest.Need(t, "ping")
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		for _, allowed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, allowed %t", b.Kind(), allowed), func(t *testing.T) {
				t.Parallel()
				n := nstest.NewNetwork(t)
				gatewayAt(n, "cni0")
				secondNIC(n, "10.244.1.8/24")
				n.World.IP("link set pod2 master cni0")
				first, second := config(n, b), configOfSecondNIC(n, b)
				if allowed {
					first.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.1.8/32")}
					second.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.1.7/32")}
				}
				setup(t, first)
				setup(t, second)
				g := n.Guest(t, record(t, n))
				n.Attach(t, g, "eth1", nstest.Record(t, n.State, "net1"))
				for _, line := range []string{"link set eth0 up", "link set eth1 up", "addr add 10.244.1.7/24 dev eth0", "addr add 10.244.1.8/24 dev eth1"} {
					g.IP(line)
				}
				n.World.Exec("ping", "-c", "1", "-w", "20", "10.244.1.7")
				if allowed {
					n.World.Exec("ping", "-c", "1", "-w", "20", "10.244.1.8")
				} else {
					n.World.Exec("sh", "-c", "! ping -c 1 -w 3 10.244.1.8")
				}
				counted := dropped(t, n.Pod)
				if spoofed := counted["ip-spoof"]+counted["arp-spoof"] > 0; spoofed == allowed {
					t.Errorf("dropped %v", counted)
				}
			})
		}
	}
}
