package phase1

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/guestwire/guestwire/internal/flock"
	"github.com/guestwire/guestwire/internal/netns"
)

// DefaultDir is NIC.Dir if that is empty. Only root can enter it. Files of callers may lie there too. Phase1 leaves
// them alone, but removes a file name-* that no process has locked (flock(2)), as a killed one leaves it.
const DefaultDir = "/run/guestwire.lock"

// node is Phase1's own directory on a node, which only root can enter: another user who could open a lock could
// hold it. It has these entries:
//
//	4026532281              the lock of the namespace with this inode number, while a call works on it
//	state-1f0c2a...         the lock of a State directory, while a call writes or removes a record there
//	proxy-9c1e22f0-4026532281-17-eth0   the lock of a NIC, while a process runs its DNS proxy (package pins)
//	name-8d3b01...          a lock of a caller's own, with flock(2), such as guestwire-agent's
//	hold-4026532281-eth0    the lock of a NIC, while a process holds it
//	9c1e22f0-4026532281-17  a directory for each namespace (netns.Identity.Name), with eth0.journal
//
// A killed call leaves its lock, which is free for the next call.
type node struct {
	*os.Root // nil: the directory is not there, so no journal is, and no call works on a namespace
	dir      string
}

// Name is the directory's path.
func (n node) Name() string { return n.dir }

func (n node) Close() {
	if n.Root != nil {
		n.Root.Close()
	}
}

// openNode opens the directory. It makes one that is not there, whoever comes first.
func openNode(path string) (node, error) {
	path, err := nodePath(path)
	if err != nil {
		return node{}, err
	}
	path = filepath.Clean(path)
	if err := checkRootParent(path); err != nil {
		return node{}, fmt.Errorf("journal directory: %w", err)
	}
	if _, err := makeDirectory(path, 0o700); err != nil {
		return node{}, fmt.Errorf("journal directory (name another one where %s cannot be written): %w", filepath.Dir(path), err)
	}
	return openNodeAt(path)
}

// findNode is openNode, but an absentError if the directory is not there.
func findNode(path string) (node, error) {
	path, err := nodePath(path)
	if err != nil {
		return node{}, err
	}
	n, err := openNodeAt(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = absentError{path}
	}
	return n, err
}

// lookNode is findNode, but a node without a Root if the directory is not there.
func lookNode(path string) (node, error) {
	n, err := findNode(path)
	var absent absentError
	if errors.As(err, &absent) {
		return node{dir: absent.path}, nil
	}
	return n, err
}

// absentError says that the directory is not there.
type absentError struct{ path string }

func (e absentError) Error() string {
	return fmt.Sprintf("journal directory %s is not there: name the one that Setup used (NIC.Dir, guestwire-agent -dir)", e.path)
}

func (absentError) Is(target error) bool { return target == fs.ErrNotExist }

// mayLack reports whether the directory may be absent, as nothing was ever wired on the node. Any other directory was
// named, and may be mistyped.
func mayLack(path string) bool { return path == "" || filepath.Clean(path) == DefaultDir }

func nodePath(path string) (string, error) {
	return cmp.Or(path, DefaultDir), checkPath("dir", path, DefaultDir)
}

func openNodeAt(path string) (node, error) {
	if _, err := rootPath(path, 0o077); err != nil {
		return node{}, fmt.Errorf("journal directory: %w", err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return node{}, fmt.Errorf("journal directory: %w", err)
	}
	return node{dir, path}, nil
}

// lockNamespace holds the namespace until the returned function is called, or the process ends.
func (n node) lockNamespace(ctx context.Context, identity netns.Identity, report progress) (unlock func(), err error) {
	return n.lock(ctx, namespaceLock(identity), report)
}

func namespaceLock(identity netns.Identity) string { return strconv.FormatUint(identity.Inode, 10) }

// lockState holds the State directory. A call takes it after the namespace's lock, and no call takes two.
func (n node) lockState(ctx context.Context, path string, report progress) (unlock func(), err error) {
	return n.lock(ctx, stateLock+digest(path), report)
}

// The beginnings of the names of locks that are not a namespace's.
const (
	stateLock = "state-"
	holdLock  = "hold-"
	proxyLock = "proxy-" // package pins
	nameLock  = "name-"  // a caller
)

func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// lock waits until ctx ends.
func (n node) lock(ctx context.Context, name string, report progress) (unlock func(), err error) {
	if n.Root == nil {
		return func() {}, nil
	}
	return flock.Lock(ctx, n.Root, name, func(holder string) {
		report.say("waits for another call, which holds %s: %s", filepath.Join(n.Name(), name), holder)
	})
}

// namespaces are the names (netns.Identity.Name) of the namespaces that have journals, sorted.
func (n node) namespaces() ([]string, error) {
	entries, err := fs.ReadDir(n.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("journal directory: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// nics are the NICs of the namespace that have a journal, sorted; none if the namespace has no directory.
func (n node) nics(namespace string) ([]string, error) {
	if n.Root == nil {
		return nil, nil
	}
	entries, err := fs.ReadDir(n.FS(), namespace)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journals: %w", err)
	}
	var nics []string
	for _, entry := range entries {
		nic, ok := strings.CutSuffix(entry.Name(), journalSuffix)
		if ok && !strings.HasPrefix(nic, ".") {
			nics = append(nics, nic)
		}
	}
	return nics, nil
}

// slow is how long a call waits before it reports what it waits for.
const slow = flock.Slow

// progress is NIC.Progress; nil: no one wants to know.
type progress func(text string)

// say waits until the caller's function has returned. The function runs on another thread: that of a call is in the
// pod's network, where a connection of the caller's would begin.
func (p progress) say(format string, args ...any) {
	if p == nil {
		return
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		p(fmt.Sprintf(format, args...))
	}()
	<-said
}

// during says the text after the time slow, unless the returned function is called first. Call that function once;
// after it has returned, nothing is said.
func (p progress) during(format string, args ...any) (end func()) {
	if p == nil {
		return func() {}
	}
	said := make(chan struct{})
	t := time.AfterFunc(slow, func() {
		defer close(said)
		p.say(format, args...)
	})
	return func() {
		if !t.Stop() {
			<-said
		}
	}
}
