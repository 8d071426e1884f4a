package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/schema"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

func setup(ctx context.Context, o *options) error {
	record, err := o.SetupMoving(ctx, o.Spec, o.Moving)
	if err != nil {
		return err
	}
	if o.cut {
		cut, err := o.CutRefused(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(stderr, "agent: cut:", count(cut, "connection"))
		if len(o.Spec.Egress)+len(o.EgressWithin) == 0 {
			fmt.Fprintln(stderr, "agent: the guest may go everywhere, so -cut has nothing to cut: the configuration has no egress")
		}
	}
	if o.State == "" && !o.json {
		fmt.Fprintln(stderr, "agent: no record is written, as there is no -state: a launcher cannot serve the guest (agent teardown, then agent setup -state DIR)")
	}
	return printWired(o, record)
}

// printWired prints what Setup returned.
func printWired(o *options, record cache.Record) error {
	if _, auto := o.Binding.(infra.Auto); auto {
		fmt.Fprintln(stderr, "agent: binding:", record.Binding)
	}
	for _, l := range record.Losses {
		fmt.Fprintln(stderr, "agent: lost:", l)
	}
	for _, w := range record.Warnings {
		fmt.Fprintln(stderr, "agent: warning:", w)
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

// readFile reads a file, or standard input as -. A pipe may be one that nobody writes to: a signal ends the wait. The
// goroutine then stays until the process ends.
func readFile(ctx context.Context, path string) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	read := make(chan result, 1)
	go func() {
		var r result
		if path == "-" {
			r.text, r.err = io.ReadAll(os.Stdin)
		} else {
			r.text, r.err = os.ReadFile(path)
		}
		read <- r
	}()
	select {
	case r := <-read:
		return r.text, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("read %s: %w", path, context.Cause(ctx))
	}
}

// readRecord reads a record from a file, or from standard input.
func readRecord(ctx context.Context, path string) (cache.Record, error) {
	text, err := readFile(ctx, path)
	if err != nil {
		return cache.Record{}, err
	}
	record, err := cache.Decode(text)
	if err != nil {
		err = fmt.Errorf("%w; want a record, as setup, activate and deactivate print with -json", err)
	}
	return record, err
}

// printRecord prints the record as JSON if -json asks for it.
func printRecord(o *options, record cache.Record, err error) error {
	if err != nil || !o.json {
		return err
	}
	return printJSON(record)
}

func plan(ctx context.Context, o *options) error {
	preview, err := o.PlanMoving(ctx, o.Spec, o.Moving)
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(preview)
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
	fmt.Fprint(stdout, preview)
	if tables > 0 && !o.full {
		fmt.Fprintln(stdout, "# agent plan -full prints the rules")
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
	if !o.json {
		return err
	}
	drift := &phase1.DriftError{NIC: o.Name, Differs: []infra.Difference{}, Repair: []infra.Step{}}
	if err != nil && !errors.As(err, &drift) {
		return err
	}
	if printed := printJSON(drift); printed != nil {
		return printed
	}
	return said(err)
}

// said marks an error that standard output has already.
func said(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w%w", errSaid, err)
}

func status(ctx context.Context, o *options) error {
	if o.all {
		return statusAll(ctx, o)
	}
	if o.NetNS == nil && !o.Own {
		return commandline.Errorf("-netns is missing: name the network namespace, or -own for the agent's own, or -state, or -all for all NICs; agent list shows them")
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

func list(ctx context.Context, o *options) error {
	wirings, err := phase1.List(ctx, o.Dir)
	if err != nil {
		return err
	}
	all := []listed{}
	column := map[int]string{}
	for i, w := range wirings {
		c := countersOf(ctx, o, w)
		column[i] = attached(w, c)
		l := listed{Wiring: w}
		if c != nil {
			l.Attached = c.Attached
		}
		all = append(all, l)
	}
	if o.json {
		return printJSON(all)
	}
	return printList(stdout, wirings, column)
}

func drops(ctx context.Context, o *options) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if o.State != "" {
		go func() { stop(o.whileRecorded(ctx)) }()
	}
	lines := json.NewEncoder(stdout)
	err := o.FollowDrops(ctx, func(d phase1.Drop) {
		if o.json {
			_ = lines.Encode(d) // stdout keeps the error
			return
		}
		if d.Lost > 0 {
			fmt.Fprintf(stderr, "agent: not reported: %s\n", count(d.Lost, "packet"))
		}
		fmt.Fprintf(stdout, "%s  %-20s  %s\n", d.Time.Format("15:04:05.000"), d.Reason, d.Text)
	})
	if cause := context.Cause(ctx); err == nil && errors.Is(cause, phase1.ErrNotWired) {
		err = cause
	}
	return err
}

// whileRecorded returns when the record of the State is gone, or when ctx is done. An agent whose kubectl was killed
// runs on, and would keep the network of a pod that has ended.
func (o *options) whileRecorded(ctx context.Context) error {
	record := filepath.Join(o.State, o.Name+".json")
	for {
		if _, err := os.Lstat(record); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("NIC %s: %w any more: %s is gone", o.Name, phase1.ErrNotWired, record)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

func pin(ctx context.Context, o *options) error { return o.Pin(ctx, o.addresses, o.ports, o.life) }

func teardown(ctx context.Context, o *options) error {
	if o.force && o.down.Discard {
		return commandline.Errorf("-discard and -force exclude each other: -discard needs the journal, -force does without")
	}
	if o.NetNS == nil && !o.Own {
		if o.State == "" || o.Name == "" || o.force || o.down.Discard {
			return commandline.Errorf("-netns is missing: name the network namespace, such as /run/netns/pod, or -own for the agent's own; or name -state and -nic, without -force and -discard, and the journal leads to the namespace")
		}
		found, err := teardownOf(ctx, o)
		if found == 0 && err == nil {
			fmt.Fprintf(stderr, "agent: NIC %s is not wired with -state %s: nothing is taken down (agent list shows the directory of each NIC)\n", o.Name, o.State)
		}
		return err
	}
	o.down.State = o.State
	var err error
	if o.force {
		var lost []string
		lost, err = o.ForceTeardown(ctx, o.down)
		for _, what := range lost {
			fmt.Fprintln(stderr, "agent: not known, so not restored:", what)
		}
	} else {
		err = o.Teardown(ctx, o.down)
	}
	if errors.Is(err, infra.ErrNoNIC) {
		fmt.Fprintf(stderr, "agent: %s has gone; everything else is removed\n", o.Name)
		return nil
	}
	return err
}

// teardownOf takes down what is wired with the State, and returns how many NICs that were. It finds the namespace by
// the journal.
func teardownOf(ctx context.Context, o *options) (found int, err error) {
	wirings, err := o.wirings(ctx)
	for _, w := range wirings {
		err = errors.Join(err, takeDown(ctx, o, w))
	}
	return len(wirings), err
}

func forget(ctx context.Context, o *options) error {
	return phase1.Forget(ctx, phase1.Gone{Namespace: o.namespace, NIC: o.Name, State: o.State, Own: o.Own, Dir: o.Dir, Progress: o.Progress})
}

func printJSON(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	var escaped strings.Builder // what stdout would replace
	for _, c := range string(text) {
		switch {
		case c == '\n' || unicode.IsPrint(c):
			escaped.WriteRune(c)
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			fmt.Fprintf(&escaped, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&escaped, `\u%04x`, c)
		}
	}
	_, err = fmt.Fprintln(stdout, escaped.String())
	return err
}
