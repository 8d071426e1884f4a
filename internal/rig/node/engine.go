package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// Paths in the node, where an engine looks by default.
const (
	CNIConf = "/etc/cni/net.d"
	CNIBin  = "/opt/cni/bin"
	Socket  = "/run/containerd/containerd.sock"
	NRI     = "/run/nri/nri.sock"
)

// logLines is how much of each log a failed test shows.
const logLines = 40

// Runtime is a program that answers CRI calls.
type Runtime struct {
	// Name is that of the program, and of its log.
	Name string

	socket   string // in the node
	config   string // the path of the configuration in the node, for --config
	unpacked string // the directory below unpacked.Path that the engine needs
	files    func(*Engine) map[string]File
	load     func(e *Engine, name, archive string) error
}

// Containerd keeps a first process in each sandbox.
var Containerd = &Runtime{
	Name:     "containerd",
	socket:   Socket,
	config:   "/etc/containerd/config.toml",
	unpacked: "containerd",
	files: func(e *Engine) map[string]File {
		return map[string]File{"/etc/containerd/config.toml": {Content: []byte(e.toml()), Mode: 0o644}}
	},
	load: func(e *Engine, _, archive string) error {
		_, err := e.Ctr("images", "import", archive)
		return err
	},
}

// EngineConfig says which engine runs in a node, and how.
type EngineConfig struct {
	// Runtime is the engine's program; nil: Containerd.
	Runtime *Runtime
	// Programs is the directory of containerd, containerd-shim-runc-v2 and ctr, or of crio, pinns and copyimg; empty:
	// Debian's containerd 1.6.
	Programs string
	// Runc is the path of runc; empty: Debian's runc 1.1.
	Runc string
	// Plugins is a directory of CNI plugins, which replace Debian's of the same names; empty: Debian's.
	Plugins string
	// MaxConf is how many CNI lists of CNIConf each pod gets, in the order of their files; 0: 1. Containerd's.
	MaxConf int
	// Handlers are runtime handlers in addition to the default one, each with its own directory of CNI lists.
	// Containerd's.
	Handlers map[string]string
	// More is appended to the configuration file of containerd. The version of the file is 2 with containerd 1.x, else 3.
	More string
	// CRI is the path of the program of internal/rig/node/cri.
	CRI string
}

// Engine is a containerd or a CRI-O in a node. CRI-O has NRI, and containerd from version 2 on.
type Engine struct {
	Node *Node
	// Version is as "containerd --version" or "crio --version" says, without v: 1.6.20.
	Version string

	config  EngineConfig
	process *Process
}

// NewEngine writes an engine's configuration, and links the CNI plugins into CNIBin. Start starts it; the engine
// ends with its node.
func NewEngine(n *Node, c EngineConfig) (*Engine, error) {
	if c.Runtime == nil {
		c.Runtime = Containerd
	}
	if c.Programs == "" {
		c.Programs = unpacked.Path("containerd/usr/bin")
	}
	if c.Runc == "" {
		c.Runc = unpacked.Path("containerd/usr/sbin/runc")
	}
	out, err := exec.Command(filepath.Join(c.Programs, c.Runtime.Name), "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", c.Runtime.Name, err)
	}
	found := regexp.MustCompile(` v?(\d+\.\d+\.\d+)`).FindSubmatch(out)
	if found == nil {
		return nil, fmt.Errorf("%s --version: %q", c.Runtime.Name, out)
	}
	e := &Engine{Node: n, Version: string(found[1]), config: c}
	for path, file := range c.Runtime.files(e) {
		if err := n.WriteFile(path, string(file.Content), fs.FileMode(file.Mode)); err != nil {
			return nil, err
		}
	}
	const setup = `mkdir -p "$0" "$1" /run/netns && ln -sf /usr/lib/cni/* ${2:+"$2"/*} "$0"`
	if _, err := n.Run("sh", "-c", setup, CNIBin, CNIConf, c.Plugins); err != nil {
		return nil, err
	}
	return e, nil
}

// toml is the configuration. restrict_oom_score_adj is for a machine without CAP_SYS_RESOURCE, disable_apparmor for one
// whose AppArmor has no parser.
func (e *Engine) toml() string {
	maxConf := max(1, e.config.MaxConf)
	runtime, cni := "io.containerd.grpc.v1.cri", fmt.Sprintf("bin_dir = %q", CNIBin)
	var b strings.Builder
	if strings.HasPrefix(e.Version, "1.") {
		fmt.Fprintf(&b, "version = 2\n[plugins.%q]\nsandbox_image = %q\n", runtime, PauseImage)
	} else {
		runtime, cni = "io.containerd.cri.v1.runtime", fmt.Sprintf("bin_dirs = [%q]", CNIBin)
		fmt.Fprintf(&b, "version = 3\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\nsocket_path = %q\n", NRI)
		fmt.Fprintf(&b, "[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = %q\n", PauseImage)
		fmt.Fprintf(&b, "[plugins.%q]\n", runtime)
	}
	fmt.Fprintf(&b, "disable_apparmor = true\nrestrict_oom_score_adj = true\n")
	fmt.Fprintf(&b, "[plugins.%q.cni]\n%s\nconf_dir = %q\nmax_conf_num = %d\n", runtime, cni, CNIConf, maxConf)
	handler := func(name, confDir string) {
		fmt.Fprintf(&b, "[plugins.%q.containerd.runtimes.%q]\nruntime_type = 'io.containerd.runc.v2'\n", runtime, name)
		if confDir != "" {
			fmt.Fprintf(&b, "cni_conf_dir = %q\ncni_max_conf_num = 1\n", confDir)
		}
		fmt.Fprintf(&b, "[plugins.%q.containerd.runtimes.%q.options]\nBinaryName = %q\n", runtime, name, e.config.Runc)
	}
	handler("runc", "")
	for name, confDir := range e.config.Handlers {
		handler(name, confDir)
	}
	return b.String() + e.config.More
}

// startTime is how long Start and Load wait.
const startTime = time.Minute

// Start starts the engine and waits until it answers. Its log is /var/log/containerd.log or /var/log/crio.log.
func (e *Engine) Start() error {
	var err error
	e.process, err = e.Node.Start(e.config.Runtime.Name, "PATH="+e.config.Programs+":/usr/sbin:/usr/bin:/sbin:/bin",
		filepath.Join(e.config.Programs, e.config.Runtime.Name), "--config", e.config.Runtime.config)
	if err != nil {
		return err
	}
	if err := e.ready(); err != nil {
		return fmt.Errorf("%s: %w\n%s", e.config.Runtime.Name, err, e.process.Tail(logLines))
	}
	return nil
}

// ready waits for the runtime's answer: the socket answers before all of the engine's services do.
func (e *Engine) ready() error {
	for end := time.Now().Add(startTime); ; time.Sleep(10 * time.Millisecond) {
		select {
		case <-e.process.Ended:
			return errors.Join(errors.New("the engine has ended"), e.process.Err)
		default:
		}
		_, err := os.Stat(e.Node.Path(e.config.Runtime.socket))
		if err == nil {
			err = e.CRI("Version", nil, nil)
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// Stop ends the engine by SIGTERM. Pods go on.
func (e *Engine) Stop() error { return e.process.Stop() }

// Kill ends the engine by SIGKILL. Pods go on.
func (e *Engine) Kill() error { return e.process.Kill() }

// CRI makes a call: see the program in the directory cri. Request and response are as encoding/json takes them, with
// the field names of the CRI; nil: an empty message, and a response that does not matter. The error is the engine's
// text.
func (e *Engine) CRI(method string, request, response any) error {
	return e.callCRI(runTime-time.Second, method, request, response)
}

// callCRI gives the call up at the limit, as a kubelet does.
func (e *Engine) callCRI(limit time.Duration, method string, request, response any) error {
	ctx, cancel := context.WithTimeout(context.Background(), runTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.config.CRI, "-socket", e.Node.Path(e.config.Runtime.socket), "-timeout", limit.String(), method)
	if request != nil {
		text, err := json.Marshal(request)
		if err != nil {
			return err
		}
		cmd.Stdin = bytes.NewReader(text)
	}
	var answer, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &answer, &complaint
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %s (%w)", method, bytes.TrimSpace(complaint.Bytes()), err)
	}
	if response == nil {
		return nil
	}
	return json.Unmarshal(answer.Bytes(), response)
}

// Load brings images to the engine and waits until it can run them.
func (e *Engine) Load(images ...Image) error {
	for _, i := range images {
		f, err := os.CreateTemp(e.Node.Dir, "image-*.tar")
		if err != nil {
			return err
		}
		err = errors.Join(i.Write(f), f.Close())
		if err == nil {
			err = e.Import(i.Name, f.Name())
		}
		if err := errors.Join(err, os.Remove(f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Import brings the image of that name to the engine from an archive, whose path is one of the node's.
func (e *Engine) Import(name, archive string) error {
	if err := e.config.Runtime.load(e, name, archive); err != nil {
		return err
	}
	return e.listed(name)
}

// listed waits until the CRI's list of images, which follows by an event, has the image.
func (e *Engine) listed(name string) error {
	for end := time.Now().Add(startTime); ; time.Sleep(10 * time.Millisecond) {
		var status struct{ Image *struct{ ID string } }
		err := e.CRI("ImageStatus", map[string]any{"image": map[string]string{"image": name}}, &status)
		if err == nil && status.Image != nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("image %s is not in the engine's list: %w", name, err)
		}
	}
}

// Ctr runs ctr(8) in the namespace of the CRI. It is containerd's.
func (e *Engine) Ctr(args ...string) (string, error) {
	return e.Node.Run(filepath.Join(e.config.Programs, "ctr"), append([]string{"--address", Socket, "--namespace", "k8s.io"}, args...)...)
}
