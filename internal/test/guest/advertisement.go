package guest

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"
)

// Advertisement is a router advertisement that the guest received.
type Advertisement struct {
	// Source is the router's link-local address.
	Source netip.Addr
	*ndp.RouterAdvertisement
}

// parseAdvertisement returns nil if the frame is not a router advertisement. What the kernel also refuses (RFC 4861
// section 6.1.2) has no effect, which the tests' traffic shows.
func parseAdvertisement(frame []byte) *Advertisement {
	const source, message = 14 + 8, 14 + 40 // offsets
	if len(frame) <= message || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IPV6 || frame[14+6] != unix.IPPROTO_ICMPV6 {
		return nil
	}
	parsed, err := ndp.ParseMessage(frame[message:])
	if err != nil {
		return nil
	}
	ra, ok := parsed.(*ndp.RouterAdvertisement)
	if !ok {
		return nil
	}
	return &Advertisement{Source: netip.AddrFrom16([16]byte(frame[source:])), RouterAdvertisement: ra}
}
