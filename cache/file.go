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

// suffix follows the interface's name in the name of a record's file.
const suffix = ".json"

// mode is that of a record's file.
const mode fs.FileMode = 0o644

// FileError reports a record that could not be read, written or removed.
type FileError struct {
	Path string
	Err  error // wraps a *FieldError, or an error of the file system or of JSON
}

func (e *FileError) Error() string { return "record " + e.Path + ": " + e.Err.Error() }
func (e *FileError) Unwrap() error { return e.Err }

// Encode returns the record as indented JSON with a final newline. The error is a [*FieldError]: the record is not
// valid.
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

// Decode is the reverse of [Encode]. Unknown fields, repeated ones and values of the wrong type are errors. If text is
// a JSON object, the error is a [*FieldError].
func Decode(text []byte) (Record, error) {
	var r Record
	// The version is checked first: a record of another version may have fields that are
	// unknown here.
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		var mismatch *json.UnmarshalTypeError
		if errors.As(err, &mismatch) && mismatch.Field != "" {
			return Record{}, &FieldError{Field: mismatch.Field, Reason: "want a number"}
		}
		if mismatch != nil { // its text is that of the Go type
			err = fmt.Errorf("it is a JSON %s", mismatch.Value)
		}
		return Record{}, fmt.Errorf("not a whole JSON object (cut short, or no record): %w", err)
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

// Write writes the record to dir as NAME.json, mode 0644. If the file has the same record already, Write leaves it
// alone. A reader sees the old record or the new one. The error is a [*FileError], and wraps a [*FieldError] if the
// record is not valid.
func Write(dir *os.Root, r Record) error {
	name := r.Name + suffix
	text, err := Encode(r)
	if err != nil {
		return &FileError{filepath.Join(dir.Name(), name), err}
	}
	if old, err := statefile.Read(dir, name); err == nil && bytes.Equal(old, text) {
		if info, err := dir.Lstat(name); err == nil && info.Mode() == mode {
			return nil
		}
	}
	if err := statefile.Write(dir, name, text, mode); err != nil {
		return &FileError{filepath.Join(dir.Name(), name), err}
	}
	return nil
}

// Remove removes a record from dir, if it is there. The error is a [*FileError].
func Remove(dir *os.Root, nic string) error {
	name := nic + suffix
	if err := statefile.Remove(dir, name); err != nil {
		return &FileError{filepath.Join(dir.Name(), name), err}
	}
	return nil
}

// Read returns a record of dir. The error is a [*FileError]. It is fs.ErrNotExist if there is no record, and wraps a
// [*FieldError] if the record is not valid.
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
		return Record{}, &FieldError{Field: "name", Reason: fmt.Sprintf("%q, but the file is that of %q: a record cannot be renamed", r.Name, strings.TrimSuffix(name, suffix))}
	}
	return r, nil
}

// List returns all records in dir, sorted by name. If one cannot be read, List returns no record, as a guest with some
// of its interfaces would be wrong in silence. The error is a [*FileError].
func List(dir *os.Root) ([]Record, error) {
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return nil, &FileError{dir.Name(), err}
	}
	var nics []string
	for _, entry := range entries {
		if nic, ok := strings.CutSuffix(entry.Name(), suffix); ok && !strings.HasPrefix(entry.Name(), ".") {
			nics = append(nics, nic)
		}
	}
	slices.Sort(nics)
	var records []Record
	for _, nic := range nics {
		r, err := Read(dir, nic)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}
