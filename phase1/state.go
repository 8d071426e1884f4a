package phase1

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
)

// stateMode says what a call needs of the state directory.
type stateMode int

const (
	createState   stateMode = iota // it is made if it is not there
	existingState                  // it has to be there
	previewState                   // it may be there, or not be named at all
)

// openState opens the directory, if it is root's alone: what lies there is believed.
func openState(path string, mode stateMode) (*os.Root, error) {
	if path == "" && mode == previewState {
		return nil, nil
	}
	if path == "" {
		return nil, &cache.FieldError{Field: "state", Reason: "missing: name a directory for records and journals, such as /run/guestwire/vm1"}
	}
	if mode == createState {
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	dir, err := os.OpenRoot(path)
	if errors.Is(err, fs.ErrNotExist) && mode == previewState {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := rootOnly(dir); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func rootOnly(dir *os.Root) error {
	info, err := dir.Stat(".")
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("state directory %s: mode %v, owner %d: others could write there (chown root, chmod go-w): %w",
			dir.Name(), info.Mode().Perm(), stat.Uid, fs.ErrPermission)
	}
	return nil
}

// journal is what Setup has to know to take up or to undo an earlier one. It is on disk before the
// first change and goes last.
type journal struct {
	Version   int            `json:"version"`
	Namespace netns.Identity `json:"namespace"`
	infra.Journal
}

const journalVersion = 1

func (s *session) journalName() string { return s.nic + ".journal" }

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
