package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/directory"
)

// readiness makes a file while all parts are ready.
type readiness struct {
	file string
	log  *slog.Logger

	mu    sync.Mutex
	parts []bool
}

// part adds a part that is not ready, and returns the function that reports whether it is.
func (r *readiness) part() func(bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.parts)
	r.parts = append(r.parts, false)
	return func(ready bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.parts[i] == ready {
			return
		}
		r.parts[i] = ready
		if err := r.update(); err != nil {
			r.log.Warn("readiness", "error", err)
		}
	}
}

func (r *readiness) update() error {
	for _, ready := range r.parts {
		if !ready {
			return r.clear()
		}
	}
	if r.file == "" {
		return nil
	}
	dir, err := directory.Open(filepath.Dir(r.file))
	if err != nil {
		return err
	}
	defer dir.Close()
	return directory.Write(dir, filepath.Base(r.file), nil, 0o644)
}

// clear removes the file, which a killed process may have left.
func (r *readiness) clear() error {
	if r.file == "" {
		return nil
	}
	dir, err := directory.Open(filepath.Dir(r.file))
	if err == nil {
		defer dir.Close()
		err = dir.Remove(filepath.Base(r.file))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func ready(_ context.Context, o *options) error {
	if o.ready == "" {
		return commandline.Errorf("-ready is missing: name the file of run's -ready")
	}
	_, err := os.Stat(o.ready)
	return err
}
