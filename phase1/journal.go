package phase1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/statefile"
	"github.com/guestwire/guestwire/internal/wiring"
)

// journal is what Phase1 has to know of a wired NIC: to resume an interrupted Setup, to undo it, and to say who
// wired the NIC. The journal is on disk before the first change, and is removed last. Its Spec.State is the
// directory's real path.
type journal struct {
	Version   int            `json:"version"`
	Program   string         `json:"program"` // the version of guestwire that wrote the journal
	Since     time.Time      `json:"since"`   // of the first Setup
	Namespace netns.Identity `json:"namespace"`
	// From is Moving.From of the first Setup.
	From *cache.Record `json:"from,omitempty"`
	// Begins says that a policy is set for a guest that begins, and that connections from before it may be open.
	Begins bool `json:"begins,omitempty"`
	// Cut are connections that the diverts of an earlier Spec have led to where no divert leads now. They may be open.
	Cut []netstate.ConnectionsDel `json:"cut,omitempty"`
	wiring.Journal
	// Made is what Teardown undoes. It asks no plan.
	Made compare.Made `json:"made"`
	// Salvaged: a Teardown with Force wrote the journal, of what the namespace showed. Lost is what it could not find
	// out, a phrase each.
	Salvaged bool     `json:"salvaged,omitempty"`
	Lost     []string `json:"lost,omitempty"`

	text []byte // as read
}

// isWhole reports whether the journal has the NIC as it was found, without which nothing can be given back.
func (j *journal) isWhole() bool {
	_, found := j.Found.Named(j.NIC)
	return j.Made.NIC.Names.NIC == j.NIC && (found || j.Made.NIC.MayLeave)
}

// of is the journal when the plan comes into force. Where a guest begins, the networks of an earlier one stay in it
// until their connections are forgotten.
func (j journal) of(plan *wiring.Plan) journal {
	earlier := j.Made.Guests
	once := j.Made.Sysctls
	j.Journal, j.Made = plan.Journal(), plan.Made()
	for _, path := range netstate.OfFlows() {
		if slices.Contains(once, path) && !slices.Contains(j.Made.Sysctls, path) {
			j.Made.Sysctls = append(j.Made.Sysctls, path) // what a Spec without Flows gives back, or Teardown does
		}
	}
	for _, n := range earlier {
		if j.Begins && !slices.Contains(j.Made.Guests, n) {
			j.Made.Guests = append(j.Made.Guests, n)
		}
	}
	return j
}

// owner returns the owner with the numbers of this user namespace, which the first Setup has found.
func (j *journal) owner() resolvedOwner {
	o := resolvedOwner{Owner: j.Spec.Owner, given: j.Spec.Owner}
	if o.Inside {
		o.UID, o.GID = j.Found.OnNode.UID, j.Found.OnNode.GID
	}
	o.Inside = false
	return o
}

// journalVersion is the version of a journal that this program writes and reads. It changes with the fields, not with
// each release.
const journalVersion = 2

const journalSuffix = ".journal"

// path of a journal, for messages.
func (n node) path(namespace, nic string) string {
	return filepath.Join(n.Name(), namespace, nic+journalSuffix)
}

// read returns fs.ErrNotExist if there is no such file of the namespace.
func (n node) read(namespace, file string) ([]byte, error) {
	if n.Root == nil {
		return nil, fs.ErrNotExist
	}
	dir, err := n.OpenRoot(namespace)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return statefile.Read(dir, file)
}

// unusable is the error of a journal that was read, and that this program cannot use.
type unusable struct{ error }

// readJournal returns nil if there is no journal. The error is unusable for one that is damaged or of another version.
func (n node) readJournal(namespace, nic string) (*journal, error) {
	path := n.path(namespace, nic)
	text, err := n.read(namespace, nic+journalSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	var j journal
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields() // what they say would be lost
	if err = d.Decode(&j); err == nil && j.Version == journalVersion {
		if _, end := d.Token(); end == io.EOF && j.isWhole() {
			j.text = text
			return &j, nil
		}
	}
	// A journal of another version may have fields that are unknown here.
	var head struct{ Version int }
	damaged := json.Unmarshal(text, &head)
	switch {
	case damaged == nil && head.Version == 0:
		damaged = errors.New("no version")
	case damaged == nil && err == nil && head.Version == journalVersion && !j.isWhole():
		damaged = fmt.Errorf("no NIC %s as it was found", nic)
	}
	switch {
	case damaged != nil:
		err = fmt.Errorf("%w: the file is damaged, and how the namespace was before Setup is not known; Teardown by force does without it (guestwire-agent teardown -force)", damaged)
	case head.Version != journalVersion:
		err = fmt.Errorf("version %d, and this program reads %d: use the version of guestwire that wrote it, or Teardown by force, which does without it (guestwire-agent teardown -force)", head.Version, journalVersion)
	default:
		err = fmt.Errorf("%w: use the version of guestwire that wrote it, or Teardown by force, which does without it (guestwire-agent teardown -force)", err)
	}
	return nil, unusable{fmt.Errorf("journal %s: %w", path, err)}
}

// removeJournal removes also what a killed call left of it, and the directory of the last journal.
func (n node) removeJournal(namespace, nic string) error {
	if n.Root == nil {
		return nil
	}
	dir, err := n.OpenRoot(namespace)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		for _, suffix := range []string{sightSuffix, journalSuffix} {
			if err == nil {
				err = statefile.Remove(dir, nic+suffix)
			}
		}
		dir.Close()
	}
	if err != nil {
		return fmt.Errorf("journal %s: %w", n.path(namespace, nic), err)
	}
	return n.removeEmpty(namespace)
}

// removeEmpty removes the namespace's directory if no journal is left there.
func (n node) removeEmpty(namespace string) error {
	if err := n.Remove(namespace); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("journal directory: %w", err)
	}
	return nil
}

// readJournal returns nil if there is no journal of the NIC in this namespace.
func (s *session) readJournal() (*journal, error) {
	j, err := s.node.readJournal(s.identity.Name(), s.nic)
	if j != nil && j.Namespace != s.identity {
		return nil, nil // of a namespace that is gone
	}
	return j, err
}

func (s *session) journalPath() string { return s.node.path(s.identity.Name(), s.nic) }

// otherJournals returns the journals of the namespace's other NICs. Complete is false if one of them cannot be read.
func (s *session) otherJournals() (others []*journal, complete bool, err error) {
	nics, err := s.node.nics(s.identity.Name())
	if err != nil {
		return nil, false, err
	}
	complete = true
	for _, nic := range nics {
		if nic == s.nic {
			continue
		}
		j, err := s.node.readJournal(s.identity.Name(), nic)
		switch {
		case err != nil:
			complete = false
		case j != nil:
			others = append(others, j)
		}
	}
	return others, complete, nil
}

// writeJournal writes the journal, and adds to a new one who wired the NIC, and when.
func (s *session) writeJournal(j journal) error {
	first := j.Since.IsZero()
	if first {
		j.Program, j.Since = program(), time.Now().UTC().Truncate(time.Second)
	}
	j.Version, j.Namespace = journalVersion, s.identity
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	namespace := s.identity.Name()
	s.journal = text
	if old, err := s.node.read(namespace, s.nic+journalSuffix); err == nil && string(old) == string(text) {
		return nil
	}
	if !first && j.Program != program() { // which writes it from now on
		j.Program = program()
		if text, err = json.Marshal(j); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		s.journal = text
	}
	if err := s.node.Mkdir(namespace, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("journal %s: %w", s.journalPath(), err)
	}
	dir, err := s.node.OpenRoot(namespace)
	if err == nil {
		err = statefile.Write(dir, s.nic+journalSuffix, text, 0o600)
		dir.Close()
	}
	if err != nil {
		err = errors.Join(err, s.node.removeEmpty(namespace))
		return fmt.Errorf("journal %s: %w", s.journalPath(), err)
	}
	return nil
}

func (s *session) removeJournal() error { return s.node.removeJournal(s.identity.Name(), s.nic) }

// replan makes the journal's plan again.
func (s *session) replan(j *journal) (*wiring.Plan, error) {
	plan, err := j.Plan()
	if err != nil {
		return nil, fmt.Errorf("journal: %v", err) // no ErrNoNIC: the NIC may be there
	}
	plan.Record.Namespace = s.identity.Name()
	return plan, nil
}

// program is the version of guestwire in this program, with its revision if the program is guestwire's own.
var program = sync.OnceValue(func() string {
	const module = "github.com/guestwire/guestwire"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, dep := range info.Deps {
		switch {
		case dep.Path != module, strings.HasPrefix(info.Main.Path, module+"/"): // a program of guestwire's own, of the same commit
		case dep.Replace != nil:
			return strings.TrimSpace(dep.Replace.Path + " " + dep.Replace.Version)
		default:
			return dep.Version
		}
	}
	version := info.Main.Version
	for _, s := range info.Settings {
		if revision := s.Value[:min(12, len(s.Value))]; s.Key == "vcs.revision" && !strings.Contains(version, revision) {
			version += " " + revision
		}
	}
	return version
})
