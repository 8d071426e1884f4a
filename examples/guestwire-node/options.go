package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/phase1"
)

// verb is what guestwire-node can do.
type verb = commandline.Verb[options]

// options are the values of the flags.
type options struct {
	from, cniBin, cniConf, listTo, listName string
	state, dir                              string
	spec                                    string
	trustPods, everyNIC                     bool
	nri, dev, deviceNames, devicePlugins    string
	metrics, names, ready                   string
	sweep, repair                           time.Duration
	wait, stay, force, keepPlugin           bool

	devices           devices
	entry, drainEntry json.RawMessage // guestwire's in the derived list
	notes             map[string]note // by path

	stdout   io.Writer
	log      *slog.Logger
	repaired atomic.Uint64 // NICs
	proxies  atomic.Int64  // that run
}

// flagSet has the verb's flags.
func (o *options) flagSet(v verb) *flag.FlagSet {
	set := commandline.NewFlags(v)
	set.String(&o.from, "from", "", "the `DIR` with the binaries guestwire and, if wanted, guestwire-agent; without it the directory of guestwire-node, and ../lib/cni beside it, as of a package")
	set.String(&o.cniBin, "cni-bin", "/opt/cni/bin", "the `DIR` of the node's CNI plugins; empty: no binary is installed")
	set.String(&o.cniConf, "cni-conf", "/etc/cni/net.d", "the `DIR` of the node's CNI lists; empty: no list is derived")
	set.String(&o.listTo, "list-to", "", "the `DIR` for the derived list, such as the cni_conf_dir of a RuntimeClass's handler; without it the -cni-conf, for all pods")
	set.String(&o.listName, "list-name", "00-guestwire.conflist", "the `FILE` name of the derived list: an engine takes the first of the directory")
	set.String(&o.state, "state", string(podsandbox.DefaultState), "the `DIR` of the sandboxes' records, on the node and here")
	set.String(&o.dir, "dir", phase1.DefaultDir, "the node's `DIR` for journals and locks, the same for all of guestwire's programs")
	set.Func("spec", "what holds for each NIC, a `JSON` object as of guestwire-agent setup -config without nic and state, such as "+
		`{"owner": {"uid": 107}}; with a binding, every pod of the list is wired, and without one those whose annotations ask for it`, func(text string) error { o.spec = text; return nil })
	set.Bool(&o.trustPods, "trust-pods", "a pod's annotations may also say what an ordinary restricted pod could not do: guard, owner.selinux, the bindings macvtap and sriov, masquerade's firewall and more connections, and more than 4096 bytes for a NIC")
	set.Bool(&o.everyNIC, "every-nic", "the list's first plugin creates all NICs of a pod, as Multus does: the NICs of the annotations are wired by one ADD")
	set.String(&o.nri, "nri", "/var/run/nri/nri.sock", "the engine's NRI `SOCKET`; empty: launchers get records and devices by other means (-device-plugins)")
	set.String(&o.deviceNames, "devices", "kvm", "the `NAMES` of the devices that pods may ask for in addition to tun, with commas between: kvm, vhost-net")
	set.String(&o.dev, "dev", "/dev", "the node's /dev, the `DIR` in which this process sees it")
	set.String(&o.devicePlugins, "device-plugins", "", "the kubelet's `DIR` of device plugins, such as /var/lib/kubelet/device-plugins: offers guestwire/tun and the -devices as resources; empty: no device plugin")
	set.String(&o.metrics, "metrics", "", "the `ADDRESS` at which the metrics of the node's wired NICs are served as /metrics to whoever reaches it, such as 127.0.0.1:9476; empty: none. It needs the node's PID namespace and CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH")
	set.Func("sweep", "the `TIME` between two sweeps, which remove what is left of namespaces that are gone, as guestwire-agent forget does, such as 1h; 0: never. It needs the node's PID namespace and CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH", commandline.Time(&o.sweep, "1h"))
	set.Func("repair", "the `TIME` between two looks at the wired NICs, each of which is repaired if it is not as recorded, as guestwire-agent repair -all does, such as 5m; 0: never. It needs what guestwire-agent setup needs, and the node's PID namespace", commandline.Time(&o.repair, "5m"))
	set.String(&o.names, "names", "", "the `PATH` of guestwire-launcher, which answers what the guests ask whose configuration has names, as guestwire-agent names -all does; empty: they are refused. It needs the node's PID namespace and CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_SETUID, CAP_SETGID, CAP_SETPCAP, CAP_KILL")
	set.String(&o.ready, "ready", "", "the `FILE` that is there while all is done, for a readiness probe; empty: none")
	set.Bool(&o.wait, "wait", "wait until the last wired pod is gone")
	set.Bool(&o.stay, "stay", "as -wait, and stay until SIGTERM, as a DaemonSet's container has to")
	set.Bool(&o.keepPlugin, "keep-plugin", "leave guestwire in -cni-bin, for CRI-O: it ends each pod by the list that the pod was made with, wired or not")
	set.Bool(&o.force, "force", "remove all also while pods are wired: their records and journals stay, and CRI-O cannot remove these pods")
	return set.FlagSet
}

// check refuses what guestwire's ADD would refuse for each pod, and what cannot work.
func (o *options) check() (err error) {
	for flag, path := range map[string]string{"from": o.from, "cni-bin": o.cniBin, "cni-conf": o.cniConf, "list-to": o.listTo, "state": o.state, "dir": o.dir, "dev": o.dev, "device-plugins": o.devicePlugins, "nri": o.nri, "names": o.names, "ready": o.ready} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("-%s %s: want an absolute path", flag, path)
		}
	}
	if o.listTo == "" {
		o.listTo = o.cniConf
	}
	if o.listName != "" && (filepath.Base(o.listName) != o.listName || filepath.Ext(o.listName) != ".conflist") {
		return fmt.Errorf("-list-name %s: want a file name that ends with .conflist", o.listName)
	}
	for flag, every := range map[string]time.Duration{"sweep": o.sweep, "repair": o.repair} {
		if every < 0 || every > 0 && every < time.Minute {
			return fmt.Errorf("-%s %v: want 1m or more, or 0 for never", flag, every)
		}
	}
	if _, port, err := net.SplitHostPort(o.metrics); o.metrics != "" && (err != nil || port == "") {
		return fmt.Errorf("-metrics %s: want an address with its port, such as 127.0.0.1:9476 or [::1]:9476", o.metrics)
	}
	if o.devices, err = newDevices(o.dev, o.deviceNames); err != nil {
		return err
	}
	if o.entry, err = listEntry(o); err != nil {
		return err
	}
	o.drainEntry, err = json.Marshal(map[string]any{"type": "guestwire", "state": o.state, "dir": o.dir, "capabilities": map[string]bool{podsandbox.Capability: false}})
	return err
}

// listEntry returns guestwire's entry of a CNI list.
func listEntry(o *options) (json.RawMessage, error) {
	entry := struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
		State        string          `json:"state,omitempty"`
		Dir          string          `json:"dir,omitempty"`
		Spec         json.RawMessage `json:"spec,omitempty"`
		TrustPods    bool            `json:"trustPods,omitempty"`
		EveryNIC     bool            `json:"everyNIC,omitempty"`
	}{"guestwire", map[string]bool{podsandbox.Capability: true, podsandbox.CapabilityDNS: true}, o.state, o.dir, nil, o.trustPods, o.everyNIC}
	if o.spec != "" {
		if _, err := podsandbox.ReadDefaults(json.RawMessage(o.spec), o.trustPods); err != nil {
			return nil, fmt.Errorf("-%w", err) // its field is below spec
		}
		entry.Spec = json.RawMessage(o.spec)
	}
	return json.Marshal(entry)
}
