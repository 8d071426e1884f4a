package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/guestwire/guestwire/infra"
)

// nameForKubeVirt gives a NIC of KubeVirt's network binding its name in the pod, and its tap the name that KubeVirt
// looks for. CNI_IFNAME names the call alone. A secondary network has pod and 11 digits of its name's SHA-256, the
// pod's own network has eth0, as in KubeVirt's pkg/network/namescheme.
func (c config) nameForKubeVirt(ctx context.Context, calls sandboxCalls, nic *wantedNIC) {
	digits := fmt.Sprintf("%x", sha256.Sum256([]byte(c.Args.CNI.LogicNetworkName)))[:11]
	tap := "tap" + digits
	nic.name = "pod" + digits
	if _, err := calls.nic(nic.name).Plan(ctx, nic.spec); errors.Is(err, infra.ErrNoNIC) { // other errors are Setup's, too
		nic.name, tap = "eth0", "tap0"
	}
	if nic.spec.Tap == "" {
		nic.spec.Tap = tap
	}
}
