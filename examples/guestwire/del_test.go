package main_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// wiredPod is a sandbox whose eth0 is wired, with the call's list and arguments.
func wiredPod(n *node, uid, binding string) (*sandboxOf, *networkList, *runtimeConf) {
	n.Helper()
	s, list := n.sandbox(uid), n.usual()
	rt := s.runtime("eth0", "guestwire/nic.eth0", binding)
	s.add(list, rt)
	s.wired("eth0")
	return s, list, rt
}

// TestDelete: engines call DEL twice, late, without a namespace, and for sandboxes that never were. None of them is an
// error, and nothing is left.
func TestDelete(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(*testing.T, *node){
		"twice": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			s.del(list, rt)
			s.del(list, rt)
			rt.NetNS = "" // as containerd calls it for the second time
			s.del(list, rt)
		},
		"under a VMM that has not ended": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			s.boot("eth0")
			s.del(list, rt)
			if links := s.ns.IP("-br link"); strings.Contains(links, "eth0-tap") {
				t.Errorf("the tap is left:\n%s", links)
			}
		},
		"with the NIC's name taken": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "bridge")
			s.boot("eth0")
			s.ns.IP("link del eth0")
			s.ns.IP("link add eth0 type veth peer name far")
			s.del(list, rt)
			if said := n.said(); !strings.Contains(said, "NIC eth0 stays wired until its namespace is deleted: teardown eth0: give the namespace back: eth0 is another program's veth: ") {
				t.Errorf("guestwire said %q", said)
			}
		},
		"of a namespace whose path is gone": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "bridge")
			s.ns.End()
			s.del(list, rt)
		},
		"of a namespace without a path": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			s.ns.End()
			rt.NetNS = ""
			s.del(list, rt)
		},
		"of a path that is no namespace any more": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			s.ns.End()
			path := filepath.Join(t.TempDir(), "cni-1")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			rt.NetNS = path
			s.ours(list, rt)
			s.del(list, s.runtime("eth0"))
		},
		"of a path that is another pod's by now": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			next, _, nextRT := wiredPod(n, "u2", "redirect")
			before := next.ns.Settled()
			s.ns.End()
			rt.NetNS = next.ns.Path()
			s.ours(list, rt)
			next.wired("eth0")
			if _, err := os.Lstat(s.dirOf()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", s.dirOf(), err)
			}
			if err := nstest.Difference(nstest.Stable(before), nstest.Stable(next.ns.Settled())); err != nil {
				t.Error(err)
			}
			next.del(list, nextRT)
			rt.NetNS = ""
			s.del(list, rt)
		},
		"late, with the pod's next sandbox": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			next, _, nextRT := wiredPod(n, "u1", "redirect")
			pod := filepath.Join(n.state, "pods", "u1")
			if text, err := os.Readlink(pod); err != nil || text != "../"+next.id {
				t.Errorf("the pod's link: %q, %v", text, err)
			}
			s.del(list, rt)
			next.wired("eth0")
			rt.NetNS = ""
			s.del(list, rt)
			if text, err := os.Readlink(pod); err != nil || text != "../"+next.id {
				t.Errorf("after a late DEL the pod's link: %q, %v", text, err)
			}
			if err := n.cni.CheckNetworkList(t.Context(), list, nextRT); err != nil {
				t.Error(err)
			}
			next.del(list, nextRT)
		},
		"of a sandbox that never was": func(t *testing.T, n *node) {
			s, list := n.sandbox("u1"), n.usual()
			s.del(list, s.runtime("eth0", "guestwire/nic.eth0", "redirect"))
			if _, err := os.Lstat(n.state); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", n.state, err)
			}
		},
		"after a refused ADD": func(t *testing.T, n *node) {
			s, list := n.sandbox("u1"), n.usual()
			rt := s.runtime("eth0", "guestwire/nic.eth0", `{"queues": 300}`)
			if _, err := n.cni.AddNetworkList(t.Context(), list, rt); err == nil {
				t.Error("ADD succeeded")
			}
			s.del(list, rt)
		},
		// The engine does not name the namespace any more, and a process of the pod is left in it.
		"of a namespace that a process holds": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			pid := n.holder(exec.Command("nsenter", "--net="+s.ns.Path(), "cat"))
			s.ns.End()
			rt.NetNS = ""
			s.ours(list, rt)
			if links := nstest.Run(t, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", pid), "ip", "-br", "link"); strings.Contains(links, "eth0-tap") || !strings.Contains(links, "eth0") {
				t.Errorf("the namespace has\n%s", links)
			}
			s.del(list, rt)
		},
		// The engine has made a new namespace, and the first one is still ending.
		"of a namespace to which an ADD could not move": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			b := &inputBed{node: n, list: n.list("1.0.0", "podnet", n.guestwire(owner("")))}
			next := b.pod()
			next.id, next.uid = s.id, s.uid
			before, files := next.ns.Settled(), n.files()
			if out, err := b.right(next).call(n, "ADD"); err == nil || !strings.Contains(err.Msg, "already wired in another namespace") {
				t.Errorf("ADD: %v, %s", err, out)
			}
			if now := n.files(); !slices.Equal(now, files) {
				t.Errorf("ADD makes it %q, want %q", now, files)
			}
			if out, err := b.right(next).call(n, "DEL"); err != nil || out != "" {
				t.Errorf("DEL: %v, %s", err, out)
			}
			if err := nstest.Difference(before, next.ns.Settled()); err != nil {
				t.Error(err)
			}
			if links := s.ns.IP("-br link"); strings.Contains(links, "eth0-tap") {
				t.Errorf("the tap is left:\n%s", links)
			}
			s.del(list, rt)
		},
		"with the directory of the records lost": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			if err := os.RemoveAll(s.dirOf()); err != nil {
				t.Fatal(err)
			}
			s.del(list, rt)
		},
		"with the directory of the records and the namespace lost": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			if err := os.RemoveAll(s.dirOf()); err != nil {
				t.Fatal(err)
			}
			s.ns.End()
			s.del(list, rt)
			n.collect(list) // nothing leads a DEL to the journal
		},
		"with no one at the end of standard error": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			s.ns.End()
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			reader.Close()
			cmd := exec.CommandContext(t.Context(), "nsenter", "--net="+n.ns.Path(), filepath.Join(n.plugins, "guestwire"))
			cmd.Env, cmd.Stderr = append(os.Environ(), s.environ("DEL", "eth0")...), writer
			cmd.Stdin = strings.NewReader(s.configuration(list.Plugins[1].Bytes, nil, rt))
			if err := cmd.Run(); err != nil {
				t.Error(err)
			}
			writer.Close()
			for _, file := range n.files() {
				if !strings.HasPrefix(file, "leases/") {
					t.Errorf("%s is left", file)
				}
			}
			s.del(list, rt)
		},
		"with the journal lost": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			if err := os.RemoveAll(n.dir); err != nil {
				t.Fatal(err)
			}
			s.del(list, rt)
			if said := n.said(); !strings.Contains(said, "DEL of eth0 in sandbox "+s.id+", which goes on without: teardown eth0: already wired") {
				t.Errorf("guestwire said %q", said)
			}
			n.wantCounted("DEL", 100, 1)
			s.wired("eth0") // for the next one
			s.ns.End()
			rt.NetNS = ""
			s.del(list, rt)
		},
		"with a list that is wrong by now": func(t *testing.T, n *node) {
			s, _, rt := wiredPod(n, "u1", "redirect")
			s.del(n.list("1.0.0", "podnet", n.flannel(), n.guestwire(`"spec": {"colour": "blue"}, "trustPods": "yes", "everyNIC": 7, "runtimeConfig": []`)), rt)
		},
		"with annotations that are wrong by now": func(t *testing.T, n *node) {
			s, list, _ := wiredPod(n, "u1", "redirect")
			s.del(list, s.runtime("eth0", "guestwire/nic.eth0", "blue", "guestwire/colour", ""))
		},
		"without the pod's UID": func(t *testing.T, n *node) {
			s, list, rt := wiredPod(n, "u1", "redirect")
			rt.Args = nil
			s.del(list, rt)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			run(t, n)
			n.clean()
		})
	}
}

// TestRenamedList: an operator renames the list while a pod runs. CHECK, ADD and DEL by the new name find the NICs of
// their CNI_IFNAME, and no others. A GC by the new name takes none of them down.
func TestRenamedList(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, list, rt := wiredPod(n, "u1", "redirect")
	second := n.list("1.0.0", "second", n.bridge("cni1", "10.23.0.0/16", "fd00:23::/64"), n.guestwire(owner("")))
	rt2 := s.runtime("net1", "guestwire/nic.net1", "masquerade")
	s.add(second, rt2)
	result, err := n.cni.GetNetworkListCachedResult(list, rt)
	if err != nil {
		t.Fatal(err)
	}
	config := strings.Replace(s.configuration(list.Plugins[1].Bytes, result, rt), `"podnet"`, `"renamed"`, 1)
	call := func(command string) *types.Error {
		_, err := n.guestwireCalled(config, s.environ(command, "eth0")...)
		return err
	}
	if err := call("CHECK"); err != nil {
		t.Error(err)
	}
	s.ns.IP("link del eth0-tap")
	if err := call("CHECK"); err == nil || err.Code != 103 {
		t.Errorf("CHECK without a tap: %v", err)
	}
	if err := call("ADD"); err != nil {
		t.Error(err)
	}
	if out, err := n.gc(n.list("1.1.0", "renamed", n.guestwire("")), []types.GCAttachment{}); err != nil || out != "" {
		t.Errorf("GC: %v, %s", err, out)
	}
	if err := call("CHECK"); err != nil {
		t.Error(err)
	}
	if err := call("DEL"); err != nil {
		t.Error(err)
	}
	s.wired("net1")
	s.del(second, rt2)
	s.del(list, rt)
	n.clean()
}

// TestDeleteLocked: a DEL that waits for another call says so, and ends without an error after SIGTERM.
func TestDeleteLocked(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, list, rt := wiredPod(n, "u1", "redirect")
	release := s.lock()
	cmd := exec.CommandContext(t.Context(), "nsenter", "--net="+n.ns.Path(), filepath.Join(n.plugins, "guestwire"))
	cmd.Env = append(os.Environ(), append(s.environ("DEL", "eth0"), "CNI_PATH="+n.plugins)...)
	cmd.Stdin = strings.NewReader(s.configuration(list.Plugins[1].Bytes, nil, rt))
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	if !lines.Scan() || !strings.Contains(lines.Text(), "waits for another call") {
		t.Errorf("it says %q, %v", lines.Text(), lines.Err())
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	if !lines.Scan() || !strings.Contains(lines.Text(), "DEL of eth0 in sandbox "+s.id+", which goes on without: ") {
		t.Errorf("it says %q, %v", lines.Text(), lines.Err())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	release()
	s.wired("eth0")
	s.del(list, rt)
	n.clean()
}

// TestDeleteLimit: a DEL whose namespace another call has locked gives up after its time. It exits with 0, and names
// the journal that stays.
func TestDeleteLimit(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	n := newNode(t)
	s, list, rt := wiredPod(n, "u1", "redirect")
	release := s.lock()
	const limit, most = 20 * time.Second, 60 * time.Second
	begin := time.Now()
	s.ours(list, rt)
	if took := time.Since(begin); took < limit || took > most {
		t.Errorf("DEL took %v, want %v", took, limit)
	}
	said := n.said()
	_, way, _ := strings.Cut(said, " (guestwire-agent ")
	way, _, _ = strings.Cut(way, ")")
	if !strings.Contains(said, "another call works on it") || !strings.Contains(said, "left: the journal "+n.dir) {
		t.Errorf("guestwire said %s", said)
	}
	s.wired("eth0")
	release()
	nstest.Run(t, "sh", "-c", nstest.Program(t, "examples/guestwire-agent")+" "+way)
	if left, err := filepath.Glob(filepath.Join(n.dir, "*", "*.journal")); err != nil || len(left) > 0 {
		t.Errorf("agent %s leaves %v, %v", way, left, err)
	}
	s.del(list, rt)
	n.clean()
}

// lock holds the namespace as a call of phase1 does, until release is called.
func (s *sandboxOf) lock() (release func()) {
	s.Helper()
	info, err := os.Stat(s.ns.Path())
	if err != nil {
		s.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		s.Fatal(err)
	}
	return func() { lock.Close() }
}

// TestLockIsOurs: an ordinary user holds a lock on whatever it can open of the State, and pods come and go.
func TestLockIsOurs(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, list, rt := wiredPod(n, "u1", "redirect")
	pods := filepath.Join(n.state, "pods")
	if held := nstest.HoldLocks(t, n.state, n.dir, s.ns.Path()); !slices.Contains(held, pods) || slices.ContainsFunc(held, func(path string) bool { return strings.HasPrefix(path, n.dir) }) {
		t.Errorf("the other user holds %q, want also %s, and nothing of %s", held, pods, n.dir)
	}
	next, _, nextRT := wiredPod(n, "u2", "redirect")
	s.del(list, rt)
	if err := n.cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC: %v", err)
	}
	next.wired()
	next.del(list, nextRT)
	n.clean()
}

// TestUserNamespace: a pod with hostUsers: false. The user 107 is the pod's own 107.
func TestUserNamespace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	pod := exec.Command("cat")
	pod.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET, GidMappingsEnableSetgroups: true,
		UidMappings: []syscall.SysProcIDMap{{HostID: 100000, Size: 65536}},
		GidMappings: []syscall.SysProcIDMap{{HostID: 300000, Size: 65536}},
	}
	s := &sandboxOf{n, nstest.Adopt(t, "pod", fmt.Sprintf("/proc/%d/ns/net", n.holder(pod))), "c-user", "u1"}
	list := n.list("1.0.0", "podnet", n.flannel(), n.guestwire(""))
	for annotation, want := range map[string]string{"redirect": "user 100107 ", `{"owner": {"uid": 1000}}`: "user 101000 "} {
		rt := s.runtime("eth0", "guestwire/nic.eth0", annotation)
		s.add(list, rt)
		taps := s.ns.IP("-d link show type tun")
		if strings.Count(taps, want) != 2 {
			t.Errorf("%s: the taps are\n%s\nwant %s", annotation, taps, want)
		}
		s.del(list, rt)
		n.clean()
	}
}

// holder starts a process that ends with the test, and returns its number.
func (n *node) holder(cat *exec.Cmd) int {
	n.Helper()
	in, err := cat.StdinPipe()
	if err != nil {
		n.Fatal(err)
	}
	out, err := cat.StdoutPipe()
	if err == nil {
		err = cat.Start()
	}
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		in.Close()
		cat.Wait()
	})
	if _, err := io.WriteString(in, "ready\n"); err != nil {
		n.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		n.Fatalf("%q, %v", line, err)
	}
	return cat.Process.Pid
}
