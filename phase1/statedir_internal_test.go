package phase1

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestMadeDirectoryReplaced puts a symbolic link in the place of a directory that was just made. The mode of what the
// link leads to stays.
func TestMadeDirectoryReplaced(t *testing.T) {
	t.Parallel()
	const mode = 0o711
	elsewhere := t.TempDir()
	path := filepath.Join(t.TempDir(), "state")
	if err := errors.Join(os.Chmod(elsewhere, mode), os.Symlink(elsewhere, path)); err != nil {
		t.Fatal(err)
	}
	if err := changeMode(path, 0o755); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("have %v, want %v", err, fs.ErrPermission)
	}
	if info, err := os.Stat(elsewhere); err != nil || info.Mode() != fs.ModeDir|mode {
		t.Errorf("the link's target has the mode %v, %v, want it as it was", info.Mode(), err)
	}
}
