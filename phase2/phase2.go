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
	"path/filepath"
	"slices"
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
	// ResolvConf is where the guest's DNS configuration comes from if a record holds none. It is
	// followed when it changes. Empty: /etc/resolv.conf, if there is one.
	ResolvConf string
	// Notify is called with what a guest was given, by the interface's name, in the goroutine
	// that serves it: at the same time for several. The guest waits for the call to return. Nil:
	// nobody is told. It is to be set before Serve.
	Notify func(nic string, e dhcp.Event)

	records []cache.Record

	mu       sync.Mutex
	services []service // of the last Serve
}

// service is the responder of one interface.
type service struct {
	record    cache.Record
	responder *dhcp.Responder
	port      *os.File
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

// Counters are what the responders have done, by the interfaces' names, in this Serve or the last
// one.
func (vm *VM) Counters() map[string]dhcp.Counters {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	all := map[string]dhcp.Counters{}
	for _, s := range vm.services {
		all[s.record.Name] = s.responder.Counters()
	}
	return all
}

// Serve answers the guest on all interfaces that have a responder, until ctx is done; then it
// returns nil, and has withdrawn its router advertisements if the cause of ctx is not
// dhcp.ErrHandover. It attaches to the responders' taps in the namespace of the calling thread. The
// errors to tell apart: fs.ErrNotExist if a tap is not in this namespace, or the file ResolvConf is
// missing, fs.ErrPermission if a tap is another user's, syscall.EBUSY if another process serves it.
func (vm *VM) Serve(ctx context.Context) error {
	log := vm.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	found, err := vm.resolvConf()
	if err != nil {
		return err
	}
	var services []service
	defer func() {
		for _, s := range services {
			if err := s.port.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
				log.Warn("close responder's port", "nic", s.record.Name, "error", err)
			}
		}
	}()
	follow := false
	for _, r := range vm.records {
		nicLog := log.With("nic", r.Name)
		for _, w := range r.Warnings {
			nicLog.Warn(w)
		}
		if r.Port == "" {
			nicLog.Info("no responder", "tap", r.Tap)
			continue
		}
		dns := found
		if r.DNS != nil {
			dns = *r.DNS
		}
		follow = follow || r.DNS == nil
		responder, err := dhcp.New(r, dns)
		if err != nil {
			return fmt.Errorf("serve %s: %w", r.Name, err)
		}
		responder.Log = nicLog
		if vm.Notify != nil {
			responder.Notify = func(e dhcp.Event) { vm.Notify(r.Name, e) }
		}
		port, err := tap.Open(r.Port)
		if err != nil {
			return fmt.Errorf("serve %s: %w", r.Name, err)
		}
		services = append(services, service{r, responder, port})
		nicLog.Info("serving", "port", r.Port, "tap", r.Tap, "mac", r.MAC.String())
	}
	vm.mu.Lock()
	vm.services = services
	vm.mu.Unlock()
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
				errs[i] = fmt.Errorf("serve %s: %w", s.record.Name, err)
				stop()
			}
		})
	}
	if follow {
		running.Go(func() { vm.follow(ctx, log, found, services) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// resolvConf reads what records without a DNS configuration of their own are to be told.
func (vm *VM) resolvConf() (cache.DNS, error) {
	hasNone := func(r cache.Record) bool { return r.DNS == nil && r.Port != "" }
	if !slices.ContainsFunc(vm.records, hasNone) {
		return cache.DNS{}, nil
	}
	dns, err := readResolvConf(vm.resolvConfPath())
	if vm.ResolvConf == "" && errors.Is(err, fs.ErrNotExist) {
		return cache.DNS{}, nil
	}
	return dns, err
}

func (vm *VM) resolvConfPath() string {
	if vm.ResolvConf == "" {
		return defaultResolvConf
	}
	return filepath.Clean(vm.ResolvConf)
}

// follow tells the responders what the resolv.conf says, when it changes. That it cannot be watched, as
// where a user has too many watches, is no reason not to serve.
func (vm *VM) follow(ctx context.Context, log *slog.Logger, found cache.DNS, services []service) {
	path := vm.resolvConfPath()
	err := followResolvConf(ctx, path, found, log, func(dns cache.DNS) {
		log.Info("the DNS configuration has changed", "path", path, "servers", dns.Servers, "search", dns.Search)
		for _, s := range services {
			if s.record.DNS != nil {
				continue
			}
			if err := s.responder.Update(s.record, dns); err != nil {
				log.Warn("the DNS configuration stays what it was", "nic", s.record.Name, "error", err)
			}
		}
	})
	if err != nil {
		log.Warn("the DNS configuration is not followed", "error", err)
	}
}
