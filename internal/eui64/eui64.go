// Package eui64 makes IPv6 addresses of MACs (RFC 4291 appendix A).
package eui64

import "net/netip"

// LinkLocal is the link-local address that the kernel makes of a MAC, such as a cache.MAC.
func LinkLocal(mac [6]byte) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0xfe, 0x80, 0, 0, 0, 0, 0, 0,
		mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5],
	})
}
