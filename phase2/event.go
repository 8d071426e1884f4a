package phase2

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
)

// Event is what Serve tells its caller: what became of a NIC's service, and what the guest got. The JSON is a line for
// another program.
type Event struct {
	Time time.Time `json:"time"`
	// NIC is the Name of the record. It is empty if the event concerns all NICs.
	NIC string `json:"nic,omitempty"`
	// Kind is one of this package's kinds, or one of package dhcp's.
	Kind dhcp.Kind `json:"event"`
	// Text is a sentence for people, with the error if there is one. It can change in a later version.
	Text string `json:"text"`
	// Address, MAC and Held are those of [dhcp.Event].
	Address netip.Addr `json:"address,omitzero"`
	MAC     cache.MAC  `json:"mac,omitzero"`
	Held    uint64     `json:"held,omitzero"`
	// Err is what went wrong. Nil: nothing.
	Err error `json:"-"`
}

// The kinds of events beside those of package dhcp.
const (
	Ready       dhcp.Kind = "ready"        // each record that Open read is Attached or has NoResponder; once in each Serve
	Attached    dhcp.Kind = "attached"     // the responder's tap is open: each request of the guest gets its answer from now on. It comes again after TapLost
	NoResponder dhcp.Kind = "no-responder" // the record has no responder, so there is nothing to serve

	TapLost      dhcp.Kind = "tap-lost"      // the responder's tap was deleted; Attached follows when the tap is back
	AttachFailed dhcp.Kind = "attach-failed" // the responder's tap cannot be opened; Serve tries again. Told once for each error

	// A launcher plugs the NIC of a new record into the VM (VM.Records has it), and unplugs the NIC of a removed one: until
	// the guest's tap is closed, Phase1's Teardown refuses (domain/qemu's Plug and Unplug, package domain for libvirt).
	RecordAdded   dhcp.Kind = "record-added"   // there is a new record; Attached or NoResponder follows
	RecordChanged dhcp.Kind = "record-changed" // the new record is used; if its tap is another one, Attached or NoResponder follows
	RecordRemoved dhcp.Kind = "record-removed" // the record is gone; the guest is not served any more
	RecordFailed  dhcp.Kind = "record-failed"  // a record cannot be read or used; what was served before is still served

	ResolvConfChanged dhcp.Kind = "resolv-conf-changed" // the guests get another DNS configuration
	ResolvConfFailed  dhcp.Kind = "resolv-conf-failed"  // resolv.conf cannot be read; the guests keep the DNS configuration
	WatchFailed       dhcp.Kind = "watch-failed"        // changes of the records or of resolv.conf may be missed
)

// tell writes an event to the log, as a warning if there is an error, and gives the event to Notify.
func (s *server) tell(e Event, attrs ...any) {
	level := slog.LevelInfo
	all := []any{"event", string(e.Kind)}
	if e.NIC != "" {
		all = append(all, "nic", e.NIC)
	}
	if e.Err != nil {
		level = slog.LevelWarn
		all = append(all, "error", e.Err)
	}
	s.log.Log(context.Background(), level, e.Text, append(all, attrs...)...)
	if e.Err != nil {
		e.Text += ": " + e.Err.Error()
	}
	e.Time = time.Now()
	s.vm.notify(e)
}

// notify calls Notify. Serve and each responder's loop call notify, so the lock keeps the calls apart.
func (vm *VM) notify(e Event) {
	if vm.Notify == nil {
		return
	}
	vm.notifying.Lock()
	defer vm.notifying.Unlock()
	vm.Notify(e)
}
