package syntax

import (
	"fmt"
	"strings"
)

const (
	// MaxName is the length of a name as text, without the root's dot.
	MaxName     = 253
	MaxHostname = 64 // HOST_NAME_MAX of Linux
	maxLabel    = 63
)

// CheckName checks that name can be a domain's or a host's: at most that many octets, in labels with a dot between two.
// Clients ignore another name, or cut it, or take an empty one. The error is what the name has, for the user.
//
// Underscores are in use and pass. Source: RFC 1035 section 2.3.4, RFC 1123 section 2.1.
func CheckName(name string, most int) error {
	if len(name) > most {
		return fmt.Errorf("%d octets, want at most %d", len(name), most)
	}
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return fmt.Errorf("an empty label, want 1 to %d octets between two dots", maxLabel)
		case len(label) > maxLabel:
			return fmt.Errorf("a label of %d octets, want at most %d between two dots", len(label), maxLabel)
		case !IsWord(label, "-_", maxLabel):
			return fmt.Errorf("the label %q, want letters, digits, - and _ alone", label)
		case label[0] == '-' || label[len(label)-1] == '-':
			return fmt.Errorf("the label %q, want no - first or last", label)
		}
	}
	return nil
}

// SearchDomain returns a search domain as the guest gets it: without spaces around it and without dots at its end.
// Empty: it is the root, which means no search domain.
func SearchDomain(given string) (name string, err error) {
	if name = strings.TrimRight(strings.TrimSpace(given), "."); name != "" {
		err = CheckName(name, MaxName)
	}
	return name, err
}
