package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// guestTap is the tap of the guest of both servers.
const guestTap = nic + "-tap"

// launcherUID is the unprivileged user that owns the taps.
const launcherUID = 64055

// server is one of the compared servers, in a namespace of its own.
type server struct {
	*process
	name      string
	namespace *os.File
	client    *client
	v4, v6    *protocol
}

// startGuestwire wires a pod and starts the launcher as an unprivileged user.
func startGuestwire(ctx context.Context, program string, p *pod) (*server, error) {
	owner := infra.Owner{UID: launcherUID, GID: launcherUID}
	config := phase1.Config{NetNS: p.file, Dir: p.node(), Spec: infra.Spec{NIC: nic, Binding: infra.Bridge{}, Owner: owner, State: p.state}}
	if _, err := phase1.Setup(ctx, config); err != nil {
		return nil, err
	}
	process, err := startLauncher(program, p)
	if err != nil {
		return nil, err
	}
	return &server{process: process, name: "guestwire", namespace: p.file}, nil
}

// startLauncher starts the launcher in a wired pod, as an unprivileged user.
func startLauncher(program string, p *pod) (*process, error) {
	id := fmt.Sprint(launcherUID)
	return startProcess(p.name, []string{
		"--reuid", id, "--regid", id, "--clear-groups", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs",
	}, program, "serve", "-state", p.state)
}

// dnsmasqNetwork is a bridge like guestwire's, with a static neighbour entry for the guest's link-local address: dnsmasq
// would wait 0.1 s for the answer to a neighbour solicitation.
var dnsmasqNetwork = fmt.Sprintf(`link add eth0-br type bridge forward_delay 0 mcast_snooping 0
tuntap add %[1]s mode tap
link set %[1]s master eth0-br
link set eth0-br up
link set %[1]s up
addr add 10.244.1.1/24 brd + dev eth0-br
addr add fd00:10:244:1::1/64 dev eth0-br
neigh add %[2]v lladdr %[3]v nud permanent dev eth0-br
`, guestTap, guestMAC.LinkLocal(), guestMAC)

// dnsmasqNamespace is the namespace of dnsmasq.
const dnsmasqNamespace = "dnsmasq"

// startDnsmasq starts dnsmasq in a namespace of its own. What makes it slow is switched off: DNS, the ping before an offer,
// the log of each message. Leases are infinite and always the same, so it does not rewrite its lease file.
func startDnsmasq(ctx context.Context, dir string) (*server, error) {
	namespace, err := newNamespace(ctx, dnsmasqNamespace)
	if err != nil {
		return nil, err
	}
	if err := ip(ctx, dnsmasqNetwork, "-n", dnsmasqNamespace); err != nil {
		return nil, errors.Join(err, namespace.Close())
	}
	process, err := startProcess(dnsmasqNamespace, nil, "dnsmasq", "--conf-file=/dev/null", "--keep-in-foreground", "--user=root",
		"--log-facility=-", "--pid-file="+filepath.Join(dir, "dnsmasq.pid"), "--dhcp-leasefile="+filepath.Join(dir, "dnsmasq.leases"),
		"--port=0", "--interface=eth0-br", "--except-interface=lo", "--bind-interfaces",
		"--quiet-dhcp", "--quiet-dhcp6", "--quiet-ra", "--no-ping", "--dhcp-authoritative", "--dhcp-rapid-commit",
		"--dhcp-range=10.244.1.0,static,255.255.255.0,infinite", "--dhcp-range=fd00:10:244:1::,static,64,infinite",
		fmt.Sprintf("--dhcp-host=%v,%v,[%v],infinite", guestMAC, guestIPv4, guestIPv6))
	if err != nil {
		return nil, errors.Join(err, namespace.Close())
	}
	return &server{process: process, name: "dnsmasq", namespace: namespace}, nil
}

// attach attaches the client to the guest's tap.
func (s *server) attach() (err error) {
	s.client, err = attachClient(s.namespace, guestTap)
	return err
}

func (s *server) detach() error {
	if s.client == nil {
		return nil
	}
	c := s.client
	s.client = nil
	return c.close()
}

// learn makes an exchange of each protocol, which also shows that the server works.
func (s *server) learn(ctx context.Context) error {
	ask := func(p *protocol, leg int) ([]byte, error) {
		if err := s.checkAlive(); err != nil {
			return nil, err
		}
		return s.client.ask(ctx, p, leg)
	}
	var err4, err6 error
	s.v4, err4 = learn4(ask)
	s.v6, err6 = learn6(ask)
	if err := errors.Join(err4, err6); err != nil {
		return fmt.Errorf("%s: %w: %s", s.name, err, s.output.String())
	}
	return nil
}

// servers are the two compared servers, each with a client attached.
type servers [2]*server

// startServers starts the launcher, and dnsmasq or, if base is not empty, the launcher at that path.
func startServers(ctx context.Context, dir, base string) (both servers, stop func() error, err error) {
	program, err := build(ctx, dir, "launcher", "examples/launcher")
	if err != nil {
		return both, nil, err
	}
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o711); err != nil {
		return both, nil, err
	}
	// The launcher's binary is not on this tmpfs: its pages would not count as RssFile.
	if err := unix.Mount("guestwire", state, "tmpfs", 0, "mode=711"); err != nil {
		return both, nil, fmt.Errorf("tmpfs on %s: %w", state, err)
	}
	var pods []*pod
	stop = func() error {
		var errs []error
		for _, s := range both {
			if s != nil {
				errs = append(errs, s.detach(), s.stop())
			}
		}
		if both[1] != nil && base == "" {
			errs = append(errs, both[1].namespace.Close(), ip(context.Background(), "netns del "+dnsmasqNamespace+"\n"))
		}
		return errors.Join(append(errs, closePods(pods), unix.Unmount(state, unix.MNT_DETACH))...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	launch := func(program string) (*server, error) {
		p, err := newPod(ctx, state)
		if err != nil {
			return nil, err
		}
		pods = append(pods, p)
		if err := p.waitSettled(ctx); err != nil {
			return nil, err
		}
		return startGuestwire(ctx, program, p)
	}
	if both[0], err = launch(program); err != nil {
		return both, nil, err
	}
	if base == "" {
		both[1], err = startDnsmasq(ctx, state)
	} else if base, err = copyProgram(base, filepath.Join(dir, "base")); err == nil {
		if both[1], err = launch(base); err == nil {
			both[1].name = "base"
		}
	}
	if err != nil {
		return both, nil, err
	}
	for _, s := range both {
		if err := s.attach(); err != nil {
			return both, nil, err
		}
	}
	return both, stop, nil
}

// copyProgram copies a program to a path where the launcher's user can execute it.
func copyProgram(from, to string) (string, error) {
	text, err := os.ReadFile(from)
	if err != nil {
		return "", err
	}
	return to, os.WriteFile(to, text, 0o755)
}

func (both servers) names() [2]string { return [2]string{both[0].name, both[1].name} }

// inTurn calls f for both servers. The order changes with each round.
func (both servers) inTurn(round int, f func(i int, s *server) error) error {
	for i := range both {
		i = (i + round) % len(both)
		if err := f(i, both[i]); err != nil {
			return fmt.Errorf("%s: %w: %s", both[i].name, err, strings.TrimSpace(both[i].output.String()))
		}
	}
	return nil
}
