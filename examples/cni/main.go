// Guestwire is a CNI plugin that hands a pod's NIC to a VM in the pod. It is the last plugin of a list: the plugins
// before it make the NIC, and their result goes through unchanged.
//
//	{"type": "guestwire",
//	 "capabilities": {"io.kubernetes.cri.pod-annotations": true},
//	 "state": "/run/guestwire",
//	 "dir": "/run/guestwire.lock",
//	 "spec": {"owner": {"uid": 107}},
//	 "trustPods": false,
//	 "everyNIC": false,
//	 "tapResult": false}
//
// Every member but type can be left out. A pod says what it wants by annotations (see package sandbox), or by args.cni.
// Where nothing is wanted, nothing is done. With tapResult the result also names the guest's tap, as that of the plugin
// tc-redirect-tap does; guestwire that is installed under this name takes its place. guestwire -schema prints the JSON
// schema of the entry.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/cni/calls"
	"github.com/guestwire/guestwire/examples/cni/podsandbox"
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

// How long a call may take. Most of it is waiting for other calls on the same namespace. Engines end a call after
// minutes, and by SIGKILL. A DEL that gives up says so and succeeds: what it leaves is for the next one, or a GC.
const (
	addTime   = time.Minute
	checkTime = 30 * time.Second
	delTime   = 20 * time.Second
	gcTime    = 2 * time.Minute
)

func main() {
	about := "guestwire is a CNI plugin: a container engine calls it. It is an entry at the end of a list in /etc/cni/net.d:\n" +
		`{"type": "guestwire", "capabilities": {"io.kubernetes.cri.pod-annotations": true}}` + "\n" +
		"The annotation guestwire/nic.eth0 of a pod then says how its NIC is handed to a VM: redirect, masquerade, ...\n" +
		"guestwire -schema prints the JSON schema of the entry"
	if slices.Equal(os.Args[1:], []string{"-schema"}) {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(entrySchema()); err != nil {
			say("%v", err)
			os.Exit(1)
		}
		return
	}
	signal.Ignore(unix.SIGPIPE) // the engine's end of standard error can close before a call has ended
	if os.Getenv("CNI_COMMAND") == "DEL" {
		_ = counted("DEL", within(delTime, del))(delArgs()) // del has reported it
		return
	}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    counted("ADD", within(addTime, add)),
		Check:  counted("CHECK", within(checkTime, check)),
		GC:     within(gcTime, gc),
		Status: within(checkTime, status),
	}, version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"), about)
}

// within calls f with a context that ends after the time, or by SIGTERM.
func within(limit time.Duration, f func(context.Context, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
		defer stop()
		ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no end after %v", limit))
		defer cancel()
		return coded(f(ctx, args))
	}
}

// errNothing is what add, check and del return if nothing was wanted or wired. It is success, and is not counted.
var errNothing = errors.New("nothing to do")

// countTime is how long a call waits at most until it is counted.
const countTime = time.Second

// counted counts a call that had something to do. A call that cannot be counted is reported and is no error.
func counted(operation string, call func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		begin := time.Now()
		err := call(args)
		if errors.Is(err, errNothing) {
			return nil
		}
		took, code := time.Since(begin), uint(0)
		var failed *types.Error
		if errors.As(err, &failed) {
			code = failed.Code
		}
		ctx, cancel := context.WithTimeout(context.Background(), countTime)
		defer cancel()
		p, _ := readAnyPaths(args) // its error is that of the call, too
		if uncounted := calls.Count(ctx, p.Dir, operation, code, took); uncounted != nil {
			say("this %s is not counted: %v", operation, uncounted)
		}
		return err
	}
}

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
	return types.NewError(code, "guestwire: "+oneLine(err.Error()), "")
}

func oneLine(text string) string {
	return strings.NewReplacer(":\n  ", ": ", "\n  ", "; ", "\n", "; ").Replace(text)
}

// say prints to standard error, which engines put into their log.
func say(format string, args ...any) {
	fmt.Fprintln(os.Stderr, "guestwire:", oneLine(fmt.Sprintf(format, args...)))
}
