package main

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/internal/test/longjson"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1/launch"
)

// harmless are the signals that do nothing, as docs/reference/signals.md says.
func harmless(t *testing.T) (signals []syscall.Signal) {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/signals.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Z0-9, ]+) \|.*\| nothing \|$`).FindAllStringSubmatch(string(text), -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			signals = append(signals, unix.SignalNum("SIG"+name))
		}
	}
	if !slices.Contains(signals, syscall.SIGTERM) || !slices.Contains(signals, syscall.SIGHUP) || slices.Contains(signals, 0) {
		t.Fatalf("the table says that %v do nothing", signals)
	}
	return signals
}

// TestSidecarReaders: what reads the log can close it and stop. The guest is answered until Shutdown.
func TestSidecarReaders(t *testing.T) {
	for name, full := range map[string]bool{"closed": false, "full": true} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(t)
			records := wire(t, pod)
			dir := nstest.Dir(t)
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(dir, "hook.sock")
			var log [2]int
			if err := unix.Pipe2(log[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(log[0])
			for full {
				if _, err := unix.Write(log[1], []byte{'.'}); err != nil {
					break
				}
			}
			if err := unix.SetNonblock(log[1], false); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/proc/self/exe", "-state", pod.State, "-socket", socket)
			cmd.Args[0] = "kubevirt"
			cmd.Stderr = os.NewFile(uintptr(log[1]), "log")
			if err := launch.Start(cmd, pod.NetNS, pod.Owner); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill() // if it is still there
			cmd.Stderr.(*os.File).Close()
			if !full {
				unix.Close(log[0])
				log[0] = -1
			}
			nstest.Eventually(t, func() error {
				c, err := net.Dial("unix", socket)
				if err == nil {
					c.Close()
				}
				return err
			})
			if _, err := call(t, socket, hooks+"OnDefineDomain", recorded(t, "OnDefineDomain-amd64")); err != nil {
				t.Fatal(err)
			}
			if _, err := guestwiretest.NewGuest(t, pod, records["eth0"]).DHCPv4(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := call(t, socket, hooks+"Shutdown", nil); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSidecar: the calls of a VM's life. The guest is answered from OnDefineDomain on, also after the SIGTERM that a
// pod's containers get when the pod is deleted, until Shutdown.
func TestSidecar(t *testing.T) {
	pod := newPod(t)
	records := wire(t, pod)
	socket, cmd := startServer(t, pod, "-state", pod.State)
	m, err := call(t, socket, info, nil)
	if err != nil || m.get(1) != "guestwire" || m.get(4) != "v1alpha3" || strings.Join(m[3], "") != "\n\x0eOnDefineDomain\n\bShutdown" {
		t.Fatalf("Info: %q, %v", m, err)
	}
	for _, release := range []string{"", "v1.5.0-"} {
		request := recorded(t, "PreCloudInitIso-"+release+"amd64")
		in, err := decode(request)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := call(t, socket, hooks+"PreCloudInitIso", request); err != nil || m.get(1) != in.get(1) || m[2] != nil || m.get(3) != in.get(3) || m.get(3) == "" {
			t.Errorf("PreCloudInitIso: %q, %v", m, err)
		}
	}
	for _, signal := range harmless(t) {
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatalf("%v: %v", signal, err)
		}
	}
	if _, err := call(t, socket, hooks+"OnDefineDomain", recorded(t, "OnDefineDomain-amd64")); err != nil {
		t.Fatal(err)
	}
	guest := guestwiretest.NewGuest(t, pod, records["eth0"])
	if err := guest.Configure(t.Context()); err != nil {
		t.Fatal(err)
	}
	answer, err := pod.World.Ask(t.Context(), netip.AddrPortFrom(pod.IPv4, guestwiretest.Port))
	if err != nil || !strings.HasPrefix(answer, "guest sees ") {
		t.Errorf("the world asks: %q, %v; want the guest", answer, err)
	}
	if _, err := call(t, socket, hooks+"Shutdown", nil); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestTwoSidecars: KubeVirt starts a sidecar for each binding of a VM, and knows their sockets by the names alone. Only
// one can answer the guest: the other one says so, and the VM does not start.
func TestTwoSidecars(t *testing.T) {
	for container, want := range map[string]string{"": "guestwire", "hook-sidecar-1": "hook-sidecar-1"} {
		cmd := exec.Command("/proc/self/exe", "-h")
		cmd.Args[0], cmd.Env = "kubevirt", append(os.Environ(), "CONTAINER_NAME="+container)
		if said, _ := cmd.CombinedOutput(); !strings.Contains(string(said), `"/var/run/kubevirt-hooks/`+want+`.sock"`) {
			t.Errorf("in container %q the usage is\n%s", container, said)
		}
	}
	pod := newPod(t)
	wire(t, pod)
	in, err := decode(recorded(t, "OnDefineDomain-amd64"))
	if err != nil {
		t.Fatal(err)
	}
	in[2][0] = strings.Replace(in[2][0], `"name":"blue","binding":{"name":"guestwire"}`, `"name":"blue","binding":{"name":"other"}`, 1)
	first, _ := startServer(t, pod, "-state", pod.State)
	if _, err := call(t, first, hooks+"OnDefineDomain", encode(in)); err != nil {
		t.Fatal(err)
	}
	second, _ := startServer(t, pod, "-state", pod.State, "-binding", "other")
	if _, err := call(t, second, hooks+"OnDefineDomain", encode(in)); err == nil || !strings.Contains(err.Error(), "give all interfaces of the VM the same binding") {
		t.Errorf("the second sidecar: %v", err)
	}
	in[2][0] = strings.ReplaceAll(in[2][0], `"binding":{"name":"guestwire"}`, `"binding":{"name":"other"}`)
	if _, err := call(t, first, hooks+"Shutdown", nil); err != nil { // as in a VM without the first binding
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		_, err := call(t, second, hooks+"OnDefineDomain", encode(in))
		return err
	})
}

// TestLongFlags: a flag's value that is far too long has a short error of one line.
func TestLongFlags(t *testing.T) {
	long := strings.Repeat("a", 120<<10) // the kernel takes 128 KiB (MAX_ARG_STRLEN)
	help := exec.Command("/proc/self/exe", "-h")
	help.Args[0] = "kubevirt"
	usage, _ := help.CombinedOutput()
	flags := regexp.MustCompile(`(?m)^  -([a-z-]+)( [A-Z]+)?$`).FindAllStringSubmatch(string(usage), -1)
	if len(flags) < 4 {
		t.Fatalf("%d flags in\n%s", len(flags), usage)
	}
	for _, flag := range flags {
		cmd := exec.Command("/proc/self/exe", "-socket="+filepath.Join(t.TempDir(), "none", "socket"), "-"+flag[1]+"="+long)
		cmd.Args[0] = "kubevirt"
		out, err := cmd.CombinedOutput()
		if said := strings.TrimSuffix(string(out), "\n"); err == nil || len(said) > longjson.MostError || strings.Contains(said, "\n") {
			t.Errorf("-%s: %v, %d octets: %.300s", flag[1], err, len(out), out)
		}
	}
}
