package compare

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TakenError names the links that keep a name from the wiring. It is infra.ErrWired as well.
type TakenError []cache.Finding

func (e TakenError) Error() string { return Join(e) }

// Join returns all that is found as one phrase.
func Join(found []cache.Finding) string {
	var texts []string
	for _, f := range found {
		texts = append(texts, f.String())
	}
	return strings.Join(texts, "; ")
}

func (e TakenError) Unwrap() error { return infra.ErrWired }

// Taken says whose the wiring's name is, and how it becomes free.
func Taken(name string, by netstate.Link) cache.Finding {
	f := cache.Finding{Kind: "link-other", Grave: true, Link: name, What: fmt.Sprintf("%s is %s", name, whose(by))}
	nic, wired := netstate.Marked(by.Alias)
	switch {
	case by.Name != name:
		f.What = fmt.Sprintf("%s is an altname of %s", name, by.Name)
		f.Way = fmt.Sprintf("take it away first, in this namespace (ip link property del dev %s altname %s)", infra.ShellWord(by.Name), infra.ShellWord(name))
	case wired:
		f.Way = fmt.Sprintf("take that NIC down first (Teardown, guestwire-agent teardown -nic %s)", infra.ShellWord(nic))
	case by.Kind == "": // hardware, which cannot be deleted
		f.Way = fmt.Sprintf("rename it first, in this namespace (ip link set %s down; ip link set %s name NAME)", infra.ShellWord(name), infra.ShellWord(name))
	default:
		f.Way = fmt.Sprintf("rename or delete it first, in this namespace (ip link del %s)", infra.ShellWord(name))
	}
	return f
}

// whose says what the link is, such as "another program's veth".
func whose(l netstate.Link) string {
	switch nic, wired := netstate.Marked(l.Alias); {
	case wired:
		return "a link of the wiring of " + nic
	case l.Tap != nil:
		return "another program's tap"
	case l.Kind == "":
		return "another NIC"
	}
	return "another program's " + l.Kind
}

// taken are the names that the operations give to links while other links have them: the kernel would refuse it, in
// the middle of the operations.
func taken(now netstate.Snapshot, ops []netstate.Op) (list TakenError) {
	given := map[string]bool{}
	for _, op := range ops {
		given[givenName(op)] = true
	}
	delete(given, "")
	var holders []netstate.Link // a name has one
	for _, l := range now.Links {
		if given[l.Name] || slices.ContainsFunc(l.AltNames, func(name string) bool { return given[name] }) {
			holders = append(holders, l)
		}
	}
	renamed, deleted := map[int]bool{}, map[int]bool{} // an altname stays with a link that gets another name
	for _, op := range ops {
		name := givenName(op)
		set, isSet := op.(netstate.LinkSet)
		for _, l := range holders {
			switch {
			case name != "" && l.Has(name) && !deleted[l.Index] && !(renamed[l.Index] && l.Name == name):
				list = append(list, Taken(name, l))
			case isSet && name != "" && l.Index == set.Have.Index:
				renamed[l.Index] = true
			case !isSet && netstate.Deletes(op, l):
				deleted[l.Index] = true
			}
		}
	}
	return list
}

// givenName is the name that the operation gives to a link; empty: none.
func givenName(op netstate.Op) string {
	if set, is := op.(netstate.LinkSet); is {
		if set.Want.Name == set.Have.Name {
			return ""
		}
		return set.Want.Name
	}
	return createdName(op)
}

// createdName is the name of the link that the operation creates; empty: it creates none.
func createdName(op netstate.Op) string {
	switch o := op.(type) {
	case netstate.TapAdd:
		return o.Link
	case netstate.LinkAdd:
		return o.Name
	}
	return ""
}
