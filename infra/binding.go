package infra

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	"github.com/guestwire/guestwire/cache"
)

// Binding is how the guest is attached: one of Bridge, Redirect, Masquerade, Macvtap, SRIOV, Passt, or Auto.
type Binding interface {
	// Kind is the binding's name, as in a record.
	Kind() string
	binding()
}

// Bridge makes the guest the station that the NIC was: with its MAC, its addresses and its
// routes. The namespace keeps the NIC's name and addresses on a link that leads nowhere.
type Bridge struct{}

// Redirect makes the guest the station that the NIC was, as Bridge does, and leaves the NIC alone: it
// keeps its name, kind, MAC and addresses, for a CNI plugin to find. All that comes in at it is the
// guest's. It works on a macvlan and an ipvlan too.
type Redirect struct{}

// Masquerade makes the guest a private host behind the NIC's addresses. The families are those
// of which the NIC has a global address.
type Masquerade struct {
	// IPv4 and IPv6 are the guest's networks: the first address is the gateway's, the second the
	// guest's. At least 4 addresses, so at most /30 and /126. Zero: DefaultIPv4, DefaultIPv6.
	IPv4 netip.Prefix `json:"ipv4,omitzero"`
	IPv6 netip.Prefix `json:"ipv6,omitzero"`
	// MAC is the guest's; zero: one that is computed from the NIC's, and so stays the same.
	MAC cache.MAC `json:"mac,omitzero"`
	// Ports are what is forwarded to the guest; nil: everything, of every protocol; empty: nothing.
	Ports []Ports `json:"ports,omitzero"`
	// Excluded are not forwarded, and stay the namespace's own. None of them may be in Ports, so they
	// are for Ports that are nil, and for Sidecar: a range with a gap is two ranges.
	Excluded []Ports `json:"excluded,omitempty"`
	// Loopback forwards what the namespace's own processes send to 127.0.0.1 and ::1 as well. The
	// guest sees the gateway as its source.
	Loopback bool `json:"loopback,omitempty"`
	// Sidecar is for the proxies of a service mesh in the namespace; nil: there are none.
	Sidecar *Sidecar `json:"sidecar,omitempty"`
	// MaxConnections limits those that the guest has at once, in either direction, so that it cannot
	// fill the machine's table; at most 1048576, and what is over it is dropped. 0: no limit. By iptables
	// each family has a limit of its own.
	MaxConnections int `json:"maxConnections,omitempty"`
	// Firewall is what translates: cache.FirewallNFTables, or a program that has to be there, with
	// its twin for IPv6: cache.FirewallIPTablesNFT, cache.FirewallIPTablesLegacy. Empty: nftables,
	// or iptables-legacy where the kernel has no nf_tables. The tables and built-in chains that
	// iptables makes for itself stay after Teardown.
	Firewall string `json:"firewall,omitempty"`
}

// Sidecar leaves what comes from the network to proxies in the namespace, whose own rules catch it.
// They reach the guest at the NIC's addresses. The ports that they listen at belong into
// Masquerade.Excluded.
type Sidecar struct {
	// Sources are the loopback addresses from which they connect to the guest, which cannot answer
	// to those and sees the gateway instead: Istio's 127.0.0.6 and ::6. None: they connect from the
	// NIC's addresses, or Masquerade.Loopback is set, which holds for 127.0.0.0/8 and ::1.
	Sources []netip.Addr `json:"sources,omitempty"`
}

// The networks of a guest behind Masquerade.
var (
	DefaultIPv4 = netip.MustParsePrefix("10.0.2.0/24")
	DefaultIPv6 = netip.MustParsePrefix("fd10:0:2::/120")
)

// Kind is cache.BindingBridge.
func (Bridge) Kind() string { return cache.BindingBridge }

// Kind is cache.BindingRedirect.
func (Redirect) Kind() string { return cache.BindingRedirect }

// Kind is cache.BindingMasquerade.
func (Masquerade) Kind() string { return cache.BindingMasquerade }

func (Bridge) binding()     {}
func (Redirect) binding()   {}
func (Masquerade) binding() {}

// NewBinding returns the binding of that kind with its defaults. The error is a
// *cache.FieldError.
func NewBinding(kind string) (Binding, error) {
	switch kind {
	case cache.BindingBridge:
		return Bridge{}, nil
	case cache.BindingRedirect:
		return Redirect{}, nil
	case cache.BindingMasquerade:
		return Masquerade{}, nil
	case cache.BindingMacvtap:
		return Macvtap{}, nil
	case cache.BindingSRIOV:
		return SRIOV{}, nil
	case cache.BindingPasst:
		return Passt{}, nil
	case kindAuto:
		return Auto{}, nil
	}
	return nil, &cache.FieldError{Field: "binding", Reason: fmt.Sprintf("%q, want %s", kind, kinds)}
}

// kinds are those of NewBinding.
const kinds = `"bridge", "redirect", "masquerade", "macvtap", "sriov", "passt" or "auto"`

// Spec is what is wanted of one NIC.
type Spec struct {
	NIC     string
	Binding Binding
	Owner   Owner
	Queues  int // queue pairs of the tap; 0: 1
	DNS     *cache.DNS
	Options cache.Options
	Device  cache.Device
	Guard   Guard
}

// specDocument is Spec in JSON: the binding is an object with one member, its kind.
type specDocument struct {
	NIC     string          `json:"nic,omitempty"`
	Binding json.RawMessage `json:"binding,omitempty"`
	Owner   Owner           `json:"owner,omitzero"`
	Queues  int             `json:"queues,omitempty"`
	DNS     *cache.DNS      `json:"dns,omitempty"`
	Options cache.Options   `json:"options,omitzero"`
	Device  cache.Device    `json:"device,omitzero"`
	Guard   Guard           `json:"guard,omitzero"`
}

// MarshalJSON writes the binding as an object with one member, such as {"bridge": {}}.
func (s Spec) MarshalJSON() ([]byte, error) {
	doc := specDocument{NIC: s.NIC, Owner: s.Owner, Queues: s.Queues, DNS: s.DNS, Options: s.Options, Device: s.Device, Guard: s.Guard}
	if s.Binding != nil {
		b, err := json.Marshal(s.Binding)
		if err != nil {
			return nil, err
		}
		if doc.Binding, err = json.Marshal(map[string]json.RawMessage{s.Binding.Kind(): b}); err != nil {
			return nil, err
		}
	}
	return json.Marshal(doc)
}

// UnmarshalJSON is the reverse of MarshalJSON. Unknown fields are errors. The error is a
// *cache.FieldError.
func (s *Spec) UnmarshalJSON(text []byte) error {
	var doc specDocument
	if err := cache.Unmarshal("", text, &doc); err != nil {
		return err
	}
	spec := Spec{NIC: doc.NIC, Owner: doc.Owner, Queues: doc.Queues, DNS: doc.DNS, Options: doc.Options, Device: doc.Device, Guard: doc.Guard}
	var kinds map[string]json.RawMessage
	if len(doc.Binding) > 0 {
		if err := json.Unmarshal(doc.Binding, &kinds); err != nil || len(kinds) != 1 {
			return &cache.FieldError{Field: "binding", Reason: `want an object with one member, such as {"bridge": {}}`}
		}
	}
	for kind, raw := range kinds {
		b, err := NewBinding(kind)
		if err != nil {
			return err
		}
		value := reflect.New(reflect.TypeOf(b))
		if err := cache.Unmarshal("binding."+kind, raw, value.Interface()); err != nil {
			return err
		}
		spec.Binding = value.Elem().Interface().(Binding)
	}
	*s = spec
	return nil
}

// Names are those of the links that a wiring has.
type Names struct {
	NIC    string // as found
	Moved  string // the NIC's while it is a bridge's port
	Bridge string
	Tap    string
	Port   string // the responder's
	Table  string // of nftables
}

// NamesFor returns the names of the wiring of a NIC. They fit whatever its name is.
func NamesFor(nic string) Names {
	stem := nic
	if len(stem) > cache.MaxNameLen-len("-dhcp") {
		sum := sha256.Sum256([]byte(nic))
		stem = "gw" + hex.EncodeToString(sum[:4])
	}
	return Names{
		NIC:    nic,
		Moved:  stem + "-nic",
		Bridge: stem + "-br",
		Tap:    stem + "-tap",
		Port:   stem + "-dhcp",
		Table:  "guestwire-" + nic,
	}
}

// chains begins the names of our chains in iptables, which have at most 28 characters.
func (n Names) chains() string { return "gw-" + n.NIC }

// created are the names that must be free.
func (n Names) created() []string { return []string{n.Moved, n.Bridge, n.Tap, n.Port} }

// Mark is the alias of every link that is created for the NIC.
func Mark(nic string) string { return "guestwire " + nic }

// Marked is the NIC for which a link with that alias was created.
func Marked(alias string) (nic string, ok bool) { return strings.CutPrefix(alias, Mark("")) }

// groupBase marks our groups; the low bits are the NIC's index.
const groupBase = 0x67770000

// Group is the number of the group of all links that are created for the NIC with that index.
func Group(index int) uint32 { return groupBase + uint32(index)&0xffff }

// deriveMAC returns a locally administered address that is always the same for the same NIC and
// purpose.
func deriveMAC(nic Link, purpose string) cache.MAC {
	sum := sha256.Sum256([]byte(nic.MAC.String() + " " + nic.Name + " " + purpose))
	var m cache.MAC
	copy(m[:], sum[:])
	m[0] = m[0]&^1 | 2
	return m
}
