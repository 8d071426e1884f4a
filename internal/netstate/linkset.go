package netstate

import (
	"fmt"
	"strings"

	"github.com/guestwire/guestwire/infra"
)

// LinkSet gives a link the properties of Want in which it differs from Have.
type LinkSet struct {
	Have, Want Link
	MasterName string // of Want.Master; empty: none
}

// LinkProperty is a property of a link that an operation can set.
type LinkProperty struct {
	// Kind is that of the difference. Text is the difference in words, of the link's name, what Of returns of the link
	// as it is, and of the wanted one.
	Kind, Text string
	// Of returns the property as ip(8) writes it, or what is printed so.
	Of   func(Link) any
	word string // before the value, in the command; empty: the value alone
}

// linkProperties are in the order of the command's words.
var linkProperties = []LinkProperty{
	{"name", "%[1]s is called %[2]v", func(l Link) any { return l.Name }, "name"},
	{"mac", "MAC of %s is %v, not %v", func(l Link) any { return l.MAC }, "address"},
	{"mtu", "MTU of %s is %v, not %v", func(l Link) any { return l.MTU }, "mtu"},
	{"txqueuelen", "txqueuelen of %s is %v, not %v", func(l Link) any { return l.QueueLength }, "txqueuelen"},
	{"group", "group of %s is %v, not %v", func(l Link) any { return l.Group }, "group"},
	{"alias", "alias of %s is %q, not %q", func(l Link) any { return l.Alias }, "alias"},
	{"addrgenmode", "addrgenmode of %s is %v, not %v", func(l Link) any { return addrGenText(l.AddrGen) }, "addrgenmode"},
	{"master", "", func(l Link) any { return l.Master }, "master"}, // an index, which a text does not have
	{"arp", "ARP of %s is %v, not %v", func(l Link) any { return OnOff(!l.NoARP) }, "arp"},
	{"allmulticast", "allmulticast of %s is %v, not %v", func(l Link) any { return OnOff(l.AllMulticast) }, "allmulticast"},
	{"up", "%[1]s is %[2]v", func(l Link) any { return map[bool]string{true: "up", false: "down"}[l.Up] }, ""},
}

// Properties are those that the operation sets.
func (o LinkSet) Properties() (set []LinkProperty) {
	for _, p := range linkProperties {
		if p.Of(o.Have) != p.Of(o.Want) {
			set = append(set, p)
		}
	}
	return set
}

func (o LinkSet) String() string {
	words := []string{"ip link set", infra.ShellWord(o.Have.Name)}
	for _, p := range o.Properties() {
		value := fmt.Sprint(p.Of(o.Want))
		switch {
		case p.Kind == "master" && o.Want.Master == 0:
			words = append(words, "nomaster")
			continue
		case p.Kind == "master":
			value = o.MasterName
		}
		if p.word != "" {
			words = append(words, p.word)
		}
		words = append(words, infra.ShellWord(value))
	}
	return strings.Join(words, " ")
}

// OnOff is the word for a switch.
func OnOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// addrGenText is the mode as ip(8) names it.
func addrGenText(mode int) string {
	names := []string{"eui64", "none", "stable_secret", "random"}
	if mode >= 0 && mode < len(names) {
		return names[mode]
	}
	return fmt.Sprint(mode)
}
