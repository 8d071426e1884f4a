package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/phase1"
)

// check compares the kernel and the records with what add has left for the attachment. Where add has wired nothing,
// there is nothing to compare (errNothing). A list that add refuses is an error first.
func check(ctx context.Context, args *skel.CmdArgs) error {
	c, err := readConfig(args)
	if err != nil {
		return err
	}
	if _, err := c.defaults(args); err != nil {
		return err
	}
	p := c.paths
	dir, err := p.State.Dir(args.ContainerID)
	if err != nil {
		return fmt.Errorf("CNI_CONTAINERID: %w", err)
	}
	nics, err := p.State.NICs(args.ContainerID)
	if err != nil {
		return err
	}
	if len(nics) == 0 {
		return errNothing
	}
	ns, err := phase1.OpenNetNS(args.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetNS, "guestwire: CNI_NETNS: "+err.Error(), "")
	}
	defer ns.Close()
	calls := sandboxCalls{p, args.ContainerID, dir, ns}
	var errs []error
	for _, nic := range nics {
		if nic.BelongsTo(args.IfName) {
			errs = append(errs, calls.nic(nic.Name).Check(ctx))
		}
	}
	if len(errs) == 0 {
		return errNothing
	}
	return p.checkError(errs, args)
}

// checkError is the error of a CHECK. It says what differs, and leaves out how a Setup would repair that, which can be
// long.
func (p paths) checkError(errs []error, args *skel.CmdArgs) error {
	err := errors.Join(errs...)
	var drift *phase1.DriftError
	if !errors.As(err, &drift) {
		return err
	}
	var texts, calls []string
	for _, err := range errs {
		if errors.As(err, &drift) {
			if len(drift.Repair) > 0 {
				calls = append(calls, p.agentCall("repair", args.Netns, drift.NIC))
			}
			text := fmt.Sprintf("NIC %s is not as ADD left it:", drift.NIC)
			for i, d := range drift.Differs {
				text += []string{" ", "; "}[min(i, 1)] + d.String()
			}
			texts = append(texts, text)
		} else if err != nil {
			texts = append(texts, err.Error())
		}
	}
	way := "on the node, this repairs it: " + strings.Join(calls, "; ")
	if len(calls) == 0 {
		way = "guestwire-agent repair does not repair it"
	}
	return types.NewError(codeDrift, "guestwire: "+oneLine(strings.Join(append(texts, way), "; ")), "")
}

// status reports whether an add could work here. What only some pods ask for is a warning, as an engine counts a node
// whose STATUS fails as not ready, for all pods.
func status(_ context.Context, args *skel.CmdArgs) error {
	c, err := readConfig(args)
	if err != nil {
		return err
	}
	defaults, err := c.defaults(args)
	if err != nil {
		return err
	}
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	for number, name := range map[int]string{unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN"} {
		if sets[0].Effective&(1<<number) == 0 {
			missing = append(missing, name)
		}
	}
	var at unix.Stat_t
	if err := unix.Stat("/dev/net/tun", &at); err == nil && (at.Mode&unix.S_IFMT != unix.S_IFCHR || at.Rdev != unix.Mkdev(10, 200)) {
		missing = append(missing, "the device of taps (/dev/net/tun is another file; rm -d /dev/net/tun, then mknod -m 666 /dev/net/tun c 10 200)")
	} else if tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err != nil {
		missing = append(missing, fmt.Sprintf("the device of taps (%v; modprobe tun)", err))
	} else {
		tun.Close()
	}
	text := "this node lacks " + strings.Join(missing, ", ")
	switch {
	case len(missing) == 0:
	case defaults.Spec.Binding != nil, isRedirectTap() && c.Spec == nil:
		return types.NewError(types.ErrPluginNotAvailable, "guestwire: "+text, "")
	default:
		say("%s: pods that ask for guestwire cannot start, others can", text)
	}
	return nil
}
