// Package phase2 is the unprivileged half: it reads the records that phase1 left in a directory,
// describes the interfaces to libvirt, and answers the guest.
//
// It needs no capability. It runs in the namespace that phase1 wired, as the user that owns the
// taps.
package phase2

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"libvirt.org/go/libvirtxml"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/domain"
	"github.com/guestwire/guestwire/internal/tap"
)

// VM is the network of one virtual machine: the records of one directory.
type VM struct {
	// Log gets what the responders have to say; nil discards it. It is to be set before Serve.
	Log *slog.Logger
	// ResolvConf is where the guest's DNS configuration comes from if a record holds none.
	// Empty: /etc/resolv.conf.
	ResolvConf string

	records []cache.Record
}

// Open reads the records in dir. A record that is damaged, newer, or another program's is an error
// that names the file and the field, a *cache.FileError; a directory without any is
// fs.ErrNotExist.
func Open(dir string) (*VM, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	defer root.Close()
	records, err := cache.List(root)
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("records in %s: %w: run Phase1's Setup with this state directory first", dir, fs.ErrNotExist)
	}
	return &VM{records: records}, nil
}

// Records are those that were read, by the interfaces' names.
func (vm *VM) Records() []cache.Record { return vm.records }

// Interfaces are the libvirt elements, in the records' order; Marshal makes XML of one. The error
// is a *cache.FieldError, such as for several queues with a model that has one.
func (vm *VM) Interfaces() ([]*libvirtxml.DomainInterface, error) {
	var elements []*libvirtxml.DomainInterface
	for i := range vm.records {
		element, err := domain.Interface(&vm.records[i])
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", vm.records[i].Name, err)
		}
		elements = append(elements, element)
	}
	return elements, nil
}

// Serve answers the guest on all interfaces that have a responder, until ctx is done; then it
// returns nil. It attaches to the responders' taps in the namespace of the calling thread. The errors
// to tell apart: fs.ErrNotExist if a tap is not in this namespace,
// fs.ErrPermission if it is another user's, syscall.EBUSY if another process serves it.
func (vm *VM) Serve(ctx context.Context) error {
	log := vm.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	type service struct {
		responder *dhcp.Responder
		port      *os.File
		nic       string
	}
	var services []service
	defer func() {
		for _, s := range services {
			if err := s.port.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
				log.Warn("close responder's port", "nic", s.nic, "error", err)
			}
		}
	}()
	for _, r := range vm.records {
		nicLog := log.With("nic", r.Name)
		for _, w := range r.Warnings {
			nicLog.Warn(w)
		}
		if r.Port == "" {
			nicLog.Info("no responder", "tap", r.Tap)
			continue
		}
		dns, err := vm.dns(r)
		if err != nil {
			return fmt.Errorf("serve %s: %w", r.Name, err)
		}
		responder, err := dhcp.New(r, dns)
		if err != nil {
			return fmt.Errorf("serve %s: %w", r.Name, err)
		}
		responder.Log = nicLog
		port, err := tap.Open(r.Port)
		if err != nil {
			return fmt.Errorf("serve %s: %w", r.Name, err)
		}
		services = append(services, service{responder, port, r.Name})
		nicLog.Info("serving", "port", r.Port, "tap", r.Tap, "mac", r.MAC.String())
	}
	if len(services) == 0 {
		<-ctx.Done()
		return nil
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(services))
	var running sync.WaitGroup
	for i, s := range services {
		running.Go(func() {
			if err := s.responder.Serve(ctx, s.port); err != nil {
				errs[i] = fmt.Errorf("serve %s: %w", s.nic, err)
				stop()
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

func (vm *VM) dns(r cache.Record) (cache.DNS, error) {
	if r.DNS != nil {
		return *r.DNS, nil
	}
	path := vm.ResolvConf
	if path == "" {
		path = "/etc/resolv.conf"
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return cache.DNS{}, nil
	}
	if err != nil {
		return cache.DNS{}, fmt.Errorf("DNS configuration: %w", err)
	}
	return parseResolvConf(text), nil
}
