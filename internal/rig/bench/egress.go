package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/lab"
)

var networks = 10000 // in a long list

// longPolicy has entries about random networks, and one that decides the rest the other way.
func longPolicy(refuse bool, bits int) (list []infra.Egress) {
	random := rand.New(rand.NewPCG(1, 1))
	for range networks {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 1<<24+random.Uint32N(222<<24)) // 1.0.0.0 to 222.255.255.255
		list = append(list, infra.Egress{Refuse: refuse, To: netip.PrefixFrom(netip.AddrFrom4(a), bits).Masked().String()})
	}
	return append(list, infra.Egress{Refuse: !refuse, To: "all"})
}

// measureEgress measures what a policy costs a guest, and Setup. There are sets as in measureDatapath.
func measureEgress(s *scope, w io.Writer, sets int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var guests, beside, followed, setups []row
	for _, binding := range []infra.Binding{infra.Routed{}, infra.Masquerade{}} {
		kind := string(binding.Kind())
		out, in := newRow(kind+", open connection, from the guest", 2), newRow(kind+", open connection, to the guest", 2)
		opened, refused := newRow(kind+", a new connection", 2), newRow(kind+", a refused connection", 2)
		lists := []row{newRow(kind+", networks allowed, ms", 3), newRow(kind+", networks allowed, ms of CPU", 3),
			newRow(kind+", hosts refused, ms", 3), newRow(kind+", hosts refused, ms of CPU", 3)}
		diverts := newDivertRows(kind)
		log := newRow(kind+", a new connection", 2)
		measure := func(s *scope) error {
			return errors.Join(s.measurePolicy(binding, out, in, opened, refused), s.measureDiverts(binding, diverts), s.measureLists(binding, lists), s.measureFollowed(binding, log))
		}
		for range sets {
			if err := inScope(s.ctx, measure); err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
		}
		guests, setups = append(guests, out, in, opened, refused), append(setups, lists...)
		beside, followed = append(beside, diverts.all()...), append(followed, log)
	}
	printTable(w, "Microseconds a frame, or until an answer", []string{"policy", "without"}, guests)
	printTable(w, "The same, beside a list", []string{"diverts", "without"}, beside)
	printTable(w, "The same, beside a list, with flows", []string{"followed", "counted"}, followed)
	printTable(w, "Setup with a list of 10,000", []string{"list", "without", "change"}, setups)
	return nil
}

// measureLists measures Setup with a list, without it, and after a change of one entry. Took has two rows a list.
func (s *scope) measureLists(binding infra.Binding, took []row) error {
	for i, list := range [][]infra.Egress{longPolicy(false, 24), longPolicy(true, 32)} {
		_, pods, err := s.newWorld(2)
		if err != nil {
			return err
		}
		changed := append([]infra.Egress{{Refuse: list[0].Refuse, To: "192.0.2.0/24"}}, list[1:]...)
		for way, egress := range [][]infra.Egress{list, nil, changed} {
			runtime.GC() // what the call before has left
			spec := infra.Spec{Binding: binding, Egress: egress}
			cost, err := timed(func() error { _, err := pods[way%2].setup(s.ctx, spec); return err })
			if err != nil {
				return err
			}
			took[2*i].add(way, ms(cost.wall))
			took[2*i+1].add(way, ms(cost.cpu))
		}
	}
	return nil
}

// measurePolicy measures a guest whose policy allows the server's port, and one without a policy. Each has a world of
// its own, as the server answers by the pod's address. A refused connection is compared with a new one without policy.
func (s *scope) measurePolicy(binding infra.Binding, out, in, opened, refused row) error {
	variants, err := s.newPolicyVariants(binding, infra.Spec{Egress: append([]infra.Egress{toServer}, longPolicy(false, 24)...)}, infra.Spec{})
	if err == nil {
		err = s.takeTurns(variants, shortBursts, out, in)
	}
	if err != nil {
		return err
	}
	return s.inTurns(setRounds, len(variants), func(_, way int) error {
		took, err := variants[way].connect(serverAt, header.TCPFlagSyn|header.TCPFlagAck)
		opened.add(way, took)
		if err == nil && way == 0 {
			took, err = variants[way].connect(netip.AddrPortFrom(gateways[0], refusedPort), header.TCPFlagRst|header.TCPFlagAck)
		}
		refused.add(way, took)
		return err
	})
}

// toServer allows the server's port.
var toServer = infra.Egress{To: gateways[0].String(), Ports: infra.Ports{First: serverPort}}

// newPolicyVariants wires a guest for each Spec, in a world of its own, where the server answers. The guest has an open
// connection.
func (s *scope) newPolicyVariants(binding infra.Binding, specs ...infra.Spec) (variants []*variant, err error) {
	for _, spec := range specs {
		spec.Binding = binding
		_, pods, err := s.newWorld(1)
		if err != nil {
			return nil, err
		}
		n, err := s.newWiredVariant(pods[0], spec)
		if err == nil {
			err = n.openConnection(s.ctx, flows[0])
		}
		if err != nil {
			return nil, err
		}
		variants = append(variants, n)
	}
	for _, n := range variants {
		if err := s.serve(n.pod); err != nil {
			return nil, err
		}
	}
	return variants, nil
}

// serve has the other end of the pod's NIC answer at both ports. It need not ask for the pod's MAC.
func (s *scope) serve(p *pod) error {
	return errors.Join(p.gateway(), ip(p.world.Namespace, "neigh replace %v lladdr %v nud permanent dev %s", pods[0], podMAC, p.peer),
		s.listen(p.world.Namespace, serverAt), s.listen(p.world.Namespace, netip.AddrPortFrom(gateways[0], refusedPort)))
}

// listen answers at a port of the namespace, which keeps nothing of a connection that does not go on (tcp_syncookies,
// ip-sysctl.rst).
func (s *scope) listen(in lab.Namespace, at netip.AddrPort) error {
	_, err := in.Run("sysctl", "-qw", "net.ipv4.tcp_syncookies=2")
	return errors.Join(err, in.Do(func() error {
		listener, err := net.Listen("tcp", at.String())
		if err == nil {
			s.atEnd(listener.Close)
		}
		return err
	}))
}

// connect sends SYNs, and returns the median of the microseconds until the answer, which has the flags.
func (n *variant) connect(to netip.AddrPort, flags header.TCPFlags) (float64, error) {
	syn := n.segment(to, header.TCPFlagSyn, 0)
	var took []float64
	for range 50 { // in all turns together fewer than infra.DefaultMaxConnections
		n.opened++
		binary.BigEndian.PutUint16(syn[portsAt:], clientPort-n.opened)
		begin := time.Now()
		err := n.guest.send(syn)
		for frame := []byte(nil); err == nil && !(isFor(frame, clientPort-n.opened) && header.TCP(frame[portsAt:]).Flags() == flags); {
			if frame, err = n.guest.receive(time.Second); frame == nil && err == nil {
				err = fmt.Errorf("%s: no answer with the flags %v to a SYN to %v", n.pod.peer, flags, to)
			}
		}
		if err != nil {
			return 0, err
		}
		took = append(took, us(time.Since(begin)))
	}
	return quantile(took, 2), nil
}
