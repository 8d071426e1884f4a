package launchers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestconfig"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

func NewNetworkManager(networkType string) (Manager, error) {
	switch networkType {
	case "dynamic":
		return guestwire{infra.Redirect{}}, nil
	case "static": // 172.16.1.2 behind eth0's addresses
		return guestwire{infra.Masquerade{IPv4: netip.MustParsePrefix("172.16.1.0/24"), NICMAC: true}}, nil
	}
	return nil, fmt.Errorf("network manager %s not supported", networkType)
}

// eth0 is the NIC of the namespace that the calling thread has joined.
var eth0 = phase1.NIC{Own: true, Name: DefaultInterface}

type guestwire struct{ infra.Binding }

func (g guestwire) NetworkSetup(uid, gid uint32) (*UnikernelNetworkInfo, error) {
	ctx := context.Background()
	spec := infra.Spec{
		Binding: g.Binding, Tap: "tap0_urunc",
		Owner: infra.Owner{UID: uid, GID: gid, Root: uid == 0, OwnDevices: true}, // the container has a /dev/net/tun of its own
	}
	spec.Options.NoResponder = true // a unikernel has no DHCP client
	record, err := eth0.Setup(ctx, spec)
	if errors.Is(err, infra.ErrNoNIC) {
		return nil, nil // ctr has made no network
	} else if err != nil {
		return nil, err
	}
	flat, err := guestconfig.FlatIPv4(record, cache.DNS{})
	if err == nil && !flat.Gateway.IsValid() {
		err = errors.New("eth0 has no default route")
	}
	if err != nil {
		return nil, errors.Join(err, Cleanup(record.Tap))
	}
	return &UnikernelNetworkInfo{TapDevice: record.Tap, EthDevice: Interface{
		IP: flat.Address.Addr().String(), Mask: net.IP(net.CIDRMask(flat.Address.Bits(), 32)).String(),
		DefaultGateway: flat.Gateway.String(), Interface: DefaultInterface, MAC: record.MAC.String(),
	}}, nil
}

// Cleanup is called in the namespace, too.
func Cleanup(string) error {
	return eth0.Teardown(context.Background(), phase1.TeardownOptions{CutOff: true})
}
