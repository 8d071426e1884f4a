// Package phase1 is the privileged half: it wires a NIC that lies in a network namespace to a tap for a virtual machine,
// and leaves a record of it for package phase2.
//
// A [NIC] names a link of a namespace. Its methods find what they need in a journal, which Setup writes into a directory of
// the node ([DefaultDir]) that only root can enter. However a call ends, even by SIGKILL, Setup called again reaches the
// same state as an undisturbed run, and Teardown gives the namespace back as Setup found it. [List] shows all wirings of the
// node, and [Forget] removes what is left of those whose namespace is gone.
//
// A guest that moves to another namespace is wired there on standby ([NIC.SetupMoving]), so that nothing passes.
// [NIC.Deactivate] makes the guest inactive where it comes from, and its record lets [NIC.Activate] end the standby.
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

// NIC is a link in a network namespace, which the methods look at and change. It is a value: copy it as you like.
//
// Unless a method says otherwise, it needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN; with Own, CAP_NET_ADMIN is enough. It
// waits until ctx ends for other calls on the same namespace, of other processes too.
type NIC struct {
	// NetNS is the namespace, open: see OpenNetNS and Wiring.Open. The caller closes it. Nil with Own.
	NetNS *os.File
	// Own means the namespace of the calling thread: that of the process, unless the caller has moved the thread. It is for
	// a VM in a container whose network is the guest's. The machine's own namespace is refused nevertheless.
	Own bool
	// Name is the link's name in the namespace, 1 to 15 of A-Z a-z 0-9 _ . - and no dot first.
	Name string
	// Dir is the node's directory for locks and journals, an absolute path; empty: [DefaultDir]. All calls on a node must
	// name the same one. Setup and Hold make one that is not there, mode 0700, if its parent is there.
	Dir string
	// Progress receives in words what a call waits for once it takes longer than a second, and what a call found not to be
	// there. It may be called on another goroutine, and the call waits for it to return. Nil is allowed.
	Progress func(text string)

	hold *hold // nil: not held by this value
}

// Moving is how a guest comes from another namespace.
type Moving struct {
	// From is the guest's record there; nil: a guest that was never elsewhere, and waits for its first Activate.
	From *cache.Record
	// Standby keeps the guest's tap down until Activate: nothing passes between the guest and the network, and nothing is
	// sent. Without it From must be what Deactivate returned. It counts at the first call; a later one leaves the tap as
	// Activate and Deactivate have left it.
	Standby bool
}

// TeardownOptions are how Teardown goes about a guest. The zero value harms none.
type TeardownOptions struct {
	// State, if set, must be the State of the wiring; a wiring with another State is a *cache.FieldError.
	State string
	// CutOff deletes the guest's tap also if a process has it open, or another process holds the NIC. The guest's network
	// ends then, and the VMM keeps a dead device.
	CutOff bool
	// Discard is for a namespace that is about to be deleted: Teardown removes record and journal alone, and takes no time
	// in the kernel. The whole work is done nevertheless if the NIC outlives the namespace, as a PCI device does, and with
	// CutOff if a process has the tap open. In a namespace that stays, the wiring stays without a journal: Setup refuses it
	// by infra.ErrWired, and ForceTeardown gives back what the kernel still knows.
	Discard bool
}

// ForceOptions are those of ForceTeardown.
type ForceOptions struct {
	// State is where the record is. If State is empty, and no journal names it, the record stays.
	State string
	// CutOff is that of TeardownOptions.
	CutOff bool
}

// Errors to tell apart, beside those of package infra, fs.ErrPermission and fs.ErrNotExist.
var (
	// ErrOwnNamespace: NetNS is the caller's own namespace, which only Own allows, or NetNS or Own is the namespace of
	// the whole machine, which nothing allows.
	ErrOwnNamespace = errors.New("the caller's own network namespace")
	// ErrNotWired: there is no journal of a Setup of this NIC in this namespace. It is an fs.ErrNotExist.
	ErrNotWired error = notWired{}
	// ErrActive: the guest may be active in another namespace, and would be there twice.
	ErrActive = errors.New("the guest may be active in another namespace")
	// ErrInUse: a process has the guest's tap open, as a VMM does as long as the VM has the NIC. Nothing has changed.
	ErrInUse = errors.New("in use")
	// ErrHeld: another process holds the NIC. Nothing has changed.
	ErrHeld = errors.New("held by another process")
)

// OpenNetNS opens the network namespace at a path, for NIC.NetNS: /run/netns/NAME, /proc/PID/ns/net, /proc/PID/fd/N. The
// caller closes it. Another kind of file is an error and is not opened, so a path that another user can lead elsewhere makes
// the caller neither wait nor touch a device. An fs.PathError: the path cannot be opened.
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
		b.WriteString("\n  " + s.String())
	}
	return b.String()
}
