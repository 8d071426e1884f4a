package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/phase1"
)

// halfError says that one side of a guest is attached, and the other one is not.
type halfError struct{ text string }

func (e halfError) Error() string { return e.text }

// missing is what to do if no process has the tap of that side open.
var missing = map[string]string{
	"vmm":       "start the VM",
	"responder": "the guest gets no address: start the launcher (guestwire-launcher serve)",
	"passt":     "start the VM; a VM that runs has no network, and gets one when it is started again",
}

// side is a side's name for people.
func side(name string) string {
	if name == "vmm" {
		return "VMM"
	}
	return name
}

// half is a halfError if one of the sides is attached, and the other one is not. Of a guest on standby neither has to
// be.
func half(w phase1.Wiring, c *phase1.Counters) error {
	attached, none := "", ""
	for _, a := range c.Attached {
		switch a.State {
		case "attached":
			attached = a.Side
		case "none":
			none = a.Side
		}
	}
	if attached == "" || none == "" || w.Role != cache.RoleActive {
		return nil
	}
	return halfError{fmt.Sprintf("a %s is attached, and no %s is: %s", side(attached), side(none), missing[none])}
}

// printAttached prints a line for each side of the guest.
func printAttached(line func(name, format string, args ...any), c *phase1.Counters) {
	for _, a := range c.Attached {
		switch {
		case a.State == "unknown":
			line(side(a.Side), "unknown: the kernel does not report who has the macvtap %s open", a.Tap)
		case a.State == "none" && a.Side == "passt":
			line(a.Side, "none: %s", missing[a.Side])
		case a.State == "none":
			line(side(a.Side), "none, %s is not open: %s", a.Tap, missing[a.Side])
		case len(a.Processes) == 0:
			line(side(a.Side), "attached, %s is open in a process that is not visible here", a.Tap)
		}
		for _, p := range a.Processes {
			if a.Side == "passt" {
				line(a.Side, "process %d (%s), started %s", p.PID, p.Command, p.Started.Local().Format(time.DateTime))
				continue
			}
			line(side(a.Side), "process %d (%s) has %s open, started %s", p.PID, p.Command, a.Tap, p.Started.Local().Format(time.DateTime))
		}
	}
	if len(c.Attached) == 0 {
		line("VMM", "unknown: there is no tap whose process the kernel reports")
	}
}

// attached is the column of list: the sides that are attached. Empty: the namespace is gone.
func attached(w phase1.Wiring, c *phase1.Counters) string {
	var sides []string
	unknown := c == nil
	if c != nil {
		for _, a := range c.Attached {
			unknown = unknown || a.State == "unknown"
			if a.State == "attached" {
				sides = append(sides, side(a.Side))
			}
		}
		unknown = unknown || len(c.Attached) == 0
	}
	switch {
	case len(w.FoundAt) == 0:
		return ""
	case len(sides) > 0:
		return strings.Join(sides, ", ")
	case unknown:
		return "unknown"
	}
	return "none"
}

// countersOf are the counters of a wiring; nil: they cannot be read here.
func countersOf(ctx context.Context, o *options, w phase1.Wiring) *phase1.Counters {
	ns, err := w.Open(ctx)
	if err != nil {
		return nil
	}
	defer ns.Close()
	c, err := phase1.NIC{NetNS: ns, Name: w.NIC, Dir: o.Dir}.Counters(ctx)
	if err != nil {
		return nil
	}
	return c
}

// reportOf returns the report of a NIC of the node.
func reportOf(ctx context.Context, o *options, w phase1.Wiring) (*phase1.Report, error) {
	ns, err := w.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return phase1.NIC{NetNS: ns, Name: w.NIC, Dir: o.Dir}.Status(ctx)
}
