package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// The hints are what the author of a Kubernetes pod can do about an error. The library's own texts are for those who
// call Setup.
const (
	hintNoRecord = "in this pod the node's CNI list calls Setup: the pod needs an annotation such as guestwire/nic.eth0: redirect, " +
		"guestwire/container names this container or is not there, -state is /run/guestwire, and guestwire-node runs on the node; " +
		"a pod that is older than guestwire has to be created again"
	hintOwner = "in this pod runAsUser and runAsGroup are the owner's: 107, or what the NIC's annotation says, " +
		`such as guestwire/nic.eth0: '{"owner": {"uid": 1000, "gid": 1000}}'`
	hintBusy = "in this pod another container may run a launcher: guestwire/container names the one that gets the records"
)

// notOpened adds to an error of phase2.Open what a pod's author can do about it.
func notOpened(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return inPod(err, hintNoRecord)
	}
	return err
}

// notServed adds to an error of Serve what a pod's author can do about it.
func notServed(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM):
		return inPod(err, hintOwner)
	case errors.Is(err, syscall.EBUSY):
		return inPod(err, hintBusy)
	}
	return err
}

// inPod adds the hint where the process is in a pod: the kubelet sets the variable in every container.
func inPod(err error, hint string) error {
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, hint)
}
