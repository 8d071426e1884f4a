package phase2

import (
	"net/netip"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
)

// Event is what Serve reports: what became of a NIC's service, and what the guest got. The JSON is a line for another
// program. The kinds are those of [dhcp.Kind], and
//
//	ready                each record is attached or has no responder; once in each Serve
//	attached             the responder's tap is open: requests get answers; again after tap-lost
//	no-responder         the record has no responder, so there is nothing to serve
//	tap-lost             the responder's tap was deleted; attached follows when the tap is back
//	attach-failed        Serve cannot open the responder's tap, and tries again; once per error
//	record-added         there is a new record; attached or no-responder follows
//	record-changed       the new record is used; attached or no-responder follows a new tap
//	record-removed       the record is gone; the guest is not served any more
//	record-failed        a record cannot be read or used; what was served before is still served
//	resolv-conf-changed  the guests get another DNS configuration
//	resolv-conf-failed   resolv.conf cannot be read; the guests keep the DNS configuration
//	watch-failed         changes of the records or of resolv.conf may be missed
//
// A launcher plugs and unplugs NICs by package domain/qemu. At the start attached comes for each NIC: plug only those
// whose records qemu.Args did not get. To unplug a NIC, call Unplug, then Teardown, which refuses an open tap and
// removes the record. If record-removed comes while the NIC is plugged, a Teardown with CutOff cut the guest off, or
// someone removed the file.
type Event struct {
	Time time.Time `json:"time"`

	// NIC is the record's Name. Empty: the event concerns all NICs.
	NIC string `json:"nic,omitempty"`

	Kind dhcp.Kind `json:"event"`

	// Text is a sentence, with the error. It can change in a later version.
	Text string `json:"text"`

	// Address, MAC and Held are those of [dhcp.Event].
	Address netip.Addr `json:"address,omitzero"`
	MAC     cache.MAC  `json:"mac,omitzero"`
	Held    uint64     `json:"held,omitzero"`

	Err error `json:"-"` // what went wrong; nil: nothing
}
