package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/leak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(replaceForever); path != "" {
		replaceUntilKilled(path)
	}
	if socket := os.Getenv(engineAt); socket != "" {
		engineUntilKilled(socket)
	}
	if args := os.Getenv(runArgs); args != "" {
		runInside(args)
	}
	leak.Main(m)
}

// patience is for a machine that is busy with other tests.
const patience = time.Minute

func eventually(t *testing.T, f func() error) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Since(begin) > patience {
			t.Fatal(err)
		}
	}
}

// shortDir is a temporary directory whose sockets have names that are short enough for the kernel.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// names are those of a directory's files.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestUsage: what is wrong in a command line is refused before anything is done, with a text that names the way out.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		line []string
		want string
	}{
		{nil, "a verb is missing: run, install, uninstall, ready, completion, man, version"},
		{[]string{"start"}, `"start" is none of run, install`},
		{[]string{"-state", "/x"}, `"-state" before the verb`},
		{[]string{"run", "now"}, `"now" is no flag`},
		{[]string{"run", "-force"}, "flag provided but not defined: -force"},
		{[]string{"run", "-state", "run"}, "-state run: want an absolute path"},
		{[]string{"run", "-devices", "kvm,fuse"}, "-devices fuse: no such device, want kvm, vhost-net"},
		{[]string{"run", "-sweep", "3600"}, "want a time with its unit, such as 1h"},
		{[]string{"run", "-sweep", "1s"}, "-sweep 1s: want 1m or more, or 0 for never"},
		{[]string{"run", "-repair", "1s"}, "-repair 1s: want 1m or more, or 0 for never"},
		{[]string{"run", "-metrics", "127.0.0.1"}, "-metrics 127.0.0.1: want an address with its port, such as 127.0.0.1:9476"},
		{[]string{"run", "-metrics", "127.0.0.1:"}, "-metrics 127.0.0.1:: want an address with its port"},
		{[]string{"run", "-metrics", "::1"}, "or [::1]:9476"},
		{[]string{"run", "-metrics", "9476"}, "want an address with its port"},
		{[]string{"run", "-names", "guestwire-launcher"}, "-names guestwire-launcher: want an absolute path"},
		{[]string{"install", "-list-name", "00-guestwire.conf"}, "want a file name that ends with .conflist"},
		{[]string{"install", "-list-name", "../00-guestwire.conflist"}, "want a file name"},
		{[]string{"install", "-spec", "{"}, "-spec: "},
		{[]string{"install", "-spec", `{"nic": "eth0"}`}, "-spec.nic: "},
		{[]string{"install", "-spec", `{"queues": 1000}`}, "-spec.queues: 1000, want 1 to 256"},
		{[]string{"install", "-spec", `{"colour": 1}`}, "-spec.colour: "},
		{[]string{"ready"}, "-ready is missing"},
		{[]string{"help", "me"}, `"me" is none of`},
	} {
		err := run(t.Context(), c.line, io.Discard, discard())
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v (status %d), want %q", c.line, err, exitCode(err), c.want)
		}
	}
}

// TestHelp: the help of each verb has each of its flags, and what its value is.
func TestHelp(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"help"}, &out, discard()); err != nil {
		t.Fatal(err)
	}
	for _, v := range verbs {
		if !strings.Contains(out.String(), "\n  "+v.Name+" ") {
			t.Errorf("help does not list %s", v.Name)
		}
		var long bytes.Buffer
		for _, line := range [][]string{{"help", v.Name}, {v.Name, "-help"}} {
			long.Reset()
			if err := run(t.Context(), line, &long, discard()); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range strings.Fields(v.Flags) {
			if !strings.Contains(long.String(), "\n  -"+name) {
				t.Errorf("help %s does not have -%s", v.Name, name)
			}
		}
		new(options).flagSet(v).VisitAll(func(f *flag.Flag) {
			if !slices.Contains(strings.Fields(v.Flags), f.Name) || f.Usage == "" {
				t.Errorf("%s: flag %s without help", v.Name, f.Name)
			}
		})
	}
	out.Reset()
	if err := run(t.Context(), []string{"version"}, &out, discard()); err != nil || !strings.Contains(out.String(), "go1.") {
		t.Errorf("version: %q, %v", out.String(), err)
	}
}

// start runs a verb until the test ends or stop is called, which returns its error.
func start(t *testing.T, args ...string) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, args, io.Discard, slog.New(slog.NewTextHandler(t.Output(), nil))) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("run does not end")
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}
