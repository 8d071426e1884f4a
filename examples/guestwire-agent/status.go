package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/phase1"
)

func status(ctx context.Context, o *options) error {
	if o.all {
		return statusAll(ctx, o)
	}
	if o.NetNS == nil && !o.Own {
		return commandline.Errorf("-netns is missing: name the network namespace, or -own for the agent's own, or -state, or -all for all NICs; guestwire-agent list shows them")
	}
	report, err := o.Status(ctx)
	if report == nil {
		return err
	}
	if !o.json {
		printReport(report, err)
		return said(verdict(report, err))
	}
	if err := printJSON(report); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	return said(verdict(report, nil))
}

// statusAll is status of all NICs of the node. The error is that of the first NIC which has one.
func statusAll(ctx context.Context, o *options) (first error) {
	wirings, err := phase1.List(ctx, o.Dir)
	if err != nil {
		return err
	}
	reports := []any{}
	for i, w := range wirings {
		report, err := statusIn(ctx, o, w)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if i > 0 && !o.json {
			fmt.Fprintln(stdout)
		}
		switch {
		case o.json && report == nil:
			reports = append(reports, unreported{w, text})
		case o.json:
			reports = append(reports, reported{report, text})
		case report == nil:
			fmt.Fprintf(stdout, "NIC        %s\nnamespace  %s\nkernel     %s\n", w.NIC, place(w), text)
		default:
			printReport(report, err)
		}
		if err = verdict(report, err); first == nil {
			first = err
		}
	}
	if o.json {
		if err := printJSON(reports); err != nil {
			return err
		}
	}
	return said(first)
}

func statusIn(ctx context.Context, o *options, w phase1.Wiring) (*phase1.Report, error) {
	n, err := o.openNIC(ctx, w)
	if err != nil {
		return nil, err
	}
	defer n.NetNS.Close()
	return n.Status(ctx)
}

// openNIC is the NIC of a wiring. The caller closes its NetNS.
func (o *options) openNIC(ctx context.Context, w phase1.Wiring) (phase1.NIC, error) {
	ns, err := w.Open(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return phase1.NIC{}, fmt.Errorf("%w: %s removes what is left of it", err, o.forgetCall(w))
	}
	return phase1.NIC{NetNS: ns, Name: w.NIC, Dir: o.Dir, Progress: o.Progress}, err
}

// verdict is the error that a status ends with: err, a difference, or a side that is missing.
func verdict(r *phase1.Report, err error) error {
	switch {
	case err != nil:
		return err
	case r.Drift != nil:
		return r.Drift
	}
	return half(r.Wiring, &r.Counters)
}

// reported and unreported are entries of status -all -json. Error is why there is no more.
type (
	reported struct {
		*phase1.Report
		Error string `json:"error,omitempty"`
	}
	unreported struct {
		phase1.Wiring
		Error string `json:"error"`
	}
)

func list(ctx context.Context, o *options) error {
	wirings, err := o.wirings(ctx)
	if err != nil {
		return err
	}
	if o.byState && len(wirings) == 0 {
		return o.notWired()
	}
	all := []listed{}
	states := []string{}
	for _, w := range wirings {
		states = append(states, w.State)
	}
	pods, err := podsandbox.PodsOf(states)
	if err != nil {
		o.Progress(err.Error())
	}
	for _, w := range wirings {
		c := countersOf(ctx, o, w)
		l := listed{Wiring: w, attached: attached(w, c), Pod: pods[w.State]}
		if c != nil {
			l.Attached = c.Attached
		}
		all = append(all, l)
	}
	if o.json {
		return printJSON(all)
	}
	return printList(stdout, all)
}

// listed is an entry of list -json.
type listed struct {
	phase1.Wiring
	Pod      podsandbox.Pod `json:"pod,omitzero"`
	Attached any            `json:"attached,omitempty"`
	attached string
}
