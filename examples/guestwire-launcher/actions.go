package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/phase2"
)

func printXML(_ context.Context, o *options) error {
	vm, err := open(o)
	if err != nil {
		return err
	}
	elements, err := vm.Interfaces()
	if err != nil {
		return err
	}
	for _, element := range elements {
		xml, err := element.Marshal()
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, xml)
	}
	return nil
}

func serve(ctx context.Context, o *options) error {
	ctx, stop := commandline.Signals(ctx, o.kept()...)
	defer stop()
	vm, err := openLasting(o)
	if err != nil {
		return err
	}
	notify := vm.Notify
	vm.Notify = func(e phase2.Event) {
		if notify != nil {
			notify(e)
		}
		if e.Kind == "ready" {
			reportReady(vm.Log)
		}
	}
	if err := vm.Serve(ctx); err != nil {
		return notServed(err) // from the start: no guest was served
	}
	logCounters(vm)
	return nil
}

// reportReady reports to a service manager that the start is complete. A guest that is served stays so if that fails.
func reportReady(log *slog.Logger) {
	if err := commandline.Ready(); err != nil {
		log.Warn(err.Error())
	}
}

func runGuest(ctx context.Context, o *options) error {
	ctx, stop := commandline.Signals(ctx, o.kept()...)
	defer stop()
	vm, err := openLasting(o)
	if err != nil {
		return err
	}
	err = runQEMU(ctx, vm, o.shutdown, strings.FieldsFunc(o.plug, func(c rune) bool { return c == ',' }), o.command)
	logCounters(vm)
	return err
}

func config(_ context.Context, o *options) error {
	vm, err := open(o)
	if err != nil {
		return err
	}
	return printConfig(vm, o.format, o.device, o.state, o.out)
}

// open reads the records. The log goes to standard error.
func open(o *options) (*phase2.VM, error) {
	vm, err := phase2.Open(o.state)
	if err != nil {
		return nil, notOpened(err)
	}
	vm.ResolvConf = o.resolvConf
	level := slog.LevelInfo
	if o.quiet {
		level = slog.LevelWarn
	}
	vm.Log = slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: level}))
	return vm, nil
}

// openLasting is open for a guest that is served: log and events wait for no reader.
func openLasting(o *options) (*phase2.VM, error) {
	stderr = newQueue(os.Stderr, linesLost)
	logged = stderr
	var file *os.File
	if o.logTo != "" {
		var err error
		if file, err = o.openLog(); err != nil {
			return nil, commandline.Errorf("-log: %w", err)
		}
		logged = newQueue(file, linesLost)
	}
	vm, err := open(o)
	if err == nil && file != nil {
		o.reopenLog(file, vm.Log)
	}
	if err == nil && o.events {
		lines := newQueue(os.Stdout, eventsLost)
		vm.Notify = func(e phase2.Event) { io.WriteString(lines, eventLine(e)) }
	}
	return vm, err
}

// openLog opens the file of -log at its end.
func (o *options) openLog() (*os.File, error) {
	return os.OpenFile(o.logTo, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o644) // a FIFO without a reader is an error
}

// kept are the signals that do not end the program: with -log, SIGHUP opens the file again, as for logrotate(8).
func (o *options) kept() []os.Signal {
	if o.logTo == "" {
		return nil
	}
	return []os.Signal{syscall.SIGHUP}
}

// reopenLog puts another file into the place of the log's at each SIGHUP. If it cannot be opened, the log stays in the
// old one.
func (o *options) reopenLog(file *os.File, log *slog.Logger) {
	if signal.Ignored(syscall.SIGHUP) {
		return
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		for range hangup {
			next, err := o.openLog()
			if err == nil {
				err = errors.Join(unix.Dup3(int(next.Fd()), int(file.Fd()), unix.O_CLOEXEC), next.Close())
			}
			if err != nil {
				log.Warn("the log stays in the old file", "error", err)
			} else {
				log.Info("the log was opened again")
			}
		}
	}()
}

// logCounters logs each NIC's counters.
func logCounters(vm *phase2.VM) {
	for nic, c := range vm.Counters() {
		vm.Log.Info("served", "nic", nic, "received", c.Received, "sent", c.Sent, "failed", c.Failed, "ignored", c.Ignored)
	}
}
