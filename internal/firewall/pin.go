package firewall

import (
	"fmt"
	"net/netip"
)

// Pin is a destination to which a guest may open connections for a time: an element of the set PinSet of its IP
// version, if the destinations PinnableSet have it, too.
type Pin struct {
	To       netip.Addr
	Protocol uint8
	Port     uint16
}

// PinSet is the name of the set with the pins of an IP version.
func PinSet(version int) string { return fmt.Sprintf("pins-%d", version) }

// PinnableSet is the name of the destinations of an IP version that may be pinned.
func PinnableSet(version int) string { return fmt.Sprintf("pinnable-%d", version) }

// MaxPins is the size of a PinSet. The kernel makes room for as many when it makes the set, 64 KiB.
const MaxPins = 4096

// pinLife is the life, in milliseconds, of a pin that somebody adds by nft(8) without a time.
const pinLife = 60_000

// NewPinSet is the PinSet of an IP version, without pins.
func NewPinSet(version int) Set {
	of := map[int]Part{4: Destination4, 6: Destination6}[version]
	return Set{Name: PinSet(version), Of: of, Size: MaxPins, Milliseconds: pinLife}
}
