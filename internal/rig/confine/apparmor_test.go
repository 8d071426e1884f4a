package confine

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// appArmorProfile is the one of the documentation, program the path that it names.
const (
	appArmorProfile = "../../../docs/how-to/confinement/apparmor-launcher"
	program         = "/usr/local/bin/guestwire-launcher"
)

// TestAppArmor: the launcher lives under the profile of the documentation, and what no launcher needs is denied, even
// to root.
func TestAppArmor(t *testing.T) {
	t.Parallel()
	parser := tool(t, "sbin/apparmor_parser", "--base", unpacked.Path("confine/etc/apparmor.d"), "--replace", "--skip-cache", "--config-file", os.DevNull, appArmorProfile)
	if !inStockKernel(t, "security=apparmor") {
		return
	}
	if err := unix.Mount("securityfs", "/sys/kernel/security", "securityfs", 0, ""); err != nil && err != unix.EBUSY {
		t.Fatal(err)
	}
	if out, err := parser.CombinedOutput(); err != nil {
		t.Fatalf("apparmor_parser: %v\n%s", err, out)
	}
	self := copyOfSelf(t)
	install := func(path string) {
		t.Helper()
		nstest.Run(t, "install", "-m", "755", path, program) // of a machine that forgets
	}
	install(self)
	out, err := output("env", probe+"=1", self)
	if want := "can: netlink tcp unix program shadow passwd sysctl file namespace memfd kill\ncannot: \n"; err != nil || out != want {
		t.Errorf("without the profile: %v, %s\nwant %s", err, out, want)
	}
	out, err = output("env", probe+"=1", program)
	if want := "can: memfd kill\ncannot: netlink tcp unix program shadow passwd sysctl file namespace\n"; err != nil || out != want {
		t.Errorf("under the profile: %v, %s\nwant %s", err, out, want)
	}

	nstest.Run(t, "dmesg", "--clear")
	install(nstest.Program(t, "examples/guestwire-launcher"))
	n := nstest.NewNetwork(t)
	n.State = "/run/guestwire/vm1"
	if err := os.MkdirAll("/run/guestwire", 0o755); err != nil {
		t.Fatal(err)
	}
	launcherLives(t, n, self, "/etc/resolv.conf", func(args string) launched {
		p := start(t, append(unprivileged(n, "true", program), strings.Fields(args)...))
		return launched{p.Output.String, func() { p.stop(t) }}
	})
	for line := range strings.Lines(nstest.Run(t, "dmesg")) {
		if strings.Contains(line, `apparmor="DENIED"`) {
			t.Errorf("the launcher needs more: %s", line)
		}
	}
}
