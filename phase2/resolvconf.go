package phase2

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/fsnotify/fsnotify"

	"github.com/guestwire/guestwire/cache"
)

const (
	defaultResolvConf = "/etc/resolv.conf"
	maxResolvConf     = 1 << 20
)

// parseResolvConf takes name servers and search domains out of a resolv.conf (resolv.conf(5)). The
// last of several search or domain lines counts. What is no address is left out, and returned.
func parseResolvConf(text []byte) (dns cache.DNS, bad []string) {
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 2 || strings.HasPrefix(words[0], "#") || strings.HasPrefix(words[0], ";") {
			continue
		}
		switch words[0] {
		case "nameserver":
			if server, err := netip.ParseAddr(words[1]); err == nil {
				dns.Servers = append(dns.Servers, server)
			} else {
				bad = append(bad, words[1])
			}
		case "search":
			dns.Search = words[1:]
		case "domain":
			dns.Search = words[1:2]
		}
	}
	return dns, bad
}

func readResolvConf(path string) (dns cache.DNS, bad []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return cache.DNS{}, nil, fmt.Errorf("DNS configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return cache.DNS{}, nil, fmt.Errorf("DNS configuration: %w", err)
	}
	dns, bad = parseResolvConf(text)
	return dns, bad, nil
}

// resolvConf is a file that is followed.
type resolvConf struct {
	path string
	must bool      // it has to be there
	last cache.DNS // what it said
	bad  []string  // name servers that are no addresses
}

// needsResolvConf says that the record has a responder, but no DNS configuration of its own.
func needsResolvConf(r cache.Record) bool { return r.DNS == nil && r.Port != "" }

// begin reads the file.
func (f *resolvConf) begin(log *slog.Logger) error {
	dns, bad, err := readResolvConf(f.path)
	if errors.Is(err, fs.ErrNotExist) && !f.must {
		return nil
	}
	f.take(log, dns, bad)
	return err
}

func (f *resolvConf) take(log *slog.Logger, dns cache.DNS, bad []string) {
	f.last, f.bad = dns, bad
	for _, word := range bad {
		log.Warn(fmt.Sprintf("DNS server %q is left out: it is no address", word), "path", f.path)
	}
}

// reread says that the file says something else than before. One that is gone, or that cannot be read,
// changes nothing.
func (f *resolvConf) reread(log *slog.Logger) bool {
	dns, bad, err := readResolvConf(f.path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			log.Warn("the DNS configuration stays what it was", "error", err)
		}
		return false
	}
	same := reflect.DeepEqual(dns, f.last)
	if !same || !slices.Equal(bad, f.bad) {
		f.take(log, dns, bad)
	}
	return !same
}

// watch looks at the directory of the file, where another one can take its name; if it is a symbolic
// link, at that of its target; and at the file itself, as a bind mount changes in neither.
func (f *resolvConf) watch(watcher *fsnotify.Watcher) error {
	if err := watcher.Add(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("watch %s: %w", filepath.Dir(f.path), err)
	}
	target, err := filepath.EvalSymlinks(f.path)
	if err != nil {
		return nil // gone, and the directory tells when it is back
	}
	if filepath.Dir(target) != filepath.Dir(f.path) {
		if err := watcher.Add(filepath.Dir(target)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("watch %s: %w", filepath.Dir(target), err)
		}
	}
	// The watch of a file that was replaced goes on with the old one.
	if err := watcher.Remove(f.path); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
		return fmt.Errorf("watch %s: %w", f.path, err)
	}
	if err := watcher.Add(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("watch %s: %w", f.path, err)
	}
	return nil
}

// concerns says that an event for name is one of the file's, under its own name or its target's.
func (f *resolvConf) concerns(name string) bool {
	target, err := filepath.EvalSymlinks(f.path)
	return name == f.path || err != nil || name == target
}
