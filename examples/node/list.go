package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The endings of the files that container engines read from a CNI configuration directory.
var confEndings = []string{".conf", ".conflist", ".json"}

// derivedFrom is the member of a list by which guestwire-node knows its own file. libcni ignores members that it does
// not know.
const derivedFrom = "guestwireDerivedFrom"

var (
	errNoSource = errors.New("no CNI list")
	errNamed    = errors.New("names guestwire already")
)

// cniLists derives one CNI list from the node's own one.
type cniLists struct {
	conf  string // directory of the node's lists
	to    string // directory of the derived list
	name  string // file of the derived list
	entry json.RawMessage
	// former is the entry for a derived list of another directory, where an engine looks for the DEL of pods that are
	// wired by that list; nil: no pod is wired, and such a list goes.
	former json.RawMessage
	// everyNIC says that Multus may be the source.
	everyNIC bool
}

// path is that of the derived list.
func (l cniLists) path() string { return filepath.Join(l.to, l.name) }

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
	text, err := derive(source.name, source.text, l.entry)
	if errors.Is(err, errNamed) {
		return l.removeOwn(ctx, l.path(), source.path+" names guestwire itself")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", source.path, err)
	}
	changed, err := replaceFile(ctx, l.path(), text, source.mode)
	if err != nil || !changed {
		return "", err
	}
	return fmt.Sprintf("%s written: %s and guestwire", l.path(), source.name), nil
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

// derived returns the paths of the lists that guestwire-node has made, by whichever -list-name.
func (l cniLists) derived() ([]string, error) {
	return l.find(isDerived)
}

// named returns the paths of the lists that name guestwire, also in a list within, as Multus copies one.
func (l cniLists) named() ([]string, error) {
	return l.find(func(text []byte) bool {
		var list any
		return json.Unmarshal(text, &list) == nil && namesGuestwire(list)
	})
}

// namesGuestwire reports whether a plugin in the configuration is guestwire.
func namesGuestwire(conf any) bool {
	switch c := conf.(type) {
	case map[string]any:
		return c["type"] == "guestwire" || slices.ContainsFunc(slices.Collect(maps.Values(c)), namesGuestwire)
	case []any:
		return slices.ContainsFunc(c, namesGuestwire)
	}
	return false
}

// find returns the paths of the files whose text is selected, in both directories.
func (l cniLists) find(selected func(text []byte) bool) ([]string, error) {
	var paths []string
	for _, dir := range slices.Compact([]string{l.to, l.conf}) {
		names, err := confNames(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			// One that cannot be read, such as a symbolic link to nowhere, is another program's.
			if text, err := os.ReadFile(path); err == nil && selected(text) {
				paths = append(paths, path)
			}
		}
	}
	return paths, nil
}

func isDerived(text []byte) bool {
	var list map[string]json.RawMessage
	return json.Unmarshal(text, &list) == nil && list[derivedFrom] != nil
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
	text, err := os.ReadFile(path)
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

// confFile is a file of the CNI configuration directory.
type confFile struct {
	name, path string
	text       []byte
	mode       fs.FileMode
}

// source returns the list to which guestwire is added: the one that the engine would take without the derived one. With
// Multus, unless everyNIC is set, it is the one after Multus, which Multus takes for the pod's first network.
func (l cniLists) source() (confFile, error) {
	names, err := confNames(l.conf)
	if err != nil {
		return confFile{}, err
	}
	for _, name := range names {
		if name == l.name {
			continue
		}
		path := filepath.Join(l.conf, name)
		info, err := os.Stat(path)
		if err != nil {
			return confFile{}, err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return confFile{}, err
		}
		if isDerived(text) { // of another -list-name
			continue
		}
		after := l.to != l.conf || name > l.name
		multus := !l.everyNIC && isMultus(text)
		switch {
		case multus && l.to == l.conf && after:
			return confFile{}, fmt.Errorf("%s is Multus and sorts after %s, so the engine would pass Multus over: name a file between Multus and the next list, such as -list-name 01-guestwire.conflist, or say -every-nic and name Multus' own master plugin in its configuration", path, l.name)
		case multus:
			continue
		case !after:
			return confFile{}, fmt.Errorf("%s sorts before %s, and the engine takes the first file: rename it, or name an earlier one with -list-name", path, l.name)
		}
		return confFile{name, path, text, info.Mode().Perm()}, nil
	}
	return confFile{}, fmt.Errorf("%s: %w yet: the node's network plugin writes one", l.conf, errNoSource)
}

// confNames returns the names of the directory's CNI configurations in the order in which an engine reads them.
func confNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries { // sorted by name
		if !e.IsDir() && slices.Contains(confEndings, filepath.Ext(e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func isMultus(text []byte) bool {
	var conf struct {
		Type    string
		Plugins []struct{ Type string }
	}
	if json.Unmarshal(text, &conf) != nil {
		return false
	}
	kind := conf.Type
	if len(conf.Plugins) > 0 {
		kind = conf.Plugins[0].Type
	}
	return kind == "multus" || kind == "multus-shim"
}

// derive returns the list of a file of the node's network plugin with one entry more. The error is errNamed if
// guestwire is an entry already.
func derive(name string, text []byte, entry json.RawMessage) ([]byte, error) {
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(text, &conf); err != nil {
		return nil, fmt.Errorf("no JSON object: %w", err)
	}
	list := conf
	var plugins []json.RawMessage
	if filepath.Ext(name) == ".conflist" {
		if err := json.Unmarshal(conf["plugins"], &plugins); err != nil || len(plugins) == 0 {
			return nil, errors.New("no plugins")
		}
	} else {
		plugins = []json.RawMessage{text}
		list = map[string]json.RawMessage{}
		for _, member := range []string{"name", "cniVersion"} {
			if value, ok := conf[member]; ok {
				list[member] = value
			}
		}
	}
	for i, plugin := range plugins {
		var p struct{ Type string }
		if err := json.Unmarshal(plugin, &p); err != nil || p.Type == "" {
			return nil, fmt.Errorf("plugin %d has no type", i+1)
		}
		if p.Type == "guestwire" {
			return nil, errNamed
		}
	}
	var listName string
	if err := json.Unmarshal(list["name"], &listName); err != nil || listName == "" {
		return nil, errors.New("no name")
	}
	if err := checkVersion(list); err != nil {
		return nil, err
	}
	list = maps.Clone(list)
	list[derivedFrom] = quote(name)
	delete(list, "plugins")

	var out bytes.Buffer
	fmt.Fprint(&out, "{")
	for _, member := range slices.Sorted(maps.Keys(list)) {
		fmt.Fprintf(&out, "%s:%s,", quote(member), list[member])
	}
	fmt.Fprintf(&out, `"plugins":[`)
	for _, plugin := range plugins {
		fmt.Fprintf(&out, "%s,", plugin)
	}
	fmt.Fprintf(&out, "%s]}\n", entry)
	var indented bytes.Buffer
	err := json.Indent(&indented, out.Bytes(), "", "  ")
	return indented.Bytes(), err
}

// checkVersion refuses what guestwire's ADD would refuse for each pod.
func checkVersion(list map[string]json.RawMessage) error {
	var version string
	var versions []string
	if text, ok := list["cniVersion"]; ok {
		if err := json.Unmarshal(text, &version); err != nil {
			return fmt.Errorf("cniVersion: %w", err)
		}
	}
	if text, ok := list["cniVersions"]; ok {
		if err := json.Unmarshal(text, &versions); err != nil {
			return fmt.Errorf("cniVersions: %w", err)
		}
	}
	for _, v := range append(versions, version) {
		if !slices.Contains([]string{"", "0.1.0", "0.2.0", "0.3.0"}, v) {
			return nil
		}
	}
	return fmt.Errorf("cniVersion %q: a chained plugin needs 0.3.1 or later: set it there", version)
}

func quote(text string) json.RawMessage {
	out, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always encodes
	}
	return out
}
