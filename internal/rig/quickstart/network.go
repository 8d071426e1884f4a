package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/guestwire/guestwire/internal/test/lab"
)

// createNetwork creates a network like a CNI plugin's: a veth between the pod and the world, addresses and default
// routes.
func createNetwork() (pod, world lab.Namespace, err error) {
	if pod, err = lab.New(); err != nil {
		return pod, world, err
	}
	if world, err = lab.New(); err != nil {
		return pod, world, errors.Join(err, pod.File.Close())
	}
	if err = world.World(); err == nil {
		err = lab.Veth(pod, world)
	}
	if err != nil {
		err = errors.Join(err, pod.File.Close(), world.File.Close())
	}
	return pod, world, err
}

// state is what a namespace has, as ip(8) shows it. The links are compared alone: beside them, the addresses name each
// link as well.
type state struct{ links, addresses string }

// describe returns the state of a namespace.
func describe(n lab.Namespace) (s state, err error) {
	if s.links, err = n.Run("ip", "-br", "link"); err != nil {
		return s, err
	}
	var b strings.Builder
	for _, line := range []string{"-br addr", "-4 route", "-6 route"} {
		out, err := n.Run("ip", strings.Fields(line)...)
		if err != nil {
			return s, err
		}
		b.WriteString(out)
	}
	s.addresses = b.String()
	return s, nil
}

// waitRestored waits until the namespace is as before.
func waitRestored(ctx context.Context, n lab.Namespace, want state) error {
	for range 100 {
		now, err := describe(n)
		if err != nil || now == want {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	now, err := describe(n)
	return errors.Join(fmt.Errorf("the namespace is not as it was, but:\n%s%s", now.links, now.addresses), err)
}
