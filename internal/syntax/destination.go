package syntax

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The lists of destinations that depend on the namespace or the Spec.
const (
	NICNetworks = "nic-networks"
	Resolvers   = "resolvers"
	Gateway     = "gateway"
)

// destinations are the lists that are the same everywhere. The metadata services hand out credentials and a machine's
// data; TestMetadata names their clouds and the sources. Resolvers and time servers of a cloud are not among them:
// link-local has those.
var destinations = map[string][]string{
	"all":        {"0.0.0.0/0", "::/0"},
	"private":    {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"},
	"link-local": {"169.254.0.0/16", "fe80::/10"},
	"metadata": {"169.254.169.254", "169.254.169.252", "169.254.170.2", "169.254.170.23", "168.63.129.16", "192.0.0.192",
		"100.100.100.200", "100.96.0.96", "100.80.80.80", "169.254.0.23", "169.254.42.42", "fd00:ec2::254", "fd00:ec2::23",
		"fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:100::100:200", "fd00:42::42", "fd00:a9fe:a9fe::1", "fe80::a9fe:a9fe"},
	NICNetworks: nil,
	Resolvers:   nil,
	Gateway:     nil,
}

// Destinations returns the networks of a list's name, or of a network or an address. Of the lists
// above it knows none.
func Destinations(name string) []netip.Prefix {
	texts, listed := destinations[name]
	if !listed {
		texts = []string{name}
	}
	var networks []netip.Prefix
	for _, text := range texts {
		if n, err := network(text); err == nil {
			networks = append(networks, n)
		}
	}
	return networks
}

// CheckDestination refuses what is neither a list's name, nor a network or an address.
func CheckDestination(name string) error {
	if _, listed := destinations[name]; listed {
		return nil
	}
	n, err := network(name)
	switch {
	case err != nil || n.Addr().Is4In6():
		return fmt.Errorf("%q is no network, want one like 10.1.0.0/16, an address, or all, private, link-local, metadata, nic-networks, resolvers or gateway; a name belongs in the list names, as in registry.example 443", name)
	case n != n.Masked():
		return fmt.Errorf("%v has host bits, want %v", n, n.Masked())
	}
	return nil
}

// network is that of a text such as 10.1.0.0/16 or 10.1.0.7.
func network(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			return netip.PrefixFrom(a, a.BitLen()), nil
		}
	}
	return netip.ParsePrefix(text)
}

// Target is the text of a divert's target: :PORT without an address, or ADDRESS:PORT.
func Target(to netip.AddrPort) string {
	if !to.Addr().IsValid() {
		return fmt.Sprintf(":%d", to.Port())
	}
	return to.String()
}

// ParseTarget is the target of such a text.
func ParseTarget(text string) (netip.AddrPort, error) {
	port, alone := strings.CutPrefix(text, ":")
	if alone {
		n, err := strconv.ParseUint(port, 10, 16)
		if err == nil && n > 0 && strconv.FormatUint(n, 10) == port {
			return netip.AddrPortFrom(netip.Addr{}, uint16(n)), nil
		}
	} else if to, err := netip.ParseAddrPort(text); err == nil && to.Port() > 0 {
		return to, nil
	}
	return netip.AddrPort{}, fmt.Errorf("%q is no target, want :15443, 127.0.0.1:8080 or [fd00::1]:8080", text)
}
