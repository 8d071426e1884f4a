package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// dirWatch reports changes of directories, as far as the kernel has room for a watch.
type dirWatch struct {
	what    string // in the log
	log     *slog.Logger
	watcher *fsnotify.Watcher // nil: the kernel had no room
	said    string
}

// add watches the directories, or watches those anew that were removed and made again. It leaves out those that are not
// there, and reports once the first for which the kernel has no room.
func (w *dirWatch) add(dirs ...string) {
	err := w.tryAdd(dirs)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != w.said && text != "" {
		w.log.Warn(w.what+": no watch, so changes are seen later", "error", text)
	}
	w.said = text
}

func (w *dirWatch) tryAdd(dirs []string) (err error) {
	if w.watcher == nil {
		if w.watcher, err = fsnotify.NewWatcher(); err != nil {
			return fmt.Errorf("%w: raise fs.inotify.max_user_instances", err)
		}
	}
	var failed error // of the first directory; the others are watched
	for _, dir := range dirs {
		err := w.watcher.Add(dir)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist), failed != nil:
		case errors.Is(err, syscall.ENOSPC):
			failed = fmt.Errorf("%s: %w: raise fs.inotify.max_user_watches", dir, err)
		default:
			failed = fmt.Errorf("%s: %w", dir, err)
		}
	}
	return failed
}

func (w *dirWatch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

func (w *dirWatch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}

func (w *dirWatch) close() {
	if w.watcher != nil {
		w.watcher.Close()
	}
}

// checkMounted refuses a directory that was removed while a mount of it stays, such as that of a container. Others make
// it again elsewhere, and nothing of what they write comes here.
func checkMounted(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return nil // who needs it reports it
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.IsDir() && stat.Nlink == 0 {
		return fmt.Errorf("%s was removed on the node, and what is mounted here is the removed directory: start guestwire-node again, as the kubelet does with the DaemonSet's container", dir)
	}
	return nil
}

// mounts are directories of the node that other programs may remove or rename.
type mounts struct {
	dirs  []string
	roots map[string]string // what is mounted at a directory: its path in its file system
}

func (o *options) mounts() mounts {
	m := mounts{[]string{o.cniBin, o.cniConf, o.listTo, o.state, o.dir, o.devicePlugins}, mountRoots()}
	if o.nri != "" {
		m.dirs = append(m.dirs, filepath.Dir(o.nri))
	}
	return m
}

// check refuses a directory that was removed or renamed since.
func (m mounts) check() error {
	now := mountRoots()
	for _, dir := range m.dirs {
		if err := checkMounted(dir); err != nil {
			return err
		}
		if before, root := m.roots[dir], now[dir]; before != "" && root != "" && root != before {
			return fmt.Errorf("%s was renamed on the node, from %s to %s, and what is mounted here is the renamed directory: start guestwire-node again, as the kubelet does with the DaemonSet's container", dir, before, root)
		}
	}
	return nil
}

// mountRoots returns what is mounted at each directory; the kernel follows renames (proc_pid_mountinfo(5)).
func mountRoots() map[string]string {
	roots := map[string]string{}
	text, _ := os.ReadFile("/proc/self/mountinfo") // without it nothing is known of renames
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 {
			roots[unescape.Replace(f[4])] = unescape.Replace(f[3])
		}
	}
	return roots
}
