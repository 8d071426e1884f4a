package infra

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	// Binding is how the guest is attached. Macvtap, SRIOV, Passt and Slirp take no Tap, MTU,
	// Limits and Options. They take no DNS either, except that Slirp takes DNS.Search.
	Binding Binding `json:"binding,omitempty"`

	// Guest is the guest's identity, such as a UUID: at most 253 octets of UTF-8. Masquerade,
	// Passt and Slirp compute the guest's MAC from it, so that the MAC is the same in each
	// namespace. Empty: the guest's MAC is computed from the NIC's MAC.
	Guest string `json:"guest,omitempty"`

	// For is for whom the NIC is wired, in the caller's words, such as a container's id: at most
	// 253 octets of UTF-8. List of package phase1 shows it, and Teardown and Forget select by it.
	// Each later Setup must name the same one, or nobody while another process holds the NIC.
	// Empty: nobody is named.
	For string `json:"for,omitempty"`

	// Owner is the launcher's user, who can open the taps. Zero is refused.
	Owner Owner `json:"owner,omitzero"`

	// Queues is the number of the tap's queue pairs, at most 256. 0: 1.
	Queues int `json:"queues,omitempty"`

	// Tap is the name of the guest's tap. No link may have this name already. Empty: the NIC's
	// name and -tap, such as eth0-tap.
	Tap string `json:"tap,omitempty"`

	// MTU is the guest's, in octets of IP: from 68, or 1280 if the guest gets IPv6, up to the
	// NIC's. 0: the NIC's.
	//
	// A running guest learns a new MTU with the next router advertisement or lease. The MSS of
	// new TCP connections is lowered. Longer packets are dropped. Under Masquerade and Routed
	// their sender gets an ICMP error. Some longer UDP packets pass: see
	// docs/reference/limits.md.
	MTU int `json:"mtu,omitempty"`

	// Limits bound the guest's traffic. Zero: no limits. FromGuest needs nf_tables, ToGuest
	// needs tbf (sch_tbf). A change under a running guest fills the buckets again.
	Limits cache.Limits `json:"limits,omitzero"`

	// DNS is the guest's resolver configuration from this NIC. Nil: Phase2 takes it from a
	// resolv.conf. A DNS without servers and search domains sends none, as for a second NIC
	// that does not lead to the DNS servers.
	//
	// Under Masquerade and Routed, a server in 127.0.0.0/8 is the namespace's, such as Docker's
	// 127.0.0.11. The guest asks it at port 53 of its IPv4 gateway, unless Guard.Open has that
	// port or Egress refuses the server. One of a resolv.conf has to listen at the first Setup.
	DNS *cache.DNS `json:"dns,omitempty"`

	// Options are further values for the guest, such as a hostname. Zero: none.
	Options cache.Options `json:"options,omitzero"`

	// Device is how the guest sees its network device. Zero: a virtio device.
	Device cache.Device `json:"device,omitzero"`

	// Guard is what the guest may send. Zero: the guest's own MAC and addresses only.
	Guard Guard `json:"guard,omitzero"`

	// Egress says to where the guest may open connections, under Masquerade and Routed. Empty:
	// to everywhere. The first entry that matches decides. The last entry must be "allow all"
	// or "refuse all".
	//
	// A connection that is refused gets an answer at once. A change does not end connections
	// that are open: CutRefused of phase1.NIC does.
	// At a first Setup the open connections of the guest's addresses end.
	Egress []Egress `json:"egress,omitempty"`

	// EgressWithin is a second list, such as an operator's. The guest may open a connection
	// only if both lists allow it. Empty: there is no second list.
	EgressWithin []Egress `json:"egressWithin,omitempty"`

	// Names are those to which the guest may connect, past the last entry of Egress, which must
	// be "refuse all". What the guest asks at port 53, wherever, is diverted to the DNS proxy
	// ([Spec.AllEgress]): package phase2/names, which phase1/pins starts, or guestwire-agent. The
	// guest gets its gateway as its DNS server. The proxy asks DNS.Servers, or the servers of a
	// resolv.conf. Setup starts no proxy. Empty: there is no proxy.
	Names []Name `json:"names,omitempty"`

	// Flows prepares the log of the guest's connections, FollowFlows of phase1.NIC, under Masquerade
	// and Routed. The kernel counts what each connection of the namespace carries, and keeps when it
	// began. It reports each end, also if nobody followed at the beginning. These are sysctls of the
	// whole namespace: net.netfilter.nf_conntrack_acct, _timestamp and _events. Teardown gives them
	// back, and so does a Setup without Flows.
	Flows bool `json:"flows,omitempty"`

	// AcceptLosses takes a binding with which the guest lacks all of IPv4 or IPv6. Without it
	// Setup refuses such a binding (*RefusedError). Record.Losses lists what is lost, with it and
	// without it.
	AcceptLosses bool `json:"acceptLosses,omitempty"`

	// State is the directory for the record, an absolute path. Only root may be able to write
	// there. The launcher's user reads the record (phase2.Open).
	//
	// Setup creates the directory, mode 0755, if its parent exists. Nothing removes it. The
	// NICs of one namespace can share it. Empty: no record on disk, and the caller passes on
	// the record that Setup returns (phase2.New).
	State string `json:"state,omitempty"`
}

// Owner is the user that may attach to a tap without any capability (TUNSETOWNER). If GID is not 0, the process must
// also be of that group.
type Owner struct {
	// UID is the user's number.
	UID uint32 `json:"uid,omitempty"`

	// GID is the group's number. 0: any group.
	GID uint32 `json:"gid,omitempty"`

	// Root says that the launcher is root. UID is 0 then. Without it a UID of 0 is refused as
	// forgotten.
	Root bool `json:"root,omitempty"`

	// Inside says that UID and GID are numbers of the user namespace that owns the network
	// namespace, such as that of a Kubernetes pod with hostUsers: false. Setup asks the kernel
	// which numbers these are in Setup's own user namespace. If both are the same user
	// namespace, the numbers stay.
	Inside bool `json:"inside,omitempty"`

	// OwnDevices says that the launcher has a /dev/net/tun (and vhost-net) of its own, as in a
	// jail. Setup then does not check whether the launcher can open the node's.
	OwnDevices bool `json:"ownDevices,omitempty"`

	// SELinux is the launcher's context, such as system_u:system_r:container_t:s0:c1,c2. The
	// taps get it, and keep it until a process in another context opens them. Empty: the
	// context of Setup's caller. docs/how-to/confine.md has the rules that the policy needs.
	SELinux string `json:"selinux,omitempty"`
}

// maxContext is longer than any context in use.
const maxContext = 1024

// validate also checks the form of the context, user:role:type or user:role:type:range.
func (o Owner) validate() error {
	if o.UID == 0 && !o.Root {
		return &cache.FieldError{Field: "owner", Reason: "missing: name the launcher's user (uid, or root: true for user 0; guestwire-agent -uid NUMBER)"}
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

// maxText is the length of a DNS name, the longest name of an object in Kubernetes.
const maxText = 253

// checkText refuses a text that would not come back from JSON as it was.
func checkText(field, text string) error {
	if len(text) > maxText || !utf8.ValidString(text) {
		return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%.80q, want at most %d octets of UTF-8, such as a UUID", text, maxText)}
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

func (s Spec) MarshalJSON() ([]byte, error) {
	return json.Marshal(document{taggedBinding{s.Binding}, (*fields)(&s)})
}

// UnmarshalJSON refuses unknown and repeated fields. The error is a *cache.FieldError if text is JSON. After an error
// the Spec is as it was.
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

// Validate checks the form of the fields. Setup does that first, and then checks more. The error is a
// *cache.FieldError.
func (s Spec) Validate() error {
	if err := checkType(s.Binding); err != nil {
		return err
	}
	if err := cmp.Or(checkText("guest", s.Guest), checkText("for", s.For)); err != nil {
		return err
	}
	if err := s.Owner.validate(); err != nil {
		return err
	}
	if s.Queues < 0 || s.Queues > syntax.MaxQueues {
		return &cache.FieldError{Field: "queues", Reason: fmt.Sprintf("%d, want 1 to %d, or 0 for 1", s.Queues, syntax.MaxQueues)}
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
	if err := s.validateDNS(); err != nil {
		return err
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
	if err := s.validateEgress("egress", s.Egress); err != nil {
		return err
	}
	if err := s.validateEgress("egressWithin", s.EgressWithin); err != nil {
		return err
	}
	if err := s.validateNames(); err != nil {
		return err
	}
	if err := s.validateTargets(); err != nil {
		return err
	}
	if s.Flows && !s.mayTrack() {
		return s.untracked("flows")
	}
	return within("device", s.Device.Validate())
}

// mayTrack reports whether the namespace tracks the guest's connections, or may, under Auto.
func (s Spec) mayTrack() bool {
	tracks := func(k cache.Kind) bool { return k == cache.BindingRouted || k == cache.BindingMasquerade }
	if b, is := s.Binding.(Auto); is {
		return slices.ContainsFunc(b.order(), tracks)
	}
	return tracks(s.Binding.Kind())
}

// untracked is the error for a field about connections under a binding without mayTrack.
func (s Spec) untracked(field string) error {
	reason := fmt.Sprintf("with the %s binding nobody tracks the guest's connections: leave this field out, or want the binding masquerade or routed, after a Teardown if the NIC is wired", s.Binding.Kind())
	if _, is := s.Binding.(Auto); is {
		reason = "with the kinds of binding.auto.order nobody tracks the guest's connections: add routed or masquerade there, or leave this field out"
	}
	return &cache.FieldError{Field: field, Reason: reason}
}

func (s Spec) validateDNS() error {
	if s.DNS == nil {
		return nil
	}
	refuse := func(field, why string) error {
		return &cache.FieldError{Field: field, Reason: fmt.Sprintf("the %s binding cannot have this field, as %s: leave it out", s.Binding.Kind(), why)}
	}
	switch s.Binding.(type) {
	case Macvtap, SRIOV, Passt:
		return refuse("dns", "guestwire's responder does not serve the guest")
	case Slirp:
		if len(s.DNS.Servers) > 0 {
			return refuse("dns.servers", "slirp is the guest's resolver, and asks those of QEMU's resolv.conf")
		}
	}
	for i, server := range s.DNS.Servers {
		reason := ""
		switch {
		case !server.IsValid():
			reason = "no address"
		case server.Unmap().IsUnspecified() || server.Unmap().IsMulticast():
			reason = fmt.Sprintf("%v is no server's address: want one like 10.96.0.10", server)
		default:
			continue
		}
		return &cache.FieldError{Field: fmt.Sprintf("dns.servers[%d]", i), Reason: reason}
	}
	for i, domain := range s.DNS.Search {
		if _, err := syntax.SearchDomain(domain); err != nil {
			return &cache.FieldError{Field: fmt.Sprintf("dns.search[%d]", i), Reason: fmt.Sprintf("%q has %v", domain, err)}
		}
	}
	return nil
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
	switch s.Tap {
	case "lo":
		return &cache.FieldError{Field: "tap", Reason: "lo is the loopback link of each namespace: want another name, such as tap0"}
	case "all", "default":
		return &cache.FieldError{Field: "tap", Reason: fmt.Sprintf("net.ipv4.conf.%s has the settings of no single link, so the kernel refuses a link with this name: want another one, such as tap0", s.Tap)}
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
	case s.MTU < syntax.MinMTU || s.MTU > syntax.MaxMTU:
		return refuse("%d, want %d to %d, or 0 for the NIC's", s.MTU, syntax.MinMTU, syntax.MaxMTU)
	case direct(s.Binding):
		return refuse("%d, but the %s binding gives the guest no tap on which Setup could set it: leave this field out", s.MTU, s.Binding.Kind())
	}
	return nil
}

// direct reports whether the guest's frames do not pass a tap that Setup makes.
func direct(b Binding) bool {
	switch b.(type) {
	case Macvtap, SRIOV, Passt, Slirp:
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
