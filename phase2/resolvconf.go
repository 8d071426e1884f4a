package phase2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/guestwire/guestwire/cache"
)

const (
	defaultResolvConf = "/etc/resolv.conf"
	maxResolvConf     = 1 << 20

	// Who writes a file in place does it in several steps.
	settleResolvConf = 100 * time.Millisecond
)

// parseResolvConf takes name servers and search domains out of a resolv.conf (resolv.conf(5)). The
// last of several search or domain lines counts. What is no address is left out.
func parseResolvConf(text []byte) cache.DNS {
	var dns cache.DNS
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 2 || strings.HasPrefix(words[0], "#") || strings.HasPrefix(words[0], ";") {
			continue
		}
		switch words[0] {
		case "nameserver":
			if server, err := netip.ParseAddr(words[1]); err == nil {
				dns.Servers = append(dns.Servers, server)
			}
		case "search":
			dns.Search = words[1:]
		case "domain":
			dns.Search = words[1:2]
		}
	}
	return dns
}

func readResolvConf(path string) (cache.DNS, error) {
	f, err := os.Open(path)
	if err != nil {
		return cache.DNS{}, fmt.Errorf("DNS configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return cache.DNS{}, fmt.Errorf("DNS configuration: %w", err)
	}
	return parseResolvConf(text), nil
}

// followResolvConf calls changed whenever the file says something else than last, until ctx is done. A
// file that is gone, or cannot be read, changes nothing.
func followResolvConf(ctx context.Context, path string, last cache.DNS, log *slog.Logger, changed func(cache.DNS)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	defer watcher.Close()
	settled := time.NewTimer(0) // once at the start: it may have changed since last was read
	defer settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			log.Warn("watch the DNS configuration", "path", path, "error", err)
			settled.Reset(settleResolvConf)
		case event := <-watcher.Events:
			if watched(path, event.Name) {
				settled.Reset(settleResolvConf)
			}
		case <-settled.C:
			if err := watch(watcher, path); err != nil {
				return err
			}
			dns, err := readResolvConf(path)
			if err != nil {
				if !errors.Is(err, fs.ErrNotExist) {
					log.Warn("the DNS configuration stays what it was", "error", err)
				}
				continue
			}
			if !reflect.DeepEqual(dns, last) {
				last = dns
				changed(dns)
			}
		}
	}
}

// watch looks at the directory of the file, where another one can take its name; if it is a symbolic
// link, at that of its target; and at the file itself, as a bind mount changes in neither.
func watch(watcher *fsnotify.Watcher, path string) error {
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watch %s: %w", filepath.Dir(path), err)
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil // gone, and the directory tells when it is back
	}
	if filepath.Dir(target) != filepath.Dir(path) {
		if err := watcher.Add(filepath.Dir(target)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("watch %s: %w", filepath.Dir(target), err)
		}
	}
	// The watch of a file that was replaced goes on with the old one.
	if err := watcher.Remove(path); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	if err := watcher.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	return nil
}

// watched says that an event for name is one of the file's, under its own name or its target's.
func watched(path, name string) bool {
	target, err := filepath.EvalSymlinks(path)
	return name == path || err != nil || name == target
}
