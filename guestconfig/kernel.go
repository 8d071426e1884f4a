package guestconfig

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/syntax"
)

// KernelIP returns the argument ip= for a Linux with CONFIG_IP_PNP, or for an initramfs that reads it. It has one IPv4
// address and one gateway, such as
//
//	ip=10.244.1.7::10.244.1.1:255.255.255.0:vm1:eth0:off:10.96.0.10
//
// systemd and klibc's ipconfig read it too. So it has no time server, as systemd 252 refuses an argument with one.
//
// dns is for a record that has none. device is the link's name in the guest. Empty: the first link.
//
// It is an error if the record has no IPv4 address. It is also an error if the gateway is outside of the network, and
// there is no stand-in for it (see [FlatIPv4]). Source: the kernel's Documentation/admin-guide/nfs/nfsroot.rst.
func KernelIP(r cache.Record, dns cache.DNS, device string) (argument string, warnings []string, err error) {
	const format = "kernel"
	nics, err := Guest{Records: []cache.Record{r}, DNS: dns}.nics(format)
	if err != nil {
		return "", nil, err
	}
	n := nics[0]
	if device != "" && syntax.CheckLinkName(device) != nil {
		return "", nil, &formatError{Format: format, NIC: n.Name, Reason: fmt.Sprintf("%q is no link's name", device)}
	}
	f, err := n.flat(format, "ip=")
	if err != nil {
		return "", nil, err
	}
	if n.MTU != 0 && n.MTU != 1500 {
		n.warn("the MTU %d is left out: let the VMM report it (virtio-net, host_mtu)", n.MTU)
	}
	var servers []string
	for _, s := range n.dns.Servers {
		if s.Is4() && len(servers) < 2 {
			servers = append(servers, s.String())
		} else {
			n.warn("the DNS server %v is left out: ip= has two of IPv4", s)
		}
	}
	if search := n.dns.Search; len(search) > 0 {
		n.warn("the search domains %v are left out: ip= has none", search)
	}
	for _, s := range n.ntp {
		n.warn("the time server %v is left out: systemd 252 refuses the whole of an ip= that has one", s)
	}
	fields := []string{f.Address.Addr().String(), "", "", mask(f.Address.Bits()), n.Options.Hostname, device, "off", "", ""}
	if f.Gateway.IsValid() {
		fields[2] = f.Gateway.String()
	}
	copy(fields[7:], servers)
	return "ip=" + strings.TrimRight(strings.Join(fields, ":"), ":"), n.warns, nil
}

// mask is an IPv4 netmask.
func mask(bits int) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], ^uint32(0)<<(32-bits))
	return netip.AddrFrom4(b).String()
}
