package node

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// victim is set in the environment of a test process that is killed.
const victim = "GUESTWIRE_NODE_VICTIM"

// TestVictim is that process: it has a node with a program in it, says where, and waits.
func TestVictim(t *testing.T) {
	if os.Getenv(victim) == "" {
		return // TestKilled runs it
	}
	n := New(t, Config{Dir: os.Getenv(victim)})
	p, err := n.Start("sleeper", "sleep", "inf")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("victim: %d %d %s\n", n.Pid, p.Pid, strings.Join(n.cgroups, " "))
	io.Copy(io.Discard, os.Stdin) // the other test process may end without killing this one
}

// TestKilled: nothing of a node is left when the test process gets SIGKILL.
func TestKilled(t *testing.T) {
	nstest.Need(t)
	nstest.NeedRoot(t, "a node has cgroups and devices of its own")
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestVictim$")
	cmd.Env = append(os.Environ(), victim+"="+Dir(t))
	out, err := cmd.StdoutPipe()
	if err == nil {
		_, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	var gone []string
	said := bufio.NewScanner(out)
	for gone == nil && said.Scan() {
		if line, ok := strings.CutPrefix(said.Text(), "victim: "); ok {
			words := strings.Fields(line)
			gone = append([]string{"/proc/" + words[0], "/proc/" + words[1]}, words[2:]...)
		}
	}
	if len(gone) < 3 {
		t.Fatalf("the process says nothing: %v", said.Err())
	}
	for _, path := range gone {
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		for _, path := range gone {
			if _, err := os.Stat(path); err == nil {
				return fmt.Errorf("%s is left", path)
			}
		}
		return nil
	})
}
