package main

import (
	"encoding/json"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// daemonSet has what the tests look at.
type daemonSet struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		Template struct {
			Spec struct {
				HostPID     bool
				HostNetwork bool
				DNSPolicy   string
				Containers  []struct {
					Name, Image string
					Args        []string
					Ports       []struct{ HostIP string }
					Env         []struct {
						Name      string
						ValueFrom struct{ FieldRef struct{ FieldPath string } }
					}
					ReadinessProbe  struct{ Exec struct{ Command []string } }
					VolumeMounts    []mount
					SecurityContext struct {
						Privileged   bool
						Capabilities struct{ Drop, Add []string }
					}
				}
				Volumes []volume
			}
		}
	}
}

type mount struct {
	Name, MountPath string
	ReadOnly        bool
}

type volume struct {
	Name     string
	HostPath *struct{ Path string }
}

// kustomize is kubectl kustomize.
func kustomize(t *testing.T, dir string) []*resource.Resource {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return resources.Resources()
}

// render returns the kinds and names, and the DaemonSet.
func render(t *testing.T, dir string) (kinds []string, d daemonSet) {
	t.Helper()
	for _, r := range kustomize(t, dir) {
		kinds = append(kinds, r.GetKind()+" "+r.GetName())
		if r.GetKind() != "DaemonSet" {
			continue
		}
		text, err := r.MarshalJSON()
		if err == nil {
			err = json.Unmarshal(text, &d)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return kinds, d
}

// TestManifests: each directory of examples/kubernetes renders, its flags are those of the program, and each path that
// a flag names is mounted, from the same path of the node.
func TestManifests(t *testing.T) {
	for dir, c := range map[string]struct {
		kinds  string
		rights string
		mounts string
	}{
		"install":      {"DaemonSet guestwire-node, Namespace guestwire, ServiceAccount guestwire-node", "", "/etc/cni/net.d, /opt/cni/bin, /var/lib/kubelet/device-plugins"},
		"without-nri":  {"DaemonSet guestwire-node, Namespace guestwire, ServiceAccount guestwire-node", "", "/etc/cni/net.d, /opt/cni/bin, /var/lib/kubelet/device-plugins"},
		"runtimeclass": {"DaemonSet guestwire-node, Namespace guestwire, RuntimeClass guestwire, ServiceAccount guestwire-node", "", "/etc/cni/guestwire.d, /etc/cni/net.d, /opt/cni/bin, /var/lib/kubelet/device-plugins"},
		"metrics":      {"DaemonSet guestwire-node, Namespace guestwire, ServiceAccount guestwire-node", "hostPID, SYS_ADMIN, SYS_PTRACE, NET_ADMIN, DAC_READ_SEARCH", "/etc/cni/net.d, /opt/cni/bin, /run, /var/lib/kubelet/device-plugins"},
		"names":        {"DaemonSet guestwire-node, Namespace guestwire, ServiceAccount guestwire-node", "hostPID, SYS_ADMIN, SYS_PTRACE, NET_ADMIN, DAC_READ_SEARCH, SETUID, SETGID, SETPCAP, KILL", "/etc/cni/net.d, /opt/cni/bin, /run, /var/lib/kubelet/device-plugins"},
		"uninstall":    {"DaemonSet guestwire-uninstall, Namespace guestwire", "", "/etc/cni, /opt/cni/bin"},
	} {
		t.Run(dir, func(t *testing.T) {
			kinds, d := render(t, filepath.Join("../kubernetes", dir))
			slices.Sort(kinds)
			if have := strings.Join(kinds, ", "); have != c.kinds {
				t.Errorf("%s, want %s", have, c.kinds)
			}
			pod := d.Spec.Template.Spec
			if len(pod.Containers) != 1 || d.Metadata.Namespace != "guestwire" || !pod.HostNetwork {
				t.Fatalf("%+v", d)
			}
			container := pod.Containers[0]
			if container.Image != "localhost/guestwire-node:dev" { // that of make image
				t.Errorf("image %s", container.Image)
			}

			rights := container.SecurityContext.Capabilities.Add
			if pod.HostPID {
				rights = append([]string{"hostPID"}, rights...)
			}
			if have := strings.Join(rights, ", "); have != c.rights || container.SecurityContext.Privileged || !slices.Equal(container.SecurityContext.Capabilities.Drop, []string{"ALL"}) {
				t.Errorf("rights %s, want %s", have, c.rights)
			}
			mounts := map[string]bool{} // path in the container -> written
			for _, m := range container.VolumeMounts {
				mounts[m.MountPath] = !m.ReadOnly
				i := slices.IndexFunc(pod.Volumes, func(v volume) bool { return v.Name == m.Name })
				if i < 0 {
					t.Errorf("mount %s has no volume", m.MountPath)
				} else if p := pod.Volumes[i].HostPath; p == nil {
					delete(mounts, m.MountPath)
					if slices.ContainsFunc(container.VolumeMounts, func(o mount) bool { return strings.HasPrefix(m.MountPath, o.MountPath+"/") }) {
						t.Errorf("%s is made on the node, in a directory of it", m.MountPath)
					}
				} else if p.Path != m.MountPath && m.MountPath != "/host/dev" {
					t.Errorf("the node's %s is mounted at %s", p.Path, m.MountPath)
				}
			}
			var written []string
			for _, path := range slices.Sorted(maps.Keys(mounts)) {
				if mounts[path] {
					written = append(written, path)
				}
			}
			if have := strings.Join(written, ", "); have != c.mounts {
				t.Errorf("writes %s, want %s", have, c.mounts)
			}

			o, err := parseArgs(container.Args)
			if err != nil {
				t.Fatalf("%q: %v", container.Args, err)
			}
			probe, err := parseArgs(container.ReadinessProbe.Exec.Command[1:])
			if err != nil || probe.ready != o.ready || o.ready == "" {
				t.Errorf("the probe looks at %q, %v, the container makes %q", probe.ready, err, o.ready)
			}
			for _, path := range []string{o.cniBin, o.cniConf, o.listTo, o.state, filepath.Dir(o.nri), o.devicePlugins, o.dev} {
				if o.nri == "" && path == "." || path == "" {
					continue
				}
				if !slices.ContainsFunc(slices.Collect(maps.Keys(mounts)), func(m string) bool { return path == m || strings.HasPrefix(path, m+"/") }) {
					t.Errorf("%s is not mounted", path)
				}
			}
			if o.metrics != "" && o.metrics != "127.0.0.1:9476" {
				t.Errorf("pods reach the metrics at %s", o.metrics)
			}
			// The image has the launcher. A guest's own resolv.conf is the cluster's.
			if want := dir == "names"; (o.names == "/guestwire-launcher") != want || (pod.DNSPolicy == "ClusterFirstWithHostNet") != want {
				t.Errorf("names %q, DNS policy %q", o.names, pod.DNSPolicy)
			}
			if want := dir == "metrics" || dir == "names"; (o.metrics != "") != want || (o.sweep > 0) != want {
				t.Errorf("metrics %q, sweep %v", o.metrics, o.sweep)
			}
			if want := dir == "without-nri" || dir == "uninstall"; (o.nri == "") != want {
				t.Errorf("NRI %q", o.nri)
			}
		})
	}
}

// TestOwnKustomization: the kustomizations that examples/kubernetes/README.md shows render from a directory of their
// own, without a change of the clone: the image is the reader's, and so are the arguments. They fetch the manifests by
// git.
func TestOwnKustomization(t *testing.T) {
	page := read(t, "../kubernetes/README.md")
	shown := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)```yaml\n# (guestwire|uninstall)/kustomization.yaml.*?\n(.*?)```").FindAllStringSubmatch(page, -1) {
		shown[m[1]] += m[2]
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for dir, c := range map[string]struct{ of, name, args string }{
		"metrics":   {"guestwire", "guestwire-node", `-sweep=1h -spec={"owner": {"uid": 107}, "queues": 2} -devices=kvm,vhost-net`},
		"uninstall": {"uninstall", "guestwire-uninstall", ""},
	} {
		t.Run(dir, func(t *testing.T) {
			const remote, ref = "https://github.com/guestwire/guestwire//examples/kubernetes/", "?ref=main"
			text, own := shown[c.of], t.TempDir()
			if strings.Count(text, remote) != 1 || strings.Count(text, ref) != 1 {
				t.Fatalf("the page shows %q", text)
			}
			text = strings.Replace(text, remote+"install", remote+dir, 1)
			text = strings.NewReplacer(remote, "file://"+root+"//examples/kubernetes/", ref, "?ref=HEAD").Replace(text)
			if err := os.WriteFile(filepath.Join(own, "kustomization.yaml"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			_, d := render(t, own)
			container := d.Spec.Template.Spec.Containers[0]
			args := strings.Join(container.Args, " ")
			if container.Image != "REGISTRY/guestwire-node:v1" || d.Metadata.Name != c.name || d.Metadata.Namespace != "guestwire" || !strings.HasSuffix(args, c.args) {
				t.Errorf("%s/%s has the image %s and the arguments %s", d.Metadata.Namespace, d.Metadata.Name, container.Image, args)
			}
			if _, err := parseArgs(container.Args); err != nil {
				t.Errorf("%q: %v", args, err)
			}
		})
	}
}

// TestMetricsAddress: the patch of docs/reference/metrics.md for a Prometheus that comes over the network renders. It
// is right for nodes of both families.
func TestMetricsAddress(t *testing.T) {
	shown := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(read(t, "../../docs/reference/metrics.md"))
	manifests, err := filepath.Abs("../kubernetes")
	if err != nil || shown == nil {
		t.Fatal(err, shown)
	}
	own := t.TempDir()
	if manifests, err = filepath.Rel(own, manifests); err != nil {
		t.Fatal(err)
	}
	write(t, own+"/kustomization.yaml", "resources: ["+manifests+"/metrics]\n"+shown[1])
	_, d := render(t, own)
	container := d.Spec.Template.Spec.Containers[0]
	if len(container.Env) != 1 || container.Env[0].ValueFrom.FieldRef.FieldPath != "status.hostIP" || len(container.Ports) != 1 || container.Ports[0].HostIP != "" {
		t.Fatalf("%+v", container)
	}
	for _, node := range []string{"127.0.0.1", "::1"} {
		var args []string
		for _, arg := range container.Args {
			args = append(args, strings.ReplaceAll(arg, "$("+container.Env[0].Name+")", node)) // as the kubelet does
		}
		o, err := parseArgs(args)
		if err != nil {
			t.Fatal(err)
		}
		at, err := net.ResolveTCPAddr("tcp", o.metrics)
		if err != nil || at.IP.String() != node || at.Port != 9476 {
			t.Errorf("%s is %v, %v; want port 9476 of %s", o.metrics, at, err, node)
		}
	}
}

// TestTutorialManifests: docs/tutorials/kubernetes.md shows the objects that its "kubectl apply" creates, and the VM's
// pod has the image that the page builds.
func TestTutorialManifests(t *testing.T) {
	page, err := os.ReadFile("../../docs/tutorials/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	applied := regexp.MustCompile("(?s)```sh\\nkubectl apply -k (\\S+)\\n[^`]*```\\n\\n```\\n(.*?)\\n\\.\\.\\.\\n").FindAllStringSubmatch(string(page), -1)
	if len(applied) != 2 {
		t.Fatalf("the page applies %q", applied)
	}
	var images []string
	for _, m := range applied {
		resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../../"+m[1])
		if err != nil {
			t.Fatal(err)
		}
		var created []string
		for _, r := range resources.Resources() {
			kind := strings.ToLower(r.GetKind())
			if group := r.GetGvk().Group; group != "" {
				kind += "." + group
			}
			created = append(created, kind+"/"+r.GetName()+" created")
		}
		text, err := resources.AsYaml()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)\bimage: (.*)$`).FindAllStringSubmatch(string(text), -1) {
			images = append(images, m[1])
		}
		shown := strings.Split(m[2], "\n")
		slices.Sort(created)
		slices.Sort(shown)
		if !slices.Equal(created, shown) {
			t.Errorf("%s creates\n%s\nand the page shows\n%s", m[1], strings.Join(created, "\n"), strings.Join(shown, "\n"))
		}
	}
	var built []string
	for _, m := range regexp.MustCompile(`(?m)^(?:VM_)?IMAGE \?= (.*)$`).FindAllStringSubmatch(string(makefile), -1) {
		built = append(built, m[1])
	}
	if !slices.Equal(images, built) {
		t.Errorf("the pods have the images %q, and make builds %q", images, built)
	}
}

// parseArgs parses the verb and its flags.
func parseArgs(args []string) (*options, error) {
	_, o, err := parse(io.Discard, args)
	return o, err
}

// TestOverlays: each variant of the VM's pod renders, and docs/how-to/multus.md shows the annotations of its own.
func TestOverlays(t *testing.T) {
	const overlays = "../kubernetes/vm/overlays"
	entries, err := os.ReadDir(overlays)
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) {
			for _, r := range kustomize(t, filepath.Join(overlays, e.Name())) {
				if r.GetKind() != "Deployment" || e.Name() != "multus" {
					continue
				}
				var d struct {
					Spec struct {
						Template struct {
							Metadata struct{ Annotations map[string]string }
						}
					}
				}
				text, err := r.MarshalJSON()
				if err == nil {
					err = json.Unmarshal(text, &d)
				}
				if err != nil {
					t.Fatal(err)
				}
				shown := "metadata:\n  annotations:\n"
				for _, key := range slices.Sorted(maps.Keys(d.Spec.Template.Metadata.Annotations)) {
					shown += "    " + key + ": " + d.Spec.Template.Metadata.Annotations[key] + "\n"
				}
				if page := read(t, "../../docs/how-to/multus.md"); !strings.Contains(page, shown) {
					t.Errorf("the page does not show\n%s", shown)
				}
			}
		})
	}
}
