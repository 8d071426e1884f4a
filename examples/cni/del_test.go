package main_test

import (
	"bufio"
	"encoding/json"
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

// ours is a DEL of guestwire alone. It has to succeed.
func (s *sandboxOf) ours(list *networkList, rt *runtimeConf) {
	s.Helper()
	environ := append(s.environ("DEL", rt.IfName), "CNI_NETNS="+rt.NetNS)
	if out, err := s.guestwireCalled(s.configuration(list.Plugins[len(list.Plugins)-1].Bytes, nil, rt), environ...); err != nil || out != "" {
		s.Errorf("DEL: %v, %s", err, out)
	}
}

// collect is a GC of guestwire with the attachments that are valid.
func (n *node) collect(list *networkList, valid ...types.GCAttachment) {
	n.Helper()
	if out, err := n.gc(list, valid); err != nil || out != "" {
		n.Errorf("GC: %v, %s", err, out)
	}
}

func (n *node) gc(list *networkList, valid any) (string, *types.Error) {
	n.Helper()
	members := map[string]any{}
	if err := json.Unmarshal(list.Plugins[len(list.Plugins)-1].Bytes, &members); err != nil {
		n.Fatal(err)
	}
	members["cniVersion"], members["name"] = "1.1.0", list.Name
	if valid != "nothing is said" {
		members["cni.dev/valid-attachments"] = valid
	}
	text, err := json.Marshal(members)
	if err != nil {
		n.Fatal(err)
	}
	return n.guestwireCalled(string(text), "CNI_COMMAND=GC")
}

// TestGC: what belongs to attachments that are not valid goes, with the namespace there and gone; the rest stays, that
// of other networks too, unless its namespace is gone.
func TestGC(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	alive, list, aliveRT := wiredPod(n, "alive", "redirect")
	stale, _, staleRT := wiredPod(n, "stale", "bridge")
	gone, _, goneRT := wiredPod(n, "gone", "masquerade")
	gone.ns.End()

	other := n.list("1.0.0", "other", n.bridge("cni1", "10.23.0.0/16", "fd00:23::/64"), n.guestwire(owner("")))
	theirs, theirsGone := n.sandbox("theirs"), n.sandbox("theirs-gone")
	theirsRT := theirs.runtime("eth0", "guestwire/nic.eth0", "redirect")
	theirs.add(other, theirsRT)
	theirsGoneRT := theirsGone.runtime("eth0", "guestwire/nic.eth0", "redirect")
	theirsGone.add(other, theirsGoneRT)
	theirsGone.ns.End()

	// What killed calls leave, and a wiring whose directory is lost.
	for path, text := range map[string]string{"pods/dangling": "../nowhere", "pods/.new": "../nowhere"} {
		if err := os.Symlink(text, filepath.Join(n.state, path)); err != nil {
			t.Fatal(err)
		}
	}
	empty, half := filepath.Join(n.state, "empty"), filepath.Join(n.state, "half")
	if err := errors.Join(os.Mkdir(empty, 0o755), os.Mkdir(half, 0o755), os.Symlink("podnet/eth0", filepath.Join(half, ".eth0")),
		os.WriteFile(filepath.Join(half, ".eth0.json.new"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	lost, _, lostRT := wiredPod(n, "lost", "redirect")
	lost.ns.End()
	if err := os.RemoveAll(lost.dirOf()); err != nil {
		t.Fatal(err)
	}

	valid := []types.GCAttachment{{ContainerID: alive.id, IfName: "eth0"}, {ContainerID: stale.id, IfName: "net1"}}
	if out, err := n.gc(list, "nothing is said"); err != nil || out != "" {
		t.Errorf("GC without attachments: %v, %s", err, out)
	}
	stale.wired("eth0")
	gone.wired()
	if out, err := n.gc(list, 7); err == nil || err.Code != types.ErrInvalidNetworkConfig {
		t.Errorf("GC with a number: %v, %s", err, out)
	}
	n.collect(list, valid...)
	n.collect(list, valid...)
	alive.wired("eth0")
	theirs.wired("eth0")
	if err := errors.Join(n.cni.CheckNetworkList(t.Context(), list, aliveRT), n.cni.CheckNetworkList(t.Context(), other, theirsRT)); err != nil {
		t.Error(err)
	}
	if links := stale.ns.IP("-br link"); strings.Contains(links, "eth0-tap") {
		t.Errorf("the stale sandbox has\n%s", links)
	}
	var journals, state int
	for _, file := range n.files() {
		if strings.HasSuffix(file, ".journal") {
			journals++
		}
		if strings.HasPrefix(file, "state/") {
			state++
		}
	}
	if journals != 2 || state != 2*4 { // a directory, a note, a record and a link each
		t.Errorf("%q are left", n.files())
	}
	n.collect(list, nil...) // null: none is valid
	n.collect(other)
	alive.wired()
	theirs.wired()
	for s, rt := range map[*sandboxOf]*runtimeConf{alive: aliveRT, stale: staleRT, gone: goneRT, lost: lostRT} {
		s.del(list, rt)
	}
	theirs.del(other, theirsRT)
	theirsGone.del(other, theirsGoneRT)
	n.clean()
}

// TestGCByLibcni: libcni's GC, as CRI-O calls it.
func TestGCByLibcni(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.plugin("fake-main", `
cat >/dev/null
case $CNI_COMMAND in
ADD) nsenter --net="$CNI_NETNS" sh -c 'ip link add eth0 type veth peer name v0; ip link set v0 up; ip link set eth0 up; ip addr add 10.31.0.2/24 dev eth0' || exit 1
	echo '{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}], "ips": [{"interface": 0, "address": "10.31.0.2/24"}]}' ;;
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}' ;;
esac
`)
	list := n.list("1.1.0", "podnet", `{"type": "fake-main"}`, n.guestwire(owner("")))
	if err := n.cni.GetStatusNetworkList(t.Context(), list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	a, b := n.sandbox("a"), n.sandbox("b")
	aRT, bRT := a.runtime("eth0", "guestwire/nic.eth0", "redirect"), b.runtime("eth0", "guestwire/nic.eth0", "redirect")
	a.add(list, aRT)
	b.add(list, bRT)
	if err := n.cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: a.id, IfName: "eth0"}}}); err != nil {
		t.Errorf("GC: %v", err)
	}
	a.wired("eth0")
	b.wired()
	if err := n.cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC: %v", err)
	}
	a.wired()
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
	if said := n.said(); !strings.Contains(said, "another call works on it") || !strings.Contains(said, "left: the journal "+n.dir) {
		t.Errorf("guestwire said %s", said)
	}
	s.wired("eth0")
	release()
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

// TestErrors: what a pod's events show of an ADD that fails, and that nothing is left of it.
func TestErrors(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	file := filepath.Join(t.TempDir(), "file") // where a directory is wanted
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		entry      string
		annotation string // of eth0
		code       uint
		says       string
	}{
		"a word":        {owner(""), "router", 101, `guestwire: annotation guestwire/nic.eth0: binding: "router", want "bridge", "redirect", "masquerade", "routed", "macvtap", "sriov", "passt", "slirp" or "auto", or none, or an object of JSON`},
		"a field":       {owner(""), `{"queues": 300}`, 101, "guestwire: annotation guestwire/nic.eth0: queues: 300, want 1 to 256, or 0 for 1"},
		"a guard":       {owner(""), `{"guard": {"off": true}}`, 101, "guestwire: annotation guestwire/nic.eth0: guard: not for a pod to say: leave it out, or ask the node's operator"},
		"the list":      {`"spec": {"binding": {"router": {}}}`, "redirect", 7, `guestwire: spec.binding: "router", want`},
		"misplaced":     {`"binding": {"redirect": {}}`, "", 7, `guestwire: binding: is a member of "spec"`},
		"a wrong type":  {`"trustPods": "yes"`, "redirect", 7, "guestwire: entry of the CNI list: "},
		"a path":        {`"state": "run"`, "redirect", 7, `guestwire: state: "run" in the CNI list, want an absolute path`},
		"a refusal":     {owner(""), "macvtap", 101, "guestwire: annotation guestwire/nic.eth0: binding.macvtap: not for a pod"},
		"a NIC's kind":  {owner("") + `, "trustPods": true`, "macvtap", 102, "annotate the pod with guestwire/nic.eth0=bridge"},
		"a collision":   {owner(""), `{"binding": {"masquerade": {"ipv4": "10.22.0.0/16"}}}`, 100, "10.22.0.0/16 overlaps"},
		"a device":      {owner(""), `{"device": {"driver": "vhost"}}`, 100, "stat /dev/vhost-net"},
		"another state": {owner("") + `, "state": "` + file + `"`, "redirect", 100, "guestwire: "},
		"another dir":   {owner("") + `, "dir": "` + file + `"`, "redirect", 100, "journal directory: " + file},
		"a path of dir": {owner("") + `, "dir": "run"`, "redirect", 7, `guestwire: dir: "run" in the CNI list, want an absolute path`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/dev/vhost-net"); name == "a device" && err == nil {
				nstest.LeaveOut(t, "the machine has /dev/vhost-net")
			}
			s := n.sandbox("u1")
			plain := n.list("1.0.0", "podnet", n.flannel())
			rt := s.runtime("eth0")
			if c.annotation != "" {
				rt = s.runtime("eth0", "guestwire/nic.eth0", c.annotation)
			}
			result := s.add(plain, rt)
			before := s.ns.Settled()
			_, err := n.guestwireCalled(s.configuration(n.list("1.0.0", "podnet", n.guestwire(c.entry)).Plugins[0].Bytes, result, rt), s.environ("ADD", "eth0")...)
			if err == nil || err.Code != c.code || strings.Count(err.Msg, c.says) != 1 || err.Details != "" || strings.Contains(err.Msg, "\n") || strings.Count(err.Msg, "guestwire: ") > 1 {
				t.Errorf("%+v, want code %d, %s", err, c.code, c.says)
			}
			if err := nstest.Difference(before, s.ns.Settled()); err != nil {
				t.Error(err)
			}
			s.del(plain, rt)
			n.clean()
		})
	}
	for code, want := range map[uint]uint64{0: 0, 7: 4, 101: 4, 102: 1} { // without those that have another dir
		n.wantCounted("ADD", code, want)
	}
}

// TestRefusedAdd: an ADD that is refused after its notes were written leaves nothing, and says why once. It is refused
// in the plugin's own namespace, and for a later NIC of the sandbox. The State is named by a symbolic link.
func TestRefusedAdd(t *testing.T) {
	t.Parallel()
	b := newInputBed(t)
	s := b.pod()
	before := s.ns.Settled()
	for name, c := range map[string]struct {
		netns, says string
		code        uint
	}{
		"own":         {b.ns.Path(), "the caller's own network namespace", types.ErrInvalidNetNS},
		"another NIC": {s.ns.Path(), "annotation guestwire/nic.net7: ", 101},
	} {
		in := b.right(s)
		in.environ["CNI_NETNS"] = c.netns
		in.members["state"] = filepath.Join(filepath.Dir(b.state), "link", filepath.Base(b.state))
		in.members["everyNIC"] = true
		in.members["runtimeConfig"] = map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{"guestwire/nic.eth0": "redirect", "guestwire/nic.net7": "redirect"}}
		out, err := in.call(b.node, "ADD")
		if err == nil || out != "" || err.Code != c.code || strings.Count(err.Msg, c.says) != 1 {
			t.Errorf("%s: %v, %s; want code %d, and once %s", name, err, out, c.code, c.says)
		}
		if files := b.files(); !slices.Equal(files, b.unchanged) {
			t.Errorf("%s: %q are left, want %q", name, files, b.unchanged)
		}
		if said := b.said(); strings.Contains(said, "is not wired") {
			t.Errorf("%s: guestwire said %s", name, said)
		}
	}
	if err := nstest.Difference(before, s.ns.Settled()); err != nil {
		t.Error(err)
	}
	b.right(b.beside).call(b.node, "DEL")
	b.clean()
}

// TestAnotherWish: an ADD that wants another wiring is refused, and what an earlier one has wired stays, for the guest
// that may be using it. An ADD that wants another configuration of the same wiring changes that.
func TestAnotherWish(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, list, rt := wiredPod(n, "u1", "redirect")
	result, err := n.cni.GetNetworkListCachedResult(list, rt)
	if err != nil {
		t.Fatal(err)
	}
	before := s.ns.Settled()
	for _, annotation := range []string{"masquerade", `{"queues": 2}`, `{"queues": 300}`, "bridge"} {
		config := s.configuration(list.Plugins[1].Bytes, result, s.runtime("eth0", "guestwire/nic.eth0", annotation))
		if out, err := n.guestwireCalled(config, s.environ("ADD", "eth0")...); err == nil {
			t.Errorf("%s: %s", annotation, out)
		}
		s.wired("eth0")
		if err := n.cni.CheckNetworkList(t.Context(), list, rt); err != nil {
			t.Errorf("after %s: %v", annotation, err)
		}
	}
	if err := nstest.Difference(nstest.Stable(before), nstest.Stable(s.ns.Settled())); err != nil {
		t.Error(err)
	}
	s.add2(list, s.runtime("eth0", "guestwire/nic.eth0", `{"options": {"hostname": "vm1"}}`))
	if r := s.record("eth0"); r.Options.Hostname != "vm1" {
		t.Errorf("%+v", r.Options)
	}
	s.del(list, rt)
	n.clean()
}

// TestCheck: the error says what differs, and the next ADD repairs it.
func TestCheck(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, list, rt := wiredPod(n, "u1", "redirect")
	for name, damage := range map[string]struct {
		do   func()
		says string
	}{
		"a tap":    {func() { s.ns.IP("link del eth0-tap") }, "guestwire: NIC eth0 is not as ADD left it: "},
		"a record": {func() { os.Remove(filepath.Join(s.dirOf(), "eth0.json")) }, "eth0.json is gone"},
	} {
		damage.do()
		err := n.cni.CheckNetworkList(t.Context(), list, rt)
		var reported *types.Error
		if !errors.As(err, &reported) || reported.Code != 103 || !strings.Contains(reported.Msg, damage.says) || strings.Contains(reported.Msg, "\n") {
			t.Errorf("%s: %v", name, err)
		}
		s.add2(list, rt)
		if err := n.cni.CheckNetworkList(t.Context(), list, rt); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	n.wantCounted("CHECK", 103, 2)
	n.wantCounted("CHECK", 0, 2)
	s.del(list, rt)
	n.clean()
}

// TestStatus: a node without a device for taps, or a plugin without privileges, cannot take pods if the list wires all
// of them. Where only the pods that ask are wired it can take the others: an engine counts a node whose STATUS fails as
// not ready.
func TestStatus(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	status := func(entry string, command ...string) *types.Error {
		t.Helper()
		n.wrapper = command
		defer func() { n.wrapper = nil }()
		_, err := n.guestwireCalled(`{"cniVersion": "1.1.0", "name": "podnet", `+strings.TrimPrefix(n.guestwire(entry), "{"), "CNI_COMMAND=STATUS")
		return err
	}
	if err := status(owner("")); err != nil {
		t.Error(err)
	}
	if err := status(`"spec": {"queues": 300}`); err == nil || err.Code != 7 {
		t.Errorf("a wrong list: %v", err)
	}
	wiresAll := `"spec": {"binding": {"redirect": {}}}`
	err := status(wiresAll, "unshare", "-m", "sh", "-c", `mount --bind /dev/null /dev/net/tun; exec setpriv --bounding-set -net_admin "$0"`)
	if err == nil || err.Code != 50 || !strings.Contains(err.Msg, "CAP_NET_ADMIN") {
		t.Errorf("without a capability: %v", err)
	}
	err = status(wiresAll, "unshare", "-m", "sh", "-c", `mount -t tmpfs none /dev/net; exec "$0"`)
	if err == nil || err.Code != 50 || !strings.Contains(err.Msg, "/dev/net/tun: no such file or directory; modprobe tun") {
		t.Errorf("without the device: %v", err)
	}
	err = status("", "unshare", "-m", "sh", "-c", `mount -t tmpfs none /dev/net; exec "$0"`)
	if said := n.said(); err != nil || !strings.Contains(said, "lacks the device of taps") {
		t.Errorf("without the device, which most pods do not need: %v, %s", err, said)
	}
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
