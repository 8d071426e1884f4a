package cache

import "math"

// Limits bound what passes between the guest and its network. The zero value bounds nothing. The responder's frames
// (DHCP, router advertisements and what asks for them) are not counted, but for announcements in the guest's name.
type Limits struct {
	FromGuest Limit `json:"fromGuest,omitzero"`
	ToGuest   Limit `json:"toGuest,omitzero"`
}

// Limit is a token bucket for each of octets and packets in one direction. What is above is dropped, for the reason
// rate-limit (phase1.Drops); nothing is delayed. The zero value bounds nothing.
//
// The kernel counts before it cuts TCP into segments (GSO), so a packet can have 64 KiB. Source: nft(8), "limit".
type Limit struct {
	// BitsPerSecond is the rate of the octets after the Ethernet header, 8000 to 100,000,000,000, rounded down to octets;
	// 0: no limit.
	BitsPerSecond uint64 `json:"bitsPerSecond,omitempty"`
	// PacketsPerSecond is 1 to 10,000,000; 0: no limit. A packet that is cut later counts as one.
	PacketsPerSecond uint64 `json:"packetsPerSecond,omitempty"`
	// BurstBytes are the octets that pass at once besides those of one second, which the kernel always lets pass; at most
	// 4294967295. 0: 65536. Together with those of a second they have to be 65536 or more, for a whole packet.
	BurstBytes uint64 `json:"burstBytes,omitempty"`
	// BurstPackets are the packets that pass at once, at most 4294967295; 0: those of one second.
	BurstPackets uint64 `json:"burstPackets,omitempty"`
}

// The rates that the kernel's arithmetic counts within 1 %.
const (
	minBits, maxBits = 8000, 100_000_000_000
	maxPackets       = 10_000_000
	minBucket        = 1 << 16 // octets, of the longest packet
)

// Validate checks the limits. The error is a [*FieldError] with the field's path in the Limits, such as
// fromGuest.bitsPerSecond.
func (l Limits) Validate() error {
	if err := l.FromGuest.validate(); err != nil {
		return within("fromGuest", err)
	}
	return within("toGuest", l.ToGuest.validate())
}

func (l Limit) validate() error {
	switch {
	case l.BitsPerSecond != 0 && (l.BitsPerSecond < minBits || l.BitsPerSecond > maxBits):
		return fieldErrorf("bitsPerSecond", "%d, want %d to %d, or 0 for no limit", l.BitsPerSecond, minBits, uint64(maxBits))
	case l.PacketsPerSecond > maxPackets:
		return fieldErrorf("packetsPerSecond", "%d, want 1 to %d, or 0 for no limit", l.PacketsPerSecond, maxPackets)
	case l.BurstBytes != 0 && l.BitsPerSecond == 0:
		return fieldErrorf("burstBytes", "%d, but there is no bitsPerSecond: leave this field out", l.BurstBytes)
	case l.BurstBytes > math.MaxUint32:
		return fieldErrorf("burstBytes", "%d, want at most %d", l.BurstBytes, uint32(math.MaxUint32))
	case l.BurstBytes != 0 && l.BitsPerSecond/8+l.BurstBytes < minBucket:
		return fieldErrorf("burstBytes", "%d, want at least %d: otherwise a packet of %d octets never passes", l.BurstBytes, minBucket-l.BitsPerSecond/8, minBucket)
	case l.BurstPackets != 0 && l.PacketsPerSecond == 0:
		return fieldErrorf("burstPackets", "%d, but there is no packetsPerSecond: leave this field out", l.BurstPackets)
	case l.BurstPackets > math.MaxUint32:
		return fieldErrorf("burstPackets", "%d, want at most %d", l.BurstPackets, uint32(math.MaxUint32))
	}
	return nil
}
