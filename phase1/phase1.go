// Package phase1 is the privileged half: it wires a NIC of a network namespace to a tap for a virtual machine, and
// leaves a record for package phase2. The methods of [NIC] find what they need in a journal in [DefaultDir]: after an
// error or SIGKILL, Setup called again reaches the same state as an undisturbed run. [List] returns all wirings of the
// node.
//
// A guest that moves to another namespace is wired there on standby ([Moving]): nothing passes until
// [NIC.Activate], which wants the record that [NIC.Deactivate] returned.
package phase1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/wiring"
)

// NIC is a link in a network namespace. It may be copied.
//
// A method needs root and CAP_NET_ADMIN, and without Own also CAP_SYS_ADMIN. One call at a time changes a namespace:
// a method waits for the others until its ctx ends. None waits for Check, Status, Plan or CutRefused, except while
// these look at the namespace or end connections. "No lock" in a method's comment means that it does not wait. Any
// method may return
//
//	*cache.FieldError   a field of the NIC or a parameter is wrong
//	ErrOwnNamespace     the namespace is the machine's, or it is the caller's and Own is not set
//	fs.ErrPermission    the caller is not root, or a capability is missing
//	context.Cause(ctx)  ctx has ended
type NIC struct {
	// NetNS is the open namespace, from OpenNetNS or Wiring.Open. The caller closes it. It
	// must be nil if Own is set.
	NetNS *os.File

	// Own selects the namespace of the calling thread, as in a container. The machine's own
	// namespace is refused.
	Own bool

	// Name is the link's name: 1 to 15 of A-Z a-z 0-9 _ . - and no dot first.
	Name string

	// Dir is the node's directory for locks and journals, an absolute path. Empty:
	// [DefaultDir]. All calls on a node must name the same one. A call that writes there, such
	// as Setup and Hold, creates it, mode 0700, if its parent exists.
	Dir string

	// Progress, unless nil, gets sentences for people: what a call waits for after a second,
	// that there was nothing to do, or what the guest will notice. It runs on another
	// goroutine, in the process's own network and not in NetNS. The call waits for its return.
	Progress func(text string)

	// MostRead is how many octets of the kernel's answer about one kind of object, such as the routes, a call reads.
	// With more it fails with syscall.E2BIG. A pod chooses how many there are, and a program that looks at many
	// namespaces has one memory. 1 MiB is about 8,000 routes. Zero: no bound.
	MostRead int

	hold *hold // nil: not held by this value
}

// Moving is an option of Setup and Plan for a guest that comes from another namespace, or that waits for Activate. The
// zero value: the guest was in no other namespace, and is active after Setup. Progress reports what the guest will
// notice.
//
// A field that the Spec leaves zero is taken from the first call's From. These are the binding's kind, the guest's MAC
// and inner addresses, Queues, Tap, MTU, Limits, DNS, Options and Device. Guard, Egress, EgressWithin and what a
// masquerade forwards are in no record: name them again. A later Setup can set another value, but not zero.
type Moving struct {
	// From is the guest's record in its last namespace. Nil: the guest was in none, or, with
	// Standby, the namespace is not known.
	From *cache.Record

	// Standby keeps the guest's tap down until Activate. Bridge, Redirect and Masquerade allow
	// Standby. A later Setup ignores it.
	//
	// Without Standby the guest is active after Setup. From must then be nil, an active record
	// of this namespace, or the record that Deactivate returned in the guest's last namespace.
	// Use that record in one namespace only. A guest of macvtap, sriov, passt or slirp needs
	// no Deactivate.
	Standby bool
}

// TeardownOptions are the options of Teardown. The zero value harms no guest.
type TeardownOptions struct {
	// State, if set, must be the wiring's State. Force finds the record by it if no journal
	// names it.
	State string

	// For, if set, must be the wiring's For.
	For string

	// CutOff takes the NIC down even if a VMM has the tap open, or another process holds the
	// NIC. The VMM keeps a device without a network.
	CutOff bool

	// Discard removes the record and the journal and nothing else, because the caller deletes
	// the namespace next. If the NIC would outlive the namespace (a PCI device), or with
	// CutOff if the tap is open, Teardown does its whole work. If the namespace stays, only
	// Force takes the wiring down.
	Discard bool

	// Force does without a usable journal. Teardown then removes what bears guestwire's mark,
	// and restores the NIC's name, MAC and addresses as far as the kernel shows them. It
	// contradicts Discard.
	Force bool
}

// Errors that callers branch on, with those of package infra, fs.ErrPermission and fs.ErrNotExist. An error's text
// names the operation and the NIC: "check eth0: not wired".
var (
	// ErrOwnNamespace: the namespace is the machine's, or the caller's without NIC.Own.
	ErrOwnNamespace = errors.New("the caller's own network namespace")

	// ErrNotWired: the NIC has no journal. errors.Is finds fs.ErrNotExist in it, too.
	ErrNotWired error = notWired{}

	// ErrActive: the guest may be active in another namespace, and would be there twice.
	ErrActive = wiring.ErrActive

	// ErrInUse: a VMM has the tap open. Nothing has changed.
	ErrInUse = errors.New("in use")

	// ErrHeld: another process holds the NIC, see NIC.Hold. Nothing has changed.
	ErrHeld = errors.New("held by another process")

	// ErrForAnother: the NIC is wired for another one, see For of infra.Spec. Nothing has
	// changed. errors.Is finds infra.ErrWired in it, too.
	ErrForAnother = fmt.Errorf("%w for another one", infra.ErrWired)

	// ErrAlive, of Forget: the namespace exists. Teardown takes the wiring down.
	ErrAlive = errors.New("the namespace is not gone")
)

// OpenNetNS opens a network namespace by a path such as /run/netns/NAME, /proc/PID/ns/net or /proc/PID/fd/N. The caller
// closes the file. A path to another kind of file is an error, and OpenNetNS does not open that file. If path is only
// the NAME of one in /run/netns, the error has its path.
func OpenNetNS(path string) (*os.File, error) {
	file, err := netns.Open(path)
	if named := "/run/netns/" + path; errors.Is(err, fs.ErrNotExist) && path != "" && !strings.Contains(path, "/") {
		if there, failed := netns.Open(named); failed == nil {
			there.Close()
			err = fmt.Errorf("%w: want the path %s", err, infra.ShellWord(named))
		}
	}
	return file, err
}

type notWired struct{}

func (notWired) Error() string        { return "not wired" }
func (notWired) Is(target error) bool { return target == fs.ErrNotExist }

// DriftError reports that the kernel or the record is not as Setup left it.
type DriftError struct {
	NIC string `json:"nic"`

	// Differs are the differences, such as "eth0-tap is no port of eth0-br". Setup repairs those
	// that are not grave and have no Way. The kinds:
	//
	//	link-missing         a link of the wiring is gone
	//	link-extra           a link with guestwire's mark or group is not of the wiring
	//	link-other           another link has the name of a link of the wiring
	//	name                 a link has another name
	//	mac                  a link has another MAC
	//	mtu                  a link has another MTU
	//	txqueuelen           a link has another length of its queue
	//	up                   a link is down that must be up, or up that must be down
	//	master               a link is no port of its bridge, or a port of another one
	//	arp                  ARP of a link is off that must be on, or the reverse
	//	allmulticast         a link receives all multicast and must not, or the reverse
	//	addrgenmode          a link makes its IPv6 link-local address in another way
	//	group                a link is in another group
	//	alias                a link has another alias, which is guestwire's mark
	//	tap-owner            a tap is of another user or group
	//	tap-queues           a tap is of one queue and must be of several, or the reverse
	//	tap-offloads         a VMM that has ended left offloads at a tap
	//	bridge-setting       a property of a bridge has another value
	//	bridge-port-setting  a property of a bridge's port has another value
	//	sysctl               a value below /proc/sys/net is another
	//	address-missing      an address is gone
	//	address-extra        a link has an address that is not of the wiring
	//	address-other        an address has other flags or lifetimes, or is not in its place
	//	route-missing        a route is gone
	//	route-extra          there is a route that is not of the wiring
	//	neighbour-missing    a permanent neighbour is gone
	//	neighbour-extra      there is a permanent neighbour that is not of the wiring
	//	fdb-missing          a static entry of a bridge's forwarding database is gone
	//	fdb-extra            there is a static entry that is not of the wiring
	//	qdisc-missing        the ingress qdisc of a link is gone (tc)
	//	shape                the root qdisc of the guest's tap limits in another way, or not (tc)
	//	filter-missing       a filter of a link is gone (tc)
	//	filter-other         a filter of a link is another than Setup's (tc)
	//	filter-foreign       a link has a filter of another program (tc)
	//	table-missing        an nftables table is gone, or the wiring's chains of iptables
	//	table-extra          a table with guestwire's mark is not of the wiring
	//	table-other          rules of a table are others than Setup's
	//	gateway              a gateway has another MAC than the record
	//	networks             what nic-networks means has changed since the last Setup
	//	forwarding           another link forwards since the last Setup, or forwards no more
	//	resolver             the namespace's resolver on loopback listens at other ports than at the last Setup
	//	later                the namespace has got an address, route or rule that the guest has not
	//	record               the record is gone or changed, or the launcher cannot read it
	//	step                 none of these: What has the operation that is missing
	Differs []cache.Finding `json:"differs"`

	// Repair are the steps by which Setup repairs the wiring, in order. Setup does nothing about
	// differences of the kind later. Empty: Setup repairs nothing, and Differs says why.
	Repair []infra.Step `json:"repair"`
}

func (e *DriftError) Error() string {
	var b strings.Builder
	b.WriteString("differs from what Setup left:")
	for _, d := range e.Differs {
		b.WriteString("\n  " + d.String())
	}
	if len(e.Repair) > 0 {
		b.WriteString("\nSetup would repair it by:")
	}
	for _, s := range e.Repair {
		b.WriteString("\n  " + s.String())
	}
	return b.String()
}

// hold is a NIC that this process holds, by the lock with that name in NIC.Dir.
type hold struct {
	dir, lock string
	released  atomic.Bool
}
