package launchers

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// The shape of urunc's package network (pkg/network at efbd251), as its callers see it.
type (
	Manager interface {
		NetworkSetup(uid uint32, gid uint32) (*UnikernelNetworkInfo, error)
	}
	UnikernelNetworkInfo struct {
		TapDevice string
		EthDevice Interface
	}
	Interface struct{ IP, DefaultGateway, Mask, Interface, MAC string }
)

const DefaultInterface = "eth0"

// TestUrunc calls the adapter as urunc calls its own network managers: on a thread in the namespace. A guest with the
// tap, MAC, address and gateway that it returns reaches the world, and Cleanup gives the namespace back.
func TestUrunc(t *testing.T) {
	for kind, want := range map[string]Interface{
		"dynamic": {IP: "10.244.1.7", DefaultGateway: "10.244.1.1", Mask: "255.255.255.0", Interface: "eth0"},
		"static":  {IP: "172.16.1.2", DefaultGateway: "172.16.1.1", Mask: "255.255.255.0", Interface: "eth0"},
	} {
		t.Run(kind, func(t *testing.T) {
			nstest.NeedRoot(t, "the tap is another user's")
			n := nstest.NewNetwork(t)
			before := n.Pod.Settled()
			var info *UnikernelNetworkInfo
			if err := netns.Do(n.Pod.File, func() error {
				manager, err := NewNetworkManager(kind)
				if err != nil {
					return err
				}
				info, err = manager.NetworkSetup(1000, 1000)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			want.MAC = strings.TrimSpace(n.Pod.Exec("cat", "/sys/class/net/eth0/address"))
			if info.EthDevice != want || info.TapDevice != "tap0_urunc" {
				t.Errorf("the unikernel gets %+v, want %+v", info, want)
			}
			g := boot(t, n.Pod, info.TapDevice, info.EthDevice.MAC, want.IP+"/24")
			if _, err := g.Run("ip", "route", "add", "default", "via", info.EthDevice.DefaultGateway); err != nil {
				t.Fatal(err)
			}
			beyond := netip.AddrPortFrom(lab.Beyond4, 8000)
			n.World.Listen("world", beyond.String())
			c, err := g.DialTCP(t.Context(), beyond)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			g.Close()
			if err := netns.Do(n.Pod.File, func() error { return Cleanup(info.TapDevice) }); err != nil {
				t.Fatal(err)
			}
			if err := nstest.Difference(before, n.Pod.Settled()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("no NIC", func(t *testing.T) {
		nstest.NeedRoot(t, "Setup is root's")
		ns := nstest.New(t, "pod")
		if err := netns.Do(ns.File, func() error {
			manager, err := NewNetworkManager("dynamic")
			if err != nil {
				return err
			}
			info, err := manager.NetworkSetup(1000, 1000)
			if info != nil {
				err = fmt.Errorf("%+v", info)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}

// boot is a guest, as nstest.Boot, whose launcher knows the tap, the MAC and the address.
func boot(t *testing.T, ns *nstest.Namespace, tap, mac, address string) *guest.Guest {
	t.Helper()
	var m cache.MAC
	if err := m.UnmarshalText([]byte(mac)); err != nil {
		t.Fatal(err)
	}
	g := nstest.Boot(t, ns.File, cache.Record{Tap: tap, MAC: m}, "guest")
	if err := g.AddAddress(netip.MustParsePrefix(address)); err != nil {
		t.Fatal(err)
	}
	return g
}
