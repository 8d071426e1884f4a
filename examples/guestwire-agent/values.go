package main

import (
	"context"
	"net"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/phase1"
)

// values are what a shell offers after a flag of the verb. What cannot be read is left out.
func values(verb, flag string, given *options) (list []string) {
	switch flag {
	case "binding":
		return []string{"bridge", "redirect", "routed", "masquerade", "auto", "macvtap", "sriov", "passt", "slirp"}
	case "netns":
		list, _ = filepath.Glob("/run/netns/*")
		if !slices.Contains([]string{"setup", "plan", "run", "exec"}, verb) {
			list = nil
		}
		for _, w := range wired(given) {
			if len(w.FoundAt) > 0 {
				list = append(list, w.FoundAt[0])
			}
		}
	case "nic":
		if verb == "setup" || verb == "plan" || verb == "run" {
			return unwired(given)
		}
		for _, w := range wired(given) {
			if given.netns == "" || slices.Contains(w.FoundAt, given.netns) {
				list = append(list, w.NIC)
			}
		}
	case "namespace":
		for _, w := range wired(given) {
			list = append(list, w.Namespace)
		}
	default:
		return nil
	}
	slices.Sort(list)
	return slices.Compact(append([]string{}, list...))
}

func wired(given *options) []phase1.Wiring {
	wirings, _ := phase1.List(context.Background(), given.Dir)
	return wirings
}

// unwired are the links of the namespace that is named, without lo. The thread stays in the namespace: the process is
// about to end.
func unwired(given *options) []string {
	list := []string{}
	if given.netns != "" {
		file, err := phase1.OpenNetNS(given.netns)
		if err != nil {
			return list
		}
		defer file.Close()
		runtime.LockOSThread()
		if unix.Setns(int(file.Fd()), unix.CLONE_NEWNET) != nil {
			return list
		}
	}
	links, _ := net.Interfaces()
	for _, l := range links {
		if l.Flags&net.FlagLoopback == 0 {
			list = append(list, l.Name)
		}
	}
	return list
}
