package kubernetes

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/node"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

const (
	examples    = "../../../examples/kubernetes"
	manifests   = "/root/kubernetes" // examples in the node
	system      = "guestwire"        // the namespace of the manifests
	daemonSet   = "daemonset/guestwire-node"
	uninstaller = "daemonset/guestwire-uninstall"
	image       = "localhost/guestwire-node" // in the manifests with the tag dev
)

// copyManifests copies the manifests to the node, where kubectl runs.
func (c *Cluster) copyManifests(t testing.TB) {
	t.Helper()
	err := filepath.WalkDir(examples, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return c.WriteFile(manifests+strings.TrimPrefix(path, examples), string(text), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// load brings the image of guestwire-node to the engine. bin is the directory of its programs.
func (c *Cluster) load(t testing.TB, tag, bin string) {
	t.Helper()
	if err := c.Engine.Load(node.DaemonImage(image+":"+tag, bin)); err != nil {
		t.Fatal(err)
	}
}

// files returns the content of the files in which an installation could write.
func (c *Cluster) files(t testing.TB) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, dir := range []string{"/etc/cni", node.CNIBin} {
		root := c.Path(dir)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name := dir + strings.TrimPrefix(path, root)
			switch {
			case d.IsDir():
				files[name] = "directory"
			case d.Type() == fs.ModeSymlink:
				files[name], err = os.Readlink(path)
			default:
				var text []byte
				text, err = os.ReadFile(path)
				files[name] = string(text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// install installs by one of the kustomizations, and waits until the engine uses the list. The installation ends with
// uninstall.
func (c *Cluster) install(t testing.TB, kustomization string) {
	t.Helper()
	c.Kubectl(t, "", "apply", "--kustomize="+manifests+"/"+kustomization)
	c.Kubectl(t, "", "rollout", "status", "--namespace="+system, daemonSet, "--timeout="+patience.String())
	if kustomization == "runtimeclass" {
		return // the engine does not show the lists of a handler
	}
	// The engine reads its list again by itself.
	nstest.Eventually(t, func() error {
		var status struct{ Info map[string]string }
		err := c.Engine.CRI("Status", map[string]any{"verbose": true}, &status)
		if err == nil && !strings.Contains(status.Info["cniconfig"]+status.Info["config"], "guestwire") {
			err = fmt.Errorf("guestwire is not in the engine's CNI configuration: %s", status.Info["cniconfig"])
		}
		return err
	})
}

// uninstall takes an installation away, as the README of the manifests says. The function during runs while the nodes
// wait for the end of wired pods.
func (c *Cluster) uninstall(t testing.TB, kustomization string, during func()) {
	t.Helper()
	c.Kubectl(t, "", "delete", "--kustomize="+manifests+"/"+kustomization, "--timeout="+patience.String())
	c.Kubectl(t, "", "apply", "--kustomize="+manifests+"/uninstall")
	during()
	c.Kubectl(t, "", "rollout", "status", "--namespace="+system, uninstaller, "--timeout="+patience.String())
	c.Kubectl(t, "", "delete", "--kustomize="+manifests+"/uninstall", "--timeout="+patience.String())
}

// testInstall installs guestwire by the manifests, for all scenarios that follow.
func (c *Cluster) testInstall(t *testing.T) {
	c.copyManifests(t)
	c.load(t, "dev", programs(t))
	c.original = c.files(t)
	c.namespace(t, "before")
	c.apply(t, "before", idle("before"))
	began := time.Now()
	c.install(t, "install")
	c.took("guestwire is installed by kubectl apply, until its DaemonSet is ready", began)
	now := c.files(t)
	for path, text := range c.original {
		if now[path] != text {
			t.Errorf("%s was changed by the installation", path)
		}
		delete(now, path)
	}
	for path := range now {
		switch path {
		case node.CNIConf + "/00-guestwire.conflist", node.CNIBin + "/guestwire", node.CNIBin + "/guestwire-agent":
		default:
			t.Errorf("%s was installed", path)
		}
	}

	// A pod without annotations is the same as before.
	c.apply(t, "before", idle("after"))
	first, second := c.pod(t, "before", "before"), c.pod(t, "before", "after")
	if links := second.IP("-brief link"); strings.Count(links, "\n") != 2 {
		t.Errorf("links of a pod that asks for nothing:\n%s", links)
	}
	rules := second.Exec("nft", "list", "ruleset")
	if rules != "" {
		t.Errorf("rules of a pod that asks for nothing:\n%s", rules)
	}
	first.Listen("before", fmt.Sprint(":", echoPort))
	if _, err := second.Ask(fmt.Sprintf("%s:%d", first.address, echoPort)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(c.Path("/run/guestwire/" + second.sandbox)); err == nil {
		t.Error("a pod that asks for nothing has a directory of records")
	}
}

// inImage are the programs of the image.
var inImage = []string{"guestwire-node", "guestwire", "guestwire-agent"}

// programs returns the directory of the programs of the image.
func programs(t testing.TB) string {
	t.Helper()
	var dir string
	for _, name := range inImage {
		dir = filepath.Dir(nstest.Program(t, "examples/"+name))
	}
	return dir
}

// testUpgrade rolls the DaemonSet to another build of guestwire under a running guest.
func (c *Cluster) testUpgrade(t *testing.T) {
	before := c.leftovers(t)
	bin := nstest.Dir(t)
	for _, name := range inImage {
		nstest.Run(t, "env", "CGO_ENABLED=0", "go", "build", "-C", "../../../examples/"+name, "-ldflags=-s -w", "-o", filepath.Join(bin, name), ".")
	}
	second, err := os.ReadFile(filepath.Join(bin, "guestwire"))
	if err != nil {
		t.Fatal(err)
	}
	c.load(t, "2", bin)
	t.Run("pods", func(t *testing.T) {
		c.namespace(t, "upgrade", restricted)
		c.apply(t, "upgrade", idle("client"), launcher{name: "vm"}.pod(), service("vm"))
		p, s := c.guestRuns(t, "upgrade", "vm")
		pings := newPings(t, c.pod(t, "upgrade", "client").Namespace, p.address)
		if c.files(t)[node.CNIBin+"/guestwire"] == string(second) {
			t.Fatal("the second build is installed already")
		}
		c.Kubectl(t, "", "set", "image", "--namespace="+system, daemonSet, "guestwire-node="+image+":2")
		c.Kubectl(t, "", "rollout", "status", "--namespace="+system, daemonSet, "--timeout="+patience.String())
		if c.files(t)[node.CNIBin+"/guestwire"] != string(second) {
			t.Error("the second build is not installed")
		}
		s.goesOn(t)
		sent := pings.end(t)
		s.goesOn(t)
		fmt.Printf("doc: | pings to a running guest while the DaemonSet is rolled to another build | %d, none lost |\n", sent)
		c.apply(t, "upgrade", launcher{name: "second"}.pod())
		c.boot(t, c.pod(t, "upgrade", "second"), "eth0")
	})
	c.gone(t, before)
}

// testUninstall takes guestwire away under a running guest, which ends after that.
func (c *Cluster) testUninstall(t *testing.T) {
	before := c.leftovers(t)
	t.Run("pods", func(t *testing.T) {
		c.namespace(t, "uninstall", restricted)
		c.apply(t, "uninstall", idle("client"), launcher{name: "vm"}.pod(), service("vm"))
		_, s := c.guestRuns(t, "uninstall", "vm")
		list := c.files(t)[node.CNIConf+"/00-guestwire.conflist"]
		c.uninstall(t, "install", func() {
			nstest.Eventually(t, func() error {
				if now := c.files(t)[node.CNIConf+"/00-guestwire.conflist"]; now == list {
					return fmt.Errorf("the list still is %s", now)
				}
				return nil
			})
			s.goesOn(t)
			s.close(t)
			c.Kubectl(t, "", "delete", "--namespace=uninstall", "pod", "vm", "--timeout="+patience.String())
		})
	})
	c.gone(t, before)
	c.given(t)
}

// given fails the test if the files are not those before the installation.
func (c *Cluster) given(t testing.TB) {
	t.Helper()
	now := c.files(t)
	for path, text := range c.original {
		if now[path] != text {
			t.Errorf("%s is not as it was before the installation", path)
		}
		delete(now, path)
	}
	for path := range now {
		t.Errorf("%s is left", path)
	}
}

// testRuntimeClass installs for the pods of one RuntimeClass alone.
func (c *Cluster) testRuntimeClass(t *testing.T) {
	c.install(t, "runtimeclass")
	before := c.leftovers(t)
	t.Run("pods", func(t *testing.T) {
		c.namespace(t, "runtimeclass", restricted)
		c.apply(t, "runtimeclass", idle("client"), launcher{name: "vm", spec: "  runtimeClassName: guestwire"}.pod(), service("vm"), launcher{name: "other"}.pod())
		c.guestRuns(t, "runtimeclass", "vm")
		t.Log(c.event(t, "runtimeclass", "other", "guestwire/nic.eth0", "is guestwire in the node's CNI list"))
	})
	c.gone(t, before)
	c.uninstall(t, "runtimeclass", func() {})
	c.given(t)
}

// testWithoutNRI installs for an engine without NRI: the pod mounts its records itself, and a device plugin gives the
// device.
func (c *Cluster) testWithoutNRI(t *testing.T) {
	c.install(t, "without-nri")
	before := c.leftovers(t)
	t.Run("pods", func(t *testing.T) {
		c.namespace(t, "without-nri", "pod-security.kubernetes.io/enforce=privileged")
		c.apply(t, "without-nri", idle("client"), service("vm"), launcher{
			name: "vm",
			spec: "  volumes: [{name: guestwire, hostPath: {path: /run/guestwire, type: Directory}}]",
			container: `    env: [{name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}]
    resources: {limits: {guestwire/tun: 1}}
    volumeMounts: [{name: guestwire, mountPath: /run/guestwire, subPathExpr: pods/$(POD_UID), readOnly: true}]`,
		}.pod())
		c.guestRuns(t, "without-nri", "vm")
	})
	c.gone(t, before)
	c.uninstall(t, "without-nri", func() {})
	c.given(t)
}
