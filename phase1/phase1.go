// Package phase1 is the privileged half: it wires a NIC of a network namespace to a tap for a virtual machine, and
// leaves a record for package phase2. The methods of [NIC] find what they need in a journal in [DefaultDir]: after an
// error or SIGKILL, Setup called again reaches the same state as an undisturbed run. A guest that moves:
// [NIC.SetupMoving].
package phase1

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
)

// NIC is a link in a network namespace; it may be copied. Unless its doc says otherwise, a method needs root with
// CAP_SYS_ADMIN and CAP_NET_ADMIN, with Own the latter alone, and waits for other calls there until ctx ends.
type NIC struct {
	NetNS *os.File // open, see OpenNetNS and Wiring.Open; the caller closes it; nil with Own
	Own   bool     // the calling thread's namespace, as in a container; not the machine's
	Name  string   // the link's, 1 to 15 of A-Z a-z 0-9 _ . - and no dot first
	// Dir is the node's directory for locks and journals, an absolute path, the same in all calls; empty: [DefaultDir].
	// Setup and Hold create it, mode 0700, in a parent that is there.
	Dir string
	// Progress, unless nil, receives what a call waits for after a second, and what it did not find, also on another
	// goroutine; the call waits for its return.
	Progress func(text string)

	hold *hold // nil: not held by this value
}

// Moving is how a guest comes from another namespace.
type Moving struct {
	From *cache.Record // the guest's record there; nil: it was never elsewhere, and waits for its first Activate
	// Standby keeps the guest's tap down until Activate. Without it From is what Deactivate returned, for this namespace
	// alone. Only the first Setup reads it.
	Standby bool
}

// TeardownOptions are also ForceTeardown's. The zero value harms no guest.
type TeardownOptions struct {
	State  string // if set, the wiring's; ForceTeardown finds the record by it if no journal names it
	CutOff bool   // also if the tap is open, or another process holds the NIC; a VMM keeps a dead device
	// Discard is for a namespace that is deleted next: record and journal alone are removed, unless the NIC outlives the
	// namespace (a PCI device) or, with CutOff, the tap is open. Later only ForceTeardown takes the wiring down.
	Discard bool
}

// Errors that callers branch on, with those of package infra, fs.ErrPermission and fs.ErrNotExist. After ErrInUse and
// ErrHeld nothing has changed. The text names operation and NIC: "check eth0: not wired".
var (
	ErrOwnNamespace       = errors.New("the caller's own network namespace")           // see NIC.Own
	ErrNotWired     error = notWired{}                                                 // no journal; an fs.ErrNotExist
	ErrActive             = errors.New("the guest may be active in another namespace") // it would be there twice
	ErrInUse              = errors.New("in use")                                       // a VMM has the tap open
	ErrHeld               = errors.New("held by another process")                      // see NIC.Hold
	ErrAlive              = errors.New("the namespace is not gone")                    // of Forget: use Teardown
)

// OpenNetNS opens /run/netns/NAME, /proc/PID/ns/net or /proc/PID/fd/N; the caller closes it. Another kind of file is an
// error, and not opened.
func OpenNetNS(path string) (*os.File, error) { return netns.Open(path) }

type notWired struct{}

func (notWired) Error() string        { return "not wired" }
func (notWired) Is(target error) bool { return target == fs.ErrNotExist }

// DriftError reports that the kernel or the record is not as Setup left it.
type DriftError struct {
	NIC string `json:"nic"`
	// Differs are the differences, such as "eth0-tap is no port of eth0-br".
	Differs []infra.Difference `json:"differs"`
	// Repair are the steps by which Setup repairs the wiring, in order. Empty: Setup refuses;
	// Differs says why.
	Repair []infra.Step `json:"repair"`
}

func (e *DriftError) Error() string {
	var b strings.Builder
	b.WriteString("differs from what Setup left:")
	for _, d := range e.Differs {
		b.WriteString("\n  " + d.Text)
	}
	if len(e.Repair) > 0 {
		b.WriteString("\nSetup would repair it by:")
	}
	for _, s := range e.Repair {
		b.WriteString("\n  " + s.String())
	}
	return b.String()
}
