// Package podsandbox is what guestwire's programs on a Kubernetes node agree on: what a pod's annotations say, and
// where the CNI plugin leaves the records of a pod's sandbox.
//
// [Read] reads the annotations, [Defaults.Make] makes the configuration of a NIC of them, and [State] has the
// directories. Annotations come from the author of a pod, who is not trusted: see [Defaults.TrustPods].
package podsandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/directory"
)

// DefaultState is the State of a CNI list that names none.
const DefaultState State = "/run/guestwire"

// State is a directory of the node that only root can write, an absolute path. It has a directory for each sandbox in
// which a NIC is wired, and in pods a symbolic link for each pod:
//
//	CONTAINERID/eth0.json   the record of a NIC, which the launcher reads
//	CONTAINERID/.eth0       the attachment that the NIC belongs to: a symbolic link to NETWORK/IFNAME, which leads
//	                        nowhere. A link is made in one step, so a killed call leaves no half of it
//	pods/UID                a symbolic link to the pod's newest sandbox: a name that a manifest can know
//	pods/NAMESPACE_NAME     another one, a name that people know; no other name of Kubernetes has a _
//
// CONTAINERID is the engine's name of the sandbox, UID is the pod's metadata.uid.
type State string

// Pod is a pod as an engine names it in CNI_ARGS; an empty field is not known.
type Pod struct {
	UID       string `json:"uid,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// podsDir has the links of the pods. No container has this name.
const podsDir = "pods"

// Attachment is a sandbox's place in a network, as CNI counts: a DEL removes one, and a GC names those that stay.
type Attachment struct {
	Network string // the name of the CNI list at the first ADD; an operator can rename the list while pods run
	IfName  string // CNI_IFNAME, which a sandbox has once
}

// CheckID refuses a name of a sandbox or of a pod that is no name of a file: want 1 to 255 of A-Z a-z 0-9 _ . - and a
// letter or digit first.
func CheckID(id string) error {
	bad := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_.-", c)
	}
	if id == "" || len(id) > 255 || strings.ContainsFunc(id, bad) || strings.ContainsRune("_.-", rune(id[0])) {
		return fmt.Errorf("%.100q is no name: want 1 to 255 of A-Z a-z 0-9 _ . - and a letter or digit first", id)
	}
	return nil
}

// Dir returns the directory of a sandbox, which need not be there. The error is that of CheckID.
func (s State) Dir(id string) (string, error) {
	if err := CheckID(id); err != nil {
		return "", err
	}
	if id == podsDir {
		return "", fmt.Errorf("%q is the directory of the pods' links, and no sandbox", id)
	}
	return filepath.Join(string(s), id), nil
}

// PodDirs returns the paths that lead to the directory of the pod's newest sandbox, which need not be there: by UID and
// by name, as far as they are known. The error is that of CheckID. The kubelet has a directory for each pod's logs
// whose name is longer, so it starts no pod whose name is too long here.
func (s State) PodDirs(p Pod) (paths []string, err error) {
	names := []string{p.UID}
	if p.Namespace != "" && p.Name != "" {
		names = append(names, p.Namespace+"_"+p.Name)
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		if err := CheckID(name); err != nil {
			return nil, err
		}
		paths = append(paths, filepath.Join(s.Links(), name))
	}
	return paths, nil
}

// Leads reports whether a link of the pod leads to the sandbox.
func (s State) Leads(p Pod, id string) bool {
	paths, _ := s.PodDirs(p) // no link has another name
	return slices.ContainsFunc(paths, func(path string) bool {
		text, err := os.Readlink(path)
		return err == nil && text == filepath.Join("..", id)
	})
}

// Pods returns the pods by their newest sandbox; none if the State has no pods. A State that another user can replace
// is an error.
func (s State) Pods() (map[string]Pod, error) {
	root, err := directory.Open(string(s))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	links, err := readLinks(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	pods := map[string]Pod{}
	for link, id := range links {
		if CheckID(link) != nil || CheckID(id) != nil { // another program's
			continue
		}
		p := pods[id]
		if namespace, name, named := strings.Cut(link, "_"); named {
			p.Namespace, p.Name = namespace, name
		} else {
			p.UID = link
		}
		pods[id] = p
	}
	return pods, nil
}

// PodsOf returns the pods of sandboxes by their directories: those of the States in which the dirs are, and for each
// other one of the dirs a Pod without fields. A State that another user can replace has no pods. After an error the
// others are returned with it.
func PodsOf(dirs []string) (map[string]Pod, error) {
	pods := map[string]Pod{}
	read := map[State]bool{}
	var errs []error
	for _, dir := range dirs {
		s := State(filepath.Dir(dir))
		if dir == "" || read[s] {
			continue
		}
		read[s] = true
		known, err := s.Pods()
		if !errors.Is(err, fs.ErrPermission) {
			errs = append(errs, err)
		}
		for id, pod := range known {
			pods[filepath.Join(string(s), id)] = pod
		}
	}
	for _, dir := range dirs {
		if _, known := pods[dir]; !known {
			pods[dir] = Pod{}
		}
	}
	return pods, errors.Join(errs...)
}

// Links returns the directory of the pods' links.
func (s State) Links() string { return filepath.Join(string(s), podsDir) }

// IDs returns the sandboxes that have a directory, sorted; none if the State is not there.
func (s State) IDs() ([]string, error) {
	entries, err := os.ReadDir(string(s))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, entry := range entries {
		if _, err := s.Dir(entry.Name()); err == nil && entry.IsDir() {
			ids = append(ids, entry.Name())
		}
	}
	return ids, nil
}

// NIC is one that is wired in a sandbox, or whose wiring has begun.
type NIC struct {
	Name string
	// Record reports whether the NIC has a record: it is wired.
	Record bool
	// Of is what the NIC belongs to; zero: nothing says so.
	Of Attachment
}

// BelongsTo reports whether a call with the CNI_IFNAME is about the NIC. Without a note the NIC's own name decides.
func (n NIC) BelongsTo(ifName string) bool {
	if n.Of == (Attachment{}) {
		return n.Name == ifName
	}
	return n.Of.IfName == ifName
}

// NICs returns the NICs of a sandbox, sorted by name; none if the sandbox has no directory.
func (s State) NICs(id string) ([]NIC, error) {
	dir, err := s.Dir(id)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	nics := map[string]NIC{}
	for _, entry := range entries {
		file := entry.Name()
		note, isNote := strings.CutPrefix(file, ".")
		record, isRecord := strings.CutSuffix(file, ".json")
		switch {
		case isNote && entry.Type() == fs.ModeSymlink:
			text, err := os.Readlink(filepath.Join(dir, file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			n := nics[note]
			n.Of.Network, n.Of.IfName, _ = strings.Cut(text, "/")
			nics[note] = n
		case isRecord && !isNote:
			n := nics[record]
			n.Record = true
			nics[record] = n
		}
	}
	var list []NIC
	for _, name := range slices.Sorted(maps.Keys(nics)) {
		n := nics[name]
		n.Name = name
		list = append(list, n)
	}
	return list, nil
}

// Begin notes that a NIC of a sandbox is going to be wired for an attachment, and makes the directories, mode 0755. A
// note with the same CNI_IFNAME stays, with the time of this call. One with another is an error. So is a State that
// another user can replace.
func (s State) Begin(id, nic string, of Attachment) error {
	if _, err := s.Dir(id); err != nil {
		return err
	}
	root, err := directory.Make(string(s), 0o755)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := root.Lstat(podsDir); err != nil {
		if err := makeDir(root, podsDir); err != nil {
			return err
		}
	}
	text, path := of.Network+"/"+of.IfName, notePath(id, nic)
	if old, err := root.Readlink(path); err == nil && strings.HasSuffix(old, "/"+of.IfName) {
		if err := renew(root, path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for range 10 { // another call may end the sandbox's last attachment meanwhile, and remove the directory
		if err = makeDir(root, id); err != nil {
			return err
		}
		err = root.Symlink(text, path)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("NIC %s of sandbox %s belongs to another attachment: %w", nic, id, err)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// renew gives a note the time of this call: it is this call's now, and not one that a killed call has left.
func renew(root *os.Root, path string) error {
	dir, err := root.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	return unix.UtimesNanoAt(int(dir.Fd()), filepath.Base(path), now, unix.AT_SYMLINK_NOFOLLOW)
}

// notePath is the path of a NIC's note in the State.
func notePath(id, nic string) string { return filepath.Join(id, "."+nic) }

// makeDir makes a directory of the State.
func makeDir(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := root.Lstat(name)
	if err == nil && info.IsDir() && info.Mode().Perm() != 0o755 { // by the umask: the launcher reads there
		err = root.Chmod(name, 0o755)
	}
	if errors.Is(err, fs.ErrNotExist) { // removed by another call, as the caller will see
		return nil
	}
	return err
}

// End notes that the NIC is not wired any more. It is no error if Begin was never called.
func (s State) End(id, nic string) error {
	if _, err := s.Dir(id); err != nil {
		return err
	}
	root, err := directory.Open(string(s))
	if err == nil {
		defer root.Close()
		err = root.Remove(notePath(id, nic))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Link makes the sandbox the newest one of the pod. It waits for other calls until ctx ends.
func (s State) Link(ctx context.Context, lock Lock, pod Pod, id string) error {
	paths, err := s.PodDirs(pod)
	if err != nil || len(paths) == 0 {
		return err
	}
	root, unlock, err := s.hold(ctx, lock) // also where the link is right: a Release that began before Begin may be about to remove it
	if err != nil {
		return err
	}
	defer unlock()
	text := filepath.Join("..", id)
	for _, path := range paths {
		path = filepath.Join(podsDir, filepath.Base(path))
		if old, err := root.Readlink(path); err == nil && old == text {
			continue
		}
		if err := root.Remove(temporaryLink); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a killed call
			return err
		}
		if err := root.Symlink(text, temporaryLink); err != nil {
			return err
		}
		if err := root.Rename(temporaryLink, path); err != nil {
			return err
		}
	}
	return nil
}

// temporaryLink is a link before its rename. The lock is held meanwhile.
const temporaryLink = podsDir + "/.new"

// Release removes the directory of a sandbox that has no NIC any more, and the pods' links to it. If the sandbox has a
// NIC, or if a file of another program is in the directory, Release leaves the directory. It waits for other calls
// until ctx ends.
func (s State) Release(ctx context.Context, lock Lock, id string) error {
	if _, err := s.Dir(id); err != nil {
		return err
	}
	root, unlock, err := s.hold(ctx, lock)
	if errors.Is(err, fs.ErrNotExist) { // Begin makes pods first
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if nics, err := s.NICs(id); err != nil || len(nics) > 0 {
		return err
	}
	if err := s.unlink(root, func(target string) bool { return target == id }); err != nil {
		return err
	}
	err = root.Remove(id)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// Sweep removes the links of pods whose sandbox has no directory any more. It waits for other calls until ctx
// ends.
func (s State) Sweep(ctx context.Context, lock Lock) error {
	root, unlock, err := s.hold(ctx, lock)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if err := root.Remove(temporaryLink); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.unlink(root, func(target string) bool {
		dir, err := s.Dir(target)
		if err != nil {
			return false
		}
		_, err = os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// unlink removes the links of pods that lead to a sandbox which is selected. The lock is held.
func (s State) unlink(root *os.Root, selected func(id string) bool) error {
	links, err := readLinks(root)
	for link, id := range links {
		if err == nil && selected(id) {
			err = root.Remove(filepath.Join(podsDir, link))
		}
	}
	return err
}

// readLinks returns the sandboxes to which the pods' links lead, by the links' names.
func readLinks(root *os.Root) (map[string]string, error) {
	entries, err := fs.ReadDir(root.FS(), podsDir)
	if err != nil {
		return nil, err
	}
	links := map[string]string{}
	for _, entry := range entries {
		if entry.Type() != fs.ModeSymlink {
			continue
		}
		text, err := root.Readlink(filepath.Join(podsDir, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) { // without the lock: removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		if id, ok := strings.CutPrefix(text, "../"); ok {
			links[entry.Name()] = id
		}
	}
	return links, nil
}

// Lock holds a name on the node until unlock is called. It waits for other holders until ctx ends. It is
// directory.LockName, as other users can open all directories of the State, and could hold a lock there.
type Lock func(ctx context.Context, name string) (unlock func(), err error)

// hold opens the State, and keeps other calls from changing the pods' links. The error is fs.ErrNotExist if the State
// has no pods.
func (s State) hold(ctx context.Context, lock Lock) (root *os.Root, unlock func(), err error) {
	if root, err = directory.Open(string(s)); err != nil {
		return nil, nil, err
	}
	locked := func() {}
	if _, err = root.Lstat(podsDir); err == nil {
		locked, err = lock(ctx, s.Links())
	}
	if err != nil {
		root.Close()
		return nil, nil, err
	}
	return root, func() {
		locked()
		root.Close()
	}, nil
}
