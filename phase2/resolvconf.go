package phase2

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/fsnotify/fsnotify"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/etcnetns"
	"github.com/guestwire/guestwire/internal/resolvconf"
)

const defaultResolvConf = "/etc/resolv.conf"

// resolvConf is a resolv.conf and its last known content.
type resolvConf struct {
	path     string    // absolute
	required bool      // a missing file is an error at the start
	last     cache.DNS // the last known configuration
	bad      []string  // nameserver words that are no address, so that each is logged once
}

// newResolvConf returns the file at path, or the one of the records' namespace, which may be missing. It does not read
// the file.
func newResolvConf(path string, records []cache.Record) (resolvConf, error) {
	if path == "" {
		return resolvConf{path: namespaceResolvConf(records)}, nil
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return resolvConf{}, fmt.Errorf("DNS configuration: %w", err)
	}
	return resolvConf{path: absolute, required: true}, nil
}

// namespaceResolvConf returns the resolv.conf of the records' namespace: that of /etc/netns/NAME, if there is one, or
// /etc/resolv.conf.
func namespaceResolvConf(records []cache.Record) string {
	for _, r := range records {
		if parts := strings.Split(r.Namespace, "-"); len(parts) == 3 { // BOOT-INODE-COOKIE
			inode, err := strconv.ParseUint(parts[1], 10, 64)
			path := filepath.Join(etcnetns.Dir(inode), "resolv.conf")
			if _, failed := os.Stat(path); err == nil && filepath.IsAbs(path) && failed == nil {
				return path
			}
		}
	}
	return defaultResolvConf
}

// warnOther warns of a record whose guest asks the resolvers of /etc/resolv.conf, as passt and slirp do, if the
// namespace has a resolv.conf of its own, and the launcher does not have it there.
func (f *resolvConf) warnOther(log *slog.Logger, r cache.Record) {
	if f.required || r.Passt == nil && r.Slirp == nil {
		return
	}
	there, err := os.Stat(defaultResolvConf)
	wanted, err2 := os.Stat(f.path)
	if err2 == nil && (err != nil || !os.SameFile(there, wanted)) {
		log.Warn(fmt.Sprintf("the guest gets the resolvers of %s, and not those of %s: start the launcher by guestwire-agent exec -netns, ip netns exec, or in a unit with BindReadOnlyPaths=%[2]s:%[1]s", defaultResolvConf, f.path), "nic", r.Name)
	}
}

// needsResolvConf reports whether the record has a responder, but no DNS configuration of its own.
func needsResolvConf(r cache.Record) bool { return r.DNS == nil && r.ResponderTap != "" }

// readFirst reads the file at the start of Serve, when an unreadable file is an error.
func (f *resolvConf) readFirst(log *slog.Logger) error {
	text, err := resolvconf.Read(f.path)
	if errors.Is(err, fs.ErrNotExist) && !f.required {
		return nil
	}
	if err != nil {
		return err
	}
	dns, bad := resolvconf.Parse(text)
	f.set(log, dns, bad)
	return nil
}

// set stores what the file says, and warns of words that are no address.
func (f *resolvConf) set(log *slog.Logger, dns cache.DNS, bad []string) {
	f.last, f.bad = dns, bad
	for _, word := range bad {
		log.Warn(fmt.Sprintf("DNS server %q is left out: not an IP address", word), "path", f.path)
	}
	if len(dns.Servers) == 0 && f.path != os.DevNull { // which is named for that
		log.Warn("the resolv.conf names no DNS server, so the guest gets none: add a line nameserver, or name another file", "path", f.path)
	}
}

// reread reads the file again and reports whether the configuration changed. A file that is missing,
// unreadable or empty changes nothing: a program may be rewriting it at this moment. A missing file is no error.
func (f *resolvConf) reread(log *slog.Logger) (changed bool, err error) {
	text, err := resolvconf.Read(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || len(text) == 0 {
		return false, err
	}
	dns, bad := resolvconf.Parse(text)
	same := reflect.DeepEqual(dns, f.last)
	if !same || !slices.Equal(bad, f.bad) {
		f.set(log, dns, bad)
	}
	return !same, nil
}

// watched is a followed path: the path itself and the names from pathTrail. A change of any of the names can
// make the path lead to another file.
type watched []string

// watchPath watches the directories of the path's trail, where a change can make the path lead to another
// file. It also watches the file itself: a write through a bind mount's source is no event in any of these
// directories. For a directory this second watch reports its entries.
//
// Call watchPath before reading the file, so that no change is missed.
func watchPath(watcher *fsnotify.Watcher, path string) (watched, error) {
	var errs []error
	add := func(path string) {
		// A missing name is no error: the trail ends there, and its directory is watched.
		if err := watcher.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("watch %s: %w", path, err))
		}
	}
	var names []string
	for range maxLinks { // until the trail is the same before and after watching
		now := pathTrail(path)
		if slices.Equal(now, names) {
			break
		}
		names = now
		for _, name := range names {
			add(filepath.Dir(name))
		}
	}
	add(filepath.Dir(path)) // the trail is wrong after a magic link of /proc (symlink(7))
	// A watch stays with the old file when the file is replaced, so it is made anew. The watch of a deleted file
	// has ended by itself.
	if err := watcher.Remove(path); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) && !errors.Is(err, syscall.EINVAL) {
		errs = append(errs, fmt.Errorf("watch %s: %w", path, err))
	}
	add(path)
	return append(names, path), errors.Join(errs...)
}

// includes reports whether an event for name can concern the path: name is the path, a name of its trail, or
// the directory of one.
func (w watched) includes(name string) bool {
	name = filepath.Clean(name)
	return slices.ContainsFunc(w, func(n string) bool { return name == n || name == filepath.Dir(n) })
}

// maxLinks is the number of symbolic links that the kernel follows (path_resolution(7)).
const maxLinks = 40

// pathTrail returns the names that decide which file the path leads to: each symbolic link on the way, and
// the file at the end or the first missing name. The names are absolute, and their directories contain no
// symbolic link.
func pathTrail(path string) []string {
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
