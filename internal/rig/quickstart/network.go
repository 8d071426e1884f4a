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

// describe returns the links, addresses and routes, as ip(8) shows them.
func (n namespace) describe() (string, error) {
	var b strings.Builder
	for _, line := range []string{"-br link", "-br addr", "-4 route", "-6 route"} {
		out, err := n.Run("ip", strings.Fields(line)...)
		if err != nil {
			return "", err
		}
		b.WriteString(out)
	}
	return b.String(), nil
}

// waitRestored waits until the namespace is as before, and prints it.
func (n namespace) waitRestored(ctx context.Context, want string) error {
	for range 100 {
		now, err := n.describe()
		if err != nil {
			return err
		}
		if now == want {
			quote(now)
			step("that is what it was before")
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	now, err := n.describe()
	return errors.Join(fmt.Errorf("the namespace is not as it was, but:\n%s", now), err)
}
