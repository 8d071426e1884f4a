package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/guest"
)

// guestClient is a DHCP client; run uses the port as its NIC and returns the leased address.
type guestClient struct {
	name string
	run  func(ctx context.Context, port *os.File) (address string, err error)
	want string
}

// measureLeases prints the time from the guest's attachment to its tap, when the tap gets its carrier, until the lease.
func measureLeases(ctx context.Context, w io.Writer, l load, both servers, script string) error {
	clients := []guestClient{
		{"embedded guest, DHCPv4", embedded(func(ctx context.Context, g *guest.Guest) (fmt.Stringer, error) {
			lease, err := g.DHCPv4(ctx)
			if err != nil {
				return nil, err
			}
			return lease.Address.Addr(), nil
		}), guestIPv4.String()},
		{"embedded guest, DHCPv6", embedded6(false), guestIPv6.String()},
		{"embedded guest, DHCPv6, rapid commit", embedded6(true), guestIPv6.String()},
	}
	if busybox := findBusybox(); busybox != "" {
		u, err := newUdhcpc(ctx, busybox, script)
		if err != nil {
			return err
		}
		defer u.close()
		clients = append([]guestClient{{"udhcpc (busybox)", u.run, guestIPv4.String()}}, clients...)
	}
	var rows []row
	for _, c := range clients {
		r := row{name: c.name, format: "%.1f"}
		for round := range l.leases {
			err := both.inTurn(round, func(i int, s *server) error {
				took, err := s.lease(ctx, c, l.unplugged)
				r.values[i] = append(r.values[i], ms(took))
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		rows = append(rows, r)
	}
	reportRows(w, fmt.Sprintf("From carrier to lease, ms, %d times", l.leases), both.names(), rows)
	return nil
}

// lease detaches the client, waits until the kernel has noticed the lost carrier, and measures another guest's lease.
func (s *server) lease(ctx context.Context, c guestClient, unplugged time.Duration) (took time.Duration, err error) {
	if err := s.detach(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.attach()) }()
	if err := sleep(ctx, unplugged); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	begin := time.Now()
	var port *os.File
	err = netns.Do(s.namespace, func() (err error) {
		port, err = tap.Open(guestTap)
		return err
	})
	if err != nil {
		return 0, err
	}
	address, err := c.run(ctx, port)
	if err == nil && address != c.want {
		err = fmt.Errorf("got %s, want %s", address, c.want)
	}
	return time.Since(begin), err
}

// embedded returns a client of internal/test/guest. It probes each address for 0.1 s.
func embedded(lease func(context.Context, *guest.Guest) (fmt.Stringer, error)) func(context.Context, *os.File) (string, error) {
	return func(ctx context.Context, port *os.File) (string, error) {
		g, err := guest.Start(guest.Config{Port: port, MAC: guestMAC})
		if err != nil {
			return "", errors.Join(err, port.Close())
		}
		address, err := lease(ctx, g)
		if err := errors.Join(err, g.Close()); err != nil {
			return "", err
		}
		return address.String(), nil
	}
}

func embedded6(rapid bool) func(context.Context, *os.File) (string, error) {
	return embedded(func(ctx context.Context, g *guest.Guest) (fmt.Stringer, error) {
		lease, err := g.DHCPv6(ctx, rapid)
		if err != nil {
			return nil, err
		}
		return lease.Address, nil
	})
}

// findBusybox returns the path of the busybox that install.sh unpacked, or of the installed one; empty: none.
func findBusybox() string {
	for _, name := range []string{unpacked.Path("busybox/bin/busybox"), "busybox"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// udhcpc is busybox's client on a tap in a namespace that plays the guest.
type udhcpc struct {
	busybox, script string
	namespace       *os.File
	port            *os.File // the user-space side of its tap
}

const (
	udhcpcNamespace = "udhcpc"
	udhcpcScript    = "#!/bin/sh\n[ \"$1\" != bound ] || echo \"$ip\"\n"
)

func newUdhcpc(ctx context.Context, busybox, script string) (u *udhcpc, err error) {
	if err := os.WriteFile(script, []byte(udhcpcScript), 0o700); err != nil {
		return nil, err
	}
	u = &udhcpc{busybox: busybox, script: script}
	if u.namespace, err = newNamespace(ctx, udhcpcNamespace); err != nil {
		return nil, err
	}
	err = ip(ctx, fmt.Sprintf("tuntap add eth0 mode tap\nlink set eth0 address %v addrgenmode none\nlink set eth0 up\n", guestMAC), "-n", udhcpcNamespace)
	if err == nil {
		err = netns.Do(u.namespace, func() (err error) {
			u.port, err = tap.Open("eth0")
			return err
		})
	}
	if err != nil {
		return nil, errors.Join(err, u.close())
	}
	return u, nil
}

func (u *udhcpc) close() error {
	var err error
	if u.port != nil {
		err = u.port.Close()
	}
	return errors.Join(err, u.namespace.Close(), ip(context.Background(), "netns del "+udhcpcNamespace+"\n"))
}

// run connects the guest's tap with udhcpc's tap for one lease.
func (u *udhcpc) run(ctx context.Context, port *os.File) (string, error) {
	var wires sync.WaitGroup
	wires.Go(func() { _, _ = io.CopyBuffer(frames{port}, frames{u.port}, make([]byte, 1<<16)) })
	wires.Go(func() { _, _ = io.CopyBuffer(frames{u.port}, frames{port}, make([]byte, 1<<16)) })
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+namespacePath(udhcpcNamespace),
		u.busybox, "udhcpc", "-f", "-q", "-n", "-i", "eth0", "-s", u.script)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("udhcpc: %w: %s", err, stderr.String())
	}
	err = errors.Join(err, u.port.SetReadDeadline(time.Unix(1, 0)), port.Close())
	wires.Wait()
	return strings.TrimSpace(string(out)), errors.Join(err, u.port.SetReadDeadline(time.Time{}))
}

// frames hides ReadFrom and WriteTo from io.Copy: a splice would not keep the frame boundaries.
type frames struct{ io.ReadWriter }
