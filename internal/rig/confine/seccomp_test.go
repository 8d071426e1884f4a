package confine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/container"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// seccompProfile is the one of the documentation.
const seccompProfile = "../../../docs/how-to/confinement/seccomp-launcher.json"

// TestSeccomp: the launcher lives under the profile of the documentation, which podman loads, and what no launcher
// needs is refused.
func TestSeccomp(t *testing.T) {
	n := nstest.NewNetwork(t)
	self := copyOfSelf(t)
	e := container.NewIn(t, n.Pod, false)
	dir := nstest.Dir(t)
	program := filepath.Join(dir, "guestwire-launcher")
	nstest.Run(t, "cp", nstest.Program(t, "examples/guestwire-launcher"), program)
	nstest.Run(t, "cp", seccompProfile, filepath.Join(dir, "profile.json"))
	if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte("FROM scratch\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const temporary = "/host" // the test's, in podman's machine
	context := temporary + strings.TrimPrefix(dir, os.TempDir())
	profile := context + "/profile.json"
	e.MustPodman(t, "build --quiet --tag localhost/empty "+context)
	// The container has this machine's programs, and runs in the pod as the launcher's user without capabilities.
	run := func(seccomp, more string) string {
		line := fmt.Sprintf("run --network host --user %d --cap-drop all --security-opt no-new-privileges --security-opt seccomp=%s --device /dev/net/tun ", nstest.LauncherUID, seccomp)
		for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64", "/etc"} {
			line += "--volume " + dir + ":" + dir + ":ro "
		}
		return line + "--tmpfs /var/tmp --volume " + temporary + ":" + os.TempDir() + ":ro " + more
	}
	for _, c := range []struct{ name, seccomp, want string }{
		{"without the profile", "unconfined", "can: netlink tcp unix program passwd file memfd kill\ncannot: shadow sysctl namespace"},
		{"under the profile", profile, "can: passwd file\ncannot: netlink tcp unix program shadow sysctl namespace memfd kill"},
	} {
		out, err := e.Podman(run(c.seccomp, "--rm --env "+probe+"=1 localhost/empty "+self))
		if err != nil || out != c.want {
			t.Errorf("%s: %v, %s\nwant %s", c.name, err, out, c.want)
		}
	}

	launcherLives(t, n, self, filepath.Join(n.State, "resolv.conf"), func(args string) launched {
		e.MustPodman(t, run(profile, "--detach --name launcher localhost/empty "+program+" "+args))
		return launched{
			output: func() string { return e.MustPodman(t, "logs launcher") },
			stop: func() {
				e.MustPodman(t, "stop launcher")
				if code := e.MustPodman(t, "inspect --format '{{.State.ExitCode}}' launcher"); strings.TrimSpace(code) != "0" {
					t.Errorf("the launcher ended with %s", code)
				}
			},
		}
	})
}
