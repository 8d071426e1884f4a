package main_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

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
