// Package syntax checks the form of names and addresses in configurations and records.
package syntax

import (
	"fmt"
	"strings"
)

// MaxLinkName is the length of a network interface's longest name: IFNAMSIZ - 1.
const MaxLinkName = 15

// Limits of the kernel and of the protocols.
const (
	MaxQueues = 256   // MAX_TAP_QUEUES
	MinMTU    = 68    // RFC 791
	MaxMTU    = 65521 // a tap's: 65535 less an Ethernet header
)

// MinNetwork is the shortest prefix of a guest's network. A route with a shorter one is part of a default route.
const MinNetwork = 8

// CheckLinkName checks that name can be a network interface's and part of a file's: 1 to 15 characters of
// A-Z a-z 0-9 _ . - and no dot first. The error is for the user.
func CheckLinkName(name string) error {
	if len(name) > MaxLinkName {
		return fmt.Errorf("%q has %d characters, a network interface's name has at most %d", name, len(name), MaxLinkName)
	}
	if before, _, peer := strings.Cut(name, "@"); peer && CheckLinkName(before) == nil {
		return fmt.Errorf("%q is no network interface's name: ip shows a name and, after @, the link's other end: want %s", name, before)
	}
	if !IsWord(name, "_.-", MaxLinkName) || name[0] == '.' {
		return fmt.Errorf("%q is no network interface's name: want 1 to %d of A-Z a-z 0-9 _ . -, and no dot first", name, MaxLinkName)
	}
	return nil
}

// IsWord reports whether text is 1 to most characters of A-Z a-z 0-9 and those of more.
//
// Regular expressions would be shorter, but stay in the memory of a responder that needs them once.
func IsWord(text, more string, most int) bool {
	other := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune(more, c)
	}
	return text != "" && len(text) <= most && !strings.ContainsFunc(text, other)
}

// lastPCIAddress has the largest hexadecimal digit at each of its places.
const lastPCIAddress = "ffff:ff:1f.7"

// CheckPCIAddress checks that text has the form 0000:03:10.1. The error is for the user.
func CheckPCIAddress(text string) error {
	if !isPCIAddress(text) {
		return fmt.Errorf("%q, want the form 0000:03:10.1", text)
	}
	return nil
}

func isPCIAddress(text string) bool {
	if len(text) != len(lastPCIAddress) {
		return false
	}
	for i := range len(text) {
		c, last := text[i], lastPCIAddress[i]
		if 'A' <= c && c <= 'F' {
			c += 'a' - 'A'
		}
		switch {
		case isHexDigit(last) && (!isHexDigit(c) || c > last):
			return false
		case !isHexDigit(last) && c != last:
			return false
		}
	}
	return true
}

func isHexDigit(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }

// NAT64Bits are the lengths of a NAT64 prefix, in the order of their codes (RFC 8781 section 4).
var NAT64Bits = []int{96, 64, 56, 48, 40, 32}
