package cache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/statefile"
	"github.com/guestwire/guestwire/internal/strictjson"
)

// suffix makes a record's file name out of its interface's name.
const suffix = ".json"

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
	var bad *strictjson.Error
	if err := strictjson.Unmarshal("", text, &r); errors.As(err, &bad) {
		return Record{}, &FieldError{Field: bad.Field, Reason: bad.Reason}
	} else if err != nil {
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
	if old, err := statefile.Read(dir, name); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := statefile.Write(dir, name, text, 0o644); err != nil {
		return &FileError{filepath.Join(dir.Name(), name), err}
	}
	return nil
}

// Remove removes the record of the interface from dir. It is no error if there is none. The error is a
// *FileError.
func Remove(dir *os.Root, nic string) error {
	name := nic + suffix
	if err := statefile.Remove(dir, name); err != nil {
		return &FileError{filepath.Join(dir.Name(), name), err}
	}
	return nil
}

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
	text, err := statefile.Read(dir, name)
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
