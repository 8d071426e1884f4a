package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// canary is a file outside of the state directory, which no call may touch.
type canary struct{ path, was string }

func newCanary(t *testing.T) canary {
	t.Helper()
	c := canary{path: filepath.Join(nstest.Dir(t), "canary")}
	writeFile(t, c.path, "sings")
	c.was = c.inspect(t)
	return c
}

func (c canary) inspect(t *testing.T) string {
	t.Helper()
	text := readFile(t, c.path)
	info, err := os.Lstat(c.path)
	if err != nil {
		t.Fatal(err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%v %d:%d %q", info.Mode(), stat.Uid, stat.Gid, text)
}

func (c canary) sings(t *testing.T) {
	t.Helper()
	if now := c.inspect(t); now != c.was {
		t.Errorf("the file outside became %s, and was %s", now, c.was)
	}
}

// planted are what can lie where a file of ours belongs.
var planted = map[string]func(path, canary string) error{
	"symbolic link": func(path, canary string) error { return os.Symlink(canary, path) },
	"link upwards": func(path, canary string) error {
		return os.Symlink("../"+filepath.Base(filepath.Dir(canary))+"/canary", path)
	},
	"dangling link": func(path, canary string) error { return os.Symlink(canary+"-not", path) },
	"hard link":     func(path, canary string) error { return os.Link(canary, path) },
	"FIFO":          func(path, _ string) error { return unix.Mkfifo(path, 0o666) },
	"device":        func(path, _ string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) }, // zero
	"socket": func(path, _ string) error {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err == nil {
			l.SetUnlinkOnClose(false)
			err = l.Close()
		}
		return err
	},
	"directory": func(path, _ string) error {
		return errors.Join(os.Mkdir(path, 0o777), os.WriteFile(filepath.Join(path, "file"), nil, 0o666))
	},
	"another user's file": func(path, _ string) error {
		return errors.Join(os.WriteFile(path, []byte("{"), 0o666), os.Chown(path, nstest.LauncherUID, nstest.LauncherUID), os.Chmod(path, 0o666))
	},
	"mount": func(path, canary string) error {
		return errors.Join(os.WriteFile(path, nil, 0o600), unix.Mount(canary, path, "", unix.MS_BIND, ""))
	},
}

// TestPlantedFiles has something else lie under each name that Setup uses for its files. It works, or says where it
// does not; it does not wait, and what a link leads to stays as it is.
func TestPlantedFiles(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Bridge{})
	c.Dir = filepath.Join(nstest.Dir(t), "node") // where hard links from other directories are possible
	setup(t, c)
	journal := filepath.Join(c.Dir, namespaceName(t, n), "eth0.journal")
	entries, err := os.ReadDir(n.State)
	if err != nil || len(entries) != 1 {
		t.Fatalf("the state directory has %v, %v; want a record", entries, err)
	}
	var paths []string
	for _, path := range []string{filepath.Join(n.State, entries[0].Name()), journal} {
		paths = append(paths, path, filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new"))
	}
	teardown(t, n, c, before)
	for kind, plant := range planted {
		for _, path := range paths {
			dir, name := filepath.Split(path)
			t.Run(kind+" "+strings.TrimLeft(name, "."), func(t *testing.T) {
				if kind == "another user's file" || kind == "device" {
					nstest.NeedRoot(t, "the test needs two users")
				}
				file := newCanary(t)
				if err := errors.Join(os.MkdirAll(dir, 0o700), plant(path, file.path)); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- setupAlone(ctx, c) }()
				select {
				case err = <-done:
				case <-ctx.Done():
					t.Fatal("Setup waits")
				}
				file.sings(t)
				if err == nil {
					if err := c.Check(ctx); err != nil {
						t.Error(err)
					}
				} else {
					if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), name) {
						t.Errorf("the error does not name %s: %v", path, err)
					}
					asFound(t, n, before)
					if kind == "mount" {
						if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
							t.Error(err)
						}
					}
					if err := os.RemoveAll(path); err != nil {
						t.Error(err)
					}
				}
				setup(t, c)
				teardown(t, n, c, before)
				file.sings(t)
			})
		}
	}
}

// TestFullDisk: what cannot be written is an error that names the file, and nothing has changed.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options string
		flags   uintptr
		fill    bool
		is      error
	}{
		"full":             {options: "size=64k", fill: true, is: unix.ENOSPC},
		"no file any more": {options: "nr_inodes=1", is: unix.ENOSPC},
		"read-only":        {options: "size=64k", flags: unix.MS_RDONLY, is: unix.EROFS},
	} {
		for which, full := range map[string]func(c *wired.NIC) *string{
			"records":  func(c *wired.NIC) *string { return &c.State },
			"journals": func(c *wired.NIC) *string { return &c.Dir },
		} {
			t.Run(name+" "+which, func(t *testing.T) {
				n := nstest.NewNetwork(t)
				before := settled(t, n)
				config := config(n, nil)
				dir := nstest.Dir(t)
				*full(&config) = dir
				mode := ",mode=755"
				if which == "journals" {
					mode = ",mode=700"
				}
				if err := unix.Mount("state", dir, "tmpfs", c.flags, c.options+mode); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					// A process that another test has forked holds our open files until it executes its program.
					if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
						t.Error(err)
					}
				})
				if c.fill {
					f, err := os.Create(filepath.Join(dir, "filler"))
					if err != nil {
						t.Fatal(err)
					}
					for err == nil {
						_, err = f.Write(make([]byte, 4096))
					}
					if f.Close(); !errors.Is(err, unix.ENOSPC) {
						t.Fatal(err)
					}
				}
				eachBinding(t, func(t *testing.T, b infra.Binding) {
					config.Binding = b
					_, err := config.Setup(t.Context())
					if !errors.Is(err, c.is) || !strings.Contains(err.Error(), dir) {
						t.Errorf("have %v, want %v and a path in %s", err, c.is, dir)
					}
					asFound(t, n, before)
					if err := config.Teardown(t.Context()); err != nil && !errors.Is(err, c.is) {
						t.Error(err)
					}
				})
			})
		}
	}
}

// TestSwappedDirectory has the directory replaced by a link again and again while Setup and Teardown
// run: they stay in the one that they opened, or refuse. Only root could do that, so what becomes of the
// wiring is root's business.
func TestSwappedDirectory(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	above, elsewhere := nstest.Dir(t), nstest.Dir(t)
	state, aside := filepath.Join(above, "state"), filepath.Join(above, "aside")
	if err := errors.Join(os.Mkdir(state, 0o755), os.Chmod(elsewhere, 0o777)); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if os.Rename(state, aside) == nil {
				os.Symlink(elsewhere, state)
				os.Remove(state)
				os.Rename(aside, state)
			}
		}
	}()
	c := config(n, infra.Masquerade{})
	c.State = state
	for range 20 {
		for _, call := range []func(context.Context) error{func(ctx context.Context) error { return setupAlone(ctx, c) }, c.Teardown} {
			err := call(t.Context())
			// EINVAL says that a link has become something else before it is read.
			refused := func(target error) bool { return errors.Is(err, target) }
			// A Setup that looked at the path while it was the link has noted where the link led. The next call
			// refuses the directory, as that is another one.
			var another *cache.FieldError
			if err != nil && !errors.As(err, &another) && !slices.ContainsFunc([]error{fs.ErrPermission, fs.ErrNotExist, infra.ErrWired, unix.EINVAL}, refused) {
				t.Errorf("%v", err)
			}
		}
	}
	close(stop)
	<-stopped
	empty(t, elsewhere)
}

// TestTeardownWithStateReplaced: whatever root has put in the place of the State, Teardown gives the namespace back.
func TestTeardownWithStateReplaced(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(path string) error{
		"a file": func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"a loop": func(path string) error { return os.Symlink(path, path) },
		"below a file": func(path string) error {
			return errors.Join(os.Remove(filepath.Dir(path)), os.WriteFile(filepath.Dir(path), nil, 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			before := settled(t, n)
			c := config(n, infra.Redirect{})
			above := filepath.Join(nstest.Dir(t), "above")
			if err := os.Mkdir(above, 0o755); err != nil {
				t.Fatal(err)
			}
			c.State = filepath.Join(above, "vm")
			setup(t, c)
			if err := errors.Join(os.RemoveAll(c.State), put(c.State)); err != nil {
				t.Fatal(err)
			}
			c.State = ""
			unwire(t, c)
			asFound(t, n, before)
		})
	}
}

// closedLater closes a directory above the State of a wired NIC for a moment. Check reports it, and that Setup refuses.
func closedLater(t *testing.T, c wired.NIC, above string) {
	t.Helper()
	info, err := os.Stat(above)
	if err == nil {
		err = os.Chmod(above, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	var drift *phase1.DriftError
	if err := c.Check(t.Context()); !errors.As(err, &drift) || len(drift.Differs) != 1 || drift.Differs[0].Kind != "record" ||
		!strings.Contains(err.Error(), "cannot enter "+above) || len(drift.Repair) > 0 {
		t.Errorf("Check: %v, want drift of the record, the directory %s, and no repair, as Setup refuses", err, above)
	}
	if err := setupAlone(t.Context(), c); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Setup: %v, want fs.ErrPermission", err)
	}
	if err := os.Chmod(above, info.Mode()); err != nil {
		t.Fatal(err)
	}
	check(t, c)
}

// TestStatePath: a directory that another user could replace is refused before anything is made there. So is one that
// the owner cannot reach, a path that a journal cannot hold, and one in the directory of the journals. What root alone
// can change, and what is sticky, such as /tmp, is accepted.
func TestStatePath(t *testing.T) {
	t.Parallel()
	nstest.NeedRoot(t, "the test needs two users")
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	theirs := func(path string) error { return os.Lchown(path, nstest.LauncherUID, nstest.LauncherUID) }
	dir := func(mode fs.FileMode) func(above, ours string) error {
		return func(above, _ string) error { return os.Chmod(above, mode) }
	}
	ofTheirs := func(above, _ string) error { return theirs(above) }
	link := func(above, ours string) error {
		return errors.Join(os.Symlink(ours, filepath.Join(above, "vm")), theirs(filepath.Join(above, "vm")), theirs(above))
	}
	var field *cache.FieldError
	isField := func(err error) bool { return errors.As(err, &field) && field.Field == "state" }
	isPermission := func(err error) bool { return errors.Is(err, fs.ErrPermission) }
	for _, c := range []struct {
		name   string
		create func(above, ours string) error
		state  string // absolute, or below the directory above
		is     func(error) bool
	}{
		{"mode 0755", dir(0o755), "new", nil},
		{"mode 0711", dir(0o711), "new", nil},
		{"the owner cannot enter", dir(0o700), "new", isPermission},
		{"the owner's group cannot enter", dir(0o750), "there", isPermission},
		{"mode 0755, there", dir(0o755), "there", nil},
		{"sticky", dir(0o777 | fs.ModeSticky), "new", nil},
		{"sticky, there", dir(0o777 | fs.ModeSticky), "there", nil},
		{"mode 0777", dir(0o777), "new", isPermission},
		{"mode 0777, there", dir(0o777), "there", isPermission},
		{"mode 0775", dir(0o775), "new", isPermission},
		{"mode 0757", dir(0o757), "there", isPermission},
		{"another user's", ofTheirs, "there", isPermission},
		{"a link of another user's", link, "vm", isPermission},
		{"below a link of another user's", link, "vm/deeper", isPermission},
		{"a link of another user's in a sticky directory", func(above, ours string) error {
			return errors.Join(os.Chmod(above, 0o777|fs.ModeSticky), os.Symlink(ours, filepath.Join(above, "vm")), theirs(filepath.Join(above, "vm")))
		}, "vm", isPermission},
		{"root's link to a link of another user's", func(above, ours string) error {
			user := filepath.Join(above, "there")
			return errors.Join(os.Symlink(ours, filepath.Join(user, "link")), theirs(filepath.Join(user, "link")), theirs(user),
				os.Symlink(filepath.Join(user, "link"), filepath.Join(above, "first")))
		}, "first/vm", isPermission},
		{"octets that JSON cannot hold", dir(0o755), "vm\xff", isField},
		{"the directory for journals", dir(0o755), phase1.DefaultDir, isField},
		{"in it", dir(0o755), filepath.Join(phase1.DefaultDir, "vm1"), isField},
		{"in it, by a detour", dir(0o755), "/run/../run/guestwire.lock/vm1", isField},
	} {
		t.Run(c.name, func(t *testing.T) {
			above, ours := filepath.Join(nstest.Dir(t), "above"), nstest.Dir(t)
			if err := errors.Join(os.MkdirAll(filepath.Join(above, "there"), 0o755), c.create(above, ours)); err != nil {
				t.Fatal(err)
			}
			config := config(n, infra.Bridge{})
			config.State = c.state
			if !filepath.IsAbs(c.state) {
				config.State = filepath.Join(above, c.state)
			}
			if c.is == nil {
				setup(t, config)
				cat := exec.Command("cat", filepath.Join(config.State, "eth0.json"))
				cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: config.Owner.UID, Gid: config.Owner.GID}}
				if out, err := cat.CombinedOutput(); err != nil {
					t.Errorf("the owner cannot read the record: %v %s", err, out)
				}
				closedLater(t, config, above)
				teardown(t, n, config, before)
				return
			}
			_, planned := config.Plan(t.Context())
			asksOwner := strings.HasPrefix(c.name, "the owner") // which Plan does not, if the directory has to be made
			if err := setupAlone(t.Context(), config); !c.is(err) || !asksOwner && !c.is(planned) {
				t.Errorf("Setup: %v, Plan: %v; want a refusal", err, planned)
			} else if isPermission(err) && !strings.Contains(err.Error(), above) {
				t.Errorf("%v does not name %s", err, above)
			} else if strings.HasSuffix(c.name, "in a sticky directory") && !strings.Contains(err.Error(), ", chown -h root "+above) {
				t.Errorf("%v does not say how the link becomes root's", err)
			}
			asFound(t, n, before)
			empty(t, ours)
			for _, made := range []string{"new", "vm\xff", "there/eth0.json"} {
				if _, err := os.Lstat(filepath.Join(above, made)); err == nil {
					t.Errorf("%s is made", made)
				}
			}
			if strings.HasPrefix(c.name, "a link of another user's") {
				if err := phase1.Forget(t.Context(), phase1.Gone{State: config.State, NIC: "eth0"}); !isPermission(err) {
					t.Errorf("Forget: %v, want fs.ErrPermission", err)
				}
			}
		})
	}
	// A link in the place of the directory for journals could have another mode changed.
	above := nstest.Dir(t)
	if err := theirs(above); err != nil {
		t.Fatal(err)
	}
	c := config(n, infra.Redirect{})
	c.Dir = filepath.Join(above, "node")
	if err := setupAlone(t.Context(), c); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), above) {
		t.Errorf("journals below another user's directory: %v, want fs.ErrPermission for %s", err, above)
	}
	empty(t, above)
}
