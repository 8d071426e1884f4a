package compare

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TakenError names the links that keep a name from the wiring. It is infra.ErrWired as well.
type TakenError []Taken

// Taken is a name of the wiring that another link has.
type Taken struct {
	Name string
	By   netstate.Link
}

func (e TakenError) Error() string {
	var texts []string
	for _, t := range e {
		texts = append(texts, t.String())
	}
	return strings.Join(texts, "; ")
}

func (e TakenError) Unwrap() error { return infra.ErrWired }

// String says whose the name is, and how it becomes free.
func (t Taken) String() string {
	way := fmt.Sprintf("rename or delete it first, in this namespace (ip link del %s)", infra.ShellWord(t.Name))
	if nic, wired := netstate.Marked(t.By.Alias); wired {
		way = fmt.Sprintf("take that NIC down first (Teardown, guestwire-agent teardown -nic %s)", infra.ShellWord(nic))
	} else if t.By.Kind == "" { // hardware, which cannot be deleted
		way = fmt.Sprintf("rename it first, in this namespace (ip link set %s down; ip link set %s name NAME)", infra.ShellWord(t.Name), infra.ShellWord(t.Name))
	}
	if t.By.Name != t.Name {
		return fmt.Sprintf("%s is an altname of %s: take it away first, in this namespace (ip link property del dev %s altname %s)", t.Name, t.By.Name, infra.ShellWord(t.By.Name), infra.ShellWord(t.Name))
	}
	return fmt.Sprintf("%s is %s: %s", t.Name, whose(t.By), way)
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
				list = append(list, Taken{name, l})
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
