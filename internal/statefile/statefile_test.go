package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func openDir(t *testing.T) (*os.Root, string) {
	t.Helper()
	path := t.TempDir()
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir, path
}

// TestWriteReadRemove: a file comes, is replaced in one step, and goes.
func TestWriteReadRemove(t *testing.T) {
	dir, path := openDir(t)
	for _, want := range []string{"first", "second, longer", ""} {
		if err := Write(dir, "file", []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if have, err := Read(dir, "file"); err != nil || string(have) != want {
			t.Errorf("Read: %q, %v, want %q", have, err, want)
		}
	}
	// A killed Write leaves its temporary file.
	if err := os.WriteFile(filepath.Join(path, ".file.new"), []byte("to"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second Remove finds nothing, which is no error
		if err := Remove(dir, "file"); err != nil {
			t.Error(err)
		}
		if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 {
			t.Errorf("after Remove: %v, %v, want an empty directory", entries, err)
		}
	}
	if _, err := Read(dir, "file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read of a removed file: %v, want fs.ErrNotExist", err)
	}
}

// TestPlanted: another user has put something in place of the temporary file, or of the file. Write
// follows no link, and Read neither follows a link nor waits.
func TestPlanted(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	for name, plant := range map[string]func(path string) error{
		"FIFO":          func(p string) error { return syscall.Mkfifo(p, 0o666) },
		"symbolic link": func(p string) error { return os.Symlink(outside, p) },
	} {
		for _, at := range []string{"file", ".file.new"} {
			t.Run(name+" at "+at, func(t *testing.T) {
				if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
					t.Fatal(err)
				}
				dir, path := openDir(t)
				if err := plant(filepath.Join(path, at)); err != nil {
					t.Fatal(err)
				}
				if _, err := Read(dir, at); err == nil || !strings.Contains(err.Error(), "no regular file") {
					t.Errorf("Read: %v, want: no regular file", err)
				}
				if err := Write(dir, "file", []byte("text"), 0o600); err != nil {
					t.Fatal(err)
				}
				if have, err := Read(dir, "file"); err != nil || string(have) != "text" {
					t.Errorf("Read after Write: %q, %v", have, err)
				}
				if have, err := os.ReadFile(outside); err != nil || string(have) != "untouched" {
					t.Errorf("the file outside: %q, %v", have, err)
				}
				if entries, err := os.ReadDir(path); err != nil || len(entries) != 1 {
					t.Errorf("in the directory: %v, %v, want the file alone", entries, err)
				}
			})
		}
	}
}

// TestFailedWrite: after an error the directory is as it was.
func TestFailedWrite(t *testing.T) {
	dir, path := openDir(t)
	if err := os.Mkdir(filepath.Join(path, "file"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, "file", []byte("text"), 0o600); err == nil {
		t.Error("Write in place of a directory: no error")
	}
	if err := Write(dir, "large", make([]byte, maxSize+1), 0o600); err == nil || !strings.Contains(err.Error(), "67108865 bytes, want at most 67108864") {
		t.Errorf("Write of too much: %v", err)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 1 {
		t.Errorf("in the directory: %v, %v, want the directory alone", entries, err)
	}
}

func TestReadSize(t *testing.T) {
	dir, path := openDir(t)
	for name, size := range map[string]int64{"most": maxSize, "more": maxSize + 1} {
		if err := os.WriteFile(filepath.Join(path, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(path, name), size); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := Read(dir, "most"); err != nil || len(text) != maxSize {
		t.Errorf("a file of the largest size: %d octets, %v", len(text), err)
	}
	if _, err := Read(dir, "more"); err == nil || !strings.Contains(err.Error(), "67108865 bytes, want at most 67108864") {
		t.Errorf("a larger file: %v", err)
	}
}

// TestWriteMode: the file has the mode that was asked for, whatever the umask is.
func TestWriteMode(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	dir, path := openDir(t)
	for _, mode := range []fs.FileMode{0o600, 0o644, 0o666} {
		if err := Write(dir, "file", []byte("text"), mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(path, "file"))
		if err != nil || info.Mode() != mode {
			t.Errorf("%v, %v, want mode %v", info.Mode(), err, mode)
		}
	}
}
