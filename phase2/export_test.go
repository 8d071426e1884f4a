package phase2

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/resolvconf"
	"github.com/guestwire/guestwire/internal/tap"
)

// StopCause returns the cause that an interface's loop gets when a Serve with the context ctx ends.
func StopCause(ctx context.Context, file *os.File) error {
	var cause error
	v := &service{tap: &tap.Responder{File: file}, cancel: func(err error) { cause = err }, done: make(chan struct{})}
	close(v.done)
	s := server{services: map[string]*service{"eth0": v}}
	s.detachAll(ctx)
	return cause
}

// RereadResolvConf returns the DNS configuration in use after the file was read again; last is the one
// before.
func RereadResolvConf(path string, last cache.DNS) cache.DNS {
	f := resolvConf{path: path, last: last}
	f.reread(slog.New(slog.DiscardHandler))
	return f.last
}

// ReadResolvConf returns the error of the file, as Serve reads it.
func ReadResolvConf(path string) error {
	_, err := resolvconf.Read(path)
	return err
}

// FollowResolvConf follows a resolv.conf without records, as Serve does with records. It calls watching once,
// when the file is watched.
func FollowResolvConf(ctx context.Context, path string, last cache.DNS, changed func(cache.DNS), watching func()) error {
	f, err := newResolvConf(path, nil)
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
			if names.includes(event.Name) {
				settled = time.After(settleTime)
			}
		case <-settled:
			if names, err = watchPath(watcher, f.path); err != nil {
				return err
			}
			if again, err := f.reread(slog.New(slog.DiscardHandler)); err != nil {
				return err
			} else if again {
				changed(f.last)
			}
			once.Do(watching)
		}
	}
}
