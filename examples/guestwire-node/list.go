package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// update writes the derived list, or removes it if the source is gone or names guestwire itself. It removes derived
// lists with other names, or drains one of another directory while pods are wired. It returns what it did, in words, or
// "" if nothing had to be done. After an error the list is as it was.
func (l cniLists) update(ctx context.Context) (did string, err error) {
	if did, err = l.write(ctx); err != nil {
		return did, err
	}
	others, err := l.derived()
	if err != nil {
		return did, err
	}
	all := []string{did}
	for _, path := range others {
		if path == l.path() { // the others would be chained twice, or taken in its place
			continue
		}
		did, err := l.replaced(ctx, path)
		if err != nil {
			return "", err
		}
		all = append(all, did)
	}
	return joined(all), nil
}

// replaced removes a derived list that is not the one of now, or drains it.
func (l cniLists) replaced(ctx context.Context, path string) (did string, err error) {
	if l.former == nil || filepath.Dir(path) == l.to {
		return l.removeOwn(ctx, path, "the list is "+l.path()+" now")
	}
	l.to, l.name, l.entry = filepath.Dir(path), filepath.Base(path), l.former
	return l.write(ctx)
}

// write is update of the one list.
func (l cniLists) write(ctx context.Context) (did string, err error) {
	if err := l.checkOwn(l.path()); err != nil {
		return "", err
	}
	source, err := l.source()
	switch {
	case errors.Is(err, errNoSource):
		did, remove := l.removeOwn(ctx, l.path(), "the list that it was derived from is gone")
		return did, errors.Join(err, remove)
	case err != nil:
		return "", err
	}
	text, err := source.derive(l.entry)
	if errors.Is(err, errNamed) {
		named := source.named()
		did, remove := l.removeOwn(ctx, l.path(), named[0]+" names guestwire itself")
		return did, errors.Join(source.checkNamed(named), remove)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", source.path, err)
	}
	changed, err := replaceFile(ctx, l.path(), text, source.mode)
	if err != nil || !changed {
		return "", err
	}
	parts := []string{filepath.Base(source.path)}
	for _, path := range source.dropIns {
		parts = append(parts, filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path)))
	}
	return fmt.Sprintf("%s written: %s and guestwire", l.path(), strings.Join(parts, ", ")), nil
}

// wanted is the wanted text of the derived list; nil: none is wanted, or it cannot be read.
func (l cniLists) wanted() []byte {
	source, err := l.source()
	if err != nil {
		return nil
	}
	text, _ := source.derive(l.entry)
	return text
}

// drain gives all derived lists another entry, where they are.
func (l cniLists) drain(ctx context.Context, entry json.RawMessage) (did string, err error) {
	paths, err := l.derived()
	if err != nil {
		return "", err
	}
	l.entry = entry
	var all []string
	for _, path := range paths {
		l.to, l.name = filepath.Split(path)
		l.to = filepath.Clean(l.to)
		did, err := l.write(ctx)
		if err != nil {
			return joined(all), err
		}
		all = append(all, did)
	}
	return joined(all), nil
}

// remove removes all derived lists.
func (l cniLists) remove(ctx context.Context) (did string, err error) {
	if err := l.checkOwn(l.path()); err != nil {
		return "", err
	}
	paths, err := l.derived()
	if err != nil {
		return "", err
	}
	var all []string
	for _, path := range append(paths, l.path()) { // which may have left a temporary file
		did, err := l.removeOwn(ctx, path, "uninstall")
		if err != nil {
			return "", err
		}
		all = append(all, did)
	}
	return joined(all), nil
}

func joined(texts []string) string {
	return strings.Join(slices.DeleteFunc(texts, func(text string) bool { return text == "" }), "; ")
}

// named returns the paths of the lists and drop-ins that name guestwire, also in a list within, as Multus copies one.
func (l cniLists) named() ([]string, error) {
	var named []string
	_, err := l.find(func(path string, text []byte) bool {
		for _, path := range append([]string{path}, dropIns(path, text)...) {
			text, err := readRegular(path)
			var conf any
			if err == nil && json.Unmarshal(text, &conf) == nil && namesGuestwire(conf) && !slices.Contains(named, path) {
				named = append(named, path)
			}
		}
		return false
	})
	return named, err
}

// namesGuestwire reports whether a plugin in the configuration is guestwire.
func namesGuestwire(conf any) bool {
	switch c := conf.(type) {
	case map[string]any:
		for name, value := range c {
			if strings.EqualFold(name, "type") && value == "guestwire" || namesGuestwire(value) { // libcni ignores case there
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(c, namesGuestwire)
	}
	return false
}

// dropInDirs returns the directories of drop-ins of all lists, whether they are there or not.
func (l cniLists) dropInDirs() ([]string, error) {
	var dirs []string
	_, err := l.find(func(path string, text []byte) bool {
		if name := dropInName(path, text); name != "" {
			dirs = append(dirs, filepath.Join(l.conf, name), filepath.Join(l.to, name))
		}
		return false
	})
	slices.Sort(dirs)
	return slices.Compact(dirs), err
}

func (l cniLists) removeOwn(ctx context.Context, path, why string) (did string, err error) {
	if err := l.checkOwn(path); err != nil {
		return "", err
	}
	removed, err := removeFile(ctx, path)
	if err != nil || !removed {
		return "", err
	}
	return fmt.Sprintf("%s removed: %s", path, why), nil
}

// checkOwn refuses a file at the path that guestwire-node has not made.
func (l cniLists) checkOwn(path string) error {
	text, err := readRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isDerived(text) {
		return fmt.Errorf("%s was not made by guestwire-node (no %q in it): move it away, or name another file with -list-name", path, derivedFrom)
	}
	return nil
}
