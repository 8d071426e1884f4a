package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"path/filepath"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestRecording: a recording of this build is carried out in a pod of this build, and leaves what Setup leaves there.
func TestRecording(t *testing.T) {
	nstest.Need(t, "gcc", "nsenter", "sysctl")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	removeWorld(t)
	path := filepath.Join(t.TempDir(), "today.tar.gz")
	if err := record(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	dir, remove, err := newStateDir()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	e, err := startEarlier(t.Context(), dir, path)
	if err != nil {
		t.Fatal(err)
	}
	defer e.stop()
	for _, binding := range bindings {
		b, err := newBench(t.Context(), t.Output(), dir, nil, binding)
		if err != nil {
			t.Fatal(err)
		}
		if why, err := e.fits(b); err != nil || why != "" {
			t.Fatal(binding.Kind(), why, err)
		}
		untouched := func(context.Context, *pod) error { return nil }
		recorded := e.way(binding)
		recorded.apart = false
		if _, err := b.compare(t.Context(), 1, 1, untouched, []way{b.goWay("Setup", setup), recorded}); err != nil {
			t.Errorf("%s: %v", binding.Kind(), err)
		}
		b.dummy = !b.dummy
		if why, err := e.fits(b); err != nil || why == "" {
			t.Errorf("%s: a recording of a kernel with other features fits: %v", binding.Kind(), err)
		}
	}
}

// TestUnpack: a recording writes below its directory alone.
func TestUnpack(t *testing.T) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	if err := archive.WriteHeader(&tar.Header{Name: "../floor.c"}); err != nil {
		t.Fatal(err)
	}
	archive.Close()
	zip.Close()
	for name, data := range map[string][]byte{"a path that leaves the directory": out.Bytes(), "cut short": recorded[:len(recorded)/2], "no archive": []byte("floor")} {
		if err := unpack(data, filepath.Join(t.TempDir(), "earlier")); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := unpack(recorded, t.TempDir()); err != nil {
		t.Error(err)
	}
}
