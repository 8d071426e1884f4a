package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/phase2"
)

// server answers KubeVirt's hooks.
type server struct {
	binding, state      string
	agent, config, proc string // of the node hook
	log                 *slog.Logger
	ctx                 context.Context // ends with the server
	stop                context.CancelFunc
	waits               sync.WaitGroup // of the goroutines of arriving
	arriving            sync.Map       // of the node hook: the NICs that wait for their guest, by pod and name, and what ends that

	mu sync.Mutex
	vm *phase2.VM // nil: the guest is not answered yet
}

// define connects the domain's interfaces with the binding to their taps, once the guest is answered. It can be called
// again.
func (s *server) define(domain, vmi string) (string, error) {
	_, nics, err := bound(vmi, s.binding)
	if err != nil || len(nics) == 0 {
		return domain, err
	}
	records, err := s.records()
	if err != nil {
		return "", err
	}
	for _, n := range nics {
		if n.name == "" {
			return "", n.errUnnamed()
		}
		i := slices.IndexFunc(records, func(r cache.Record) bool { return r.Name == n.name })
		if i < 0 {
			return "", fmt.Errorf("network %s: NIC %s has no record in %s: it is not wired", n.network, n.name, s.state)
		}
		if domain, err = connect(domain, n, records[i]); err != nil {
			return "", fmt.Errorf("network %s: %w", n.network, err)
		}
	}
	return domain, nil
}

// records returns the records of the pod. From the first call on the guest is answered.
func (s *server) records() ([]cache.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vm == nil {
		vm, err := phase2.Open(s.state)
		if err != nil {
			return nil, err
		}
		vm.Log = s.log
		if _, err := vm.Start(s.ctx); errors.Is(err, syscall.EBUSY) {
			return nil, fmt.Errorf("binding %s: %w; the sidecar of another binding of the VM may be that process: "+
				"give all interfaces of the VM the same binding", s.binding, err)
		} else if err != nil {
			return nil, err
		}
		s.vm = vm
	}
	return s.vm.Records(), nil
}
