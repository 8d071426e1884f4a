package phase2

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/internal/tap"
)

const (
	// A program changes a file in several steps. settleTime after the last event the file is read.
	settleTime = 100 * time.Millisecond

	// A missing responder's tap is looked for again after retryMin, then after twice the time, up to
	// retryMax.
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

// Start serves the guest as [VM.Serve] does, in the background and in the process's namespace. It returns when each NIC
// is served: then start the VM. After an error, one of Serve's, nothing is served.
//
// stop ends the service as the end of ctx does, and waits for the end. It can be called again.
func (vm *VM) Start(ctx context.Context) (stop func(), err error) {
	serving, cancel := context.WithCancelCause(ctx)
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		s, err := vm.start(serving)
		started <- err
		if err == nil {
			s.followChanges(serving)
		}
	}()
	stop = func() {
		cancel(context.Cause(ctx)) // which may be done, and not have ended serving yet
		<-ended
	}
	if err := <-started; err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// Serve answers the guest on each NIC whose record has a ResponderTap. It works until ctx is done, and then returns
// nil. At the end it withdraws the router advertisements, so the guest loses its IPv6 default route. If the cause of
// ctx is [dhcp.ErrHandover], another process takes over, and nothing is withdrawn.
//
// Serve follows changes of the records, and taps that are created again. A problem after the start does not end it:
// Notify and Log report it. The event ready reports that each NIC is served.
//
// The calling thread must be in the network namespace of the taps. If that is not the process's, call Serve in a
// goroutine that locks its thread (runtime.LockOSThread) and enters the namespace. If the goroutine never unlocks the
// thread, the thread ends with it. The main thread cannot end: lock it in an init function, so that such a goroutine
// never runs on it.
//
// The errors are from the start:
//
//	fs.ErrNotExist    the thread is in another namespace than that of a record
//	fs.ErrNotExist    a tap is missing, or the file that ResolvConf names
//	fs.ErrPermission  a tap belongs to another user, or ResolvConf cannot be read
//	syscall.EBUSY     another process serves the tap
func (vm *VM) Serve(ctx context.Context) error {
	s, err := vm.start(ctx)
	if err != nil {
		return err
	}
	s.followChanges(ctx)
	return nil
}

// start serves the records that Open read. Any problem is an error, and nothing is served then.
func (vm *VM) start(ctx context.Context) (*server, error) {
	conf, err := newResolvConf(vm.ResolvConf, vm.Records())
	if err != nil {
		return nil, err
	}
	dir := vm.dir
	if dir != "" {
		if dir, err = filepath.Abs(dir); err != nil {
			return nil, fmt.Errorf("records: %w", err)
		}
	}
	s := &server{vm: vm, log: vm.Log, conf: conf, dir: dir, services: map[string]*service{}, ended: make(chan lost)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.attachAll(ctx); err != nil {
		s.detachAll(ctx)
		return nil, err
	}
	s.report(Event{Kind: "ready", Text: "ready"})
	return s, nil
}

// server is the state of one Serve. One goroutine uses it, as the taps are in the namespace of that goroutine's thread.
// Each responder's loop is a goroutine of its own.
type server struct {
	vm       *VM
	log      *slog.Logger
	conf     resolvConf
	dir      string              // of the records; absolute, or empty: they are fixed
	records  watched             // paths of dir
	resolver watched             // paths of the resolv.conf
	services map[string]*service // by interface name
	ended    chan lost           // services whose loop ended with an error
}

// lost is a service whose loop ended with an error, as its tap was deleted.
type lost struct {
	*service
	err error
}

// service is the service of one interface.
type service struct {
	record    cache.Record
	log       *slog.Logger
	responder *dhcp.Responder
	tap       *tap.Responder // the responder's tap; nil: not attached
	cancel    context.CancelCauseFunc
	done      chan struct{} // closed when the loop has ended
	retry     time.Duration // wait before the next attempt to attach
	failure   string        // the last error of attach, so that it is reported once
	lost      bool          // the tap was deleted, so its absence is reported already
}

// attachAll creates the services of the VM's records, and attaches them to their taps.
func (s *server) attachAll(ctx context.Context) error {
	if slices.ContainsFunc(s.vm.Records(), needsResolvConf) {
		if err := s.conf.readFirst(s.log); err != nil {
			return err
		}
	}
	for i, r := range s.vm.Records() {
		if slices.ContainsFunc(s.vm.Records()[:i], func(o cache.Record) bool { return o.Name == r.Name }) {
			return fmt.Errorf("serve %s: two records have this name, and a VM's NICs have names of their own", r.Name)
		}
		if err := r.Validate(); err != nil { // dhcp.New asks only for those that have a responder
			return fmt.Errorf("serve %s: %w", r.Name, err)
		}
		if err := s.addService(r); err != nil {
			return fmt.Errorf("serve %s: %w", r.Name, err)
		}
		if v := s.services[r.Name]; v != nil {
			if err := s.attach(ctx, v); err != nil {
				return fmt.Errorf("serve %s: %w", r.Name, err)
			}
		}
	}
	return nil
}

// addService creates the service of a record that has a responder. It does not attach to the tap.
func (s *server) addService(r cache.Record) error {
	s.logWarnings(r)
	s.clearTap(r)
	if r.ResponderTap == "" {
		s.report(Event{Kind: "no-responder", NIC: r.Name, Text: "no responder"}, "binding", r.Binding)
		return nil
	}
	responder, err := dhcp.New(r, s.dnsOf(r))
	if err != nil {
		return err
	}
	responder.Log = s.log.With("nic", r.Name)
	if s.vm.Notify != nil {
		responder.Notify = func(e dhcp.Event) {
			s.vm.notify(Event{Time: e.Time, NIC: r.Name, Kind: e.Kind, Text: e.Text, Address: e.Address, MAC: e.MAC, Held: e.Held, Err: e.Err})
		}
	}
	s.services[r.Name] = &service{record: r, log: responder.Log, responder: responder}
	s.vm.mu.Lock()
	s.vm.responders[r.Name] = responder
	s.vm.mu.Unlock()
	return nil
}

// clearTaps is clearTap for all NICs at the end, when the VMM may have ended, too: what it left would be a difference
// for Check. A process that takes over does it when it begins.
func (s *server) clearTaps(ctx context.Context) {
	if errors.Is(context.Cause(ctx), dhcp.ErrHandover) {
		return
	}
	for _, r := range s.vm.Records() {
		s.clearTap(r)
	}
}

// clearTap undoes what an earlier VMM may have left at the guest's tap, such as offloads, and an address filter with
// the MACs of its guest. The tap of a VMM that runs is left alone, and so is a macvtap, which Setup did not make.
func (s *server) clearTap(r cache.Record) {
	if r.Tap == "" || r.Tap == r.Name || checkNamespace(r.Namespace) != nil {
		return
	}
	// attach, or the VMM, reports a tap that is not there, or is another user's.
	if err := tap.Clear(r.Tap, r.Queues > 1); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		s.log.Warn("what an earlier VMM has set at the guest's tap may still be set", "nic", r.Name, "error", err)
	}
}

// logWarnings logs what the guest does not get, and what Setup warned of.
func (s *server) logWarnings(r cache.Record) {
	for _, l := range r.Losses {
		s.log.Warn("lost: "+l.String(), "nic", r.Name)
	}
	for _, w := range r.Warnings {
		s.log.Warn(w, "nic", r.Name)
	}
	s.conf.warnOther(s.log, r)
}

// dnsOf returns the record's DNS configuration, or that of the resolv.conf.
func (s *server) dnsOf(r cache.Record) cache.DNS {
	if r.DNS != nil {
		return *r.DNS
	}
	return s.conf.last
}

// attach opens the responder's tap and starts the responder's loop. It reports attached between the two: then the
// events of the loop come later, and the frames that arrive meanwhile wait in the tap.
func (s *server) attach(ctx context.Context, v *service) error {
	if err := checkNamespace(v.record.Namespace); err != nil {
		return err
	}
	opened, err := tap.OpenResponder(v.record.ResponderTap)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	v.tap, v.cancel, v.done, v.retry, v.failure, v.lost = opened, cancel, make(chan struct{}), 0, "", false
	s.report(Event{Kind: "attached", NIC: v.record.Name, Text: "serving the guest"},
		"responderTap", v.record.ResponderTap, "tap", v.record.Tap, "mac", v.record.MAC.String())
	go func(done chan struct{}) {
		defer close(done)
		if err := v.responder.Serve(ctx, opened); err != nil {
			select {
			case s.ended <- lost{v, err}:
			case <-ctx.Done():
			}
		}
	}(v.done)
	return nil
}

// detach ends the responder's loop and closes the tap. It does nothing if the service is not attached.
func (v *service) detach(cause error) {
	if v.tap == nil {
		return
	}
	v.cancel(cause)
	<-v.done
	if err := v.tap.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		v.log.Warn("close the responder's tap", "error", err)
	}
	v.tap = nil
}

// detachAll ends all loops with the cause of the caller's context. The cause is passed on explicitly: the
// caller's context can be done before the contexts derived from it are.
func (s *server) detachAll(ctx context.Context) {
	for _, v := range s.services {
		v.detach(context.Cause(ctx))
	}
}

// followChanges reacts to changes of records, resolv.conf and taps until ctx is done. Then it ends all services.
func (s *server) followChanges(ctx context.Context) {
	defer s.clearTaps(ctx)
	defer s.detachAll(ctx)
	var events <-chan fsnotify.Event
	var errs <-chan error
	watcher, err := fsnotify.NewWatcher()
	if err != nil { // the user may have reached the limit of inotify instances
		s.report(Event{Kind: "watch-failed", Text: "changes of the records and of resolv.conf will not be noticed", Err: err})
	} else {
		defer watcher.Close()
		events, errs = watcher.Events, watcher.Errors
	}
	// Both fire at once: files and taps may have changed since start, when nothing was watched.
	changed, retry := time.NewTimer(0), time.NewTimer(0)
	defer changed.Stop()
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-errs:
			s.report(Event{Kind: "watch-failed", Text: "changes of the records and of resolv.conf may have been missed; reading them again", Err: err})
			changed.Reset(settleTime)
		case event := <-events:
			// Other files in the directory are ignored. One may be the launcher's log: each line would
			// cause the next event.
			if s.records.includes(event.Name) || filepath.Ext(event.Name) == ".json" || s.resolver.includes(event.Name) {
				changed.Reset(settleTime)
			}
		case <-changed.C:
			// Watch before reading, so that a change after the read is an event.
			if watcher != nil {
				s.watchFiles(watcher)
			}
			if s.dir != "" {
				s.applyRecords()
			}
			if slices.ContainsFunc(s.vm.Records(), needsResolvConf) {
				s.applyResolvConf()
			}
			retry.Reset(0)
		case v := <-s.ended:
			v.detach(nil)
			v.lost = true
			s.report(Event{Kind: "tap-lost", NIC: v.record.Name, Text: "the responder's tap was deleted; the guest is served again when the tap is back", Err: v.err})
			retry.Reset(retryMin)
		case <-retry.C:
			if wait := s.attachMissing(ctx); wait > 0 {
				retry.Reset(wait)
			}
		}
	}
}

// watchFiles watches the directory of the records and the resolv.conf. It is called again after each change,
// as a watch does not follow a path whose file was replaced.
func (s *server) watchFiles(watcher *fsnotify.Watcher) {
	var err error
	if s.dir != "" {
		if s.records, err = watchPath(watcher, s.dir); err != nil {
			s.report(Event{Kind: "watch-failed", Text: "changes of the records will not be noticed", Err: err})
		}
	}
	if s.resolver, err = watchPath(watcher, s.conf.path); err != nil {
		s.report(Event{Kind: "watch-failed", Text: "changes of resolv.conf will not be noticed", Err: err})
	}
}

// applyResolvConf reads the resolv.conf again, and gives a new configuration to the responders whose records have none.
func (s *server) applyResolvConf() {
	changed, err := s.conf.reread(s.log)
	if err != nil {
		s.report(Event{Kind: "resolv-conf-failed", Text: "resolv.conf cannot be read; the old DNS configuration stays in use", Err: err})
	}
	if !changed {
		return
	}
	for _, v := range s.services {
		if v.record.DNS == nil {
			if err := v.responder.Update(v.record, s.conf.last); err != nil {
				s.report(Event{Kind: "resolv-conf-failed", NIC: v.record.Name, Text: "the new DNS configuration is not used; the guest keeps the old one", Err: err})
			}
		}
	}
	s.report(Event{Kind: "resolv-conf-changed", Text: "the DNS configuration has changed"},
		"path", s.conf.path, "servers", s.conf.last.Servers, "search", s.conf.last.Search)
}

// applyRecords reads the records again and adds, updates and ends services. If one record cannot be read,
// all services stay as they are. followChanges attaches to the taps afterwards.
func (s *server) applyRecords() {
	records, err := readRecords(s.dir)
	if err != nil {
		e := Event{Kind: "record-failed", Text: "the records cannot be read; the old ones stay in use", Err: err}
		var file *cache.FileError
		if errors.As(err, &file) {
			e.NIC = strings.TrimSuffix(filepath.Base(file.Path), ".json")
		}
		s.report(e)
		return
	}
	old := map[string]cache.Record{}
	for _, r := range s.vm.Records() {
		old[r.Name] = r
	}
	s.vm.mu.Lock()
	s.vm.records = records
	s.vm.mu.Unlock()
	for _, r := range records {
		before, known := old[r.Name]
		delete(old, r.Name)
		switch {
		case !known:
			s.report(Event{Kind: "record-added", NIC: r.Name, Text: "there is a new record"})
			s.serveRecord(r)
		case !reflect.DeepEqual(r, before):
			s.changeRecord(r)
		}
	}
	for nic := range old {
		s.endService(nic)
		s.report(Event{Kind: "record-removed", NIC: nic, Text: "the record was removed: the guest is no longer served"})
	}
}

// serveRecord creates the service of a new record.
func (s *server) serveRecord(r cache.Record) {
	if err := s.addService(r); err != nil {
		s.report(Event{Kind: "record-failed", NIC: r.Name, Text: "the guest is not served", Err: err})
	}
}

// changeRecord uses a changed record. A record with another responder's tap gets a new service.
func (s *server) changeRecord(r cache.Record) {
	const changed = "the record has changed"
	v := s.services[r.Name]
	if v == nil || v.record.ResponderTap != r.ResponderTap {
		s.endService(r.Name)
		s.report(Event{Kind: "record-changed", NIC: r.Name, Text: changed})
		s.serveRecord(r)
		return
	}
	s.logWarnings(r)
	v.record = r
	if err := v.responder.Update(r, s.dnsOf(r)); err != nil {
		s.report(Event{Kind: "record-failed", NIC: r.Name, Text: "the new record is not used; the guest keeps the old one", Err: err})
		return
	}
	s.report(Event{Kind: "record-changed", NIC: r.Name, Text: changed})
}

// endService ends the service of an interface, if there is one.
func (s *server) endService(nic string) {
	if v := s.services[nic]; v != nil {
		v.detach(nil)
		delete(s.services, nic)
	}
}

// attachMissing attaches the services that are not attached. It returns when to call it again, or 0 if all
// services are attached.
func (s *server) attachMissing(ctx context.Context) time.Duration {
	var wait time.Duration
	for _, v := range s.services {
		if v.tap != nil {
			continue
		}
		err := s.attach(ctx, v)
		if err == nil {
			continue
		}
		if v.failure != err.Error() && !(v.lost && errors.Is(err, fs.ErrNotExist)) {
			s.report(Event{Kind: "attach-failed", NIC: v.record.Name, Text: "the responder's tap cannot be opened; trying again", Err: err})
		}
		v.failure = err.Error()
		v.retry = min(max(2*v.retry, retryMin), retryMax)
		if wait == 0 || v.retry < wait {
			wait = v.retry
		}
	}
	return wait
}

// report writes an event to the log, as a warning if there is an error, and gives the event to Notify.
func (s *server) report(e Event, attrs ...any) {
	level := slog.LevelInfo
	all := []any{"event", string(e.Kind)}
	if e.NIC != "" {
		all = append(all, "nic", e.NIC)
	}
	if e.Err != nil {
		level = slog.LevelWarn
		all = append(all, "error", e.Err)
	}
	s.log.Log(context.Background(), level, e.Text, append(all, attrs...)...)
	if e.Err != nil {
		e.Text += ": " + e.Err.Error()
	}
	e.Time = time.Now()
	s.vm.notify(e)
}
