package phase2

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/tap"
)

// ParseResolvConf is for tests.
var ParseResolvConf = parseResolvConf

// StopCause is what an interface's loop is told when Serve ends, whose context is ctx.
func StopCause(ctx context.Context, file *os.File) error {
	var cause error
	v := &service{port: &tap.Port{File: file}, cancel: func(err error) { cause = err }, done: make(chan struct{})}
	close(v.done)
	s := server{services: map[string]*service{"eth0": v}}
	s.stop(ctx)
	return cause
}

// RereadResolvConf is what is told after a change of the file, when last was told before.
func RereadResolvConf(path string, last cache.DNS) cache.DNS {
	f := resolvConf{path: path, last: last}
	f.reread(slog.New(slog.DiscardHandler))
	return f.last
}

// FollowResolvConf follows a file alone, as Serve does beside the records. Watching is called once, when it
// has begun.
func FollowResolvConf(ctx context.Context, path string, last cache.DNS, changed func(cache.DNS), watching func()) error {
	f, err := newResolvConf(path)
	if err != nil {
		return err
	}
	f.last = last
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	var once sync.Once
	var names watched
	for settled := time.After(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			return err
		case event := <-watcher.Events:
			if names.concerns(event.Name) {
				settled = time.After(settle)
			}
		case <-settled:
			if names, err = watch(watcher, f.path); err != nil {
				return err
			}
			if f.reread(slog.New(slog.DiscardHandler)) {
				changed(f.last)
			}
			once.Do(watching)
		}
	}
}
