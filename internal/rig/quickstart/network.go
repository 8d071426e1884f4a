package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/guestwire/guestwire/internal/test/lab"
)

// namespace is a network namespace that ends when its file is closed.
type namespace struct{ lab.Namespace }

func (n namespace) close() error { return n.File.Close() }

// createNetwork creates a network like a CNI plugin's: a veth between the pod and the world, addresses and default
// routes.
func createNetwork() (pod, world namespace, err error) {
	if pod.Namespace, err = lab.New(); err != nil {
		return pod, world, err
	}
	if world.Namespace, err = lab.New(); err != nil {
		return pod, world, errors.Join(err, pod.close())
	}
	if err = world.World(); err == nil {
		err = lab.Veth(pod.Namespace, world.Namespace)
	}
	if err != nil {
		err = errors.Join(err, pod.close(), world.close())
	}
	return pod, world, err
}

// state is what a namespace has, as ip(8) shows it. The links are compared alone: beside them, the addresses name each
// link as well.
type state struct{ links, addresses string }

func (n namespace) describe() (s state, err error) {
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
func (n namespace) waitRestored(ctx context.Context, want state) error {
	for range 100 {
		now, err := n.describe()
		if err != nil || now == want {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	now, err := n.describe()
	return errors.Join(fmt.Errorf("the namespace is not as it was, but:\n%s%s", now.links, now.addresses), err)
}
