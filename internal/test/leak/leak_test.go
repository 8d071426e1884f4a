package leak_test

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/leak"
)

// The main thread cannot end: a goroutine that ends on it leaves it where it is. This keeps it for the
// main goroutine.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { leak.Main(m) }

// TestLeft leaves something of each kind, and then takes it away.
func TestLeft(t *testing.T) {
	for _, test := range []struct {
		name, want string
		leave      func(t *testing.T) (takeAway func())
	}{
		{"goroutine", "goroutine: goroutine ", func(*testing.T) func() {
			end := make(chan struct{})
			go func() { <-end }()
			return func() { close(end) }
		}},
		{"file", "open file: /dev/null (1)", func(t *testing.T) func() {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			return func() { f.Close() }
		}},
		{"pipe", "open file: pipe:[", func(t *testing.T) func() {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			return func() { r.Close(); w.Close() }
		}},
		{"process", "process: ", func(t *testing.T) func() {
			cmd := exec.Command("sleep", "1000")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			return func() {
				cmd.Process.Kill()
				cmd.Wait()
			}
		}},
		{"namespace", "thread in another network namespace: net:[", func(t *testing.T) func() {
			end, entered := make(chan struct{}), make(chan error)
			go func() {
				runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
				entered <- unix.Unshare(unix.CLONE_NEWNET)
				<-end
			}()
			if err := <-entered; err != nil {
				close(end)
				t.Skipf("no namespace can be made: %v", err)
			}
			return func() { close(end) }
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, err := leak.Take()
			if err != nil {
				t.Fatal(err)
			}
			takeAway := test.leave(t)
			lines, err := before.Left(100 * time.Millisecond)
			takeAway()
			if err != nil || !strings.Contains("\n"+strings.Join(lines, "\n"), "\n"+test.want) {
				t.Errorf("left are %q, %v; want %q among them", lines, err, test.want)
			}
			if lines, err := before.Left(30 * time.Second); err != nil || len(lines) > 0 {
				t.Errorf("left are %q, %v; want nothing any more", lines, err)
			}
		})
	}
}

// left keeps the file from being closed by the garbage collector.
var left *os.File

// TestRunFails starts a run of its own whose test leaves an open file.
func TestRunFails(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and -short is set")
	}
	if os.Getenv("GUESTWIRE_LEAK") != "" {
		var err error
		if left, err = os.Open(os.DevNull); err != nil {
			t.Fatal(err)
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestRunFails$")
	cmd.Env = append(os.Environ(), "GUESTWIRE_LEAK=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "open file: /dev/null") {
		t.Errorf("%v, want a run that fails and names the file:\n%s", err, out)
	}
}
