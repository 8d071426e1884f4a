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
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/internal/tap"
)

const (
	// Who changes a file does it in several steps.
	settle = 100 * time.Millisecond

	// How long to wait before a port that is not there is looked for again.
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

// Serve answers the guest on all interfaces that have a responder, until ctx is done; then it
// returns nil, and has withdrawn its router advertisements if the cause of ctx is not
// dhcp.ErrHandover. It attaches to the responders' taps in the namespace of the calling thread.
//
// It follows the records: one that comes, changes or goes begins, changes or ends that interface's
// service; so does a tap that is deleted and made again. What is wrong with them then is in the log.
//
// The errors to tell apart, all at the start: fs.ErrNotExist if a tap is not in this namespace, or the
// file ResolvConf is missing, fs.ErrPermission if a tap is another user's, syscall.EBUSY if another
// process serves it.
func (vm *VM) Serve(ctx context.Context) error {
	conf, err := newResolvConf(vm.ResolvConf)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(vm.dir)
	if err != nil {
		return fmt.Errorf("records: %w", err)
	}
	s := &server{vm: vm, log: vm.Log, conf: conf, dir: dir, services: map[string]*service{}, ended: make(chan *service)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	defer s.stop(ctx)
	if err := s.begin(ctx); err != nil {
		return err
	}
	s.run(ctx)
	return nil
}

// server is one Serve. All of it happens in the calling goroutine, in whose thread's namespace the taps
// are, except for the responders' loops.
type server struct {
	vm       *VM
	log      *slog.Logger
	conf     resolvConf
	dir      string              // of the records; absolute
	records  watched             // the directory
	resolver watched             // the resolv.conf
	services map[string]*service // by the interfaces' names
	ended    chan *service       // their loops, by themselves
}

// service is one interface's.
type service struct {
	record    cache.Record
	log       *slog.Logger
	responder *dhcp.Responder
	port      *tap.Port // nil: not attached
	cancel    context.CancelCauseFunc
	done      chan struct{} // closed at the end of the loop
	retry     time.Duration // until the next look for the port
	failure   string        // that was logged
}

// begin serves the records as they are. Whatever is wrong is an error.
func (s *server) begin(ctx context.Context) error {
	if slices.ContainsFunc(s.vm.Records(), needsResolvConf) {
		if err := s.conf.begin(s.log); err != nil {
			return err
		}
	}
	for _, r := range s.vm.Records() {
		if err := s.add(r); err != nil {
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

// add makes the responder of a record, if it has one.
func (s *server) add(r cache.Record) error {
	log := s.log.With("nic", r.Name)
	for _, w := range r.Warnings {
		log.Warn(w)
	}
	if r.ResponderTap == "" {
		log.Info("no responder", "binding", r.Binding)
		return nil
	}
	responder, err := dhcp.New(r, s.dns(r))
	if err != nil {
		return err
	}
	responder.Log = log
	if s.vm.Notify != nil {
		responder.Notify = func(e dhcp.Event) { s.vm.Notify(r.Name, e) }
	}
	s.services[r.Name] = &service{record: r, log: log, responder: responder}
	s.vm.mu.Lock()
	s.vm.responders[r.Name] = responder
	s.vm.mu.Unlock()
	return nil
}

func (s *server) dns(r cache.Record) cache.DNS {
	if r.DNS != nil {
		return *r.DNS
	}
	return s.conf.last
}

// attach opens the port and starts the responder's loop.
func (s *server) attach(ctx context.Context, v *service) error {
	port, err := tap.OpenPort(v.record.ResponderTap)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	v.port, v.cancel, v.done, v.retry, v.failure = port, cancel, make(chan struct{}), 0, ""
	v.log.Info("serving", "port", v.record.ResponderTap, "tap", v.record.Tap, "mac", v.record.MAC.String())
	go func(done chan struct{}) {
		defer close(done)
		if err := v.responder.Serve(ctx, port); err != nil {
			v.log.Warn("the port is gone; it is served again when it is back", "error", err)
			select {
			case s.ended <- v:
			case <-ctx.Done():
			}
		}
	}(v.done)
	return nil
}

// detach ends the responder's loop, if there is one, and closes the port.
func (v *service) detach(cause error) {
	if v.port == nil {
		return
	}
	v.cancel(cause)
	<-v.done
	if err := v.port.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		v.log.Warn("close the responder's port", "error", err)
	}
	v.port = nil
}

// stop ends everything. What was the cause of the caller's context is the cause of the loops': it is told
// to each, as the caller's context is done before it has come down to theirs.
func (s *server) stop(ctx context.Context) {
	for _, v := range s.services {
		v.detach(context.Cause(ctx))
	}
}

// run follows what changes until ctx is done.
func (s *server) run(ctx context.Context) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	watcher, err := fsnotify.NewWatcher()
	if err != nil { // such as where the user has too many
		s.log.Warn("records and DNS configuration are not followed", "error", err)
	} else {
		defer watcher.Close()
		events, errs = watcher.Events, watcher.Errors
	}
	// Once at the start: they may have changed before they were watched.
	changed, retry := time.NewTimer(0), time.NewTimer(0)
	defer changed.Stop()
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-errs:
			s.log.Warn("watch records and DNS configuration", "error", err)
			changed.Reset(settle)
		case event := <-events:
			// Other files in the directory, such as a log of this very event, are nobody's concern.
			if s.records.concerns(event.Name) || filepath.Ext(event.Name) == ".json" || s.resolver.concerns(event.Name) {
				changed.Reset(settle)
			}
		case <-changed.C:
			// Before anything is read: what changes after that is an event.
			if watcher != nil {
				s.watch(watcher)
			}
			s.follow()
			if slices.ContainsFunc(s.vm.Records(), needsResolvConf) && s.conf.reread(s.log) {
				s.update()
			}
			retry.Reset(0)
		case v := <-s.ended:
			v.detach(nil)
			retry.Reset(retryMin)
		case <-retry.C:
			if wait := s.again(ctx); wait > 0 {
				retry.Reset(wait)
			}
		}
	}
}

// watch watches what has to be watched; again for what was replaced.
func (s *server) watch(watcher *fsnotify.Watcher) {
	var err error
	if s.records, err = watch(watcher, s.dir); err != nil {
		s.log.Warn("the records are not followed", "error", err)
	}
	if s.resolver, err = watch(watcher, s.conf.path); err != nil {
		s.log.Warn("the DNS configuration is not followed", "error", err)
	}
}

// update tells the responders of the DNS configuration.
func (s *server) update() {
	s.log.Info("the DNS configuration has changed", "path", s.conf.path, "servers", s.conf.last.Servers, "search", s.conf.last.Search)
	for _, v := range s.services {
		if v.record.DNS == nil {
			v.update(v.record, s.conf.last)
		}
	}
}

func (v *service) update(r cache.Record, dns cache.DNS) {
	if err := v.responder.Update(r, dns); err != nil {
		v.log.Warn("the guest is told what it was before", "error", err)
	}
}

// follow serves what the directory has now. One record that cannot be read leaves everything as it is.
func (s *server) follow() {
	records, err := list(s.dir)
	if err != nil {
		s.log.Warn("the records are served as they were", "error", err)
		return
	}
	if reflect.DeepEqual(records, s.vm.Records()) {
		return
	}
	s.vm.mu.Lock()
	s.vm.records = records
	s.vm.mu.Unlock()
	for nic, v := range s.services {
		same := func(r cache.Record) bool { return r.Name == nic && r.ResponderTap == v.record.ResponderTap }
		if slices.ContainsFunc(records, same) {
			continue
		}
		v.detach(nil)
		delete(s.services, nic)
		v.log.Info("the record is gone: the guest is not served any more")
	}
	for _, r := range records {
		v := s.services[r.Name]
		if v == nil {
			if err := s.add(r); err != nil {
				s.log.Warn("the guest is not served", "nic", r.Name, "error", err)
			}
			continue
		}
		if !reflect.DeepEqual(r, v.record) {
			v.log.Info("the record has changed")
			v.record = r
			v.update(r, s.dns(r))
		}
	}
}

// again attaches to ports that are not, and returns how long to wait until it is called once more; 0:
// there is none left.
func (s *server) again(ctx context.Context) time.Duration {
	var wait time.Duration
	for _, v := range s.services {
		if v.port != nil {
			continue
		}
		err := s.attach(ctx, v)
		if err == nil {
			continue
		}
		if v.failure != err.Error() && !errors.Is(err, fs.ErrNotExist) {
			v.log.Warn("the port is tried again", "error", err)
		}
		v.failure = err.Error()
		v.retry = min(max(2*v.retry, retryMin), retryMax)
		if wait == 0 || v.retry < wait {
			wait = v.retry
		}
	}
	return wait
}
