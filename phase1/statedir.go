package phase1

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/statefile"
)

// openState opens the directory at the path that realState returned. The error is fs.ErrNotExist if the directory
// is not there. A directory that is not root's alone is refused: Serve believes what lies there.
func (s *session) openState(path string) error {
	if _, err := rootPath(path, 0o022); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	// The path may lead elsewhere by now.
	info, err := dir.Stat(".")
	if err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || stat.Uid != 0 || info.Mode().Perm()&0o022 != 0 {
			err = fmt.Errorf("%s: replaced while it was opened: %w", path, fs.ErrPermission)
		}
	}
	if err != nil {
		dir.Close()
		return fmt.Errorf("state directory: %w", err)
	}
	s.state.Root = dir
	return nil
}

// lockState keeps other calls from writing or removing a record in the directory.
func (s *session) lockState(ctx context.Context) error {
	unlock, err := s.node.lockState(ctx, s.state.Name(), s.report)
	if err != nil {
		return fmt.Errorf("state directory %s: %w", s.state.Name(), err)
	}
	s.state.unlock = unlock
	return nil
}

// takeState makes the directory if it is not there, opens and locks it, and refuses it if the record there is
// another namespace's, or if the owner could not read the record. Without a path there is no record.
func (s *session) takeState(ctx context.Context, path string, o resolvedOwner) (err error) {
	if path == "" {
		return nil
	}
	real, err := realState(path)
	if err == nil {
		err = s.node.checkOutside(real)
	}
	if err != nil {
		return err
	}
	made, err := makeState(real)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if made {
		defer func() {
			if err != nil {
				_ = os.Remove(real) // it is empty, or another call uses it
			}
		}()
	}
	if err := s.openState(real); err != nil {
		return err
	}
	if err := s.lockState(ctx); err != nil {
		return err
	}
	return s.checkState(ctx, o)
}

// withState is the journal with the real path of the State, whatever the caller wrote.
func (s *session) withState(j journal) journal {
	if s.state.Root != nil {
		j.Spec.State = s.state.Name()
	}
	return j
}

// writeRecord writes the record, if the wiring has a State.
func (s *session) writeRecord(r cache.Record) error {
	if s.state.Root == nil {
		return nil
	}
	return cache.Write(s.state.Root, r)
}

// checkOutside refuses a State that is the journal directory or lies in it, where the launcher cannot read.
func (n node) checkOutside(real string) error {
	dir, err := filepath.EvalSymlinks(n.Name())
	if n.Root == nil {
		dir, err = realAbove(filepath.Clean(n.Name()))
	}
	if err != nil {
		return fmt.Errorf("journal directory: %w", err)
	}
	if real == dir || strings.HasPrefix(real, dir+"/") {
		return &cache.FieldError{Field: "state", Reason: fmt.Sprintf("%s is in the directory for journals, which only root can enter: name another one, such as /run/guestwire/vm1", real)}
	}
	return nil
}

// checkState refuses the open directory if takeState would.
func (s *session) checkState(ctx context.Context, o resolvedOwner) error {
	if err := s.checkRecord(ctx); err != nil {
		return err
	}
	return checkReadable(o, s.state.Name())
}

// previewState is takeState for a Plan, which makes nothing. A directory that is not there or not named is no error.
func (s *session) previewState(ctx context.Context, path string, o resolvedOwner) error {
	if path == "" {
		return nil
	}
	real, err := realState(path)
	if err == nil {
		err = s.node.checkOutside(real)
	}
	if err != nil {
		return err
	}
	if err := s.openState(real); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return s.checkState(ctx, o)
}

// checkRecord refuses a State whose record of a NIC with this name belongs to another namespace that lives, as a
// guest may be using it, or to another version of guestwire. A record that cannot be read for other reasons is
// written anew.
func (s *session) checkRecord(ctx context.Context) error {
	path := filepath.Join(s.state.Name(), s.nic+".json")
	r, err := recordHead(s.state.Root, s.nic)
	if err != nil {
		return err
	}
	if r.Version != 0 && r.Version != cache.Version {
		way := "use the version of guestwire that wrote it"
		switch r.Namespace {
		case "":
		case s.identity.Name():
			way += ", or take the NIC down (Teardown, guestwire-agent teardown)"
		default:
			way += ", or call Forget if the namespace " + r.Namespace + " is gone (guestwire-agent forget)"
		}
		return fmt.Errorf("%w by another version of guestwire, which wrote %s (version %d, and this program reads %d): %s",
			infra.ErrWired, path, r.Version, cache.Version, way)
	}
	if r.Namespace == "" || r.Namespace == s.identity.Name() {
		return nil
	}
	found, err := find(ctx, r.Namespace)
	if errors.Is(err, netns.ErrNoName) {
		return nil // the record is damaged
	}
	if err != nil {
		return fmt.Errorf("record %s: %w", path, err)
	}
	if found != nil {
		return fmt.Errorf("%w in another namespace (%s), which has the record %s: name another state directory, or take that NIC down first (guestwire-agent teardown -netns %s -nic %s)",
			infra.ErrWired, found.Places()[0], path, infra.ShellWord(found.Places()[0]), infra.ShellWord(s.nic))
	}
	if err := checkGone(r.Namespace); err != nil {
		return fmt.Errorf("%w in another namespace (%s), which has the record %s and is not found, but %w: name another state directory, or call Setup in the node's PID namespace; in a container that has its journals and its state directory for itself, Forget removes the record (Gone.Own, guestwire-agent forget -own)",
			infra.ErrWired, r.Namespace, path, err)
	}
	return nil
}

// forgetEarlier removes the journal of a wiring whose record is about to be replaced, as no later call would find it by
// the State. takeState has found that wiring's namespace gone. A journal that stays is the next Forget's.
func (s *session) forgetEarlier() {
	if s.state.Root == nil {
		return
	}
	r, err := recordHead(s.state.Root, s.nic)
	if err != nil || r.Namespace == s.identity.Name() {
		return
	}
	if _, err := netns.Named(r.Namespace); err != nil {
		return // no record, or a damaged one
	}
	if w, ok := s.node.describe(r.Namespace, s.nic); !ok || w.State != s.state.Name() {
		return
	}
	s.report.say("removes the journal %s of a namespace that is gone", s.node.path(r.Namespace, s.nic))
	if err := s.node.removeJournal(r.Namespace, s.nic); err != nil {
		s.report.say("%v", err)
	}
}

// head is the part of a record that says whose it is. It is read of a record of another version, too.
type head struct {
	Version   int
	Namespace string
}

// recordHead returns an empty head if there is no record, or a damaged one.
func recordHead(dir *os.Root, nic string) (head, error) {
	var r head
	text, err := statefile.Read(dir, nic+".json")
	if isUnreadable(err) {
		return r, fmt.Errorf("record %s: %w", filepath.Join(dir.Name(), nic+".json"), err)
	}
	if err == nil {
		_ = json.Unmarshal(text, &r) // what can be read counts
	}
	return r, nil
}

// isUnreadable reports whether err is a system call's that kept a file from being read, which may be as it should: it
// is not the error of a file that is not there or that is damaged.
func isUnreadable(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && errno != syscall.ENOENT
}

// find looks for the namespace with this name; nil: it is gone.
func find(ctx context.Context, namespace string) (*netns.Found, error) {
	identity, err := netns.Named(namespace)
	if err != nil {
		return nil, err
	}
	found, _, err := netns.Find(ctx, []netns.Identity{identity})
	return found[identity], err
}

// withPlace adds where the namespace is: "08f437ce-4026532178-17 (/run/netns/pod)". One that is gone, or is another
// node's, has its name alone.
func withPlace(ctx context.Context, namespace string) string {
	found, err := find(ctx, namespace)
	if err != nil || found == nil {
		return namespace
	}
	return namespace + " (" + found.Places()[0] + ")"
}

// findState opens and locks the directory, unless it was removed or replaced by something else, or is not known: then
// it has no record.
func (s *session) findState(ctx context.Context, path string) error {
	if path == "" {
		return nil
	}
	info, err := os.Stat(path)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || err == nil && !info.IsDir() {
		return nil
	}
	err = s.openState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.lockState(ctx)
}

// checkStatePath is checkPath, and refuses a path that the journal could not hold.
func checkStatePath(path string) error {
	if !utf8.ValidString(path) {
		return &cache.FieldError{Field: "state", Reason: fmt.Sprintf("%q, want UTF-8", path)}
	}
	return checkPath("state", path, "/run/guestwire/vm1")
}

// checkNewState is checkStatePath, and refuses a path that no guest's records should be in.
func checkNewState(path, nic string) error {
	switch clean := filepath.Clean(path); {
	case filepath.Base(clean) == nic+".json":
		return &cache.FieldError{Field: "state", Reason: fmt.Sprintf("%s is the path of a record: name its directory, %s", path, filepath.Dir(clean))}
	case clean == "/":
		return &cache.FieldError{Field: "state", Reason: "/ has the whole system's files: name a directory of the guest's own, such as /run/guestwire/vm1"}
	}
	return checkStatePath(path)
}

// checkPath refuses a path that depends on the caller's working directory, as the next call may have another one, and a
// path that is longer than any of the kernel's: an error would quote it. An empty one passes.
func checkPath(field, path, example string) error {
	switch {
	case len(path) >= unix.PathMax:
		return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%d octets, want a path of at most %d", len(path), unix.PathMax-1)}
	case path != "" && !filepath.IsAbs(path):
		return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%q, want an absolute path, such as %s", path, example)}
	}
	return nil
}

// realState is the path without symbolic links, as journals have it. A directory that is not there is the one
// that Setup would make. A path that another user could lead elsewhere is refused.
func realState(path string) (string, error) {
	if err := checkStatePath(path); err != nil {
		return "", err
	}
	real, err := rootPath(path, 0o022)
	if errors.Is(err, fs.ErrNotExist) {
		real, err = realAbove(filepath.Clean(path))
	}
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	return real, nil
}

// realAbove is the path of a directory that is not there, without the symbolic links above it.
func realAbove(path string) (string, error) {
	above, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		above, err = realAbove(filepath.Dir(path))
	}
	return filepath.Join(above, filepath.Base(path)), err
}

// checkState refuses a State that is not the one of the wiring. One that is left out is.
func (j *journal) checkState(path string) error {
	if path == "" || path == j.Spec.State {
		return nil
	}
	if j.Spec.State == "" {
		return &cache.FieldError{Field: "state", Reason: fmt.Sprintf("%s, but %s was wired without a state directory: leave it out, or call Teardown first (guestwire-agent teardown)", path, j.NIC)}
	}
	real, err := realState(path)
	if err != nil {
		return err
	}
	if real != j.Spec.State {
		return &cache.FieldError{Field: "state", Reason: fmt.Sprintf("%s, but the record of %s is in %s: name that directory; a teardown needs none", path, j.NIC, j.Spec.State)}
	}
	return nil
}

// rootPath is the path of a directory without symbolic links. It refuses a path that another user than root can lead
// elsewhere: the directory, all directories above it, and the symbolic links on the way have to be root's. Above the
// directory, other users may write to a sticky directory such as /tmp, where they cannot move root's files. What
// belongs to a user from outside of a user namespace: see outsideUID. The directory itself must have none of the bits
// in its mode.
func rootPath(path string, bits fs.FileMode) (string, error) {
	real, info, err := safePath(path)
	if err != nil {
		return "", err
	}
	if err := checkDirectory(real, info); err != nil {
		return "", err
	}
	return real, checkRootOnly(real, info, bits)
}

// safePath is rootPath without a check of the directory itself. It returns Lstat of the directory. It looks at each
// directory once, after those above it were checked: then no user but root can put another one in its place.
func safePath(path string) (real string, info fs.FileInfo, err error) {
	const linksMax = 40 // as the kernel has it (MAXSYMLINKS of linux/namei.h)
	real, links := "/", 0
	if info, err = os.Lstat(real); err != nil {
		return "", nil, err
	}
	rest := strings.Split(path, "/")
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" {
			continue
		}
		if err := checkRootAbove(real, info); err != nil {
			return "", nil, err
		}
		next := filepath.Join(real, name)
		at, err := os.Lstat(next)
		if err != nil {
			return "", nil, err
		}
		if at.Mode()&fs.ModeSymlink == 0 {
			real, info = next, at
			continue
		}
		if err := checkTrusted(next, at, 0); err != nil {
			return "", nil, err
		}
		if links++; links > linksMax {
			return "", nil, &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", nil, err
		}
		if filepath.IsAbs(target) {
			real = "/"
			if info, err = os.Lstat(real); err != nil {
				return "", nil, err
			}
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return real, info, nil
}

// checkDirectory refuses a file in a directory's place, whose owner and mode matter to no one.
func checkDirectory(path string, info fs.FileInfo) error {
	if !info.IsDir() {
		return fmt.Errorf("%s: %w: name another one", path, unix.ENOTDIR)
	}
	return nil
}

// checkRootAbove refuses a directory in which another user could move root's files.
func checkRootAbove(path string, info fs.FileInfo) error {
	if err := checkDirectory(path, info); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSticky != 0 {
		return checkTrusted(path, info, 0)
	}
	return checkTrusted(path, info, 0o022)
}

// checkRootParent refuses a path below a directory in which another user could put another file in its place.
func checkRootParent(path string) error {
	above, info, err := safePath(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there: make it first (mkdir -p %s): %w", filepath.Dir(path), infra.ShellWord(filepath.Dir(path)), fs.ErrNotExist)
	}
	if err != nil {
		return err
	}
	return checkRootAbove(above, info)
}

// makeState makes the directory, where no other user can put another one in its place. Made is false if the
// directory was there.
func makeState(path string) (made bool, err error) {
	path = filepath.Clean(path)
	if err := checkRootParent(path); err != nil {
		return false, err
	}
	return makeDirectory(path, 0o755)
}

// makeDirectory makes the directory with this mode, whatever the umask says: the launcher reads in a State. Made is
// false if the path was there.
func makeDirectory(path string, mode fs.FileMode) (made bool, err error) {
	err = os.Mkdir(path, mode)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, changeMode(path, mode)
}

// changeMode changes the mode of a directory that was just made, never of what a symbolic link in its place leads to.
func changeMode(path string, mode fs.FileMode) error {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("replaced while it was made: %w: %w", fs.ErrPermission, err)
	}
	defer dir.Close()
	return dir.Chmod(mode)
}

// checkRootOnly refuses a file that is not root's, or that has one of the bits in its mode.
func checkRootOnly(path string, info fs.FileInfo, bits fs.FileMode) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 || info.Mode().Perm()&bits != 0 {
		perm := info.Mode().Perm()
		if isOutside(info) {
			return fmt.Errorf("%s: of a user outside of this user namespace, mode %04o, want owner 0 and mode %04o or less (name another directory): %w", path, perm, perm&^bits, fs.ErrPermission)
		}
		if ok && mayBeOutside(stat.Uid) {
			return fmt.Errorf("%s: owner %d, which is how a user outside of this user namespace is shown as well, mode %04o, want owner 0 and mode %04o or less (name another directory; / itself has to be a directory of the namespace's root, or the namespace without user %[2]d): %[5]w",
				path, stat.Uid, perm, perm&^bits, fs.ErrPermission)
		}
		var commands []string
		if !ok || stat.Uid != 0 {
			chown := "chown root "
			if info.Mode()&fs.ModeSymlink != 0 {
				chown = "chown -h root " // the link, not its target
			}
			commands = append(commands, chown+infra.ShellWord(path))
		}
		if perm&bits != 0 {
			commands = append(commands, fmt.Sprintf("chmod %04o %s", perm&^bits, infra.ShellWord(path)))
		}
		return fmt.Errorf("%s: owner %d, mode %04o, want owner 0 and mode %04o or less (name another one, or, if it serves nothing else, %s): %w",
			path, stat.Uid, perm, perm&^bits, strings.Join(commands, "; "), fs.ErrPermission)
	}
	return nil
}
