package firewall

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/internal/ip"
)

// Pin is a destination to which a guest may open connections for a time: an element of the set PinSet of its IP
// version, if the destinations PinnableSet have it, too.
type Pin struct {
	To       netip.Addr
	Protocol uint8
	Port     uint16
}

// PinSet is the name of the set with the pins of an IP version.
func PinSet(version ip.Version) string { return fmt.Sprintf("pins-%d", version) }

// PinnableSet is the name of the destinations of an IP version that may be pinned.
func PinnableSet(version ip.Version) string { return fmt.Sprintf("pinnable-%d", version) }

// MaxPins is the size of a PinSet. The kernel makes room for as many when it makes the set, 64 KiB.
const MaxPins = 4096

// pinLife is the life, in milliseconds, of a pin that somebody adds by nft(8) without a time.
const pinLife = 60_000

// NewPinSet is the PinSet of an IP version, without pins.
func NewPinSet(version ip.Version) Set {
	return Set{Name: PinSet(version), Of: ip.Pick(version, Destination4, Destination6), Size: MaxPins, Milliseconds: pinLife}
}
