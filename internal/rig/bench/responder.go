package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/lab"
)

// exchanges is the number in a turn.
var exchanges = 3000

// server is one of the compared servers, in a namespace of its own.
type server struct {
	*process
	client    *port
	questions [2]*template
	lost      int           // questions without an answer
	waited    time.Duration // for these, in a turn
}

// measureResponders compares Phase2's responder with dnsmasq. Both serve the same DHCPv4 client on a tap.
func measureResponders(s *scope, w io.Writer, rounds int) error {
	programs, err := s.build("examples/guestwire-launcher")
	if err != nil {
		return err
	}
	_, all, err := s.newWorld(2)
	if err != nil {
		return err
	}
	launcher := filepath.Join(programs, "guestwire-launcher")
	if _, err := all[0].setup(s.ctx, launcherSpec(infra.Bridge{})); err != nil {
		return err
	}
	if err := ip(all[1].Namespace, dnsmasqNetwork, guestTap, gateways[0]); err != nil {
		return err
	}
	starts := []func() (*process, error){
		func() (*process, error) { return s.serveLauncher(all[0], launcher) },
		func() (*process, error) { return s.startDnsmasq(all[1]) },
	}
	servers := []*server{{}, {}}
	first := newRow("the first offer after the start, ms", 2)
	for i, server := range servers {
		if server.client, err = s.openTap(all[i].Namespace, guestTap, !offloads); err != nil {
			return err
		}
	}
	err = s.inTurns(rounds, len(servers), func(_, i int) (err error) {
		if servers[i].process != nil {
			if err := servers[i].stop(); err != nil {
				return err
			}
		}
		begin := time.Now()
		if servers[i].process, err = starts[i](); err != nil {
			return err
		}
		_, err = servers[i].ask(s.ctx, 0, time.Millisecond, dhcpv4.MessageTypeDiscover)
		first.add(i, ms(time.Since(begin)))
		return err
	})
	if err != nil {
		return err
	}
	for _, server := range servers {
		if err := server.prepare(s.ctx); err != nil {
			return fmt.Errorf("%w: %s", err, server.output.String())
		}
	}
	memory := newRow("resident memory, KiB", 2)
	rate, cpu, lost := newRow("exchanges/s, one after the other", 2), newRow("us of CPU an exchange", 2), newRow("questions without an answer, all", 2)
	err = s.inTurns(rounds, len(servers), func(round, i int) error {
		before, err := servers[i].cpu()
		if err != nil {
			return err
		}
		servers[i].waited = 0
		begin := time.Now()
		for n := range exchanges {
			if err := servers[i].exchange(uint32(round*exchanges + n)); err != nil {
				return fmt.Errorf("%w: %s", err, servers[i].output.String())
			}
		}
		took := time.Since(begin) - servers[i].waited
		after, err1 := servers[i].cpu()
		m, err2 := servers[i].memory()
		rate.add(i, float64(exchanges)/took.Seconds())
		cpu.add(i, us(after-before)/float64(exchanges))
		memory.add(i, m["Rss"])
		return errors.Join(err1, err2)
	})
	for i, server := range servers {
		lost.add(i, float64(server.lost))
	}
	printTable(w, "DHCPv4", []string{"guestwire", "dnsmasq"}, []row{first, rate, lost, cpu, memory})
	return err
}

// launcherSpec is for a launcher that runs as an unprivileged user.
func launcherSpec(binding infra.Binding) infra.Spec {
	return infra.Spec{Binding: binding, Owner: infra.Owner{UID: lab.User, GID: lab.User}}
}

func (s *scope) serveLauncher(p *pod, program string) (*process, error) {
	return s.startProcess(p.Namespace, lab.User, program, "serve", "-state", p.state)
}

// dnsmasqNetwork is a bridge like guestwire's, without a NIC.
const dnsmasqNetwork = `addr flush dev eth0
link add eth0-br type bridge forward_delay 0 mcast_snooping 0
tuntap add %[1]s mode tap
link set %[1]s master eth0-br
link set eth0-br up
link set %[1]s up
addr add %[2]v/24 brd + dev eth0-br`

// startDnsmasq starts dnsmasq in a pod with dnsmasqNetwork. What makes it slow is switched off: DNS, the ping before an
// offer, the log of each message. Leases are infinite and always the same, so it does not rewrite its lease file.
func (s *scope) startDnsmasq(p *pod) (*process, error) {
	return s.startProcess(p.Namespace, 0, "dnsmasq", "--conf-file=/dev/null", "--keep-in-foreground", "--user=root",
		"--log-facility=-", "--pid-file="+p.state+".pid", "--dhcp-leasefile="+p.state+".leases",
		"--port=0", "--interface=eth0-br", "--except-interface=lo", "--bind-interfaces",
		"--quiet-dhcp", "--no-ping", "--dhcp-authoritative", "--dhcp-rapid-commit",
		fmt.Sprintf("--dhcp-range=%v,static,255.255.255.0,infinite", pods[0]), fmt.Sprintf("--dhcp-host=%v,%v,infinite", podMAC, pods[0]))
}

// prepare makes an exchange of whole messages, checks the answers, and keeps the questions.
func (s *server) prepare(ctx context.Context) error {
	const patience = 200 * time.Millisecond
	offer, err := s.ask(ctx, 0, patience, dhcpv4.MessageTypeDiscover)
	if err != nil {
		return err
	}
	ack, err := s.ask(ctx, 1, patience, dhcpv4.MessageTypeRequest, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())))
	if err != nil {
		return err
	}
	if ones, _ := ack.SubnetMask().Size(); ones != 24 || len(ack.Router()) != 1 || !ack.ServerIdentifier().Equal(offer.ServerIdentifier()) {
		return fmt.Errorf("the lease is not as configured: %s", ack.Summary())
	}
	return nil
}

// ask repeats a question, each time after a wait, until the server answers.
func (s *server) ask(ctx context.Context, leg int, wait time.Duration, kind dhcpv4.MessageType, more ...dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	const first = 0xffffff // the transaction
	question, err := newTemplate(kind, more...)
	if err != nil {
		return nil, err
	}
	s.questions[leg] = question
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; {
		if err := errors.Join(s.checkAlive(), s.client.send(question.stamp(first))); err != nil {
			return nil, err
		}
		for again := time.Now().Add(wait); time.Now().Before(again); {
			frame, err := s.client.receive(time.Until(again))
			if err != nil {
				return nil, err
			}
			if isAnswer(frame, answers[leg], first) {
				return dhcpv4.FromBytes(frame[payloadAt:])
			}
		}
	}
	return nil, fmt.Errorf("no %v: %w", answers[leg], errors.Join(context.Cause(ctx), os.ErrDeadlineExceeded))
}

// exchange gets the guest's lease once more. A question without an answer is counted, and asked again, as a client
// does.
func (s *server) exchange(id uint32) error {
	const patience, tries = time.Second, 10
	for leg := range s.questions {
		for try := 0; ; try++ {
			begin := time.Now()
			answered, err := s.question(leg, id, patience)
			if err != nil {
				return err
			}
			if answered {
				break
			}
			if s.lost, s.waited = s.lost+1, s.waited+time.Since(begin); try+1 == tries {
				return fmt.Errorf("no %v to %d questions: %w", answers[leg], tries, os.ErrDeadlineExceeded)
			}
		}
	}
	return nil
}

// question asks once, and reports whether the server answers.
func (s *server) question(leg int, id uint32, patience time.Duration) (answered bool, err error) {
	if err := s.client.send(s.questions[leg].stamp(id)); err != nil {
		return false, err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		frame, err := s.client.receive(time.Until(end))
		if err != nil {
			return false, err
		}
		if isAnswer(frame, answers[leg], id) { // none is nil
			return true, nil
		}
	}
	return false, nil
}
