package main_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

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
		"a divert":      {owner(""), `{"binding": {"routed": {}}, "egress": ["divert all 443 :15443", "allow all"]}`, 101, `guestwire: annotation guestwire/nic.eth0: egress[0]: "divert all 443/tcp :15443": egressWithin does not allow the target: add "allow gateway 15443/tcp" there, or leave this entry out. Here egressWithin is what the node's CNI list allows: ask the node's operator`},
		"the list":      {`"spec": {"binding": {"router": {}}}`, "redirect", 7, `guestwire: spec.binding: "router", want`},
		"misplaced":     {`"binding": {"redirect": {}}`, "", 7, `guestwire: binding: is a member of "spec"`},
		"a wrong type":  {`"trustPods": "yes"`, "redirect", 7, "guestwire: entry of the CNI list: "},
		"a path":        {`"state": "run"`, "redirect", 7, `guestwire: state: "run" in the CNI list, want an absolute path`},
		"a refusal":     {owner(""), "macvtap", 101, "guestwire: annotation guestwire/nic.eth0: binding.macvtap: not for a pod"},
		"a NIC's kind":  {owner("") + `, "trustPods": true`, "macvtap", 102, "annotate the pod with guestwire/nic.eth0=redirect"},
		"a collision":   {owner(""), `{"binding": {"masquerade": {"ipv4": "10.22.0.0/16"}}}`, 100, "10.22.0.0/16 overlaps"},
		"a device":      {owner(""), `{"device": {"driver": "vhost"}}`, 100, "stat /dev/vhost-net"},
		"another state": {owner("") + `, "state": "` + file + `"`, "redirect", 100, "guestwire: "},
		"another dir":   {owner("") + `, "dir": "` + file + `"`, "redirect", 100, "journal directory: open " + file},
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
	for code, want := range map[uint]uint64{0: 0, 7: 4, 101: 5, 102: 1} { // without those that have another dir
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

// TestCheck: the error says what differs, and by which command it is repaired, if it is not another program's.
func TestCheck(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	s, list, rt := wiredPod(n, "u1", "redirect")
	for name, damage := range map[string]struct {
		do   func()
		says string
		way  string
	}{
		"a tap":      {func() { s.ns.IP("link del eth0-tap") }, "guestwire: NIC eth0 is not as ADD left it: ", "; on the node, this repairs it: guestwire-agent repair -netns "},
		"a record":   {func() { os.Remove(filepath.Join(s.dirOf(), "eth0.json")) }, "eth0.json is gone", "; on the node, this repairs it: guestwire-agent repair -netns "},
		"an address": {func() { s.ns.IP("addr add 192.0.2.9/32 dev lo") }, "address 192.0.2.9/32 of lo came after Setup", "; guestwire-agent repair does not repair it"},
	} {
		damage.do()
		err := n.cni.CheckNetworkList(t.Context(), list, rt)
		var reported *types.Error
		if !errors.As(err, &reported) || reported.Code != 103 || !strings.Contains(reported.Msg, damage.says) || !strings.Contains(reported.Msg, damage.way) || strings.Contains(reported.Msg, "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if _, call, found := strings.Cut(reported.Msg, "; on the node, this repairs it: guestwire-agent "); found {
			nstest.Run(t, "sh", "-c", agent+" "+call)
		} else {
			s.ns.IP("addr del 192.0.2.9/32 dev lo")
		}
		if err := n.cni.CheckNetworkList(t.Context(), list, rt); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	n.wantCounted("CHECK", 103, 3)
	n.wantCounted("CHECK", 0, 3)
	s.del(list, rt)
	n.clean()
}

// TestRefusedList: a list that ADD refuses, CHECK and STATUS refuse by the same error. DEL takes the wiring down.
func TestRefusedList(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, entry := range []string{`"binding": {"redirect": {}}`, `"spec": {"queues": 300}`, `"trustPods": "yes"`} {
		s, list, rt := wiredPod(n, "u1", "redirect")
		result, err := n.cni.GetNetworkListCachedResult(list, rt)
		if err != nil {
			t.Fatal(err)
		}
		config := s.configuration(n.list("1.0.0", "podnet", n.guestwire(entry)).Plugins[0].Bytes, result, rt)
		config = strings.Replace(config, `"cniVersion":"1.0.0"`, `"cniVersion":"1.1.0"`, 1) // the first with STATUS
		_, want := n.guestwireCalled(config, s.environ("ADD", "eth0")...)
		if want == nil || want.Code != types.ErrInvalidNetworkConfig {
			t.Fatalf("%s: ADD says %v", entry, want)
		}
		for _, command := range []string{"CHECK", "STATUS"} {
			if _, err := n.guestwireCalled(config, s.environ(command, "eth0")...); err == nil || *err != *want {
				t.Errorf("%s: %s says %v, want %v", entry, command, err, want)
			}
		}
		s.wired("eth0")
		if _, err := n.guestwireCalled(config, s.environ("DEL", "eth0")...); err != nil {
			t.Errorf("%s: DEL says %v", entry, err)
		}
		if links := s.ns.IP("-br link"); strings.Contains(links, "eth0-tap") {
			t.Errorf("%s: after DEL there is\n%s", entry, links)
		}
		s.del(list, rt)
	}
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
	for _, lies := range []string{"touch", "mkdir"} {
		err := status(wiresAll, "unshare", "-m", "sh", "-c", `mount -t tmpfs none /dev/net; `+lies+` /dev/net/tun; exec "$0"`)
		if err == nil || err.Code != 50 || !strings.Contains(err.Msg, "/dev/net/tun is another file; rm -d /dev/net/tun, then mknod -m 666 /dev/net/tun c 10 200") {
			t.Errorf("after %s: %v", lies, err)
		}
		way := ` /dev/net/tun; rm -d /dev/net/tun; mknod -m 666 /dev/net/tun c 10 200; exec "$0"`
		if err := status(wiresAll, "unshare", "-m", "sh", "-c", `mount -t tmpfs none /dev/net; `+lies+way); err != nil {
			t.Errorf("after %s and the way out: %v", lies, err)
		}
	}
	err = status("", "unshare", "-m", "sh", "-c", `mount -t tmpfs none /dev/net; exec "$0"`)
	if said := n.said(); err != nil || !strings.Contains(said, "lacks the device of taps") {
		t.Errorf("without the device, which most pods do not need: %v, %s", err, said)
	}
}
