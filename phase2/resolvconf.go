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
	"syscall"

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

func readResolvConf(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("DNS configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return nil, fmt.Errorf("DNS configuration: %w", err)
	}
	return text, nil
}

// resolvConf is a file that is followed.
type resolvConf struct {
	path string    // absolute
	must bool      // it has to be there
	last cache.DNS // what it said
	bad  []string  // name servers that are no addresses
}

// newResolvConf follows the file at path, the default one if path is empty.
func newResolvConf(path string) (resolvConf, error) {
	if path == "" {
		return resolvConf{path: defaultResolvConf}, nil
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return resolvConf{}, fmt.Errorf("DNS configuration: %w", err)
	}
	return resolvConf{path: absolute, must: true}, nil
}

// needsResolvConf says that the record has a responder, but no DNS configuration of its own.
func needsResolvConf(r cache.Record) bool { return r.DNS == nil && r.ResponderTap != "" }

// begin reads the file.
func (f *resolvConf) begin(log *slog.Logger) error {
	text, err := readResolvConf(f.path)
	if errors.Is(err, fs.ErrNotExist) && !f.must {
		return nil
	}
	dns, bad := parseResolvConf(text)
	f.take(log, dns, bad)
	return err
}

func (f *resolvConf) take(log *slog.Logger, dns cache.DNS, bad []string) {
	f.last, f.bad = dns, bad
	for _, word := range bad {
		log.Warn(fmt.Sprintf("DNS server %q is left out: it is no address", word), "path", f.path)
	}
}

// reread says that the file says something else than before. One that is gone, that cannot be read, or that
// is empty, as it is while somebody writes it anew, changes nothing.
func (f *resolvConf) reread(log *slog.Logger) bool {
	text, err := readResolvConf(f.path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			log.Warn("the DNS configuration stays what it was", "error", err)
		}
		return false
	}
	if len(text) == 0 {
		return false
	}
	dns, bad := parseResolvConf(text)
	same := reflect.DeepEqual(dns, f.last)
	if !same || !slices.Equal(bad, f.bad) {
		f.take(log, dns, bad)
	}
	return !same
}

// watched is a path that is followed: the names that are looked at, of which each can make it another file.
type watched []string

// watch looks at the directories where a change can make the path mean another file, and at the file
// itself, as a bind mount changes in none of them; a directory's own changes are in that too. What is
// watched before the file is read is not missed.
func watch(watcher *fsnotify.Watcher, path string) (watched, error) {
	var errs []error
	add := func(path string) {
		// What is gone is on the trail, or will be.
		if err := watcher.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("watch %s: %w", path, err))
		}
	}
	var names []string
	for range maxLinks { // until it has not changed meanwhile
		again := trail(path)
		if slices.Equal(again, names) {
			break
		}
		names = again
		for _, name := range names {
			add(filepath.Dir(name))
		}
	}
	add(filepath.Dir(path)) // through a link of /proc the trail leads astray
	// The watch of a file that was replaced goes on with the old one; that of one that is gone has ended.
	if err := watcher.Remove(path); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) && !errors.Is(err, syscall.EINVAL) {
		errs = append(errs, fmt.Errorf("watch %s: %w", path, err))
	}
	add(path)
	return append(names, path), errors.Join(errs...)
}

// concerns says that an event for name can be one of the path's: of its own, of a link on the way to it, or
// of a directory of theirs.
func (w watched) concerns(name string) bool {
	name = filepath.Clean(name)
	return slices.ContainsFunc(w, func(n string) bool { return name == n || name == filepath.Dir(n) })
}

// maxLinks is how many symbolic links the kernel follows (path_resolution(7)).
const maxLinks = 40

// trail are the names on which it hangs what the path means: each symbolic link on the way, and what is at
// the end, or the first that is missing. They are absolute, and no link is in their directories.
func trail(path string) []string {
	var names []string
	at, rest := "/", strings.Split(path, "/")
	for len(rest) > 0 {
		name := filepath.Join(at, rest[0])
		rest = rest[1:]
		target, err := os.Readlink(name)
		if err != nil {
			at = name
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			continue
		}
		names = append(names, name)
		if len(names) > maxLinks {
			return names
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = slices.Concat(strings.Split(target, "/"), rest)
	}
	return append(names, at)
}
