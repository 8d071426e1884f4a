package phase1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/guestwire/guestwire/cache"
)

// stateMode says what a call needs of the state directory.
type stateMode int

const (
	createState stateMode = iota // the directory is made if it is not there
	openState                    // the directory may be absent, or have no name
)

// openStateDir opens the directory, and refuses one that is not root's alone: phase1 believes what lies there.
// The result is nil if mode allows that there is none.
func openStateDir(path string, mode stateMode) (*os.Root, error) {
	if path == "" && mode == openState {
		return nil, nil
	}
	if path == "" {
		return nil, &cache.FieldError{Field: "state", Reason: "missing: name a directory for records and journals, such as /run/guestwire/vm1"}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if mode == createState {
		if err := makeState(path); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	if err := checkRootPath(path); errors.Is(err, fs.ErrNotExist) && mode == openState {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	return dir, nil
}

// checkRootPath refuses a path that another user than root can lead elsewhere: the directory, all directories
// above it, and the symbolic links on the way have to be root's. Above the directory, other users may write to
// a sticky directory such as /tmp, where they cannot move root's files.
func checkRootPath(path string) error {
	if err := checkRootAbove(path); err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if err := checkRootAbove(real); err != nil {
		return err
	}
	if real != path {
		if err := checkRootOnly(path, 0); err != nil {
			return err
		}
	}
	return checkRootOnly(real, 0o022)
}

// makeState makes the directory, where no other user can put another one in its place.
func makeState(path string) error {
	above, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there: make it first (mkdir -p %[1]s): %w", filepath.Dir(path), fs.ErrNotExist)
	}
	if err != nil {
		return err
	}
	for _, p := range []string{path, filepath.Join(above, "state")} {
		if err := checkRootAbove(p); err != nil {
			return err
		}
	}
	err = os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(path, 0o755) // whatever the umask says: the launcher reads there
}

// checkRootAbove checks the directories and links that the path leads through.
func checkRootAbove(path string) error {
	for path != "/" {
		path = filepath.Dir(path)
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if info.Mode()&(fs.ModeSymlink|fs.ModeSticky) != 0 {
			err = checkRootOnly(path, 0)
		} else {
			err = checkRootOnly(path, 0o022)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkRootOnly refuses a file that is not root's, or that has one of the bits in its mode.
func checkRootOnly(path string, bits fs.FileMode) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 || info.Mode().Perm()&bits != 0 {
		perm := info.Mode().Perm()
		return fmt.Errorf("%s: owner %d, mode %04o, want owner 0 and mode %04[4]o or less (chown root %[1]s; chmod %04[4]o %[1]s): %[5]w",
			path, stat.Uid, perm, perm&^bits, fs.ErrPermission)
	}
	return nil
}
