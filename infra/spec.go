package infra

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/strictjson"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Spec is what a launcher wants of a NIC. In JSON the binding is an object with one member, the binding's kind:
//
//	{"binding": {"masquerade": {"ports": ["80"]}}, "owner": {"uid": 107}}
type Spec struct {
	// Binding is how the guest is attached. Macvtap, SRIOV and Passt take no DNS and no Options, as guestwire's responder
	// does not serve their guests.
	Binding Binding `json:"binding,omitempty"`
	// Guest is the guest's identity: any text of 1 to 253 octets of UTF-8 that stays the same for the guest's life, such
	// as a UUID or "namespace/name". Where Masquerade and Passt make up the guest's MAC, it is computed from Guest, and so
	// is the same in each namespace to which the guest moves. Empty: that MAC is computed from the NIC's.
	Guest string `json:"guest,omitempty"`
	// Owner is the launcher's user, who can open the taps, where there are any. The zero value is refused.
	Owner Owner `json:"owner,omitzero"`
	// Queues is the number of queue pairs of the tap, at most 256; 0 means 1.
	Queues int `json:"queues,omitempty"`
	// Tap is the name of the guest's tap; empty: the NIC's with -tap, as eth0-tap. A link with this name must not be
	// there. Macvtap, SRIOV and Passt take no Tap.
	Tap string `json:"tap,omitempty"`
	// MTU is the guest's, in octets of IP: cache.MinMTU up to the NIC's MTU, and at least 1280 if the guest gets IPv6. 0:
	// the NIC's. Taps, DHCP, router advertisements and the guest's device get it. Longer packets are dropped in both
	// directions, or the namespace reports it to their sender (Masquerade, Routed); segments of TCP stay shorter, as the
	// MSS of new connections is lowered. Longer UDP passes under Redirect, and from a guest that ignores its MTU: no rule
	// distinguishes a long datagram from a batch of short ones (UDP_SEGMENT). A running guest learns a new MTU with the
	// next router advertisement, or with its next lease. Macvtap, SRIOV and Passt take no MTU.
	MTU int `json:"mtu,omitempty"`
	// Limits bound what passes between the guest and its network, in bits and packets a second. Setup changes them under a
	// running guest, and its connections go on; each change fills the buckets. They need nf_tables. Macvtap, SRIOV and
	// Passt take no Limits.
	Limits cache.Limits `json:"limits,omitzero"`
	// DNS is the guest's resolver configuration from this NIC; nil: Phase2 takes it from a resolv.conf, which each NIC of
	// the guest then sends. With an empty DNS, as for a second NIC that does not lead to the DNS servers, this NIC sends
	// none.
	DNS *cache.DNS `json:"dns,omitempty"`
	// Options is what else the guest gets.
	Options cache.Options `json:"options,omitzero"`
	// Device is how the guest sees its network device.
	Device cache.Device `json:"device,omitzero"`
	// Guard is what the guest may send; the zero value allows the guest its own MAC and addresses only.
	Guard Guard `json:"guard,omitzero"`
	// State is a directory that only root can write, an absolute path. It holds the record, which the launcher's user
	// reads. Setup creates the directory, mode 0755, if its parent is there; nothing removes it. One directory can hold
	// the records of several NICs of one namespace.
	State string `json:"state,omitempty"`
}

// Owner is the launcher's user, and if GID is not 0 also the group, that may attach to a tap without any capability
// (TUNSETOWNER, TUNSETGROUP).
type Owner struct {
	UID uint32 `json:"uid,omitempty"`
	GID uint32 `json:"gid,omitempty"`
	// Root means that user 0 is meant, and not forgotten.
	Root bool `json:"root,omitempty"`
	// Inside says that UID and GID are numbers of the user namespace that owns the network namespace, such as that of a
	// Kubernetes pod with hostUsers: false. Setup asks the kernel for the numbers of its own user namespace, gives the
	// taps to these, and checks State and devices with these. A GID of 0 is still any group. If the network namespace is
	// owned by Setup's own user namespace, Inside changes nothing.
	Inside bool `json:"inside,omitempty"`
	// OwnDevices means that the launcher has a /dev/net/tun of its own, and a /dev/vhost-net where Device asks for vhost,
	// as in a jail: Setup does not ask whether the launcher can open the node's.
	OwnDevices bool `json:"ownDevices,omitempty"`
	// SELinux is the launcher's SELinux context, such as system_u:system_r:container_t:s0:c1,c2; the taps get it, and so
	// the launcher's domain needs no rule for the domain of Setup's caller. Empty: the taps get the caller's own context.
	// A tap keeps the context in which it was created, until a process in another one opens it.
	//
	// The policy has to allow the caller's domain process { setcurrent } on itself and process { dyntransition } to the
	// launcher's; and the launcher's domain capability { net_admin }, tun_socket { create relabelfrom relabelto } on
	// itself, with several Queues attach_queue as well, and to open /dev/net/tun. The launcher still has no capability.
	SELinux string `json:"selinux,omitempty"`
}

// maxContext is longer than any context in use.
const maxContext = 1024

// validate also checks the form of the context, user:role:type or user:role:type:range.
func (o Owner) validate() error {
	if o.UID == 0 && !o.Root {
		return &cache.FieldError{Field: "owner", Reason: "missing: name the launcher's user (uid, or root for user 0; agent -uid)"}
	}
	if o.UID != 0 && o.Root {
		return &cache.FieldError{Field: "owner.root", Reason: fmt.Sprintf("not beside uid %d: leave one of them out", o.UID)}
	}
	if o.SELinux == "" {
		return nil
	}
	parts := strings.SplitN(o.SELinux, ":", 4)
	ok := len(parts) >= 3 && len(o.SELinux) <= maxContext
	for i, part := range parts {
		ok = ok && syntax.IsWord(part, []string{"_.-", "_.-", "_.-", "_.-:,"}[i], maxContext)
	}
	if !ok {
		return &cache.FieldError{Field: "owner.selinux", Reason: fmt.Sprintf("%q is no context, want user:role:type:range, as in system_u:system_r:container_t:s0:c1,c2", o.SELinux)}
	}
	return nil
}

// maxGuest is the length of a DNS name, the longest name of an object in Kubernetes.
const maxGuest = 253

// checkGuest refuses a text that would not come back from JSON as it was.
func checkGuest(guest string) error {
	if len(guest) > maxGuest || !utf8.ValidString(guest) {
		return &cache.FieldError{Field: "guest", Reason: fmt.Sprintf("%.80q, want at most %d octets of UTF-8, such as a UUID", guest, maxGuest)}
	}
	return nil
}

// fields is Spec without its methods.
type fields Spec

// document is Spec in JSON: its own fields come first and hide those of fields.
type document struct {
	Binding taggedBinding `json:"binding,omitzero"`
	*fields
}

// MarshalJSON writes the binding as an object with one member, such as {"bridge": {}}.
func (s Spec) MarshalJSON() ([]byte, error) {
	return json.Marshal(document{taggedBinding{s.Binding}, (*fields)(&s)})
}

// UnmarshalJSON is the reverse of MarshalJSON. Unknown and repeated fields are errors. The error is a
// *cache.FieldError, and then the Spec is as it was.
func (s *Spec) UnmarshalJSON(text []byte) error {
	doc := document{fields: &fields{}}
	var bad *strictjson.Error
	if err := strictjson.Unmarshal("", text, &doc); errors.As(err, &bad) {
		return &cache.FieldError{Field: bad.Field, Reason: bad.Reason}
	} else if err != nil {
		return err
	}
	spec := Spec(*doc.fields)
	spec.Binding = doc.Binding.Binding
	*s = spec
	return nil
}

// Validate checks the form of the fields, as Setup does first. Setup checks more: State, whether the owner can open a
// tap, the networks of a Masquerade, and what the binding's record cannot have. The error is a *cache.FieldError.
func (s Spec) Validate() error {
	if err := checkType(s.Binding); err != nil {
		return err
	}
	if err := checkGuest(s.Guest); err != nil {
		return err
	}
	if err := s.Owner.validate(); err != nil {
		return err
	}
	if s.Queues < 0 || s.Queues > cache.MaxQueues {
		return &cache.FieldError{Field: "queues", Reason: fmt.Sprintf("%d, want 1 to %d, or 0 for 1", s.Queues, cache.MaxQueues)}
	}
	if err := s.validateTap(); err != nil {
		return err
	}
	if err := s.validateMTU(); err != nil {
		return err
	}
	if err := s.Limits.Validate(); err != nil {
		return within("limits", err)
	}
	if s.Limits != (cache.Limits{}) && direct(s.Binding) {
		return &cache.FieldError{Field: "limits", Reason: fmt.Sprintf("with the %s binding the guest's frames pass no rules of guestwire: leave this field out", s.Binding.Kind())}
	}
	if s.DNS != nil {
		for i, server := range s.DNS.Servers {
			if !server.IsValid() {
				return &cache.FieldError{Field: fmt.Sprintf("dns.servers[%d]", i), Reason: "no address"}
			}
		}
	}
	if err := s.Options.Validate(); err != nil {
		return within("options", err)
	}
	if err := s.Guard.validate(); err != nil {
		return err
	}
	if err := s.Binding.validateGuard(s.Guard); err != nil {
		return err
	}
	if err := s.Binding.validate(); err != nil {
		return err
	}
	return within("device", s.Device.Validate())
}

func (s Spec) validateTap() error {
	if s.Tap == "" {
		return nil
	}
	if direct(s.Binding) {
		return &cache.FieldError{Field: "tap", Reason: fmt.Sprintf("%q, but the %s binding makes no tap: leave this field out", s.Tap, s.Binding.Kind())}
	}
	if err := syntax.CheckLinkName(s.Tap); err != nil {
		return &cache.FieldError{Field: "tap", Reason: err.Error()}
	}
	return nil
}

func (s Spec) validateMTU() error {
	refuse := func(format string, args ...any) error {
		return &cache.FieldError{Field: "mtu", Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case s.MTU == 0:
		return nil
	case s.MTU < cache.MinMTU || s.MTU > cache.MaxMTU:
		return refuse("%d, want %d to %d, or 0 for the NIC's", s.MTU, cache.MinMTU, cache.MaxMTU)
	case direct(s.Binding):
		return refuse("%d, but the %s binding gives the guest no tap on which Setup could set it: leave this field out", s.MTU, s.Binding.Kind())
	}
	return nil
}

// direct reports whether the guest's frames do not pass a tap that Setup makes.
func direct(b Binding) bool {
	switch b.(type) {
	case Macvtap, SRIOV, Passt:
		return true
	}
	return false
}

// within returns the error with the field's name as it is in the Spec, which has the part as its field.
func within(field string, err error) error {
	var part *cache.FieldError
	if errors.As(err, &part) {
		return &cache.FieldError{Field: field + "." + part.Field, Reason: part.Reason}
	}
	return err
}
