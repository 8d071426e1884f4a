// Package launchers: other projects' code judges guestwire. It calls the CNI plugin, reads its result, or calls an
// adapter of docs/how-to/launchers.md. No VMM runs; the guest is a process on the tap.
package launchers

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// node is a namespace in which CNI plugins run, whoever calls them.
type node struct {
	*nstest.Namespace
	plugins, cache string // directories: a script for each plugin, which runs it on the node; results
	cni            *libcni.CNIConfig
}

func newNode(t *testing.T) node {
	t.Helper()
	nstest.Need(t, "nsenter")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "CNI plugins are root's")
	n := node{Namespace: nstest.New(t, "node"), plugins: t.TempDir(), cache: t.TempDir()}
	programs := t.TempDir()
	for name, program := range map[string]string{
		"tc-redirect-tap": nstest.Program(t, "examples/guestwire"), "guestwire": nstest.Program(t, "examples/guestwire"),
		"bridge": debian("bridge"), "ptp": debian("ptp"), "macvlan": debian("macvlan"), "firewall": debian("firewall"), "host-local": debian("host-local"), "static": debian("static"),
	} {
		if err := os.Symlink(program, filepath.Join(programs, name)); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=%s %s\n", n.Path(), filepath.Join(programs, name))
		if err := os.WriteFile(filepath.Join(n.plugins, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{n.plugins}, n.cache, nil)
	return n
}

func debian(plugin string) string { return filepath.Join("/usr/lib/cni", plugin) }

// list is a CNI list.
func list(t *testing.T, version, name, plugins string) *libcni.NetworkConfigList {
	t.Helper()
	l, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": %q, "name": %q, "plugins": [%s]}`, version, name, plugins))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dualStack is the IPAM of a network with both families.
func dualStack(t *testing.T, v4, v6 string) string {
	return fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "resolvConf": "/etc/resolv.conf", "ranges": [[{"subnet": %q}], [{"subnet": %q}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`, t.TempDir(), v4, v6)
}
