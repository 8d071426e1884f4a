package nstest

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// HoldLocks lets the launcher's user lock each directory and file below the paths that it can open, until the end of
// the test. It returns those that it holds.
func HoldLocks(t *testing.T, paths ...string) (held []string) {
	t.Helper()
	Need(t, "bash", "flock", "find")
	uid := uint32(LauncherUID)
	cmd := exec.Command("bash", append([]string{"-c", `while read -r file; do
	exec {fd}<"$file" && flock --exclusive --nonblock $fd && echo "$file"
done 2>/dev/null < <(find "$@" -type f -o -type d); echo; read -r`, "bash"}, paths...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal("as user " + strconv.Itoa(LauncherUID) + ": " + err.Error())
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != ""; {
		held = append(held, strings.TrimSpace(lines.Text()))
	}
	return held
}
