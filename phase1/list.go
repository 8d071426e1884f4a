package phase1

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
)

// Wiring is one wired NIC of the node, as its journal has it.
type Wiring struct {
	NIC string `json:"nic"`

	// Namespace is the namespace's name: BOOT-INODE-COOKIE, the first 8 digits of the boot's
	// id, the inode number and the cookie. No other namespace ever has this name.
	Namespace string `json:"namespace"`

	// FoundAt are paths of the namespace, such as /run/netns/pod, to show to people. They
	// include open files of this process. A program calls Open: a path may lead elsewhere by
	// then. Empty: the namespace is gone, see Forget.
	FoundAt []string   `json:"foundAt"`
	State   string     `json:"state,omitempty"` // the record's directory; empty: no record
	Binding cache.Kind `json:"binding,omitempty"`

	// Owner is that of the Spec.
	Owner infra.Owner `json:"owner"`

	// OnNode has Owner's numbers on the node if Owner.Inside is set. Otherwise it is zero.
	OnNode infra.Owner `json:"onNode,omitzero"`

	// Names are those of the Spec, which a DNS proxy answers.
	Names []infra.Name `json:"names,omitempty"`

	// NAT64 is that of the Spec's Options.
	NAT64 netip.Prefix `json:"nat64,omitzero"`

	// Role and Turn are the record's.
	Role cache.Role `json:"role,omitempty"`
	Turn uint64     `json:"turn,omitempty"`

	// For is that of the Spec. While sets it.
	For string `json:"for,omitempty"`

	// Since is the time of the first Setup.
	Since time.Time `json:"since,omitzero"`

	// Version is the version of guestwire that wrote the journal.
	Version string `json:"version,omitempty"`

	// Unreadable is why the rest of the journal cannot be used, such as another Version. The
	// fields above have what could be read. Empty: the journal can be used.
	Unreadable string `json:"unreadable,omitempty"`

	// unread is the error by which the journal could not be read at all; nil: it has the fields above, or is damaged.
	unread error
	orphan bool         // known by its record alone
	found  *netns.Found // nil: the namespace is gone, or it was not looked for
}

// Open opens the namespace, and never another one that is at FoundAt by now. The caller closes the file. Open needs
// root.
//
//	fs.ErrNotExist  the namespace is gone, or has left FoundAt
func (w Wiring) Open(ctx context.Context) (*os.File, error) {
	found := w.found
	if found == nil {
		id, err := netns.Named(w.Namespace)
		if err != nil {
			return nil, &cache.FieldError{Field: "namespace", Reason: err.Error()}
		}
		all, _, err := netns.Find(ctx, []netns.Identity{id})
		if err != nil {
			return nil, err
		}
		if found = all[id]; found == nil {
			return nil, fmt.Errorf("network namespace %s, which is gone: %w", w.Namespace, fs.ErrNotExist)
		}
	}
	return found.Open()
}

// List returns the node's wired NICs, sorted by namespace and NIC. It includes those whose Setup has not ended. dir is
// NIC.Dir. List needs root. No lock.
//
//	fs.ErrNotExist  dir does not exist, and is not DefaultDir
func List(ctx context.Context, dir string) ([]Wiring, error) {
	list, err := listWirings(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return list, nil
}

func listWirings(ctx context.Context, dir string) ([]Wiring, error) {
	if err := checkRoot(); err != nil {
		return nil, err
	}
	n, err := findNode(dir)
	if errors.Is(err, fs.ErrNotExist) && mayLack(dir) {
		return []Wiring{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer n.Close()
	list, _, err := n.list(ctx)
	return list, err
}

// lookup is what netns.Find says of the namespaces that have a directory.
type lookup struct {
	identities map[string]netns.Identity // by their names: all that were looked for
	found      map[netns.Identity]*netns.Found
	unseen     []string // what could not be looked at
}

// list returns also the lookup.
func (n node) list(ctx context.Context) (list []Wiring, seen lookup, err error) {
	names, err := n.namespaces()
	if err != nil {
		return nil, seen, err
	}
	list = []Wiring{}
	seen.identities = map[string]netns.Identity{}
	var wanted []netns.Identity
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, seen, context.Cause(ctx)
		}
		id, err := netns.Named(name)
		if errors.Is(err, netns.ErrNoName) {
			continue // a directory of another program
		}
		if err != nil {
			return nil, seen, err
		}
		seen.identities[name] = id
		wanted = append(wanted, id)
		nics, err := n.nics(name)
		if err != nil {
			return nil, seen, err
		}
		for _, nic := range nics {
			if w, ok := n.describe(name, nic); ok {
				list = append(list, w)
			}
		}
	}
	seen.found, seen.unseen, err = netns.Find(ctx, wanted)
	if err != nil {
		return nil, seen, err
	}
	for i, w := range list {
		list[i].setFound(seen.found[seen.identities[w.Namespace]])
	}
	return list, seen, nil
}

func (w *Wiring) setFound(found *netns.Found) {
	w.FoundAt = []string{}
	if w.found = found; found != nil {
		w.FoundAt = found.Places()
	}
}

// describe returns what the journal says, also of one of another version. It returns false if the journal has gone
// meanwhile.
func (n node) describe(namespace, nic string) (Wiring, bool) {
	j, err := n.readJournal(namespace, nic)
	if err == nil {
		return j.describe(namespace, nic), j != nil
	}
	w := Wiring{NIC: nic, Namespace: namespace, Unreadable: err.Error()}
	text, err := n.read(namespace, nic+journalSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return w, false
	}
	var part struct {
		Program string
		Since   time.Time
		Found   struct{ OnNode infra.Owner }
		Role    cache.Role
		Turn    uint64
		Spec    struct {
			State   string
			For     string
			Binding map[string]json.RawMessage
			Owner   infra.Owner
		}
	}
	if err == nil {
		_ = json.Unmarshal(text, &part) // what can be read counts
	} else {
		w.unread = fmt.Errorf("journal %s: %w", n.path(namespace, nic), err)
	}
	w.State, w.Owner, w.OnNode = part.Spec.State, part.Spec.Owner, part.Found.OnNode
	w.Role, w.Turn = part.Role, part.Turn
	w.Since, w.Version, w.For = part.Since, part.Program, part.Spec.For
	for kind := range part.Spec.Binding {
		w.Binding = cache.Kind(kind)
	}
	return w, true
}

// describe returns what the journal says; nil says nothing.
func (j *journal) describe(namespace, nic string) Wiring {
	w := Wiring{NIC: nic, Namespace: namespace}
	if j != nil {
		w.State, w.Owner, w.OnNode = j.Spec.State, j.Spec.Owner, j.Found.OnNode
		w.Names, w.NAT64 = j.Spec.Names, j.Spec.Options.NAT64
		if j.Spec.Binding != nil {
			w.Binding = j.Spec.Binding.Kind()
		}
		w.Role, w.Turn = j.Role, j.Turn.Turn
		w.Since, w.Version, w.For = j.Since, j.Program, j.Spec.For
	}
	return w
}
