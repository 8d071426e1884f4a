package main

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
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

// derived returns the paths of the lists that guestwire-node has made, by whichever -list-name.
func (l cniLists) derived() ([]string, error) {
	return l.find(func(_ string, text []byte) bool { return isDerived(text) })
}

// find returns the paths of the files that are selected, in both directories.
func (l cniLists) find(selected func(path string, text []byte) bool) ([]string, error) {
	var paths []string
	for _, dir := range slices.Compact([]string{l.to, l.conf}) {
		names, err := libcni.ConfFiles(dir, confEndings)
		if err != nil {
			return nil, err
		}
		for _, path := range names {
			// One that cannot be read, such as a symbolic link to nowhere, is another program's.
			if text, err := readRegular(path); err == nil && selected(path, text) {
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
