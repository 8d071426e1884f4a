// Package phase1 is the privileged half: it wires a NIC that lies in a network namespace to a tap
// for a virtual machine, and leaves a record of it for package phase2.
//
// Setup, Check and Teardown work on one NIC of one namespace, by the state they keep in a
// directory. However one of them ends, even by SIGKILL, Setup called again reaches the same state as an
// undisturbed run, and Teardown gives the namespace back as Setup found it.
package phase1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/guestwire/guestwire/infra"
)

// Config is one NIC in a namespace, and what is wanted of it. In JSON it is the Spec.
type Config struct {
	// NetNS is the namespace, open: /proc/PID/ns/net, /run/netns/NAME. The caller closes it.
	NetNS *os.File
	infra.Spec
}

// Errors to tell apart, beside those of package infra, fs.ErrPermission and fs.ErrNotExist.
var (
	// ErrOwnNamespace: NetNS is the caller's own namespace, or that of the whole machine.
	ErrOwnNamespace = errors.New("the caller's own network namespace")
	// ErrNotWired: there is no journal of a Setup of this NIC in this namespace. It is an fs.ErrNotExist.
	ErrNotWired error = notWired{}
)

type notWired struct{}

func (notWired) Error() string        { return "not wired" }
func (notWired) Is(target error) bool { return target == fs.ErrNotExist }

// DriftError says that the kernel is not as recorded.
type DriftError struct {
	NIC string
	// Differs says in words what is otherwise: "eth0-tap is no port of eth0-br".
	Differs []string
	// Missing are the commands that would repair it; Setup carries them out.
	Missing []string
}

func (e *DriftError) Error() string {
	return fmt.Sprintf("NIC %s is not as it was set up:\n  %s\nSetup would repair it by:\n  %s",
		e.NIC, strings.Join(e.Differs, "\n  "), strings.Join(e.Missing, "\n  "))
}
