package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
)

const (
	flannel = `{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [
		{"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true, "mtu": 1450.0}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`
	bridge = `{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "cni0", "args": {"a": "<&>", "n": 12345678901234567890},
		"ipam": {"type": "host-local", "subnet": "10.0.0.0/24"}}`
	multus = `{"cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus", "kubeconfig": "/etc/cni/net.d/multus.d/multus.kubeconfig",
		"delegates": [{"name": "cbr0", "type": "flannel"}]}`
)

// testLists are those of a directory.
func testLists(t *testing.T, files map[string]string, args ...string) cniLists {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	_, o, err := parse(io.Discard, append([]string{"install", "-cni-conf", dir}, args...))
	if err != nil {
		t.Fatal(err)
	}
	return o.lists()
}

// TestDerive: an engine's own parser finds in the derived list what it finds in the source, and guestwire after it.
func TestDerive(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string
		source string
		mode   os.FileMode
	}{
		"list":                        {map[string]string{"10-flannel.conflist": flannel}, "10-flannel.conflist", 0o644},
		"mode 0600":                   {map[string]string{"10-flannel.conflist": flannel}, "10-flannel.conflist", 0o600},
		"one plugin":                  {map[string]string{"10-bridge.conf": bridge}, "10-bridge.conf", 0o640},
		"one plugin, json":            {map[string]string{"10-bridge.json": bridge}, "10-bridge.json", 0o644},
		"the first":                   {map[string]string{"10-flannel.conflist": flannel, "05-bridge.conf": bridge, "01-note.txt": "{", ".hidden": "{"}, "05-bridge.conf", 0o644},
		"by bytes, not by the number": {map[string]string{"9-flannel.conflist": flannel, "10-bridge.conf": bridge}, "10-bridge.conf", 0o644},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLists(t, c.files, "-spec", `{"owner": {"uid": 1000}}`, "-trust-pods")
			source := filepath.Join(l.conf, c.source)
			if err := os.Chmod(source, c.mode); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(source)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				did, err := l.update(t.Context())
				if err != nil || (did != "") != (i == 0) {
					t.Fatalf("update %d: %q, %v", i, did, err)
				}
			}
			after, err := os.Lstat(source)
			if err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) || read(t, source) != c.files[c.source] {
				t.Errorf("the source has changed, %v", err)
			}
			info, err := os.Lstat(l.path())
			if err != nil || info.Mode() != c.mode {
				t.Errorf("mode %v, %v, want %v", info.Mode(), err, c.mode)
			}
			found, err := libcni.ConfFiles(l.conf, confEndings)
			slices.Sort(found)
			if err != nil || found[0] != l.path() {
				t.Errorf("the engine takes %q, %v", found, err)
			}

			var want *libcni.NetworkConfigList
			if filepath.Ext(source) == ".conflist" {
				want, err = libcni.ConfListFromFile(source)
			} else {
				var one *libcni.PluginConfig
				//lint:ignore SA1019 engines call it
				if one, err = libcni.ConfFromFile(source); err == nil {
					//lint:ignore SA1019 engines call it
					want, err = libcni.ConfListFromConf(one)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			have, err := libcni.ConfListFromFile(l.path())
			if err != nil {
				t.Fatal(err)
			}
			if have.Name != want.Name || have.CNIVersion != want.CNIVersion || len(have.Plugins) != len(want.Plugins)+1 {
				t.Fatalf("%s %s, %d plugins; want %s %s, %d plugins and guestwire", have.Name, have.CNIVersion, len(have.Plugins), want.Name, want.CNIVersion, len(want.Plugins))
			}
			for i, p := range want.Plugins {
				if a, b := compact(t, p.Bytes), compact(t, have.Plugins[i].Bytes); a != b {
					t.Errorf("plugin %d:\n%s\nwant\n%s", i, b, a)
				}
			}
			last := have.Plugins[len(want.Plugins)]
			entry := `{"capabilities":{"dns":true,"io.kubernetes.cri.pod-annotations":true},"dir":"/run/guestwire.lock","spec":{"owner":{"uid":1000}},"state":"/run/guestwire","trustPods":true,"type":"guestwire"}`
			if got := compact(t, last.Bytes); got != entry {
				t.Errorf("guestwire's entry is\n%s\nwant\n%s", got, entry)
			}
			if did, err := l.remove(t.Context()); err != nil || !strings.Contains(did, l.path()) {
				t.Errorf("remove: %q, %v", did, err)
			}
			if have := names(t, l.conf); len(have) != len(c.files) || read(t, source) != c.files[c.source] {
				t.Errorf("after remove: %q", have)
			}
		})
	}
}

func compact(t *testing.T, text []byte) string {
	t.Helper()
	var b strings.Builder
	var raw json.RawMessage = text
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(raw); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(b.String())
}

// TestListRefused: what cannot be extended is refused, and the derived list of before stays.
func TestListRefused(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"half a file":     {map[string]string{"10-net.conflist": flannel[:40]}, "10-net.conflist: error parsing configuration list: unexpected end"},
		"empty":           {map[string]string{"10-net.conflist": ""}, "unexpected end"},
		"an array":        {map[string]string{"10-net.conflist": "[]"}, "cannot unmarshal array"},
		"null":            {map[string]string{"10-net.conflist": "null"}, "no name"},
		"no plugins":      {map[string]string{"10-net.conflist": `{"name": "a", "cniVersion": "1.0.0", "plugins": []}`}, "no plugins"},
		"no list":         {map[string]string{"10-net.conflist": bridge}, "no plugins"},
		"no type":         {map[string]string{"10-net.conf": flannel}, "missing 'type'"},
		"no name":         {map[string]string{"10-net.conf": `{"type": "bridge", "cniVersion": "1.0.0"}`}, `name "": an engine wants letters`},
		"old":             {map[string]string{"10-net.conf": `{"type": "bridge", "name": "a", "cniVersion": "0.3.0"}`}, `cniVersion "0.3.0": guestwire needs one of 0.3.1, `},
		"OpenShift SDN's": {map[string]string{"10-net.conf": `{"type": "openshift-sdn", "name": "a", "cniVersion": "0.2.0"}`}, `cniVersion "0.2.0": guestwire needs one of 0.3.1, `},
		"no version":      {map[string]string{"10-net.conf": `{"type": "bridge", "name": "a"}`}, `cniVersion ""`},
		"too new":         {map[string]string{"10-net.conf": `{"type": "bridge", "name": "a", "cniVersion": "2.0.0"}`}, `cniVersion "2.0.0"`},
		"all too old": {map[string]string{"10-net.conflist": `{"name": "a", "cniVersion": "0.3.0", "cniVersions": ["0.2.0", "2.0.0"], "plugins": [{"type": "bridge"}]}`},
			`cniVersion "0.3.0"`},
		"a directory's name": {map[string]string{"10-net.conflist": strings.Replace(flannel, "cbr0", "../net.d", 1)}, `name "../net.d": an engine wants`},
		"half a drop-in":     {map[string]string{"10-net.conflist": flannel, "cbr0/50-a.conf": `{"type": "tun`}, "/cbr0/50-a.conf: error parsing configuration: unexpected end"},
		"a list as drop-in":  {map[string]string{"10-net.conflist": flannel, "cbr0/50-a.conf": flannel}, "/cbr0/50-a.conf: error parsing configuration: missing 'type'"},
		"no text":            {map[string]string{"10-net.conf": `{"type": "bridge", "name": "a", "cniVersion": 1}`}, "cniVersion of type string"},
		"before ours":        {map[string]string{"00-aaa.conflist": flannel}, "sorts before 00-guestwire.conflist"},
		"Multus":             {map[string]string{"00-multus.conf": multus, "10-net.conflist": flannel}, "would pass Multus over"},
		"not ours":           {map[string]string{"10-net.conflist": flannel, "00-guestwire.conflist": flannel}, "was not made by guestwire-node"},
		"not ours, empty":    {map[string]string{"10-net.conflist": flannel, "00-guestwire.conflist": ""}, "was not made by guestwire-node"},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLists(t, map[string]string{"10-net.conflist": flannel})
			if _, err := l.update(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := read(t, l.path())
			if err := os.Remove(filepath.Join(l.conf, "10-net.conflist")); err != nil {
				t.Fatal(err)
			}
			for name, text := range c.files {
				write(t, filepath.Join(l.conf, name), text)
				if name == l.name {
					want = text
				}
			}
			did, err := l.update(t.Context())
			if err == nil || did != "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q, %v, want %q", did, err, c.want)
			}
			if read(t, l.path()) != want {
				t.Error("the derived list has changed")
			}
		})
	}
}

// TestSpecialFiles: a file that is none with text is named, and nobody waits for it.
func TestSpecialFiles(t *testing.T) {
	for _, name := range []string{"10-net.conflist", "05-net.conf", "cbr0/50-a.conf", "00-guestwire.conflist"} {
		for kind, mode := range map[string]uint32{"FIFO": unix.S_IFIFO, "socket": unix.S_IFSOCK, "device": unix.S_IFCHR, "file of 1 TiB": unix.S_IFREG} {
			l := testLists(t, map[string]string{"10-net.conflist": flannel, "cbr0/README": ""})
			path := filepath.Join(l.conf, name)
			_ = os.Remove(path)
			if err := unix.Mknod(path, mode|0o644, int(unix.Mkdev(1, 5))); err != nil {
				t.Fatal(err)
			}
			want := "not a regular file: move it away"
			if mode == unix.S_IFREG {
				want = fmt.Sprintf("want at most %d: move it away", mostRead)
				if err := os.Truncate(path, 1<<40); err != nil {
					t.Fatal(err)
				}
			}
			if did, err := l.update(t.Context()); err == nil || did != "" || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s as a %s: %q, %v", name, kind, did, err)
			}
			if _, err := l.named(); err != nil {
				t.Error(err)
			}
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(l.conf, "10-net.conflist"), flannel)
			if did, err := l.update(t.Context()); err != nil || did == "" {
				t.Errorf("%s as a %s, moved away: %q, %v", name, kind, did, err)
			}
		}
	}
}

// TestNamedInDropIn: guestwire in a drop-in, and what comes after it, are named by their files.
func TestNamedInDropIn(t *testing.T) {
	l := testLists(t, map[string]string{"10-net.conflist": flannel})
	steps := func(want string, fails bool) {
		t.Helper()
		did, err := l.update(t.Context())
		if text := fmt.Sprint(did, err); !strings.Contains(text, want) || (err != nil) != fails {
			t.Errorf("%s, want %q", text, want)
		}
	}
	steps("written", false)
	write(t, l.conf+"/cbr0/50-own.conf", `{"type": "guestwire"}`)
	steps("removed: "+l.conf+"/cbr0/50-own.conf names guestwire itself", false)
	write(t, l.conf+"/cbr0/60-late.conf", `{"type": "tuning"}`)
	steps(l.conf+"/cbr0/50-own.conf names guestwire itself, and libcni appends "+l.conf+"/cbr0/60-late.conf after it", true)
	write(t, l.conf+"/cbr0/70-own.conf", `{"type": "guestwire"}`)
	steps(l.conf+"/cbr0/50-own.conf and "+l.conf+"/cbr0/70-own.conf: guestwire is named 2 times, and one entry is enough", true)
	twice := strings.Replace(flannel, `{"type": "portmap"`, `{"type": "guestwire"}, {"type": "guestwire"}, {"type": "portmap"`, 1)
	write(t, l.conf+"/10-net.conflist", twice)
	steps(l.conf+"/10-net.conflist and "+l.conf+"/cbr0/50-own.conf and "+l.conf+"/cbr0/70-own.conf: guestwire is named 4 times", true)
	write(t, l.conf+"/10-net.conflist", flannel)
	if err := os.Remove(l.conf + "/cbr0/50-own.conf"); err != nil { // as the errors say
		t.Fatal(err)
	}
	steps("<nil>", false)
}

// TestListChanges: the derived list follows its source, and goes with it.
func TestListChanges(t *testing.T) {
	l := testLists(t, nil)
	step := func(want string, files ...string) {
		t.Helper()
		did, err := l.update(t.Context())
		text := fmt.Sprint(did, err)
		if !strings.Contains(text, want) {
			t.Errorf("%q, want %q", text, want)
		}
		if have := names(t, l.conf); !slices.Equal(have, files) {
			t.Errorf("%q, want %q", have, files)
		}
	}
	path := filepath.Join(l.conf, "10-net.conflist")
	step("no CNI list: the node")
	write(t, path, flannel)
	step("10-net.conflist and guestwire", "00-guestwire.conflist", "10-net.conflist")
	write(t, path, strings.Replace(flannel, "cbr0", "cbr1", 1))
	step("written", "00-guestwire.conflist", "10-net.conflist")
	if text := read(t, l.path()); !strings.Contains(text, "cbr1") {
		t.Error(text)
	}
	write(t, filepath.Join(l.conf, "05-bridge.conf"), bridge)
	step("05-bridge.conf and guestwire", "00-guestwire.conflist", "05-bridge.conf", "10-net.conflist")
	named := strings.Replace(flannel, `{"type": "portmap"`, `{"type": "guestwire"}, {"type": "portmap"`, 1)
	write(t, filepath.Join(l.conf, "05-bridge.conflist"), named)
	if err := os.Remove(filepath.Join(l.conf, "05-bridge.conf")); err != nil {
		t.Fatal(err)
	}
	step("names guestwire itself", "05-bridge.conflist", "10-net.conflist")
	step("", "05-bridge.conflist", "10-net.conflist")
	if err := os.Remove(filepath.Join(l.conf, "05-bridge.conflist")); err != nil {
		t.Fatal(err)
	}
	step("10-net.conflist and guestwire", "00-guestwire.conflist", "10-net.conflist")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	step("the list that it was derived from is gone")

	// A directory of a RuntimeClass: the node's own directory gets nothing, and loses what an earlier installation
	// wrote.
	write(t, path, flannel)
	step("written", "00-guestwire.conflist", "10-net.conflist")
	l.to = t.TempDir()
	step("the list is "+l.path()+" now", "10-net.conflist")
	step("", "10-net.conflist")
	if have := names(t, l.to); !slices.Equal(have, []string{"00-guestwire.conflist"}) {
		t.Errorf("%q", have)
	}
	if _, err := l.remove(t.Context()); err != nil {
		t.Error(err)
	}
	if have := names(t, l.to); len(have) > 0 {
		t.Errorf("%q", have)
	}
}

// engineList is what libcni finds in the file and its drop-ins: versions and switches, then each plugin.
func engineList(t *testing.T, path string) []string {
	t.Helper()
	read := libcni.NetworkConfFromFile
	if filepath.Ext(path) != ".conflist" {
		read = func(path string) (*libcni.NetworkConfigList, error) {
			//lint:ignore SA1019 engines call it
			one, err := libcni.ConfFromFile(path)
			if err != nil {
				return nil, err
			}
			//lint:ignore SA1019 engines call it
			return libcni.ConfListFromConf(one)
		}
	}
	list, err := read(path)
	if err != nil {
		return nil
	}
	texts := []string{fmt.Sprint(list.Name, list.CNIVersion, list.DisableCheck, list.DisableGC)}
	for _, p := range list.Plugins {
		passed, err := libcni.InjectConf(p, map[string]any{"name": "a"}) // as libcni does for each call
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(passed.Bytes))
	}
	return texts
}

// TestDropIns: for each list, version and set of drop-ins, libcni finds in the derived list the plugins that it finds
// in the source, in their order, and guestwire after them. The list follows its drop-ins, and uninstall sees them.
func TestDropIns(t *testing.T) {
	const (
		tuning  = `{"type": "tuning", "mtu": 1400, "n": 12345678901234567890}`
		portmap = `{"capabilities": {"portMappings": true}, "type": "portmap"}`
		own     = "{\"Type\": \"guestwire\"}" // libcni takes any case
	)
	type files map[string]string
	versions := []string{`"cniVersion": "0.3.1"`, `"cniVersion": "1.1.0"`, `"cniVersions": ["0.4.0", "1.0.0"]`, `"cniVersion": "0.2.0", "cniVersions": ["1.0.0", "2.0.0"]`}
	sets := []files{
		{},
		{"podnet/50-tuning.conf": tuning},
		{"podnet/9-portmap.conf": portmap, "podnet/50-tuning.conf": tuning},
		{"podnet/50-tuning.conflist": tuning, "podnet/50-tuning.json": tuning, "podnet/README": "", "podnet2/10-a.conf": tuning, "podnet/sub.conf/10-a.conf": tuning},
		{"podnet/50-tuning.conf": tuning, "podnet/60-guestwire.conf": own},
		{"podnet/05-guestwire.conf": own, "podnet/50-tuning.conf": tuning},
	}
	count := 0
	for _, list := range []string{
		`{"name": "podnet", VERSION, "plugins": [{"type": "bridge", "n": 98765432109876543210}, {"type": "firewall"}]}`,
		`{"name": "podnet", VERSION}`,
		`{"name": "podnet", VERSION, "loadOnlyInlinedPlugins": true, "plugins": [{"type": "bridge"}]}`,
		`{"name": "podnet", VERSION, "loadOnlyInlinedPlugins": "False", "plugins": [{"type": "bridge"}]}`,
		`{"name": "podnet", VERSION, "disableCheck": "true", "disableGC": true, "other": {"a": [1, "<&>"]}, "plugins": [{"type": "bridge"}]}`,
		`{"name": "podnet", VERSION, "plugins": [{"type": "bridge"}, {"type": "guestwire"}]}`,
		`{"name": "podnet", "cniVersion": "1.0.0", "type": "bridge"}`,
	} {
		for _, set := range sets {
			list, file := strings.Replace(list, "VERSION", versions[count%len(versions)], 1), "10-net.conflist"
			if !strings.Contains(list, "plugins") && strings.Contains(list, "type") {
				file = "10-net.conf"
			}
			count++
			l := testLists(t, files{file: list})
			for name, text := range set {
				write(t, filepath.Join(l.conf, name), text)
			}
			source := filepath.Join(l.conf, file)
			check := func() {
				t.Helper()
				want := engineList(t, source)
				did, err := l.update(t.Context())
				have := engineList(t, l.path())
				names := func(plugin string) bool { return strings.Contains(plugin, `ype":"guestwire"`) }
				if want == nil || slices.ContainsFunc(want, names) { // what cannot be read leaves the derived list alone
					once := slices.IndexFunc(want, names) == len(want)-1
					if want != nil && have != nil || (err == nil) != (want != nil && once) {
						t.Errorf("%s with %q: %q, %v; libcni finds %q", list, set, did, err, want)
					}
				} else if err != nil || len(have) == 0 || !names(have[len(have)-1]) || !slices.Equal(have[:len(have)-1], want) {
					t.Errorf("%s with %q: %q, %v; libcni finds\n%s\nwant, and guestwire\n%s", list, set, did, err, strings.Join(have, "\n"), strings.Join(want, "\n"))
				}
				named, err := l.named()
				named = slices.DeleteFunc(named, func(path string) bool { return path == l.path() })
				if err != nil || (len(named) > 0) != slices.ContainsFunc(want, names) {
					t.Errorf("%s with %q: %q name guestwire, %v", list, set, named, err)
				}
			}
			check()
			late := filepath.Join(l.conf, "podnet/20-late.conf")
			write(t, late, `{"type": "late"}`)
			check()
			if err := os.Remove(late); err != nil {
				t.Fatal(err)
			}
			check()
		}
	}
	t.Log(count, "cases")
}

// TestDropInsElsewhere: the list of a RuntimeClass has the drop-ins of the node's list, and those of its own directory.
func TestDropInsElsewhere(t *testing.T) {
	class := t.TempDir()
	l := testLists(t, map[string]string{"10-net.conflist": flannel, "cbr0/50-a.conf": `{"type": "a"}`}, "-list-to", class)
	write(t, class+"/cbr0/10-b.conf", `{"type": "b"}`)
	did, err := l.update(t.Context())
	if err != nil || !strings.HasSuffix(did, "10-net.conflist, cbr0/50-a.conf, cbr0/10-b.conf and guestwire") {
		t.Errorf("%q, %v", did, err)
	}
	have := engineList(t, l.path())
	want := append(engineList(t, l.conf+"/10-net.conflist"), `{"name":"a","type":"b"}`)
	if !slices.Equal(have[:len(have)-1], want) || len(want) != 5 {
		t.Errorf("libcni finds\n%s\nwant, and guestwire\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// TestDropInMode: a text that root alone may read is in a list that root alone may read.
func TestDropInMode(t *testing.T) {
	l := testLists(t, map[string]string{"10-net.conflist": flannel, "cbr0/50-tuning.conf": `{"type": "tuning"}`})
	for _, mode := range []os.FileMode{0o600, 0o644} {
		if err := os.Chmod(filepath.Join(l.conf, "cbr0/50-tuning.conf"), mode); err != nil {
			t.Fatal(err)
		}
		if _, err := l.update(t.Context()); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(l.path()); err != nil || info.Mode() != mode {
			t.Errorf("%v, %v, want %v", info.Mode(), err, mode)
		}
	}
}

// TestMultus: after Multus guestwire is added to the list that Multus takes for the first network. Multus itself is
// the source where one ADD wires every NIC.
func TestMultus(t *testing.T) {
	files := map[string]string{"00-multus.conf": multus, "10-net.conflist": flannel}
	for _, c := range []struct {
		args       []string
		name, from string
	}{
		{[]string{"-list-name", "01-guestwire.conflist"}, "cbr0", "10-net.conflist"},
		{[]string{"-every-nic"}, "multus-cni-network", "00-multus.conf"},
		{[]string{"-every-nic", "-list-name=00-multus-guestwire.conflist"}, "multus-cni-network", "00-multus.conf"}, // of docs/how-to/multus.md
		{[]string{"-list-to", t.TempDir()}, "cbr0", "10-net.conflist"},
	} {
		l := testLists(t, files, c.args...)
		if _, err := l.update(t.Context()); err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		list, err := libcni.ConfListFromFile(l.path())
		if err != nil || list.Name != c.name {
			t.Errorf("%q: %v, %v", c.args, list, err)
		}
	}
}

// TestListRenamed: an installation with another -list-name, earlier or later, takes the place of the one before.
func TestListRenamed(t *testing.T) {
	l := testLists(t, map[string]string{"10-bridge.conf": bridge})
	for _, name := range []string{"03-guestwire.conflist", "00-guestwire.conflist", "05-guestwire.conflist"} {
		l.name = name
		if _, err := l.update(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if have := names(t, l.conf); !slices.Equal(have, []string{name, "10-bridge.conf"}) {
			t.Errorf("%q, want %s alone", have, name)
		}
		if text := read(t, l.path()); strings.Count(text, `"guestwire"`) != 1 {
			t.Errorf("%s: %s", name, text)
		}
	}
}
