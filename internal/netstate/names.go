package netstate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Names are the names that one NIC's wiring uses.
type Names struct {
	NIC       string `json:"nic"`   // as found
	Moved     string `json:"moved"` // the NIC's while it is a bridge's port
	Bridge    string `json:"bridge"`
	Tap       string `json:"tap"`
	Responder string `json:"responder"` // the responder's tap
	Table     string `json:"table"`     // of nftables
}

// NamesFor returns the names for the wiring of a NIC. All of them are valid, however long the NIC's name is. Tap is the
// guest's tap; empty: a name that is made of the NIC's.
func NamesFor(nic, tap string) Names {
	stem := nic
	if len(stem) > syntax.MaxLinkName-len("-dhcp") {
		sum := sha256.Sum256([]byte(nic))
		stem = "gw" + hex.EncodeToString(sum[:4])
	}
	return Names{
		NIC:       nic,
		Moved:     stem + "-nic",
		Bridge:    stem + "-br",
		Tap:       cmp.Or(tap, stem+"-tap"),
		Responder: stem + "-dhcp",
		Table:     "guestwire-" + nic,
	}
}

// Chains begins the names of the wiring's chains in iptables, which have at most 28 characters.
func (n Names) Chains() string { return "gw-" + n.NIC }

// Links are the names that a wiring gives to links, other than the NIC's own.
func (n Names) Links() []string { return []string{n.Moved, n.Bridge, n.Tap, n.Responder} }

// Mark is the alias of every link that guestwire creates for the NIC.
func Mark(nic string) string { return "guestwire " + nic }

// Marked returns the NIC for which guestwire created a link with that alias.
func Marked(alias string) (nic string, ok bool) { return strings.CutPrefix(alias, Mark("")) }

// groupBase marks guestwire's groups; the low 16 bits are the NIC's index.
const groupBase = 0x67770000

// GroupOfNICs is the group of all NICs by which the namespace forwards for a guest. Such a NIC is its owner's, so it
// has no group that is deleted as a whole. With RouterMask it is the same as [Group].
const (
	GroupOfNICs = 0x67760000
	RouterMask  = 0xfffe0000
)

// Group is the number of the group of all links that guestwire creates for the NIC with that index.
func Group(index int) uint32 { return groupBase + uint32(index)&0xffff }

// DeriveMAC returns a locally administered address, the same one for the same NIC and purpose.
func DeriveMAC(nic Link, purpose string) cache.MAC {
	return DeriveMACOf(nic.MAC.String(), nic.Name, purpose)
}

// DeriveMACOf returns a locally administered address, the same one for the same station, NIC's name and purpose. The
// station is named by its MAC, or by a guest's identity.
func DeriveMACOf(station, nic, purpose string) cache.MAC {
	sum := sha256.Sum256([]byte(station + " " + nic + " " + purpose))
	var m cache.MAC
	copy(m[:], sum[:])
	m[0] = m[0]&^1 | 2
	return m
}

// Bears reports whether a link or a table of the namespace bears the mark of the NIC's wiring.
func (s *Snapshot) Bears(nic string) bool {
	marked := func(l Link) bool { return l.Alias == Mark(nic) }
	return slices.ContainsFunc(s.Links, marked) || len(s.Tables) > 0
}
