// Package phase2 is the unprivileged half: it reads the records that phase1 left in a directory,
// describes the interfaces to libvirt, and answers the guest.
//
// It needs no capability. It runs in the namespace that phase1 wired, as the user that owns the
// taps.
package phase2

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"libvirt.org/go/libvirtxml"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/domain"
)

// VM is the network of one virtual machine: the records of one directory.
type VM struct {
	// Log gets what the responders have to say; nil discards it. It is to be set before Serve.
	Log *slog.Logger
	// ResolvConf is where the guest's DNS configuration comes from if a record holds none. It is
	// followed when it changes; one that goes, or cannot be read, changes nothing. Servers that the
	// guest could not use are left out, with a word in the log: loopback, those on another link.
	// Empty: /etc/resolv.conf, if there is one. It is to be set before Serve.
	ResolvConf string
	// Notify is called with what a guest was given, by the interface's name, in the goroutine
	// that serves it: at the same time for several. The guest waits for the call to return. Nil:
	// nobody is told. It is to be set before Serve.
	Notify func(nic string, e dhcp.Event)

	dir string

	mu         sync.Mutex
	records    []cache.Record
	responders map[string]*dhcp.Responder // by the interfaces' names, those that were served
}

// Open reads the records in dir. A record that is damaged, newer, or another program's is an error
// that names the file and the field, a *cache.FileError; a directory without any is
// fs.ErrNotExist.
func Open(dir string) (*VM, error) {
	records, err := list(dir)
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("records in %s: %w: run Phase1's Setup with this state directory first", dir, fs.ErrNotExist)
	}
	return &VM{dir: dir, records: records, responders: map[string]*dhcp.Responder{}}, nil
}

func list(dir string) ([]cache.Record, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	defer root.Close()
	return cache.List(root)
}

// Records are those in the directory, by the interfaces' names: as Open read them, or as Serve has
// followed them since.
func (vm *VM) Records() []cache.Record {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.records
}

// Interfaces are the libvirt elements, in the records' order; Marshal makes XML of one. The error
// is a *cache.FieldError, such as for several queues with a model that has one.
func (vm *VM) Interfaces() ([]*libvirtxml.DomainInterface, error) {
	var elements []*libvirtxml.DomainInterface
	for _, r := range vm.Records() {
		element, err := domain.Interface(&r)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", r.Name, err)
		}
		elements = append(elements, element)
	}
	return elements, nil
}

// Counters are what the responders have done since Open, by the interfaces' names. One that was
// taken away and came back counts from nothing.
func (vm *VM) Counters() map[string]dhcp.Counters {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	all := map[string]dhcp.Counters{}
	for nic, r := range vm.responders {
		all[nic] = r.Counters()
	}
	return all
}
