package cache

import "math"

// Limits bound what passes between guest and network; zero: nothing. Of the responder's frames, only announcements
// count.
type Limits struct {
	FromGuest Limit `json:"fromGuest,omitzero"` // of what the guest sends
	ToGuest   Limit `json:"toGuest,omitzero"`   // of what the network sends to the guest
}

// Limit is a token bucket each for octets and packets in one direction (nft(8), limit). What is above is dropped, for
// the reason rate-limit, not delayed. Zero bounds nothing.
type Limit struct {
	// BitsPerSecond counts after the Ethernet header: 8000 to 100,000,000,000, rounded down to octets; 0: no limit.
	BitsPerSecond uint64 `json:"bitsPerSecond,omitempty"`
	// PacketsPerSecond is 1 to 10,000,000; 0: no limit. A packet that is cut later (GSO, 64 KiB) counts as one.
	PacketsPerSecond uint64 `json:"packetsPerSecond,omitempty"`
	// BurstBytes pass at once, with those of one second, which the kernel always lets pass; at most 4294967295; 0:
	// 65536. Both together have to be 65536 or more, for a whole packet.
	BurstBytes uint64 `json:"burstBytes,omitempty"`
	// BurstPackets pass at once, at most 4294967295; 0: those of one second.
	BurstPackets uint64 `json:"burstPackets,omitempty"`
}

// The rates that the kernel's arithmetic counts within 1 %.
const (
	minBits, maxBits = 8000, 100_000_000_000
	maxPackets       = 10_000_000
	minBucket        = 1 << 16 // octets, of the longest packet
)

// Validate returns a [*FieldError] with a path such as fromGuest.bitsPerSecond.
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
