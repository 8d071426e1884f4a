package phase1

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/statefile"
	"github.com/guestwire/guestwire/internal/wiring"
)

// journal is what Setup has to know to resume an earlier one, or to undo it. The journal is on disk before
// the first change, and is removed last.
type journal struct {
	Version   int            `json:"version"`
	Namespace netns.Identity `json:"namespace"`
	wiring.Journal
}

// journalVersion is 2 since Spec's options.disabled is called options.noResponder.
const journalVersion = 2

// journalName includes the namespace, so that the journal of an earlier namespace is not taken for this one's.
func (s *session) journalName() string { return s.nic + "@" + s.identity.Name() + journalSuffix }

// journalPath is for messages.
func (s *session) journalPath() string { return s.dir.Name() + "/" + s.journalName() }

const journalSuffix = ".journal"

func cutJournalName(name string) (nic, namespace string, ok bool) {
	name, journal := strings.CutSuffix(name, journalSuffix)
	nic, namespace, ok = strings.Cut(name, "@")
	return nic, namespace, ok && journal
}

// readJournal returns nil if there is no journal of this namespace.
func (s *session) readJournal() (*journal, error) {
	if s.dir == nil {
		return nil, nil
	}
	text, err := statefile.Read(s.dir, s.journalName())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	path := s.journalPath()
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	// The version comes first: a journal of another version may have fields that are unknown here.
	var head struct{ Version int }
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("journal %s: %w: the file is damaged, and how the namespace was before Setup is not known", path, err)
	}
	if head.Version != journalVersion {
		return nil, fmt.Errorf("journal %s: version %d, and this program reads %d: use the version of guestwire that wrote it", path, head.Version, journalVersion)
	}
	var j journal
	if err := json.Unmarshal(text, &j); err != nil {
		return nil, fmt.Errorf("journal %s: %w: use the version of guestwire that wrote it", path, err)
	}
	if j.Namespace != s.identity {
		return nil, nil // of a namespace that is gone
	}
	return &j, nil
}

// otherJournals returns the journals of the namespace's other NICs that lie in the same directory.
func (s *session) otherJournals() ([]*journal, error) {
	if s.dir == nil {
		return nil, nil
	}
	entries, err := fs.ReadDir(s.dir.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	var others []*journal
	for _, entry := range entries {
		nic, namespace, ok := cutJournalName(entry.Name())
		if !ok || nic == s.nic || namespace != s.identity.Name() {
			continue
		}
		other := *s
		other.nic = nic
		journal, err := other.readJournal()
		if err != nil {
			return nil, err
		}
		if journal != nil {
			others = append(others, journal)
		}
	}
	return others, nil
}

func (s *session) writeJournal(j wiring.Journal) error {
	text, err := json.Marshal(journal{Version: journalVersion, Namespace: s.identity, Journal: j})
	if err != nil {
		return fmt.Errorf("journal of NIC %s: %w", s.nic, err)
	}
	if old, err := statefile.Read(s.dir, s.journalName()); err == nil && string(old) == string(text) {
		return nil
	}
	if err := statefile.Write(s.dir, s.journalName(), text, 0o600); err != nil {
		return fmt.Errorf("journal %s: %w", s.journalPath(), err)
	}
	return nil
}

func (s *session) removeJournal() error {
	if err := statefile.Remove(s.dir, s.journalName()); err != nil {
		return fmt.Errorf("journal %s: %w", s.journalPath(), err)
	}
	return nil
}

// replan makes the journal's plan again.
func (s *session) replan(j *journal) (*wiring.Plan, error) {
	plan, err := wiring.NewPlan(j.Found, j.Spec)
	if err != nil {
		return nil, fmt.Errorf("journal of NIC %s: %w", j.Spec.NIC, err)
	}
	return plan, nil
}
