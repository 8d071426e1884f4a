// Package phase1 is the privileged half: it wires a NIC that lies in a network namespace to a tap
// for a virtual machine, and leaves a record of it for package phase2.
//
// Setup, Plan, Check, Status and Teardown work on one NIC of one namespace. They find what they need to know in
// a journal, which Setup writes into a directory of the node ([DefaultDir]) that only root can enter. However one
// of them ends, even by SIGKILL, Setup called again reaches the same state as an undisturbed run, and Teardown
// gives the namespace back as Setup found it. List tells all wirings of the node, and Forget removes what is left
// of those whose namespace is gone. ForceTeardown does without a journal. Drops counts the packets that the NIC's
// rules drop, and FollowDrops shows them.
//
// A guest that moves to another namespace is wired there by a Setup on standby ([Config.From], [Config.Standby]), so that
// nothing passes. [Deactivate] makes the guest quiet where it comes from, and its record lets [Activate] end the standby.
package phase1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
)

// Config is one NIC in a namespace, and what is wanted of it. In JSON it is the Spec.
type Config struct {
	// NetNS is the namespace, open: see OpenNetNS and Wiring.Open. The caller closes it. Nil with Own.
	NetNS *os.File
	// Own says that the namespace is the one of the calling thread: that of the process, unless the caller has moved
	// the thread. It is for a VM in a container whose network is the guest's. No namespace is entered, so
	// CAP_NET_ADMIN is enough. The machine's own namespace is refused nevertheless.
	Own bool
	// Dir is the node's directory for locks and journals, an absolute path; empty: [DefaultDir]. Setup, Plan,
	// Teardown, ForceTeardown and Lock make one that is not there, mode 0700; its parent has to be there. All calls on a node have to name the same one.
	Dir string
	// From is the record of the guest in the namespace from which the guest moves here; nil: the guest does not move. Setup and
	// Plan take from it what the Spec leaves zero, also the binding ([infra.TakeOver]). The From of the first Setup counts for
	// later ones: the journal keeps it. To a later Setup the record of another guest is infra.ErrWired. Unless From is what
	// Deactivate returned, a first Setup needs Standby, or the error is ErrNotQuiet. Setup tells Progress what the guest will
	// notice, before anything is changed.
	//
	// What From has set (MTU, Limits, DNS, Options) stays until Teardown: a later Setup can change it, and not set it back to
	// zero. A record that Deactivate returned is for one namespace: from it Setup makes the guest active in each.
	From *cache.Record
	// Standby, for a first Setup, keeps the guest's tap down until [Activate]: nothing passes between the guest and the
	// network, and Setup sends nothing. A later Setup keeps what Activate and [Deactivate] have left, whatever is here,
	// and tells Progress that an active guest is not quiet.
	Standby bool
	// CutOff says that Teardown and ForceTeardown delete the guest's tap also if a process has it open. The guest's
	// network ends then, and the VMM keeps a dead device. Other calls ignore CutOff.
	CutOff bool
	// Discard says that the namespace is about to be deleted, so that nothing in it has to be given back: Teardown removes
	// record and journal alone, and takes no time in the kernel. A NIC without a link kind of rtnetlink (a PCI device) outlives
	// the namespace, and would go back to the machine as the wiring left it: then Teardown does its whole work, as without
	// Discard, and so with CutOff if a process has the guest's tap open, which would keep the namespace. If the namespace stays
	// nevertheless, so does the wiring, without a journal: Setup refuses it with infra.ErrWired, and ForceTeardown is the way
	// back, as far as the kernel still knows it. Other calls ignore Discard.
	Discard bool
	// ManagedBy names who has the NIC wired, such as a program whose end ends the wiring; it may be empty. The journal keeps that
	// of the last Setup, and Status and List report it. Other calls ignore ManagedBy.
	ManagedBy string
	// Progress is told in words what a call waits for, once it takes longer than a second, and what Teardown
	// found not to be there. It may be called on another goroutine, and the call waits for it to return. Nil is allowed.
	Progress func(text string)
	infra.Spec
}

// Errors to tell apart, beside those of package infra, fs.ErrPermission and fs.ErrNotExist.
var (
	// ErrOwnNamespace: NetNS is the caller's own namespace, which only Own allows, or NetNS or Own is the namespace of
	// the whole machine, which nothing allows.
	ErrOwnNamespace = errors.New("the caller's own network namespace")
	// ErrNotWired: there is no journal of a Setup of this NIC in this namespace. It is an fs.ErrNotExist.
	ErrNotWired error = notWired{}
	// ErrNotQuiet: the guest may be active in another namespace, and would be there twice.
	ErrNotQuiet = errors.New("the guest may be active in another namespace")
	// ErrInUse: a process has the guest's tap open, as a VMM does as long as the VM has the NIC. Nothing has changed.
	ErrInUse = errors.New("in use")
)

// OpenNetNS opens the network namespace at a path, for Config.NetNS: /run/netns/NAME, /proc/PID/ns/net, /proc/PID/fd/N. Another
// kind of file is an error and is not opened, so a path that another user can lead elsewhere makes the caller neither wait nor
// touch a device. The caller closes what OpenNetNS returns. An fs.PathError says that the path cannot be opened.
func OpenNetNS(path string) (*os.File, error) { return netns.Open(path) }

type notWired struct{}

func (notWired) Error() string        { return "not wired" }
func (notWired) Is(target error) bool { return target == fs.ErrNotExist }

// DriftError says that the kernel or the record is not as Setup left it.
type DriftError struct {
	NIC string `json:"nic"`
	// Differs says what is otherwise: "eth0-tap is no port of eth0-br".
	Differs []infra.Difference `json:"differs"`
	// Missing are the operations that would repair it; Setup carries them out. None: Setup refuses, as Differs says.
	Missing []infra.Step `json:"missing"`
}

func (e *DriftError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "NIC %s is not as it was set up:", e.NIC)
	for _, d := range e.Differs {
		b.WriteString("\n  " + d.Text)
	}
	if len(e.Missing) > 0 {
		b.WriteString("\nSetup would repair it by:")
	}
	for _, s := range e.Missing {
		b.WriteString("\n  " + s.Command)
	}
	return b.String()
}
