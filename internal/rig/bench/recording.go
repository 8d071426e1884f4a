package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/guestwire/guestwire/infra"
)

// A recording is the floor of a commit: the lists of its Setups, the messages they send, and the C program that reads them. It is
// a tar.gz of what lies in the floor's directory. All pods are alike, so a recording fits the pods of any commit, as long as
// podNIC stays as it is, and the kernel has the features that the commit's Setup found (see features).

// recordedCommit is the commit that the goal for the floor itself refers to.
const recordedCommit = "1123c4b"

// It was made by a build of the commit with this file and today's floor.c, and "bench -record".
//
//go:embed floor/1123c4b.tar.gz
var recorded []byte

// leastFloor is the wanted ratio of the floor to the recorded one.
const leastFloor = 0.7

// featuresFile holds what of the kernel changes a Setup's calls.
const featuresFile = "features"

func (b *bench) features() string { return fmt.Sprintf("dummy %t, log %t", b.dummy, b.log) }

// record writes the recording of this build to the file.
func record(ctx context.Context, path string) error {
	dir, remove, err := newStateDir()
	if err != nil {
		return err
	}
	defer remove()
	if err := os.WriteFile(filepath.Join(dir, "floor.c"), floorSource, 0o600); err != nil {
		return err
	}
	files := []string{"floor.c", featuresFile}
	for _, binding := range bindings {
		b, err := newBench(ctx, io.Discard, dir, nil, binding)
		if err != nil {
			return fmt.Errorf("%s: %w", binding.Kind(), err)
		}
		if err := os.WriteFile(filepath.Join(dir, featuresFile), []byte(b.features()), 0o600); err != nil {
			return err
		}
		messages, err := filepath.Glob(b.setupList + ".[0-9]*")
		if err != nil {
			return err
		}
		for _, file := range append(messages, b.setupList) {
			files = append(files, strings.TrimPrefix(file, dir+"/"))
		}
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, "/setup") {
			text = bytes.ReplaceAll(text, []byte(dir+"/"), nil) // relative to the directory in which the floor runs
		}
		err = archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))})
		if err == nil {
			_, err = archive.Write(text)
		}
		if err != nil {
			return err
		}
	}
	if err := errors.Join(archive.Close(), zip.Close()); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// earlier is a floor that carries out a recording.
type earlier struct {
	*floor
	name string
	dir  string
}

// startEarlier starts the floor of the recording in the file below dir; path empty: of recordedCommit.
func startEarlier(ctx context.Context, dir, path string) (*earlier, error) {
	name, data := recordedCommit, recorded
	if path != "" {
		var err error
		if data, err = os.ReadFile(path); err != nil {
			return nil, err
		}
		name = strings.TrimSuffix(filepath.Base(path), ".tar.gz")
	}
	dir = filepath.Join(dir, "earlier")
	if err := unpack(data, dir); err != nil {
		return nil, fmt.Errorf("recording %s: %w", name, err)
	}
	source, err := os.ReadFile(filepath.Join(dir, "floor.c"))
	if err != nil {
		return nil, fmt.Errorf("recording %s: %w", name, err)
	}
	f, err := startFloor(ctx, dir, source)
	return &earlier{f, name, dir}, err
}

func unpack(data []byte, dir string) error {
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return err
	}
	archive := tar.NewReader(zip)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(h.Name) {
			return fmt.Errorf("%q is no path below a directory", h.Name)
		}
		text, err := io.ReadAll(archive)
		path := filepath.Join(dir, h.Name)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			return err
		}
	}
}

// fits says why the recording cannot be carried out for the binding; empty: it can.
func (e *earlier) fits(b *bench) (string, error) {
	features, err := os.ReadFile(filepath.Join(e.dir, featuresFile))
	if err != nil {
		return "", fmt.Errorf("recording %s: %w", e.name, err)
	}
	if string(features) != b.features() {
		return fmt.Sprintf("it was made under a kernel with %s, and this one has %s", features, b.features()), nil
	}
	if _, err := os.Stat(filepath.Join(e.dir, b.binding.Kind(), "setup")); errors.Is(err, fs.ErrNotExist) {
		return "it has no such binding", nil
	}
	return "", nil
}

// way carries out the recording's Setup. It leaves the network of its own commit.
func (e *earlier) way(binding infra.Binding) way {
	return way{name: "floor of " + e.name, apart: true, used: func() time.Duration { return e.used }, run: func(_ context.Context, p *pod) (time.Duration, error) {
		return e.run(binding.Kind()+"/setup", p)
	}}
}

// describeFloors prints what today's floor and the earlier one do; why says why the earlier one is not carried out.
func (b *bench) describeFloors(why string) error {
	now, err := describeList(b.setupList)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.w, "  floor: %s\n", now)
	if why != "" {
		fmt.Fprintf(b.w, "  floor of %s: not carried out: %s\n", b.earlier.name, why)
		return nil
	}
	then, err := describeList(filepath.Join(b.earlier.dir, b.binding.Kind(), "setup"))
	if err != nil {
		return err
	}
	fmt.Fprintf(b.w, "  floor of %s: %s\n", b.earlier.name, then)
	return nil
}

// describeList says how many steps the list has, and how much it sends. The messages lie beside the list.
func describeList(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	steps, octets := 0, map[string]int64{}
	for line := range strings.Lines(string(text)) {
		steps++
		if words := strings.Fields(line); words[0] == "route" || words[0] == "nftables" {
			info, err := os.Stat(filepath.Join(filepath.Dir(path), filepath.Base(words[1])))
			if err != nil {
				return "", err
			}
			octets[words[0]] += info.Size()
		}
	}
	return fmt.Sprintf("%d steps, sends %d octets to rtnetlink and %d to nftables", steps, octets["route"], octets["nftables"]), nil
}
