package phase2

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
)

// Event is what Serve reports: what became of a NIC's service, and what the guest got. The JSON is a line for another
// program.
//
// A launcher plugs and unplugs NICs by package domain/qemu. attached comes at the start for each NIC: plug only those
// whose records qemu.Args did not get. For a polite unplug call Unplug, then Teardown, which refuses an open tap, and
// removes the record. A record-removed while the NIC is plugged means that a Teardown with CutOff cut the guest off, or
// that someone removed the file. The kinds in addition to those of [dhcp.Kind] are:
//
//	ready                each record is attached or has no responder; once in each Serve
//	attached             the responder's tap is open, so each request gets its answer from now on; again after tap-lost
//	no-responder         the record has no responder, so there is nothing to serve
//	tap-lost             the responder's tap was deleted; attached follows when the tap is back
//	attach-failed        the responder's tap cannot be opened; Serve tries again; once for each error
//	record-added         there is a new record; attached or no-responder follows
//	record-changed       the new record is used; if its tap is another one, attached or no-responder follows
//	record-removed       the record is gone; the guest is not served any more
//	record-failed        a record cannot be read or used; what was served before is still served
//	resolv-conf-changed  the guests get another DNS configuration
//	resolv-conf-failed   resolv.conf cannot be read; the guests keep the DNS configuration
//	watch-failed         changes of the records or of resolv.conf may be missed
type Event struct {
	Time    time.Time  `json:"time"`
	NIC     string     `json:"nic,omitempty"` // the record's Name; empty: the event concerns all NICs
	Kind    dhcp.Kind  `json:"event"`
	Text    string     `json:"text"`             // a sentence, with the error; it can change in a later version
	Address netip.Addr `json:"address,omitzero"` // as MAC and Held those of [dhcp.Event]
	MAC     cache.MAC  `json:"mac,omitzero"`
	Held    uint64     `json:"held,omitzero"`
	Err     error      `json:"-"` // what went wrong; nil: nothing
}

// report writes an event to the log, as a warning if there is an error, and gives the event to Notify.
func (s *server) report(e Event, attrs ...any) {
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
