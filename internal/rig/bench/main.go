// Command bench compares guestwire with programs that do the same. Each part answers one question of
// docs/results/performance.md. Ways that are compared take turns in one run, so the ratios count, and not the times.
//
// The command needs root and what "make install" installs. It works in namespaces and mounts that end with it. The exit
// status is 0 if all ways did what they should, however fast they were.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// part answers a question.
type part struct {
	name, about string
	runs        int // rounds, if the command line has no other number
	run         func(s *scope, w io.Writer, runs int) error
}

var parts = []part{
	{"setup", "Setup, Check and Teardown beside a C program and beside the calls of others", 20, measureSetup},
	{"waits", "Setup of the first pod on a bridge, and with its journal on a disk", 20, measureWaits},
	{"claim", "a later Setup that changes what a tenant may, beside a first Setup to the same end", 20, measureClaim},
	{"datapath", "a guest's frames with the guest filter, without it, and by a bare bridge", 8, measureDatapath},
	{"egress", "a policy of egress, beside a guest that may open everything", 8, measureEgress},
	{"streams", "a guest's TCP by each binding and by passt", 5, measureStreams},
	{"machine", "the TCP of a virtual machine by redirect and by passt", 8, measureMachines},
	{"responder", "Phase2's DHCP beside dnsmasq", 7, measureResponders},
	{"memory", "the memory of Phase2 for one guest and for many", 50, measureMemory},
	{"plugin", "what the CNI plugin adds to the start of a pod", 15, measurePlugin},
	{"namespaces", "Setup on a node with many namespaces", 1000, measureNamespaces},
	{"bounds", "calls on a pod that fills its namespace, beside a pod with half as much", 5, measureBounds},
}

func main() {
	text := "run the `PART` alone:\n"
	for _, p := range parts {
		text += fmt.Sprintf("%-10s  %s (%d)\n", p.name, p.about, p.runs)
	}
	only := flag.String("only", "", text)
	runs := flag.Int("runs", 0, "`ROUNDS` of each part; guests of memory, namespaces of namespaces (default: the part's own)")
	document := flag.String("document", "", "replace in `FILE`, such as docs/results/performance.md, the tables of the parts that run")
	flag.Parse()
	known := slices.ContainsFunc(parts, func(p part) bool { return *only == "" || p.name == *only })
	if flag.NArg() > 0 || !known || *runs < 0 {
		flag.Usage()
		os.Exit(2)
	}
	err := sandbox.Enter()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = runParts(ctx, os.Stdout, parts, *only, *runs, *document)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// runParts runs the part named only, or all parts if only is empty. Tables also replace those of the document; empty:
// there is none. After a failed part the others run all the same.
func runParts(ctx context.Context, w io.Writer, parts []part, only string, runs int, document string) error {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	errs := []error{err}
	for _, p := range parts {
		if only != "" && only != p.name {
			continue
		}
		if runs > 0 {
			p.runs = runs
		}
		var text bytes.Buffer
		both := io.MultiWriter(w, &text)
		fmt.Fprintf(both, "%s. Linux %s, %d CPUs, %s; -runs %d.\n", p.about, bytes.TrimSpace(release), runtime.NumCPU(), runtime.Version(), p.runs)
		err := inScope(ctx, func(s *scope) error { return p.run(s, both, p.runs) })
		if err == nil && document != "" {
			err = replaceTable(document, p.name, text.String())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
		}
		fmt.Fprintln(w)
	}
	return errors.Join(errs...)
}

// replaceTable replaces what a document has of a part: the lines in the fence that follows the line <!-- bench NAME
// -->. The document keeps the rows that it has, and gets no others.
func replaceTable(path, name, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const fence = "```\n"
	mark := "<!-- bench " + name + " -->\n" + fence
	head, rest, ok := strings.Cut(string(old), mark)
	table, tail, closed := strings.Cut(rest, fence)
	if !ok || !closed {
		return fmt.Errorf("%s has no line <!-- bench %s --> with a fence after it", path, name)
	}
	known := map[string]bool{}
	for line := range strings.Lines(table) {
		known[rowName(line)] = true
	}
	lines := slices.DeleteFunc(strings.SplitAfter(text, "\n"), func(line string) bool {
		name := rowName(line)
		return name != "" && !known[name]
	})
	text = strings.Join(lines, "")
	return os.WriteFile(path, []byte(head+mark+strings.TrimSpace(text)+"\n"+fence+tail), 0o644)
}

// rowName returns the name of a row of a table; empty: the line is none.
func rowName(line string) string {
	if !strings.HasPrefix(line, "  ") {
		return ""
	}
	name, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
	return name
}
