package main

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// readForTap returns the result of the plugins before this one, to which addTap adds the guest's tap. It refuses what
// would mislead: engines of Kubernetes take all addresses of a result for the pod's.
func (c config) readForTap(result []byte, args *skel.CmdArgs, nics []wantedNIC) (*current.Result, error) {
	if strings.Contains(args.Args, "K8S_POD_") {
		return nil, &cache.FieldError{Field: "tapResult", Reason: "not on Kubernetes, which takes the guest's address in the result for the pod's: leave tapResult out, and read the record (guestwire/container)"}
	}
	for _, nic := range nics {
		switch nic.spec.Binding.(type) {
		case infra.Macvtap, infra.SRIOV, infra.Passt, infra.Slirp:
			return nil, &cache.FieldError{Field: "tapResult", Reason: fmt.Sprintf("the binding %s has no tap: leave tapResult out", nic.spec.Binding.Kind())}
		}
	}
	parsed, err := version.NewResult(c.CNIVersion, result)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "guestwire: prevResult: "+err.Error(), "")
	}
	r, err := current.NewResultFromResult(parsed)
	if err == nil {
		_, err = r.GetAsVersion(c.CNIVersion) // as addTap, when nothing may fail any more
	}
	return r, err
}

// addTap adds to a result what firecracker-go-sdk and other callers of tc-redirect-tap look for: the tap in the network
// namespace, and an interface of the same name in the sandbox CNI_CONTAINERID, which is the guest's, with its MAC and
// one address. The SDK refuses two addresses, so of both families it is the IPv4 one.
func (c config) addTap(r *current.Result, args *skel.CmdArgs, record cache.Record) ([]byte, error) {
	guest := len(r.Interfaces) + 1
	if address := guestAddress(r, args, record); address != nil {
		r.IPs = append(r.IPs, &current.IPConfig{Interface: &guest, Address: address.Address, Gateway: address.Gateway})
	}
	r.Interfaces = append(r.Interfaces,
		&current.Interface{Name: record.Tap, Sandbox: args.Netns, Mtu: record.MTU},
		&current.Interface{Name: record.Tap, Sandbox: args.ContainerID, Mtu: record.MTU, Mac: record.MAC.String()})
	converted, err := r.GetAsVersion(c.CNIVersion)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = converted.PrintTo(&text)
	return text.Bytes(), err
}

// guestAddress is the guest's address for a result; nil: it has none. A guest that is the pod has the pod's, with the
// prefix length that the plugin before this one says.
func guestAddress(r *current.Result, args *skel.CmdArgs, record cache.Record) *current.IPConfig {
	if record.Binding == cache.BindingBridge || record.Binding == cache.BindingRedirect {
		ofNIC := slices.DeleteFunc(slices.Clone(r.IPs), func(ip *current.IPConfig) bool {
			if ip.Interface == nil { // which CNI allows: then it is the NIC's
				return false
			}
			if *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
				return true
			}
			nic := r.Interfaces[*ip.Interface]
			return nic.Name != args.IfName || nic.Sandbox != args.Netns
		})
		if i := slices.IndexFunc(ofNIC, func(ip *current.IPConfig) bool { return ip.Address.IP.To4() != nil }); i >= 0 {
			return ofNIC[i]
		}
		if len(ofNIC) > 0 {
			return ofNIC[0]
		}
		return nil
	}
	config := func(address netip.Prefix, gateway netip.Addr) *current.IPConfig {
		return &current.IPConfig{
			Address: net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())},
			Gateway: gateway.AsSlice(),
		}
	}
	if v4 := record.IPv4; v4 != nil {
		return config(v4.Address, v4.Gateway())
	}
	if v6 := record.IPv6; v6 != nil {
		return config(netip.PrefixFrom(v6.Address, 128), v6.Gateway)
	}
	return nil
}
