package infra

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
)

// EtherType is the protocol of an Ethernet frame. In text and JSON it has 0x and four hexadecimal digits, such as
// 0x8863 (PPPoE discovery).
type EtherType uint16

func (e EtherType) String() string { return fmt.Sprintf("%#04x", uint16(e)) }

func (e EtherType) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

func (e *EtherType) UnmarshalText(text []byte) error {
	digits, ok := strings.CutPrefix(string(text), "0x")
	number, err := strconv.ParseUint(digits, 16, 16)
	if !ok || err != nil || len(digits) != 4 {
		return fmt.Errorf("%q is no EtherType, want 0x and four hexadecimal digits, as in 0x8863", text)
	}
	*e = EtherType(number)
	return nil
}

// checkEtherTypes refuses what the guard filters in another way, and an EtherType twice.
func checkEtherTypes(list []EtherType) error {
	for i, e := range list {
		reason := ""
		switch {
		case e < 0x0600:
			reason = "is the length of an IEEE 802.3 frame, want an EtherType from 0x0600 on"
		case e == 0x0800 || e == 0x0806 || e == 0x86dd:
			reason = "is IPv4, ARP or IPv6, which pass from the guest's addresses: leave it out; more addresses belong into prefixes"
		case e == 0x8100:
			reason = "is a VLAN tag: leave it out, and put the VLANs into vlans"
		case e == 0x88a8 || e == 0x9100 || e == 0x9200 || e == 0x9300:
			reason = "is a tag around another VLAN tag, which would take the guest into any VLAN: leave it out"
		}
		for j, o := range list[:i] {
			if o == e {
				reason = fmt.Sprintf("is entry %d already", j)
			}
		}
		if reason != "" {
			return &cache.FieldError{Field: fmt.Sprintf("guard.etherTypes[%d]", i), Reason: fmt.Sprintf("%v %s", e, reason)}
		}
	}
	return nil
}

const maxVLAN = 4094 // IEEE 802.1Q table 9-2

// checkVLANs refuses a VLAN that does not exist, and one twice.
func checkVLANs(list []uint16) error {
	for i, id := range list {
		field := fmt.Sprintf("guard.vlans[%d]", i)
		if id > maxVLAN {
			return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%d, want 1 to %d, or 0 for priority tags", id, maxVLAN)}
		}
		for j, o := range list[:i] {
			if o == id {
				return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%d is entry %d already", id, j)}
			}
		}
	}
	return nil
}
