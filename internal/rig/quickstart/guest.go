package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/phase2"
)

const guestName = "guest1"

// machine is the embedded guest or a Linux guest.
type machine interface {
	// describe waits for leases, and returns the guest's configuration as text.
	describe(ctx context.Context) (string, error)
	ping(ctx context.Context, to netip.Addr) error
	// port is the TCP port at which the guest answers with its name and the client's address.
	port() uint16
	close() error
}

type bootFunc func(ctx context.Context, pod lab.Namespace, r cache.Record, owner infra.Owner, xml string) (machine, error)

// embedded is the embedded guest: a namespace that has the tap's frames.
type embedded struct{ *guest.Guest }

func bootEmbedded(_ context.Context, pod lab.Namespace, r cache.Record, _ infra.Owner, _ string) (machine, error) {
	var files []*os.File
	err := pod.Do(func() (err error) {
		files, err = phase2.OpenTap(r)
		return err
	})
	if err != nil {
		return nil, err
	}
	port := guest.Queues(files)
	g, err := guest.Start(guest.Config{Port: port, MAC: r.MAC, Name: guestName})
	if err != nil {
		port.Close()
		return nil, err
	}
	return embedded{g}, nil
}

func (g embedded) describe(ctx context.Context) (string, error) {
	c, err := g.Configure(ctx, guest.Families{IPv4: true, IPv6: true})
	if err != nil {
		return "", err
	}
	if err := g.ListenTCP(g.port()); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "DHCPv4   %v from %v, MTU %d\n", c.IPv4.Address, c.IPv4.Server, c.IPv4.MTU)
	fmt.Fprintf(&b, "         DNS %v, search %v\n", c.IPv4.DNS, c.IPv4.Search)
	fmt.Fprintf(&b, "DHCPv6   %v, DNS %v, search %v\n", c.IPv6.Address, c.IPv6.DNS, c.IPv6.Search)
	fmt.Fprintf(&b, "RA       from %v, router lifetime %v\n", c.RA.Source, c.RA.RouterLifetime)
	for _, r := range g.Routes() {
		if r.Gateway.IsValid() {
			fmt.Fprintf(&b, "route    %v\n", r)
		}
	}
	return b.String(), nil
}

func (g embedded) ping(ctx context.Context, to netip.Addr) error {
	_, err := g.Ping(ctx, to)
	return err
}

func (embedded) port() uint16   { return vm.AnswerPort }
func (g embedded) close() error { return g.Close() }

// booted is a Linux guest under libvirt.
type booted struct{ *vm.Guest }

func bootLibvirt(ctx context.Context, pod lab.Namespace, _ cache.Record, owner infra.Owner, xml string) (machine, error) {
	g, err := vm.BootLibvirt(ctx, vm.Config{NetNS: pod.File, UID: int(owner.UID), GID: int(owner.GID), Name: guestName}, xml)
	if err != nil {
		return nil, err
	}
	return booted{g}, nil
}

func libvirtOwner() (infra.Owner, error) {
	if err := vm.Missing(); err != nil {
		return infra.Owner{}, fmt.Errorf("%w (make demo-vm installs it)", err)
	}
	uid, gid, err := vm.LibvirtUser()
	return infra.Owner{UID: uint32(uid), GID: uint32(gid)}, err
}

func (g booted) describe(ctx context.Context) (string, error) {
	if _, err := g.Lease4(ctx, "eth0"); err != nil {
		return "", err
	}
	if _, err := g.Lease6(ctx, "eth0"); err != nil {
		return "", err
	}
	return g.Report(ctx)
}

func (g booted) ping(ctx context.Context, to netip.Addr) error { return g.Ping(ctx, to) }
func (booted) port() uint16                                    { return vm.AnswerPort }
func (g booted) close() error                                  { return g.Destroy() }
