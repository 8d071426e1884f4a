package cache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
)

// suffix makes a record's file name out of its interface's name.
const suffix = ".json"

// maxSize is far more than a record needs, or the journal of a namespace with 100,000 routes.
const maxSize = 1 << 25

// FileError says which record could not be read or written.
type FileError struct {
	Path string
	Err  error // wraps a *FieldError, or an error of the file system
}

func (e *FileError) Error() string { return "record " + e.Path + ": " + e.Err.Error() }
func (e *FileError) Unwrap() error { return e.Err }

// Encode validates the record and returns its document: indented JSON with a final newline.
func Encode(r Record) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// Decode is the reverse of Encode. It is strict: an unknown, repeated, mistyped or impossible field
// is an error that wraps a *FieldError.
func Decode(text []byte) (Record, error) {
	var r Record
	// The version comes first: a newer document may have fields that are unknown here.
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		var mismatch *json.UnmarshalTypeError
		if errors.As(err, &mismatch) && mismatch.Field != "" {
			return Record{}, &FieldError{Field: mismatch.Field, Reason: "want a number"}
		}
		return Record{}, fmt.Errorf("not a whole JSON object (torn, or not a record): %w", err)
	}
	if head.Version == nil {
		return Record{}, &FieldError{Field: "version", Reason: "missing: this is no record"}
	}
	if *head.Version != Version {
		r.Version = *head.Version
		return Record{}, r.Validate()
	}
	if err := decode("", text, reflect.ValueOf(&r).Elem()); err != nil {
		return Record{}, err
	}
	if err := r.Validate(); err != nil {
		return Record{}, err
	}
	return r, nil
}

// Write puts the record into dir as NAME.json, readable by everybody who can enter dir. A reader
// sees the old record or the new one, never a part. It changes nothing if the same record is there.
//
// The error is a *FileError.
func Write(dir *os.Root, r Record) error {
	name := r.Name + suffix
	text, err := Encode(r)
	if err != nil {
		return &FileError{filepath.Join(dir.Name(), name), err}
	}
	if old, err := ReadFile(dir, name); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return WriteFile(dir, name, text, 0o644)
}

// Remove takes the record of the interface out of dir. There may be none.
func Remove(dir *os.Root, nic string) error { return RemoveFile(dir, nic+suffix) }

// Read returns the record of one interface in dir. The error is a *FileError; it is
// fs.ErrNotExist if there is none.
func Read(dir *os.Root, nic string) (Record, error) {
	name := nic + suffix
	r, err := readRecord(dir, name)
	if err != nil {
		return Record{}, &FileError{filepath.Join(dir.Name(), name), err}
	}
	return r, nil
}

func readRecord(dir *os.Root, name string) (Record, error) {
	text, err := ReadFile(dir, name)
	if err != nil {
		return Record{}, err
	}
	r, err := Decode(text)
	if err != nil {
		return Record{}, err
	}
	if r.Name+suffix != name {
		return Record{}, &FieldError{Field: "name", Reason: fmt.Sprintf("%q is another interface's, this file is for %q", r.Name, strings.TrimSuffix(name, suffix))}
	}
	return r, nil
}

// List returns all records in dir, by name. One that cannot be read is an error: half a guest's
// network is no network.
func List(dir *os.Root) ([]Record, error) {
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return nil, &FileError{dir.Name(), err}
	}
	var records []Record
	for _, entry := range entries {
		nic, ok := strings.CutSuffix(entry.Name(), suffix)
		if !ok || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		r, err := Read(dir, nic)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b Record) int { return strings.Compare(a.Name, b.Name) })
	return records, nil
}

// ReadFile returns the contents of a regular file in dir, at most 32 MiB. It never waits, as
// opening a FIFO would.
func ReadFile(dir *os.Root, name string) ([]byte, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%v is no regular file", info.Mode())
	}
	if info.Size() > maxSize {
		return nil, fmt.Errorf("%d bytes, want at most %d", info.Size(), maxSize)
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSize))
}

// WriteFile puts a file into dir in one step: a temporary file, synced, renamed. The error is a
// *FileError, and then the old file, if any, is still there.
func WriteFile(dir *os.Root, name string, text []byte, mode fs.FileMode) error {
	if len(text) > maxSize {
		return &FileError{filepath.Join(dir.Name(), name), fmt.Errorf("%d bytes, want at most %d", len(text), maxSize)}
	}
	temporary := temporaryName(name)
	err := writeSynced(dir, temporary, text, mode)
	if err == nil {
		err = dir.Rename(temporary, name)
	}
	if err != nil {
		if undo := dir.Remove(temporary); undo != nil && !errors.Is(undo, fs.ErrNotExist) {
			err = errors.Join(err, undo)
		}
		return &FileError{filepath.Join(dir.Name(), name), err}
	}
	return nil
}

// RemoveFile takes a file away that WriteFile has written, and what a writer left that was killed.
// There may be none. The error is a *FileError.
func RemoveFile(dir *os.Root, name string) error {
	for _, n := range []string{temporaryName(name), name} {
		if err := dir.Remove(n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &FileError{filepath.Join(dir.Name(), n), err}
		}
	}
	return nil
}

func temporaryName(name string) string { return "." + name + ".new" }

func writeSynced(dir *os.Root, name string, text []byte, mode fs.FileMode) error {
	const create = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := dir.OpenFile(name, create, mode)
	if errors.Is(err, fs.ErrExist) { // left over from a writer that was killed
		if err = dir.Remove(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			f, err = dir.OpenFile(name, create, mode)
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask says
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
