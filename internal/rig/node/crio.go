package node

import (
	"fmt"
	"path/filepath"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// Files of CRI-O in the node.
const (
	crioSocket  = "/run/crio/crio.sock"
	crioConfig  = "/etc/crio/crio.conf"
	crioPolicy  = "/etc/containers/policy.json"
	crioRuntime = "/opt/crio/runtime"
	crioStorage = "/var/lib/containers/storage"
	crioRunRoot = "/run/containers/storage"
)

// CRIO keeps no process of its own in a sandbox whose containers have their own PID namespaces (drop_infra_ctr, its
// default). It needs Debian's conmon. A container that ignores SIGTERM keeps StopPodSandbox for ctr_stop_timeout, which
// is 30 seconds or more.
var CRIO = &Runtime{
	Name:     "crio",
	socket:   crioSocket,
	config:   crioConfig,
	unpacked: "podman",
	files: func(e *Engine) map[string]File {
		config := fmt.Sprintf(crioTOML, crioStorage, crioRunRoot, crioSocket, filepath.Join(e.config.Programs, "pinns"),
			crioRuntime, unpacked.Path("podman/usr/bin/conmon"), PauseImage, crioPolicy, CNIConf, CNIBin, NRI)
		return map[string]File{
			crioConfig:  {Content: []byte(config), Mode: 0o644},
			crioPolicy:  {Content: []byte(`{"default": [{"type": "insecureAcceptAnything"}]}`), Mode: 0o644},
			crioRuntime: {Content: fmt.Appendf(nil, crioRunc, e.config.Runc), Mode: 0o755},
		}
	},
	load: func(e *Engine, name, archive string) error {
		_, err := e.Node.Run(filepath.Join(e.config.Programs, "copyimg"), "--root", crioStorage, "--runroot", crioRunRoot, "--storage-driver", "overlay",
			"--signature-policy", crioPolicy, "--import-from", "oci-archive:"+archive, "--image-name", name)
		return err
	},
}

const crioTOML = `[crio]
root = %q
runroot = %q
storage_driver = "overlay"
version_file = ""
[crio.api]
listen = %q
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = %q
seccomp_profile = "unconfined"
hooks_dir = []
[crio.runtime.runtimes.runc]
runtime_path = %q
monitor_path = %q
monitor_cgroup = "pod"
[crio.image]
pause_image = %q
pause_command = ""
signature_policy = %q
[crio.network]
network_dir = %q
plugin_dirs = [%q]
[crio.nri]
enable_nri = true
nri_listen = %q
`

// crioRunc is runc without a wish that needs CAP_SYS_RESOURCE, as with containerd's restrict_oom_score_adj.
const crioRunc = `#!/bin/sh
for word; do
	[ "$last" != --bundle ] || sed -i "s/\"oomScoreAdj\": *-[0-9]*/\"oomScoreAdj\":$(cat /proc/self/oom_score_adj)/" "$word/config.json"
	last=$word
done
exec %s "$@"
`
