package main

import (
	"context"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// measureFollowed measures a new connection of a guest whose flows are followed, and of one whose flows are counted
// alone. Both have a long list.
func (s *scope) measureFollowed(binding infra.Binding, opened row) error {
	spec := infra.Spec{Egress: append([]infra.Egress{toServer}, longPolicy(false, 24)...), Flows: true}
	variants, err := s.newPolicyVariants(binding, spec, spec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	follows, ended := make(chan struct{}, 1), make(chan error, 1)
	n := variants[0].pod.nic()
	n.Progress = func(string) {
		select {
		case follows <- struct{}{}:
		default:
		}
	}
	go func() { ended <- n.FollowFlows(ctx, func(phase1.Flow) {}) }()
	s.atEnd(func() error {
		cancel()
		return <-ended
	})
	select {
	case <-follows:
	case err := <-ended:
		ended <- nil
		return err
	}
	return s.inTurns(setRounds, len(variants), func(_, way int) error {
		took, err := variants[way].connect(serverAt, header.TCPFlagSyn|header.TCPFlagAck)
		opened.add(way, took)
		return err
	})
}
