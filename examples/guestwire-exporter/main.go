// Exporter prints the metrics of a node's wired NICs, for the textfile collector of Prometheus' node_exporter.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/examples/logqueue"
	"github.com/guestwire/guestwire/examples/metrics"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// options are the values of the flags.
type options struct {
	dir, to string
	own     bool
}

// program is the exporter's command line, which has no verbs.
var program = commandline.Program[options]{
	Name: "guestwire-exporter", Short: "print the metrics of a node's wired NICs",
	Before: `exporter prints the metrics of all wired NICs of the node, and of the calls of
its CNI plugin, in Prometheus' text format, such as for the textfile collector
of node_exporter:

  guestwire-exporter -to /var/lib/prometheus/node-exporter/guestwire.prom

A reader of that file sees all samples or the former ones. Root that writes
there by a shell (guestwire-exporter >FILE) follows the links of all who can
write to the directory, or to one above it.

It compares each NIC as guestwire-agent check does, and exits with 0 also if
kernel and record differ. A NIC that cannot be looked at has no
guestwire_differences, and standard error says why. On Kubernetes' nodes
guestwire-node serves the same metrics.

It needs the node's PID namespace and CAP_SYS_ADMIN, CAP_NET_ADMIN,
CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH: without the last two, or in a container, a
namespace may seem gone that is there. With -own, CAP_NET_ADMIN is enough.
`,
	Verbs: []commandline.Verb[options]{{Flags: "to dir own"}},
	After: "The exit code is 0: done, 1: failed, 2: a flag is wrong.\n",
	FlagSet: func(o *options, _ commandline.Verb[options]) *flag.FlagSet {
		set := flag.NewFlagSet("guestwire-exporter", flag.ContinueOnError)
		set.StringVar(&o.to, "to", "", "the `FILE` for the metrics, which is replaced in one step, with the rights of the user to whom its directory belongs; without it, they are printed")
		set.StringVar(&o.dir, "dir", phase1.DefaultDir, "the node's `DIR` for journals and locks, that of guestwire-agent setup")
		set.BoolVar(&o.own, "own", false, "the NICs are in the network namespace in which the exporter runs, as in a container whose network is the guest's")
		return set
	},
}

func main() {
	ctx, stop := commandline.Signals(context.Background())
	defer stop()
	v, o, _, err := program.Parse(os.Stdout, os.Args[1:])
	if err != nil {
		fmt.Fprint(os.Stderr, commandline.Line("guestwire-exporter:", err))
		os.Exit(exitCode(err))
	}
	if v == nil {
		return
	}
	// Progress is written while a NIC is locked, and an agent that waits for the lock must not wait for a reader.
	log := logqueue.New(os.Stderr, func(lines int) string {
		return fmt.Sprintf("guestwire-exporter: %d lines were lost: the reader of standard error was too slow, or gone\n", lines)
	})
	nic := phase1.NIC{Dir: o.dir, Own: o.own, Progress: func(text string) { fmt.Fprintf(log, "guestwire-exporter: %q\n", text) }}
	if o.to == "" {
		err = printMetrics(ctx, os.Stdout, nic)
	} else {
		err = writeMetrics(ctx, o.to, nic)
	}
	if err != nil {
		fmt.Fprint(log, commandline.Line("guestwire-exporter:", err))
	}
	_ = log.Close() // what the reader has not taken is lost
	os.Exit(exitCode(err))
}

func exitCode(err error) int {
	var usage *commandline.Error
	var field *cache.FieldError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage), errors.As(err, &field):
		return 2
	}
	return 1
}

// ofNamespace returns the wirings of the exporter's own namespace: containers may share a directory.
func ofNamespace(ctx context.Context, wirings []phase1.Wiring, nic phase1.NIC) ([]phase1.Wiring, error) {
	var failed error
	for _, w := range wirings {
		nic.Name = w.NIC
		report, err := nic.Status(ctx)
		if report != nil { // of any NIC: it names the namespace, and Check says the error again
			return slices.DeleteFunc(wirings, func(w phase1.Wiring) bool { return w.Namespace != report.Namespace }), nil
		}
		if !errors.Is(err, phase1.ErrNotWired) {
			failed = errors.Join(failed, err)
		}
	}
	return nil, failed
}

// writeMetrics puts the metrics into a file. Others may be able to write to its directory, and to those above it.
func writeMetrics(ctx context.Context, path string, nic phase1.NIC) error {
	dir, err := directory.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: create the directory, or name another file", err)
	}
	if err != nil {
		return fmt.Errorf("-to %s: %w", path, err)
	}
	defer dir.Close()
	if err := checkTarget(dir, path); err != nil {
		return fmt.Errorf("-to %s: %w", path, err)
	}
	var text bytes.Buffer
	if err := printMetrics(ctx, &text, nic); err != nil {
		return err
	}
	unlock, err := directory.LockName(ctx, cmp.Or(nic.Dir, phase1.DefaultDir), "exporter "+filepath.Join(dir.Name(), filepath.Base(path)))
	if err != nil {
		return err
	}
	defer unlock()
	err = directory.AsOwner(dir, func() error { return directory.Write(dir, filepath.Base(path), text.Bytes(), 0o644) })
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: the file is written with the rights of the user to whom the directory belongs: let that user write there (chmod u+w %s), or give it to root (chown root %[2]s)", err, infra.ShellWord(filepath.Clean(dir.Name())))
	}
	if err != nil {
		return fmt.Errorf("-to %s: %w", path, err)
	}
	return nil
}

// checkTarget refuses what the file would replace that is no file.
func checkTarget(dir *os.Root, path string) error {
	info, err := dir.Lstat(filepath.Base(path))
	named := filepath.Clean(path)
	switch {
	case strings.HasSuffix(path, "/") || err == nil && info.IsDir():
		return fmt.Errorf("is a directory: name a file in it (-to %s)", infra.ShellWord(filepath.Join(path, "guestwire.prom")))
	case err == nil && !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink, strings.HasPrefix(named, "/dev/"), strings.HasPrefix(named, "/proc/"):
		return errors.New("is a device, a socket, a pipe or a place for these, and would be replaced: name a file elsewhere, or leave -to out to print")
	}
	return nil
}

// printMetrics writes all samples at once: what reads a part of them would take the rest for gone.
func printMetrics(ctx context.Context, w io.Writer, nic phase1.NIC) error {
	wirings, err := phase1.List(ctx, nic.Dir)
	if err != nil {
		return err
	}
	if nic.Own {
		if wirings, err = ofNamespace(ctx, wirings, nic); err != nil {
			return err
		}
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(metrics.NICs{Context: ctx, Wirings: wirings, NIC: nic}); err != nil {
		return err
	}
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("no metrics: %w", context.Cause(ctx))
	}
	var text bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			return err
		}
	}
	_, err = w.Write(text.Bytes())
	return err
}
