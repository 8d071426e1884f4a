package phase1

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
)

// stateMode says what a call needs of the state directory.
type stateMode int

const (
	createState  stateMode = iota // it is made if it is not there
	previewState                  // it may be there, or not be named at all
)

// openState opens the directory, if it is root's alone: what lies there is believed.
func openState(path string, mode stateMode) (*os.Root, error) {
	if path == "" && mode == previewState {
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
	if err := rootPath(path); errors.Is(err, fs.ErrNotExist) && mode == previewState {
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

// rootPath says whether nobody but root can change what the path leads to: the directory and all
// above it, and the links on the way, are root's. Above it others may write where they cannot move
// root's (a sticky directory, such as /tmp).
func rootPath(path string) error {
	if err := rootAbove(path); err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if err := rootAbove(real); err != nil {
		return err
	}
	if real != path {
		if err := rootOnly(path, 0); err != nil {
			return err
		}
	}
	return rootOnly(real, 0o022)
}

// makeState makes the directory where nobody else can put another one in its place.
func makeState(path string) error {
	above, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there: make it first (mkdir -p %[1]s): %w", filepath.Dir(path), fs.ErrNotExist)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(rootAbove(path), rootAbove(filepath.Join(above, "state"))); err != nil {
		return err
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

// rootAbove looks at what the path leads through.
func rootAbove(path string) error {
	for path != "/" {
		path = filepath.Dir(path)
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if info.Mode()&(fs.ModeSymlink|fs.ModeSticky) != 0 {
			err = rootOnly(path, 0)
		} else {
			err = rootOnly(path, 0o022)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rootOnly says whether a file is root's, and has none of the bits in its mode.
func rootOnly(path string, bits fs.FileMode) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 || info.Mode().Perm()&bits != 0 {
		return fmt.Errorf("%s: mode %v, owner %d: others could write there (chown root, chmod go-w): %w",
			path, info.Mode().Perm(), stat.Uid, fs.ErrPermission)
	}
	return nil
}

// forget removes what was left of a NIC whose namespace is gone.
func forget(c Config) error {
	if err := cache.CheckName("nic", c.NIC); err != nil {
		return err
	}
	dir, err := openState(c.State, previewState)
	if err != nil || dir == nil {
		return err
	}
	defer dir.Close()
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	errs := []error{cache.Remove(dir, c.NIC)}
	for _, entry := range entries {
		if nic, _, ok := cutJournalName(entry.Name()); ok && nic == c.NIC {
			errs = append(errs, cache.RemoveFile(dir, entry.Name()))
		}
	}
	return errors.Join(errs...)
}

// journal is what Setup has to know to take up or to undo an earlier one. It is on disk before the
// first change and goes last.
type journal struct {
	Version   int            `json:"version"`
	Namespace netns.Identity `json:"namespace"`
	infra.Journal
}

const journalVersion = 1

// journalName tells the namespace too, so that one that comes under an old name gets the full work.
func (s *session) journalName() string { return s.nic + "@" + s.identity.Name() + journalSuffix }

const journalSuffix = ".journal"

func cutJournalName(name string) (nic, namespace string, ok bool) {
	name, journal := strings.CutSuffix(name, journalSuffix)
	nic, namespace, ok = strings.Cut(name, "@")
	return nic, namespace, ok && journal
}

// readJournal returns nil if there is none of this namespace.
func (s *session) readJournal() (*journal, error) {
	if s.dir == nil {
		return nil, nil
	}
	text, err := cache.ReadFile(s.dir, s.journalName())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	path := s.dir.Name() + "/" + s.journalName()
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	var j journal
	if err := json.Unmarshal(text, &j); err != nil {
		return nil, fmt.Errorf("journal %s: %w: the state before Setup is lost; remove the file, and lay the namespace anew", path, err)
	}
	if j.Version != journalVersion {
		return nil, fmt.Errorf("journal %s: version %d, want %d: use the program that wrote it", path, j.Version, journalVersion)
	}
	if j.Namespace != s.identity {
		return nil, nil // of a namespace that is gone
	}
	return &j, nil
}

// others are the journals of the namespace's other NICs in the same directory.
func (s *session) others() ([]*journal, error) {
	if s.dir == nil {
		return nil, nil
	}
	entries, err := fs.ReadDir(s.dir.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	var others []*journal
	for _, entry := range entries {
		nic, namespace, ok := cutJournalName(entry.Name())
		if !ok || nic == s.nic || namespace != s.identity.Name() {
			continue
		}
		other := *s
		other.nic = nic
		journal, err := other.readJournal()
		if err != nil {
			return nil, err
		}
		if journal != nil {
			others = append(others, journal)
		}
	}
	return others, nil
}

func (s *session) writeJournal(j infra.Journal) error {
	text, err := json.Marshal(journal{Version: journalVersion, Namespace: s.identity, Journal: j})
	if err != nil {
		return fmt.Errorf("journal of NIC %s: %w", s.nic, err)
	}
	if old, err := cache.ReadFile(s.dir, s.journalName()); err == nil && string(old) == string(text) {
		return nil
	}
	if err := cache.WriteFile(s.dir, s.journalName(), text, 0o600); err != nil {
		return fmt.Errorf("journal of NIC %s: %w", s.nic, err)
	}
	return nil
}

func (s *session) removeJournal() error {
	if err := cache.RemoveFile(s.dir, s.journalName()); err != nil {
		return fmt.Errorf("journal of NIC %s: %w", s.nic, err)
	}
	return nil
}
