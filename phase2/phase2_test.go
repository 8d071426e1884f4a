package phase2_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase2"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func writeRecords(t *testing.T, dir string, records ...cache.Record) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, r := range records {
		if err := cache.Write(root, r); err != nil {
			t.Fatal(err)
		}
	}
}

func newRecord(name string) cache.Record {
	return cache.Record{
		Version: cache.Version, Name: name, Binding: cache.BindingBridge, Tap: name + "-tap", Queues: 1,
		MAC: cache.MAC{2, 0, 0, 0, 0, 1}, MTU: 1500,
	}
}

// wire wires a pod's NIC, and opens its record.
func wire(t *testing.T, n nstest.Network) *phase2.VM {
	t.Helper()
	setupQueues(t, n, infra.Bridge{}, 1)
	vm, err := phase2.Open(n.State)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	if _, err := phase2.Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v, want fs.ErrNotExist", err)
	}
	if _, err := phase2.Open(dir); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "Setup") {
		t.Errorf("empty directory: %v, want fs.ErrNotExist and what to do", err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo") // nobody writes there, and the call does not wait
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := phase2.Open(fifo); !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), fifo+":") {
		t.Errorf("a FIFO: %v, want ENOTDIR", err)
	}
	writeRecords(t, dir, newRecord("net1"), newRecord("eth0"))
	vm, err := phase2.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	elements, err := vm.Interfaces()
	if err != nil || len(elements) != 2 || elements[0].Target.Dev != "eth0-tap" || elements[1].Target.Dev != "net1-tap" {
		t.Errorf("elements %v, %v; want those of eth0 and net1", elements, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "net1.json"), []byte(`{"version": 1, "name": "net1", "queues": "many"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = phase2.Open(dir)
	var file *cache.FileError
	if !errors.As(err, &file) || !strings.Contains(err.Error(), "net1.json") || !strings.Contains(err.Error(), "queues") {
		t.Errorf("damaged record: %v, want the file and the field", err)
	}
}

func TestServeErrors(t *testing.T) {
	n := nstest.NewNetwork(t)
	vm := wire(t, n)
	if err := vm.Serve(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in another namespace: %v, want fs.ErrNotExist", err)
	}
	if err := netns.Do(n.Pod.File, func() error {
		_, err := vm.Start(t.Context())
		return err
	}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Start in another namespace than the process's: %v, want fs.ErrNotExist", err)
	}
	other := nstest.NewNetwork(t)
	wire(t, other) // a tap of the same name, of the same owner
	if err := netns.Do(other.Pod.File, func() error { return vm.Serve(t.Context()) }); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "enter the namespace of the record first") {
		t.Errorf("in the namespace of another guest: %v, want fs.ErrNotExist", err)
	} else if here, there := other.Pod.Path(), n.Pod.Path(); !strings.Contains(err.Error(), "("+here+"), and the tap is in ") || !strings.Contains(err.Error(), "("+there+"): enter") {
		t.Errorf("in the namespace of another guest: %v, want the paths %s and %s", err, here, there)
	}
	ctx, cancel := context.WithCancel(t.Context())
	first, log := make(chan error, 1), make(lineWriter, 8)
	vm.Log = slog.New(slog.NewTextHandler(log, nil))
	go func() { first <- netns.Do(n.Pod.File, func() error { return vm.Serve(ctx) }) }()
	if line := <-log; !strings.Contains(line, "serving") {
		t.Errorf("the log begins with %q", line)
	}
	second, err := phase2.Open(n.State)
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Do(n.Pod.File, func() error { return second.Serve(t.Context()) }); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second Serve on the same tap: %v, want EBUSY", err)
	}
	cancel()
	if err := <-first; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// lineWriter receives a log, one line per value.
type lineWriter chan string

func (l lineWriter) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}
