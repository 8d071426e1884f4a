package pins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/flock"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/phase1"
)

// Node runs the DNS proxies of a node: one for each wired NIC whose Spec has Names. It follows Setup and Teardown. A
// Setup with other names or another record, such as of other resolvers, ends the NIC's proxy and starts the next one;
// what is pinned stays pinned.
type Node struct {
	// Dir is NIC.Dir.
	Dir string

	// Only reports whether the NIC's proxy is run here. Nil: all are.
	Only func(phase1.Wiring) bool

	// Command makes the command of a NIC's proxy, as that of Keeper. An error is logged, and Command
	// is called again later.
	Command func(phase1.Wiring) (*exec.Cmd, error)

	// Owner is the user of the proxies, as launch.Start takes it.
	Owner infra.Owner

	// Ready is called when the first proxy of a NIC answers questions. Nil: no calls.
	Ready func(phase1.Wiring)

	// Running counts the proxies that run. Nil: they are not counted.
	Running *atomic.Int64

	// Log gets what those of the Keepers get. Nil: it is discarded.
	Log *slog.Logger

	unheldEvery time.Duration // zero: lookForUnheld
}

// lookEvery is the time between two looks at the files of the journals.
const lookEvery = time.Second

// lookForUnheld is the time between two looks at /proc, for namespaces that are kept by their proxies alone.
const lookForUnheld = 30 * time.Second

// A proxy that does not run is started again after firstRetry, and after twice the time whenever that fails.
const firstRetry, lastRetry = time.Second, 30 * time.Second

// Run runs the proxies until ctx is done, ends them, and returns nil. Of several calls for a NIC, also by other
// processes, one runs the proxy, and the next one does so when that ends. Run needs root.
//
// A proxy keeps its namespace alive, but not for long: every half minute Run ends those whose namespace nothing else
// leads to, as after a container that was killed. Then Forget removes what Setup has left. Where Run does not see the
// node's processes, the namespace lives until Teardown.
func (n Node) Run(ctx context.Context) error {
	if n.Log == nil {
		n.Log = slog.New(slog.DiscardHandler)
	}
	if n.Dir == "" {
		n.Dir = phase1.DefaultDir
	}
	if n.unheldEvery == 0 {
		n.unheldEvery = lookForUnheld
	}
	running := map[place]*proxy{}
	defer func() {
		for _, p := range running {
			p.end()
		}
	}()
	kept := map[place]bool{} // by what /proc does not show, such as a tap that another namespace's process has open
	unheld := time.Now()
	for first, seen := true, ""; ; first = false {
		if time.Since(unheld) >= n.unheldEvery {
			if n.endUnheld(ctx, running, kept) {
				seen = ""
			}
			unheld = time.Now()
		}
		if now := journals(n.Dir) + records(running); first || now != seen {
			wirings, err := n.list(ctx)
			switch {
			case err == nil:
				n.follow(ctx, running, wirings)
				maps.DeleteFunc(kept, func(at place, _ bool) bool { return running[at] == nil })
				seen = now
			case ctx.Err() != nil:
			case first:
				return fmt.Errorf("DNS proxies: %w", err)
			default:
				n.Log.Warn("the wired NICs are not known", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookEvery):
		}
	}
}

// endUnheld ends the proxies in whose namespaces nothing else is, and reports whether there were any. A namespace that
// lives on without its proxy is kept by what cannot be seen: its proxy starts again, and stays.
func (n Node) endUnheld(ctx context.Context, running map[place]*proxy, kept map[place]bool) (ended bool) {
	var wanted []netns.Identity
	var proxies []int
	of := map[netns.Identity][]place{}
	for at, p := range running {
		id, err := netns.Named(at.namespace)
		if err != nil || kept[at] {
			continue
		}
		wanted = append(wanted, id)
		of[id] = append(of[id], at)
		if pid := p.pid.Load(); pid != 0 {
			proxies = append(proxies, int(pid))
		}
	}
	if len(wanted) == 0 {
		return false
	}
	held, err := netns.Held(ctx, wanted, proxies)
	if err != nil {
		return false // List has reported what it could not look at
	}
	for id, places := range of {
		for _, at := range places {
			if held[id] {
				continue
			}
			n.Log.Info("the DNS proxy ends, as nothing else is in the namespace", "nic", at.nic, "namespace", at.namespace)
			running[at].end()
			delete(running, at)
			kept[at], ended = true, true
		}
	}
	return ended
}

// list returns the wirings that need a proxy.
func (n Node) list(ctx context.Context) (list []phase1.Wiring, err error) {
	all, err := phase1.List(ctx, n.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // nothing was ever wired
	}
	for _, w := range all {
		if len(w.Names) > 0 && len(w.FoundAt) > 0 && (n.Only == nil || n.Only(w)) {
			list = append(list, w)
		}
	}
	return list, err
}

// place is a wired NIC. A NIC that is wired anew after a Teardown is another one.
type place struct {
	namespace, nic string
	since          time.Time
}

// proxy is one that runs.
type proxy struct {
	names  []infra.Name
	nat64  netip.Prefix
	path   string // of the record
	record string
	pid    atomic.Int64 // of the command; zero: none has started
	stop   context.CancelFunc
	ended  sync.WaitGroup
}

func (p *proxy) end() {
	p.stop()
	p.ended.Wait()
}

// follow ends and starts proxies.
func (n Node) follow(ctx context.Context, running map[place]*proxy, wirings []phase1.Wiring) {
	wanted := map[place]phase1.Wiring{}
	for _, w := range wirings {
		wanted[place{w.Namespace, w.NIC, w.Since}] = w
	}
	for at, p := range running {
		if w, is := wanted[at]; !is || !reflect.DeepEqual(w.Names, p.names) || w.NAT64 != p.nat64 || textOf(recordOf(w)) != p.record {
			p.end()
			delete(running, at)
		}
	}
	for at, w := range wanted {
		if running[at] == nil {
			ctx, stop := context.WithCancel(ctx)
			p := &proxy{names: w.Names, nat64: w.NAT64, path: recordOf(w), record: textOf(recordOf(w)), stop: stop}
			p.ended.Go(func() { n.serve(ctx, w, &p.pid) })
			running[at] = p
		}
	}
}

// serve runs the NIC's proxy until ctx is done.
func (n Node) serve(ctx context.Context, w phase1.Wiring, pid *atomic.Int64) {
	log := n.Log.With("nic", w.NIC, "namespace", w.Namespace)
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		err := n.keep(ctx, w, pid, log)
		if ctx.Err() != nil {
			return
		}
		log.Warn("the DNS proxy does not run, and is started again", "error", err, "after", retry)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
}

// keep is one Run of a Keeper.
func (n Node) keep(ctx context.Context, w phase1.Wiring, pid *atomic.Int64, log *slog.Logger) error {
	dir, err := os.OpenRoot(n.Dir) // root's alone, as List has seen
	if err != nil {
		return err
	}
	defer dir.Close()
	unlock, err := flock.Lock(ctx, dir, "proxy-"+w.Namespace+"-"+w.NIC, func(string) {})
	if err != nil {
		return err
	}
	defer unlock()
	ns, err := w.Open(ctx)
	if err != nil {
		return err
	}
	defer ns.Close()
	var missing error
	keeper := Keeper{
		Names: w.Names, NAT64: w.NAT64, Pin: phase1.NIC{NetNS: ns, Name: w.NIC, Dir: n.Dir}.Pin, NetNS: ns, Owner: n.Owner, Log: log,
		Command: func() *exec.Cmd {
			var cmd *exec.Cmd
			cmd, missing = n.Command(w)
			return cmd
		},
		started: func(started int) {
			if pid.Swap(int64(started)) == 0 && n.Running != nil {
				n.Running.Add(1)
			}
		},
	}
	defer func() {
		if pid.Swap(0) != 0 && n.Running != nil {
			n.Running.Add(-1)
		}
	}()
	if n.Ready != nil {
		keeper.Ready = func() { n.Ready(w) }
	}
	err = keeper.Run(ctx)
	c := keeper.Counters()
	log.Info("the DNS proxy has ended", "pinned", c.Pinned, "refused", c.Refused, "failed", c.Failed, "restarts", c.Restarts)
	return errors.Join(missing, err)
}

// recordOf is the path of the NIC's record, which Setup writes after the journal; empty: there is none.
func recordOf(w phase1.Wiring) string {
	if w.State == "" {
		return ""
	}
	return filepath.Join(w.State, w.NIC+".json")
}

// textOf is the record's text; empty: it is missing.
func textOf(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

// journals is a text that changes whenever a journal in dir is written or removed: a journal is never written in place.
func journals(dir string) string {
	var text strings.Builder
	namespaces, _ := os.ReadDir(dir) // List reports what cannot be read
	for _, namespace := range namespaces {
		if !namespace.IsDir() {
			continue
		}
		files, _ := os.ReadDir(filepath.Join(dir, namespace.Name()))
		for _, file := range files {
			if strings.HasSuffix(file.Name(), ".journal") {
				writeStamp(&text, filepath.Join(dir, namespace.Name(), file.Name()))
			}
		}
	}
	return text.String()
}

// records is the same for the records of the proxies that run.
func records(running map[place]*proxy) string {
	var paths []string
	for _, p := range running {
		paths = append(paths, p.path)
	}
	slices.Sort(paths)
	var text strings.Builder
	for _, path := range paths {
		writeStamp(&text, path)
	}
	return text.String()
}

// writeStamp writes what is another one when the file is. Two that are written at once have the same time.
func writeStamp(text *strings.Builder, path string) {
	if info, err := os.Lstat(path); err == nil {
		inode := uint64(0)
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			inode = stat.Ino
		}
		fmt.Fprintln(text, path, inode, info.ModTime().UnixNano(), info.Size())
	}
}
