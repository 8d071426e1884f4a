package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// paths are what a call has to know that takes down.
type paths struct {
	Name  string           `json:"name"`
	State podsandbox.State `json:"state"`
	Dir   string           `json:"dir"`
}

// readPaths reads the paths alone, so that a mistake elsewhere, which an operator may make while pods run, keeps no pod
// from ending.
func readPaths(args *skel.CmdArgs) (paths, error) {
	var p paths
	if err := json.Unmarshal(args.StdinData, &p); err != nil {
		return p, types.NewError(types.ErrInvalidNetworkConfig, "guestwire: entry of the CNI list: "+err.Error(), "")
	}
	return p, p.complete()
}

// readAnyPaths is readPaths for a call that goes on after its error, with the defaults for what cannot be read.
func readAnyPaths(args *skel.CmdArgs) (paths, error) {
	p, err := readPaths(args)
	if err != nil && !filepath.IsAbs(string(p.State)) {
		p.State = podsandbox.DefaultState
	}
	if err != nil && !filepath.IsAbs(p.Dir) {
		p.Dir = phase1.DefaultDir
	}
	return p, err
}

// complete sets the defaults.
func (p *paths) complete() error {
	if p.State == "" {
		p.State = podsandbox.DefaultState
	}
	if !filepath.IsAbs(string(p.State)) {
		return &cache.FieldError{Field: "state", Reason: fmt.Sprintf("%.100q in the CNI list, want an absolute path, such as %s", p.State, podsandbox.DefaultState)}
	}
	if p.Dir != "" && !filepath.IsAbs(p.Dir) {
		return &cache.FieldError{Field: "dir", Reason: fmt.Sprintf("%.100q in the CNI list, want an absolute path, such as %s", p.Dir, phase1.DefaultDir)}
	}
	return nil
}

// lock holds a name on the node.
func (p paths) lock(ctx context.Context, name string) (unlock func(), err error) {
	return directory.LockName(ctx, cmp.Or(p.Dir, phase1.DefaultDir), name)
}

// agentCall is the agent's command line for a NIC.
func (p paths) agentCall(verb, netns, nic string) string {
	call := fmt.Sprintf("guestwire-agent %s -netns %s -nic %s", verb, infra.ShellWord(netns), infra.ShellWord(nic))
	if p.Dir != "" {
		call += " -dir " + infra.ShellWord(p.Dir)
	}
	return call
}

// arg returns a value of CNI_ARGS; empty: there is none.
func arg(args *skel.CmdArgs, name string) string {
	for pair := range strings.SplitSeq(args.Args, ";") {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// podOf returns the pod of CNI_ARGS.
func podOf(args *skel.CmdArgs) podsandbox.Pod {
	return podsandbox.Pod{UID: arg(args, "K8S_POD_UID"), Namespace: arg(args, "K8S_POD_NAMESPACE"), Name: arg(args, "K8S_POD_NAME")}
}
