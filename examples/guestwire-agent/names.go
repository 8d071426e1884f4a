package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/nameproxy"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/pins"
)

// serveNames runs DNS proxies until ctx is done: of the node, or of one NIC.
func serveNames(ctx context.Context, o *options) error {
	queueLog()
	node, err := o.proxies()
	if err != nil {
		return err
	}
	node.Ready = func(w phase1.Wiring) {
		node.Log.Info("the DNS proxy answers the guest", "nic", w.NIC, "namespace", w.Namespace, "names", len(w.Names))
	}
	if o.all {
		return node.Run(ctx)
	}
	report, err := o.Status(ctx)
	if errors.Is(err, phase1.ErrNotWired) {
		return fmt.Errorf("%w: call guestwire-agent setup first, or guestwire-agent names -all, which waits for it", err)
	}
	if err != nil {
		return err
	}
	if len(report.Names) == 0 {
		fmt.Fprintf(stderr, "guestwire-agent: the configuration of %s has no names: nothing is answered before a setup with names\n", o.Name)
	}
	return o.namesOf(node, report.Namespace).Run(ctx)
}

// namesOf is the proxy of the NIC in the namespace.
func (o *options) namesOf(node pins.Node, namespace string) pins.Node {
	node.Only = func(w phase1.Wiring) bool { return w.Namespace == namespace && w.NIC == o.Name }
	return node
}

// proxies are those of guestwire-launcher.
func (o *options) proxies() (pins.Node, error) {
	launcher, err := o.findLauncher()
	if err != nil {
		return pins.Node{}, err
	}
	return nameproxy.Node(o.Dir, launcher, o.namesUID, slog.New(slog.NewTextHandler(log, nil))), nil
}

// checkNames refuses names in a configuration for which run could start no proxy.
func (o *options) checkNames() error {
	if len(o.Names) == 0 {
		return nil
	}
	if o.State == "" {
		return commandline.Errorf("-state is missing: the DNS proxy of names reads the record there")
	}
	_, err := o.findLauncher()
	return err
}

// findLauncher returns the path of guestwire-launcher.
func (o *options) findLauncher() (string, error) {
	if o.launcher != "" {
		if _, err := exec.LookPath(o.launcher); err != nil {
			return "", commandline.Errorf("-launcher: %w", err)
		}
		return o.launcher, nil
	}
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), "guestwire-launcher")
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
	}
	path, err := exec.LookPath("guestwire-launcher")
	if err != nil {
		return "", fmt.Errorf("the DNS proxy of names: %w: install guestwire-launcher beside the agent, or name it by -launcher", err)
	}
	return path, nil
}

// patience is how long run waits for the DNS proxy.
const patience = 10 * time.Second

// runNames runs the DNS proxy of a NIC that run has wired, if its configuration has names, and waits until the proxy
// answers. Stop ends it.
func (o *options) runNames(ctx context.Context, record cache.Record) (stop func(), err error) {
	if len(record.DNSProxy) == 0 {
		return func() {}, nil
	}
	node, err := o.proxies()
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{}, 1)
	node.Ready = func(phase1.Wiring) {
		select {
		case ready <- struct{}{}:
		default: // a later setup's
		}
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := o.namesOf(node, record.Namespace).Run(running); err != nil {
			fmt.Fprintln(stderr, "guestwire-agent:", err)
		}
	}()
	select {
	case <-ready:
	case <-ctx.Done():
	case <-time.After(patience):
		fmt.Fprintln(stderr, "guestwire-agent: warning: the DNS proxy of names does not answer yet, and the command starts without it, or guestwire-agent names answers for this NIC")
	}
	return func() {
		cancel()
		<-ended
	}, nil
}
