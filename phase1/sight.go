package phase1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sync"
	"syscall"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/flock"
	"github.com/guestwire/guestwire/internal/nft"
	"github.com/guestwire/guestwire/internal/wiring"
)

// sightSuffix ends the name of a file beside a journal. A call that sees what the file holds need not read the tables:
// they are in the kernel as Setup left them. A file that cannot be written or read, or is of another journal or another
// program, costs a reading, and is no error.
const sightSuffix = ".sight"

type sight struct {
	Of string `json:"of"` // the journal and the program
	nft.Sight
}

// sightOf is sight.Of for the text of a journal.
func sightOf(journal []byte) string {
	sum := sha256.New()
	sum.Write(journal)
	sum.Write([]byte(executable()))
	return hex.EncodeToString(sum.Sum(nil))
}

// executable distinguishes this program from others, which may make other tables of the same journal.
var executable = sync.OnceValue(func() string {
	info, err := os.Stat("/proc/self/exe")
	if err != nil {
		return fmt.Sprint("process ", os.Getpid())
	}
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprint(stat.Dev, stat.Ino, stat.Size, stat.Mtim, stat.Ctim)
})

// expect lets the next Snapshot take the tables of the journal's plan for those in the kernel, if it sees the same as
// the journal's sight. If plan is the journal's, no table has to be made then. The plan of a later journal has to be
// compared with the tables of the journal's own. Tables that the Snapshot needs are made here, where a reader has no
// lock: a pod chooses by its addresses how many rules there are.
func (s *session) expect(j *journal, plan *wiring.Plan) {
	text, err := s.node.read(s.identity.Name(), s.nic+sightSuffix)
	if err != nil || json.Unmarshal(text, &s.sight) != nil || s.sight.Of != sightOf(j.text) {
		plan.Tables()
		return
	}
	same := reflect.DeepEqual(plan.Journal(), j.Journal)
	if by := plan.Record.Firewall; same && (by == "" || by == cache.FirewallNFTables) && !s.ns.Tables.Changed(s.sight.Sight) {
		s.ns.Tables.ExpectNothingNew(s.sight.Sight)
		return
	}
	if !same {
		if plan, err = j.Try(); err != nil { // for its tables alone
			return
		}
	}
	s.ns.Tables.Expect(s.sight.Sight, plan.Tables())
}

// noteSight is writeSight for a reader. If another call works on the namespace or has changed the journal, it does
// nothing.
func (s *session) noteSight() {
	if _, new := s.newSight(); !new { // most often
		return
	}
	unlock, err := flock.Try(s.node.Root, namespaceLock(s.identity), os.O_CREATE)
	if err != nil {
		return
	}
	defer unlock()
	if s.reader.checkJournal(s) == nil {
		s.writeSight()
	}
}

// newSight is what the last Snapshot has seen; new is false if the file holds it already, or if it saw not enough.
func (s *session) newSight() (seen sight, new bool) {
	seen = sight{Of: sightOf(s.journal), Sight: s.ns.Tables.Sight()}
	return seen, seen.Links != nil && !reflect.DeepEqual(seen, s.sight)
}

// writeSight notes what the last Snapshot has seen, which found the tables as the journal wants them.
func (s *session) writeSight() {
	seen, new := s.newSight()
	if !new {
		return
	}
	text, err := json.Marshal(seen)
	if err != nil {
		return
	}
	if dir, err := s.node.OpenRoot(s.identity.Name()); err == nil {
		_ = dir.WriteFile(s.nic+sightSuffix, text, 0o600) // a part of it is no JSON
		dir.Close()
	}
}
