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
	"encoding/json"
	"os"
	"os/signal"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
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
	failed := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    counted("ADD", within(addTime, add)),
		Check:  counted("CHECK", within(checkTime, check)),
		GC:     within(gcTime, gc),
		Status: within(checkTime, status),
	}, version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"), about)
	if failed != nil {
		_ = coded(failed)  // skel quotes its input
		_ = failed.Print() // an engine that does not read it takes the exit code
		os.Exit(1)
	}
}
