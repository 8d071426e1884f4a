package cache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
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

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func named(name string) Record {
	r := least()
	r.Name, r.Tap = name, name+"-tap"
	return r
}

func TestFiles(t *testing.T) {
	dir, path := openDir(t)
	if records, err := List(dir); err != nil || len(records) > 0 {
		t.Errorf("List of an empty directory: %v, %v", records, err)
	}
	for _, r := range []Record{named("eth1"), full(), named("eth1-b")} { // as files: eth0.json, eth1-b.json, eth1.json
		if err := Write(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	// List ignores other files.
	writeFile(t, filepath.Join(path, "eth0.journal"), "nonsense")
	writeFile(t, filepath.Join(path, ".eth0.json.new"), "torn")
	writeFile(t, filepath.Join(path, ".json"), "nonsense")
	records, err := List(dir)
	if want := []Record{full(), named("eth1"), named("eth1-b")}; err != nil || !reflect.DeepEqual(records, want) {
		t.Errorf("List: %v, %v, want eth0, eth1, eth1-b", records, err)
	}
	if r, err := Read(dir, "eth0"); err != nil || !reflect.DeepEqual(r, full()) {
		t.Errorf("Read: %v, %v", r, err)
	}
	info, err := os.Stat(filepath.Join(path, "eth0.json"))
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("the record's file: %v, %v, want mode 0644", info, err)
	}
	for range 2 { // once more is no error
		if err := Remove(dir, "eth0"); err != nil {
			t.Error(err)
		}
		if _, err := Read(dir, "eth0"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Read of a removed record: %v, want fs.ErrNotExist", err)
		}
	}
	if _, err := os.Stat(filepath.Join(path, ".eth0.json.new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file of a killed Write is still there: %v", err)
	}
}

// TestFileError: the error for a bad record names the file and the field.
func TestFileError(t *testing.T) {
	text, err := Encode(full())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, text, field, words string }{
		{"eth0.json", strings.Replace(string(text), `"mtu": 1450`, `"mtu": 10`, 1), "mtu", "mtu: 10, want 68 to 65521"},
		{"eth0.json", strings.Replace(string(text), `"version": 1`, `"version": 9`, 1), "version", "version: 9, and this program reads 1"},
		{"eth7.json", string(text), "name", `"eth0", but the file is that of "eth7"`},
		{"eth0.json", string(text[:100]), "", "not a whole JSON object"},
		{"eth0.json", "", "", "not a whole JSON object"},
	} {
		dir, path := openDir(t)
		writeFile(t, filepath.Join(path, c.file), c.text)
		_, readErr := Read(dir, strings.TrimSuffix(c.file, ".json"))
		_, listErr := List(dir)
		for _, err := range []error{readErr, listErr} {
			var file *FileError
			if !errors.As(err, &file) || file.Path != filepath.Join(path, c.file) {
				t.Errorf("%v, want a *FileError of %s", err, filepath.Join(path, c.file))
				continue
			}
			var field *FieldError
			if c.field != "" && (!errors.As(err, &field) || field.Field != c.field) {
				t.Errorf("%v, want a *FieldError of %s", err, c.field)
			}
			if !strings.Contains(err.Error(), file.Path) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%q does not say %q and %q", err, file.Path, c.words)
			}
		}
	}
}

// TestWriteBad: Write refuses a bad record, and no name leads out of the directory.
func TestWriteBad(t *testing.T) {
	dir, path := openDir(t)
	for _, name := range []string{"", "..", "../eth0", "a/b", "sixteencharacter"} {
		var file *FileError
		var field *FieldError
		if err := Write(dir, named(name)); !errors.As(err, &file) || !errors.As(err, &field) || field.Field != "name" {
			t.Errorf("Write of a record called %q: %v, want a *FileError of its name", name, err)
		}
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) > 0 {
		t.Errorf("in the directory: %v, %v, want nothing", entries, err)
	}
	if _, err := Read(dir, "../eth0"); err == nil {
		t.Error("Read of ../eth0: no error")
	}
	if err := Remove(dir, "../eth0"); err == nil {
		t.Error("Remove of ../eth0: no error")
	}
}

// TestSameRecord: Write replaces the file only if the record differs.
func TestSameRecord(t *testing.T) {
	dir, path := openDir(t)
	inode := func() uint64 {
		t.Helper()
		info, err := os.Stat(filepath.Join(path, "eth0.json"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	if err := Write(dir, full()); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(filepath.Join(path, "eth0.json")) // so that another file cannot get its inode
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	first := inode()
	if err := Write(dir, full()); err != nil || inode() != first {
		t.Errorf("the same record again: %v, inode %d and %d", err, first, inode())
	}
	other := full()
	other.MTU++
	if err := Write(dir, other); err != nil || inode() == first {
		t.Errorf("another record: %v, but the file was not replaced in one step", err)
	}
	if r, err := Read(dir, "eth0"); err != nil || r.MTU != other.MTU {
		t.Errorf("Read: %v, %v", r.MTU, err)
	}
}

// TestReaderSeesWhole: while a record is replaced, a reader sees the old one or the new one.
func TestReaderSeesWhole(t *testing.T) {
	dir, _ := openDir(t)
	short, long := least(), full()
	if err := Write(dir, short); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		defer close(done)
		for i := range 200 {
			r := short
			if i%2 == 0 {
				r = long
			}
			if err := Write(dir, r); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer writer.Wait()
	for {
		r, err := Read(dir, "eth0")
		if err != nil {
			t.Errorf("Read beside Write: %v", err)
			return
		}
		if r.MTU != short.MTU && r.MTU != long.MTU {
			t.Errorf("Read beside Write: %+v", r)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// TestNotRegular: another user has put a FIFO, a link or a directory in a record's place. Read neither follows
// nor waits, and Write replaces it if it is no directory.
func TestNotRegular(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	text, err := Encode(full())
	if err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(path string) error{
		"a FIFO":                               func(p string) error { return syscall.Mkfifo(p, 0o666) },
		"a symbolic link out of the directory": func(p string) error { return os.Symlink(outside, p) },
		"a symbolic link to another file": func(p string) error {
			if err := os.WriteFile(p+".target", text, 0o644); err != nil {
				return err
			}
			return os.Symlink(filepath.Base(p)+".target", p)
		},
		"a directory": func(p string) error { return os.Mkdir(p, 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			writeFile(t, outside, string(text))
			dir, path := openDir(t)
			if err := plant(filepath.Join(path, "eth0.json")); err != nil {
				t.Fatal(err)
			}
			var file *FileError
			if _, err := Read(dir, "eth0"); !errors.As(err, &file) || !strings.Contains(err.Error(), "no regular file") {
				t.Errorf("Read: %v, want a *FileError that says: no regular file", err)
			}
			if name == "a directory" {
				if err := Write(dir, full()); !errors.As(err, &file) {
					t.Errorf("Write: %v, want a *FileError", err)
				}
				if entries, err := os.ReadDir(path); err != nil || len(entries) != 1 {
					t.Errorf("after a failed Write: %v, %v, want the directory alone", entries, err)
				}
				return
			}
			other := full()
			other.MTU++
			if err := Write(dir, other); err != nil {
				t.Errorf("Write: %v, want the planted file replaced", err)
			}
			if r, err := Read(dir, "eth0"); err != nil || r.MTU != other.MTU {
				t.Errorf("Read after Write: %v, %v", r.MTU, err)
			}
			if have, err := os.ReadFile(outside); err != nil || string(have) != string(text) {
				t.Errorf("the file outside has changed: %v", err)
			}
		})
	}
}
