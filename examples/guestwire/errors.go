package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/examples/logqueue"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// The codes of errors, in addition to those of the CNI specification.
const (
	codeFailed  uint = 100 // the kernel, a file, a lock
	codeWish    uint = 101 // what the pod wants is wrong: an annotation, args.cni
	codeRefused uint = 102 // the binding cannot work on the NIC, or the guest would lose a family
	codeDrift   uint = 103 // CHECK: kernel or record are not as ADD left them
)

// errNothing is what add, check and del return if nothing was wanted or wired. It is success, and is not counted.
var errNothing = errors.New("nothing to do")

// coded is the error as CNI wants it. All of it is in the message, in one line: that is what a pod's events show.
func coded(err error) error {
	var (
		done    *types.Error
		wish    *podsandbox.WishError
		field   *cache.FieldError
		refused *infra.RefusedError
	)
	code := codeFailed
	switch {
	case err == nil, errors.Is(err, errNothing):
		return err
	case errors.As(err, &done):
		done.Msg, done.Details = logqueue.Short(done.Msg), logqueue.Short(done.Details)
		return done
	case errors.Is(err, phase1.ErrOwnNamespace):
		code = types.ErrInvalidNetNS
	case errors.As(err, &refused):
		code = codeRefused
	case errors.As(err, &wish):
		code = codeWish
	case errors.As(err, &field):
		code = types.ErrInvalidNetworkConfig
	}
	return types.NewError(code, "guestwire: "+logqueue.Short(oneLine(err.Error())), "")
}

func oneLine(text string) string {
	return strings.NewReplacer(":\n  ", ": ", "\n  ", "; ", "\n", "; ").Replace(text)
}

// say prints to standard error, which engines put into their log.
func say(format string, args ...any) {
	fmt.Fprintln(os.Stderr, "guestwire:", logqueue.Short(oneLine(fmt.Sprintf(format, args...))))
}

func progress(text string) { say("%s", text) }
