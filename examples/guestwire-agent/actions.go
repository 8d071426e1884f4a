package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/schema"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

func setup(ctx context.Context, o *options) error {
	record, err := o.Setup(ctx, o.Spec, o.Moving)
	if err != nil {
		return err
	}
	if o.cut {
		cut, err := o.CutRefused(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(stderr, "guestwire-agent: cut:", count(cut, "connection"))
		if len(o.Spec.Egress)+len(o.EgressWithin) == 0 {
			fmt.Fprintln(stderr, "guestwire-agent: the guest may go everywhere, so -cut has nothing to cut: the configuration has no egress")
		}
	}
	if o.State == "" && !o.json {
		if report, err := o.Status(ctx); err == nil && report.State == "" { // the directory of an earlier Setup stays
			fmt.Fprintln(stderr, "guestwire-agent: no record is written, as there is no -state: a launcher cannot serve the guest (guestwire-agent teardown, then guestwire-agent setup -state DIR)")
		}
	}
	if len(record.DNSProxy) > 0 {
		o.warnUnanswered(ctx)
	}
	return printWired(o, record)
}

// warnUnanswered reports that no DNS proxy runs. guestwire-agent names may be just starting one.
func (o *options) warnUnanswered(ctx context.Context) {
	report, err := o.Status(ctx)
	if err == nil && slices.ContainsFunc(report.Record.Warnings, func(w string) bool { return strings.Contains(w, "where the DNS proxy of names does") }) {
		fmt.Fprintln(stderr, "guestwire-agent: names: the guest's questions are refused until guestwire-agent names answers them")
	}
}

// printWired prints what Setup returned.
func printWired(o *options, record cache.Record) error {
	if _, auto := o.Binding.(infra.Auto); auto {
		fmt.Fprintln(stderr, "guestwire-agent: binding:", record.Binding)
	}
	for _, l := range record.Losses {
		fmt.Fprintln(stderr, "guestwire-agent: lost:", l)
	}
	for _, w := range record.Warnings {
		fmt.Fprintln(stderr, "guestwire-agent: warning:", w)
	}
	return printRecord(o, record, nil)
}

func deactivate(ctx context.Context, o *options) error {
	record, err := o.Deactivate(ctx)
	return printRecord(o, record, err)
}

func activate(ctx context.Context, o *options) error {
	other := phase1.Other{Gone: o.gone}
	if o.inactive != "" {
		inactive, err := readRecord(ctx, o.inactive)
		if err != nil {
			return commandline.Errorf("-inactive %s: %w", o.inactive, err)
		}
		other.Inactive = &inactive
	}
	record, err := o.Activate(ctx, other)
	return printRecord(o, record, err)
}

// printRecord prints the record as JSON if -json asks for it.
func printRecord(o *options, record cache.Record, err error) error {
	if err != nil || !o.json {
		return err
	}
	return printJSON(record)
}

func plan(ctx context.Context, o *options) error {
	preview, err := o.Plan(ctx, o.Spec, o.Moving)
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(struct {
			*phase1.Preview
			Egress       []infra.Egress `json:"egress,omitempty"`
			EgressWithin []infra.Egress `json:"egressWithin,omitempty"`
			Names        []infra.Name   `json:"names,omitempty"`
		}{preview, o.Spec.Egress, o.EgressWithin, o.Names})
	}
	tables := 0
	for i := range preview.Steps {
		if preview.Steps[i].Summary != "" {
			tables++
		}
		if o.full {
			preview.Steps[i].Summary = ""
		}
	}
	first, rest, _ := strings.Cut(preview.String(), "\n") // the binding
	fmt.Fprintln(stdout, first)
	eachName(o.Names, preview.Record.DNSProxy, func(text string) { fmt.Fprintf(stdout, "# names: %s\n", text) })
	eachEntry(o.Spec.Egress, o.EgressWithin, preview.Record.Options.NAT64, func(field, text string) { fmt.Fprintf(stdout, "# %s: %s\n", field, text) })
	if r := preview.Record.Resolver; r.IsValid() {
		fmt.Fprintf(stdout, "# resolver: %s\n", resolverText(r))
	}
	fmt.Fprint(stdout, rest)
	if len(preview.Steps) > 0 && !o.Own {
		fmt.Fprintf(stdout, "# a shell in this namespace: nsenter --net=%s\n", infra.ShellWord(o.netns))
	}
	if tables > 0 && !o.full {
		fmt.Fprintln(stdout, "# guestwire-agent plan -full prints the rules")
	}
	return nil
}

func config(_ context.Context, o *options) error {
	switch {
	case o.schema:
		return printJSON(schema.New(infra.Spec{}))
	case o.file == "":
		return commandline.Errorf("-config is missing: name the file to check, or print the schema by -schema")
	}
	return o.Spec.Validate()
}

func check(ctx context.Context, o *options) error {
	err := o.Check(ctx)
	drift := &phase1.DriftError{NIC: o.Name, Differs: []cache.Finding{}, Repair: []infra.Step{}}
	if !o.json {
		if errors.As(err, &drift) && len(drift.Repair) > 0 {
			return fmt.Errorf("%w\n%s does so", err, o.repairCall())
		}
		return err
	}
	if err != nil && !errors.As(err, &drift) {
		return err
	}
	if printed := printJSON(drift); printed != nil {
		return printed
	}
	return said(err)
}

func drops(ctx context.Context, o *options) error {
	lines := json.NewEncoder(stdout)
	return o.follow(ctx, func(ctx context.Context) error {
		return o.FollowDrops(ctx, func(d phase1.Drop) {
			if o.json {
				_ = lines.Encode(d) // stdout keeps the error
				return
			}
			if d.Lost > 0 {
				fmt.Fprintf(stderr, "guestwire-agent: not reported: %s\n", count(d.Lost, "packet"))
			}
			fmt.Fprintf(stdout, "%s  %-20s  %s\n", d.Time.Format("15:04:05.000"), d.Reason, d.Text)
		})
	})
}

func flows(ctx context.Context, o *options) error {
	lines := json.NewEncoder(stdout)
	show := func(f phase1.Flow) {
		if o.json {
			_ = lines.Encode(f) // stdout keeps the error
			return
		}
		if f.Lost > 0 {
			fmt.Fprintf(stderr, "guestwire-agent: not reported: %s\n", count(f.Lost, "report"))
		}
		fmt.Fprintln(stdout, flowLine(f))
	}
	if o.follows {
		return o.follow(ctx, func(ctx context.Context) error { return o.FollowFlows(ctx, show) })
	}
	open, err := o.NIC.Flows(ctx)
	slices.SortStableFunc(open, func(a, b phase1.Flow) int { return a.Began.Compare(b.Began) })
	for _, f := range open {
		show(f)
	}
	return err
}

// flowLine is a flow in one line: what the guest has, and what the network has if that differs.
func flowLine(f phase1.Flow) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-5s  %s", f.Time.Format("15:04:05.000"), f.Event, f.Protocol)
	if f.ICMP != nil {
		fmt.Fprintf(&b, " type %d", f.ICMP.Type)
	}
	ends := func(e phase1.FlowEnds) string {
		if e.Source.Port() == 0 && e.Destination.Port() == 0 {
			return fmt.Sprintf("%v -> %v", e.Source.Addr(), e.Destination.Addr())
		}
		return fmt.Sprintf("%v -> %v", e.Source, e.Destination)
	}
	fmt.Fprintf(&b, "  %s", ends(f.Guest))
	if f.Network != f.Guest {
		fmt.Fprintf(&b, " (%s)", ends(f.Network))
	}
	if f.FromGuest != nil && f.ToGuest != nil {
		fmt.Fprintf(&b, ", %s from the guest, %s to it", count(f.FromGuest.Octets, "octet"), count(f.ToGuest.Octets, "octet"))
	}
	if f.Event != "begin" && !f.Began.IsZero() {
		fmt.Fprintf(&b, ", %v", f.Time.Sub(f.Began).Round(time.Millisecond))
	}
	switch {
	case f.List != "":
		fmt.Fprintf(&b, ", %s: %s", f.List, f.Entry)
	case !f.ByGuest:
		b.WriteString(", opened to the guest")
	}
	switch {
	case f.Name != "":
		fmt.Fprintf(&b, ", pinned: %s", f.Name)
	case f.Pinned:
		b.WriteString(", pinned")
	}
	return b.String()
}

// follow calls f, which follows what happens at the NIC. With -state it ends when the record is gone.
func (o *options) follow(ctx context.Context, f func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if o.State != "" {
		if record := o.record(); !recorded(record) { // which setup writes last
			return fmt.Errorf("NIC %s: %w yet, or no longer: there is a journal, and no %s: wait for guestwire-agent setup or guestwire-agent teardown, or call it again", o.Name, phase1.ErrNotWired, record)
		}
		go func() { stop(o.whileRecorded(ctx)) }()
	}
	err := f(ctx)
	if cause := context.Cause(ctx); err == nil && errors.Is(cause, phase1.ErrNotWired) {
		err = cause
	}
	return err
}

// whileRecorded returns when the record of the State is gone, or when ctx is done. An agent whose kubectl was killed
// runs on, and would keep the network of a pod that has ended.
func (o *options) whileRecorded(ctx context.Context) error {
	for record := o.record(); ; {
		if !recorded(record) {
			return fmt.Errorf("NIC %s: %w any more: %s is gone", o.Name, phase1.ErrNotWired, record)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// record is the path of the record.
func (o *options) record() string { return filepath.Join(o.State, o.Name+".json") }

// recorded reports whether the record is there.
func recorded(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func pin(ctx context.Context, o *options) error { return o.Pin(ctx, o.pinned) }
