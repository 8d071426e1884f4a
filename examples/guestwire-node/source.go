package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// source is a list of the node's network plugin, as libcni 1.3 reads it.
type source struct {
	path string
	mode fs.FileMode // what all its files allow
	list map[string]json.RawMessage
	// plugins are those of the list, then those of the drop-ins, with their texts as the files have them.
	plugins []*libcni.PluginConfig
	dropIns []string // the paths
	version string
}

// source returns the list to which guestwire is added: the one that the engine would take without the derived one. With
// Multus, unless everyNIC is set, it is the one after Multus, which Multus takes for the pod's first network.
func (l cniLists) source() (source, error) {
	paths, err := libcni.ConfFiles(l.conf, confEndings) // sorted by name, as an engine reads them
	if err != nil {
		return source{}, err
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if name == l.name {
			continue
		}
		text, err := readRegular(path)
		if err != nil {
			return source{}, err
		}
		if isDerived(text) { // of another -list-name
			continue
		}
		s, err := l.read(path, text)
		if err != nil {
			return source{}, fmt.Errorf("%s: %w", path, err)
		}
		after := l.to != l.conf || name > l.name
		multus := !l.everyNIC && slices.Contains([]string{"multus", "multus-shim"}, s.plugins[0].Network.Type)
		switch {
		case multus && l.to == l.conf && after:
			return source{}, fmt.Errorf("%s is Multus and sorts after %s, so the engine would pass Multus over: name a file between Multus and the next list, such as -list-name 01-guestwire.conflist, or say -every-nic and name Multus' own master plugin in its configuration", path, l.name)
		case multus:
			continue
		case !after:
			return source{}, fmt.Errorf("%s sorts before %s, and the engine takes the first file: rename it, or name an earlier one with -list-name", path, l.name)
		}
		return s, nil
	}
	if _, err := os.Lstat(l.conf); errors.Is(err, fs.ErrNotExist) {
		return source{}, fmt.Errorf("%s: %w, and no such directory: the node's network plugin makes it, or -cni-conf is another one", l.conf, errNoSource)
	}
	return source{}, fmt.Errorf("%s: %w: the node's network plugin writes one when it is ready", l.conf, errNoSource)
}

// read returns what libcni makes of a list's file and its drop-ins. The drop-ins of the derived list's directory count
// as well.
func (l cniLists) read(path string, text []byte) (source, error) {
	s := source{path: path}
	err := s.addMode(path)
	if err != nil {
		return s, err
	}
	inlined := false
	if filepath.Ext(path) != ".conflist" {
		plugin, err := libcni.NetworkPluginConfFromBytes(text)
		if err != nil {
			return s, err
		}
		s.plugins, s.version = []*libcni.PluginConfig{plugin}, plugin.Network.CNIVersion
		s.list = map[string]json.RawMessage{"name": quote(plugin.Network.Name), "cniVersion": quote(s.version)}
	} else {
		list, err := libcni.NetworkConfFromBytes(text)
		if err != nil {
			return s, err
		}
		if err := json.Unmarshal(text, &s.list); err != nil {
			return s, err
		}
		var texts []json.RawMessage // libcni's own have lost digits of long numbers
		if err := json.Unmarshal(s.list["plugins"], &texts); err != nil && s.list["plugins"] != nil {
			return s, err
		}
		for i, plugin := range list.Plugins {
			plugin.Bytes = texts[i]
		}
		s.plugins, s.version, inlined = list.Plugins, list.CNIVersion, list.LoadOnlyInlinedPlugins
	}
	var name string
	if err := json.Unmarshal(s.list["name"], &name); err != nil {
		return s, err
	}
	if utils.ValidateNetworkName(name) != nil {
		return s, fmt.Errorf("name %q: an engine wants letters, digits, _, . and -, and a letter or a digit first", name)
	}
	if dropInName(path, text) != "" {
		err = s.addDropIns(l.conf, name)
	}
	if l.to != l.conf && !inlined {
		err = errors.Join(err, s.addDropIns(l.to, name))
	}
	if err == nil && len(s.plugins) == 0 {
		err = errors.New("no plugins")
	}
	return s, err
}

// addDropIns adds the files that libcni appends to the list of that name in the directory.
func (s *source) addDropIns(dir, name string) error {
	files, err := libcni.ConfFiles(filepath.Join(dir, name), []string{".conf"})
	if err != nil {
		return fmt.Errorf("drop-ins %s/*.conf: %w", filepath.Join(dir, name), err)
	}
	for _, path := range files {
		text, err := readRegular(path)
		if err == nil {
			err = s.addMode(path)
		}
		if err != nil {
			return fmt.Errorf("drop-in: %w", err)
		}
		plugin, err := libcni.NetworkPluginConfFromBytes(text)
		if err != nil {
			return fmt.Errorf("drop-in %s: %w", path, err)
		}
		s.plugins, s.dropIns = append(s.plugins, plugin), append(s.dropIns, path)
	}
	return nil
}

// addMode takes from the mode what the file does not allow, as the text of a file of root alone may be secret.
func (s *source) addMode(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if s.mode == 0 {
		s.mode = fs.ModePerm
	}
	s.mode &= info.Mode().Perm()
	return nil
}

// dropInName returns the name of the directory whose files libcni appends to the list; "": it appends none.
func dropInName(path string, text []byte) string {
	list, err := libcni.NetworkConfFromBytes(text)
	if filepath.Ext(path) != ".conflist" || err != nil || list.LoadOnlyInlinedPlugins || utils.ValidateNetworkName(list.Name) != nil {
		return ""
	}
	return list.Name
}

// dropIns returns the files that libcni appends to the list, or Multus to the pod's first network.
func dropIns(path string, text []byte) (files []string) {
	var multus struct{ AuxiliaryCNIChainName string }
	_ = json.Unmarshal(text, &multus) // what libcni cannot read has no drop-ins
	for _, name := range []string{dropInName(path, text), multus.AuxiliaryCNIChainName} {
		if utils.ValidateNetworkName(name) == nil {
			more, _ := libcni.ConfFiles(filepath.Join(filepath.Dir(path), name), []string{".conf"}) // no directory: none
			files = append(files, more...)
		}
	}
	return files
}

// named returns the files that name guestwire, one for each of its entries.
func (s *source) named() (paths []string) {
	inlined := len(s.plugins) - len(s.dropIns)
	for i, p := range s.plugins {
		switch {
		case p.Network.Type != "guestwire":
		case i < inlined:
			paths = append(paths, s.path)
		default:
			paths = append(paths, s.dropIns[i-inlined])
		}
	}
	return paths
}

// checkNamed refuses drop-ins after guestwire, which change the pod's network once it is wired, and a second guestwire.
func (s *source) checkNamed(named []string) error {
	if len(named) > 1 {
		return fmt.Errorf("%s: guestwire is named %d times, and one entry is enough: take the others out", strings.Join(slices.Compact(named), " and "), len(named))
	}
	after := s.dropIns[slices.Index(s.dropIns, named[0])+1:]
	if len(after) == 0 {
		return nil
	}
	return fmt.Errorf("%s names guestwire itself, and libcni appends %s after it, so guests do not get what these change: take guestwire out of the file, or write it into a drop-in that sorts last", named[0], strings.Join(after, ", "))
}

// derive returns the list with one entry more. Its drop-ins are members of the derived list: libcni would append them
// after guestwire. The error is errNamed if guestwire is a plugin already.
func (s *source) derive(entry json.RawMessage) ([]byte, error) {
	if len(s.named()) > 0 {
		return nil, errNamed
	}
	if err := checkVersion(s.version); err != nil {
		return nil, err
	}
	list := maps.Clone(s.list)
	list[derivedFrom] = quote(filepath.Base(s.path))
	list["loadOnlyInlinedPlugins"] = json.RawMessage("true")
	delete(list, "plugins")

	var out bytes.Buffer
	fmt.Fprint(&out, "{")
	for _, member := range slices.Sorted(maps.Keys(list)) {
		fmt.Fprintf(&out, "%s:%s,", quote(member), list[member])
	}
	fmt.Fprintf(&out, `"plugins":[`)
	for _, plugin := range s.plugins {
		fmt.Fprintf(&out, "%s,", plugin.Bytes)
	}
	fmt.Fprintf(&out, "%s]}\n", entry)
	var indented bytes.Buffer
	err := json.Indent(&indented, out.Bytes(), "", "  ")
	return indented.Bytes(), err
}

// checkVersion refuses what guestwire's ADD would refuse for each pod.
func checkVersion(v string) error {
	known := version.VersionsStartingFrom("0.3.1").SupportedVersions()
	if slices.Contains(known, v) {
		return nil
	}
	return fmt.Errorf("cniVersion %q: guestwire needs one of %s: set it there, or in cniVersions", v, strings.Join(known, ", "))
}

func quote(text string) json.RawMessage {
	out, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always encodes
	}
	return out
}
