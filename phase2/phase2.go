// Package phase2 is the unprivileged half, for a VM's launcher. It reads the records of phase1 ([Open], [New]). It
// opens the guest's taps for the VMM ([OpenTap]), or describes them to libvirt ([VM.Interfaces]). It answers the guest
// ([VM.Start]). A program beside it asks where a diverted connection was opened to ([OriginalDestination]).
//
// It needs no capability. It needs the network namespace that phase1 wired, the user of infra.Owner, and a /dev/net/tun
// that this user can open.
package phase2

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"libvirt.org/go/libvirtxml"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/domain"
	"github.com/guestwire/guestwire/internal/statefile"
)

// VM is the network of a virtual machine. Set the fields before Start or Serve.
type VM struct {
	// Log gets the events that Notify gets, and warnings about what a guest does not learn.
	// Nil: they are discarded. While its handler runs, no guest is answered and Serve does not
	// end. So a handler must not wait for a reader, as a write to a full pipe does. The
	// package commandline of the examples has a writer that drops and counts lines instead.
	Log *slog.Logger

	// ResolvConf is the path of the resolv.conf(5) for records whose DNS is nil. Empty:
	// /etc/netns/NAME/resolv.conf of a named namespace (ip-netns(8)), or /etc/resolv.conf, if
	// that exists. Changes of the file are followed. While it is missing,
	// empty or unreadable, the last configuration stays. Servers that the guest cannot reach
	// are left out, with a warning in Log. That is so for a loopback address, one on another
	// link, and one to which no route of the guest leads by the NIC.
	ResolvConf string

	// Notify is called with each event, one at a time. While it runs, no guest is answered and
	// Serve does not end: pass the event on. Nil: no calls.
	Notify func(Event)

	dir       string     // of the records; empty: they are fixed
	notifying sync.Mutex // held while Notify runs

	mu         sync.Mutex
	records    []cache.Record
	responders map[string]*dhcp.Responder // by interface name; a responder stays after its service ends
}

// Open reads the records in dir, the State of infra.Spec. It opens no tap, and works outside of the namespace, too.
//
//	fs.ErrNotExist    dir does not exist, or holds no record
//	*cache.FileError  a record is damaged, has a newer version, or is another program's
//
// A FileError names the file and the field.
func Open(dir string) (*VM, error) {
	records, err := readRecords(dir)
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("records in %s: %w: "+setupFirst, dir, fs.ErrNotExist)
	}
	vm := New(records...)
	vm.dir = dir
	return vm, nil
}

// New is Open for records that phase1's Setup returned. They do not change: a guest that moves needs Open, as Activate
// writes another record. Start refuses a record that is not valid, and two records with one Name.
func New(records ...cache.Record) *VM {
	return &VM{records: records, responders: map[string]*dhcp.Responder{}}
}

// setupFirst is what to do where no record is.
const setupFirst = "run Phase1's Setup with this state directory first (guestwire-agent setup -state DIR)"

func readRecords(dir string) ([]cache.Record, error) {
	if dir == "" {
		return nil, fmt.Errorf("records: no directory is named: name Setup's State, or give New the record that Setup returned: %w", fs.ErrNotExist)
	}
	root, err := statefile.OpenDir(dir)
	if err != nil {
		switch {
		case errors.Is(err, fs.ErrPermission):
			err = fmt.Errorf("user %d cannot enter the directory: %w", os.Geteuid(), err)
		case errors.Is(err, fs.ErrNotExist):
			err = fmt.Errorf("%w: "+setupFirst, err)
		}
		return nil, fmt.Errorf("records: %w", err)
	}
	defer root.Close()
	return cache.List(root)
}

// Records returns the records that New got, or that Open or Serve has read last, sorted by Name. It can be called in
// Notify. The caller must not change them.
func (vm *VM) Records() []cache.Record {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.records
}

// Interfaces returns a libvirt <interface> for each of VM.Records. Its method Marshal returns the XML for a domain's
// <devices>.
//
//	*cache.FieldError  libvirt cannot express a record, such as several queues of an e1000
func (vm *VM) Interfaces() ([]*libvirtxml.DomainInterface, error) {
	var elements []*libvirtxml.DomainInterface
	for _, r := range vm.Records() {
		element, err := domain.Interface(&r)
		if err != nil {
			return nil, err
		}
		elements = append(elements, element)
	}
	return elements, nil
}

// Announce announces the guest as [dhcp.Responder.Announce] does, on each NIC that has a responder. A launcher calls it
// after the VMM has started a guest that moved. The end of a standby is announced by Serve itself. The error joins
// those of the NICs:
//
//	syscall.ENOTCONN  Serve does not serve the NIC
//	dhcp.ErrStandby   the guest is on standby
func (vm *VM) Announce(ctx context.Context) error {
	vm.mu.Lock()
	var nics []string
	var responders []*dhcp.Responder
	for _, r := range vm.records {
		if r.ResponderTap != "" {
			nics, responders = append(nics, r.Name), append(responders, vm.responders[r.Name])
		}
	}
	vm.mu.Unlock()
	errs := make([]error, len(nics))
	var all sync.WaitGroup
	for i, nic := range nics {
		all.Go(func() {
			err := fmt.Errorf("announce: Serve does not run: %w", syscall.ENOTCONN)
			if responders[i] != nil {
				err = responders[i].Announce(ctx)
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", nic, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Counters returns what each responder has counted, by the record's Name. It can be called also after Serve. If a
// record is removed and written again, its counters start from zero.
func (vm *VM) Counters() map[string]dhcp.Counters {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	all := map[string]dhcp.Counters{}
	for nic, r := range vm.responders {
		all[nic] = r.Counters()
	}
	return all
}

// notify calls Notify. Serve and each responder's loop call notify, so the lock keeps the calls apart.
func (vm *VM) notify(e Event) {
	if vm.Notify == nil {
		return
	}
	vm.notifying.Lock()
	defer vm.notifying.Unlock()
	vm.Notify(e)
}
