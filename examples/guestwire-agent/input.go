package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/schema"
	"github.com/guestwire/guestwire/infra"
)

// mostFile is the size of a configuration or a record that is read: the library writes no longer record.
const mostFile = 1 << 26

func readAll(file *os.File, most int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(file, int64(most)+1))
	if len(text) > most {
		err = fmt.Errorf("read %s: it has more than %d octets: name another file, or leave out what is not needed, such as a long annotation", file.Name(), most)
	}
	return text, err
}

// readFile reads a file, or standard input as -. A pipe may be one that nobody writes to: a signal ends the wait. The
// goroutine then stays until the process ends.
func readFile(ctx context.Context, path string) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	read := make(chan result, 1)
	go func() {
		file, err := os.Stdin, error(nil)
		if path != "-" {
			file, err = os.Open(path)
		}
		if err != nil {
			read <- result{nil, err}
			return
		}
		defer file.Close()
		text, err := readAll(file, mostFile)
		read <- result{text, err}
	}()
	select {
	case r := <-read:
		return r.text, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("read %s: %w", path, context.Cause(ctx))
	}
}

// readRecord reads a record from a file, or from standard input.
func readRecord(ctx context.Context, path string) (cache.Record, error) {
	text, err := readFile(ctx, path)
	if err != nil {
		return cache.Record{}, err
	}
	record, err := cache.Decode(text)
	if err != nil {
		err = fmt.Errorf("%w; want a record, as setup, activate and deactivate print with -json", err)
	}
	return record, err
}

// explained adds where in the text the error is, or where its field belongs: elsewhere, or as a flag. The text begins
// after the file's name.
func explained(err error, text []byte) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		before := string(text[:min(len(text), int(syntax.Offset))])
		return fmt.Errorf(":%d:%d: %w%s", 1+strings.Count(before, "\n"), len(before)-1-strings.LastIndex(before, "\n"), err, remedy(before, err.Error()))
	}
	var field *cache.FieldError
	const unknown = "no such field in this version" // perhaps with a field of a similar name
	if errors.As(err, &field) && strings.HasPrefix(field.Reason, unknown) {
		name := field.Field[strings.LastIndex(field.Field, ".")+1:]
		if places := schema.New(infra.Spec{}).Places(name); len(places) > 0 {
			return fmt.Errorf(": %w: it stands at %s", &cache.FieldError{Field: field.Field, Reason: unknown}, strings.Join(places, " or "))
		}
		if slices.Contains(strings.Fields(verbs[0].Flags), name) { // setup's
			return fmt.Errorf(": %w: it is the flag -%s of setup", err, name)
		}
	}
	return fmt.Errorf(": %w", err)
}
