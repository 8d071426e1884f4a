package cache

import "math"

// Limits bound what passes between guest and network. Zero: no limits.
type Limits struct {
	FromGuest Limit `json:"fromGuest,omitzero"` // of what the guest sends
	ToGuest   Shape `json:"toGuest,omitzero"`   // of what reaches the guest
}

// Limit is the limit of what the guest sends: a token bucket for octets and one for packets (nft(8), limit). Packets
// above the limit are dropped, not delayed, as nothing queues what comes from a tap. Their drop reason is rate-limit.
// The responder's frames do not count, except its announcements in the guest's name. Zero: no limit.
type Limit struct {
	// BitsPerSecond is the rate of the octets after the Ethernet header: 8000 to
	// 100,000,000,000, rounded down to octets. 0: no limit.
	BitsPerSecond uint64 `json:"bitsPerSecond,omitempty"`

	// PacketsPerSecond is the rate of packets: 1 to 10,000,000. 0: no limit. A packet that is
	// cut later (GSO, up to 64 KiB) counts as one.
	PacketsPerSecond uint64 `json:"packetsPerSecond,omitempty"`

	// BurstBytes are octets that pass at once, in addition to those of one second, which the
	// kernel always lets pass. 0: 65536. At most 4294967295. The sum must be at least 65536, so
	// that the longest packet passes. BurstBytes needs BitsPerSecond.
	BurstBytes uint64 `json:"burstBytes,omitempty"`

	// BurstPackets are packets that pass at once. 0: those of one second. At most 4294967295.
	// BurstPackets needs PacketsPerSecond.
	BurstPackets uint64 `json:"burstPackets,omitempty"`
}

// Shape is the limit of what reaches the guest: a token bucket whose frames wait at the guest's tap (tc-tbf(8)). A
// frame is dropped only if the queue is full. Its drop reason is rate-limit. The queue holds 50 ms of the rate, and at
// most 4 MiB. At low rates it holds ten frames of the guest's MTU, or BurstBytes up to 128 KiB. All frames count, also
// the responder's. Zero: no limit.
type Shape struct {
	// BitsPerSecond is the rate of the frames, with their Ethernet headers: 8000 to
	// 100,000,000,000, rounded down to octets. 0: no limit.
	BitsPerSecond uint64 `json:"bitsPerSecond,omitempty"`

	// BurstBytes are octets that pass at once. 0: those of 10 ms. The bucket always holds a
	// frame of the guest's MTU. At most 2147483648, and at most those of 240 seconds.
	// BurstBytes needs BitsPerSecond.
	BurstBytes uint64 `json:"burstBytes,omitempty"`
}

// The rates that the kernel's arithmetic counts within 1 %.
const (
	minBits, maxBits = 8000, 100_000_000_000
	maxPackets       = 10_000_000
	minBucket        = 1 << 16 // octets, of the longest packet
	maxShaped        = 1 << 31 // octets of a shaper's bucket
	mostSeconds      = 240     // that a shaper's bucket lasts: the kernel has 2^32 ticks of 64 ns for them
)

// Validate checks the limits. The error is a [*FieldError] with a path in the Limits, such as fromGuest.bitsPerSecond.
func (l Limits) Validate() error {
	if err := l.FromGuest.validate(); err != nil {
		return within("fromGuest", err)
	}
	return within("toGuest", l.ToGuest.validate())
}

func (l Limit) validate() error {
	switch {
	case !isRate(l.BitsPerSecond):
		return rateError(l.BitsPerSecond)
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

func (s Shape) validate() error {
	switch most := min(maxShaped, s.BitsPerSecond/8*mostSeconds); {
	case !isRate(s.BitsPerSecond):
		return rateError(s.BitsPerSecond)
	case s.BurstBytes != 0 && s.BitsPerSecond == 0:
		return fieldErrorf("burstBytes", "%d, but there is no bitsPerSecond: leave this field out", s.BurstBytes)
	case s.BurstBytes > most:
		return fieldErrorf("burstBytes", "%d, want at most %d", s.BurstBytes, most)
	}
	return nil
}

func isRate(bits uint64) bool { return bits == 0 || bits >= minBits && bits <= maxBits }

func rateError(bits uint64) error {
	return fieldErrorf("bitsPerSecond", "%d, want %d to %d, or 0 for no limit", bits, minBits, uint64(maxBits))
}
