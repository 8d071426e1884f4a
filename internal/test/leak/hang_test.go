package leak

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// hang waits for ever: nobody sends, or ends.
func hang(t *testing.T, how string) {
	switch how {
	case "channel":
		<-make(chan int)
	case "group":
		var group sync.WaitGroup
		group.Add(1)
		t.Cleanup(group.Wait)
	case "process":
		cmd := exec.Command("sleep", "1000")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Wait(); out.Close() })
	case "file":
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		r.Read(make([]byte, 1))
	}
}

// TestHang starts runs of its own, whose test hangs with a subtest that has ended and a parallel one that waits for its
// turn. Each ends, and names the place.
func TestHang(t *testing.T) {
	const child = "GUESTWIRE_HANG"
	if how := os.Getenv(child); how != "" {
		longest.Store(0)
		go watch(50 * time.Millisecond)
		t.Run("parallel", func(t *testing.T) { t.Parallel() })
		t.Run("hangs", func(t *testing.T) { hang(t, how) })
		return
	}
	if testing.Short() {
		t.Skip("long, and -short is set")
	}
	for how, want := range map[string]string{"channel": "leak.hang(", "file": "leak.hang(", "process": "leak.hang.func1(", "group": "testing.(*common).Cleanup."} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHang$", "-test.timeout=2m")
			cmd.Env = append(os.Environ(), child+"="+how)
			out, err := cmd.CombinedOutput()
			if err == nil || !regexp.MustCompile(`(?m)^panic: test waits for 0 minutes at one place \(.*`+regexp.QuoteMeta(want)).Match(out) {
				t.Errorf("%v, want a panic that names %s:\n%s", err, want, out)
			}
		})
	}
}

// TestHangs: the minutes are those of the stack, and a test that waits for its subtests, or for its turn, does not
// hang.
func TestHangs(t *testing.T) {
	const stack = `goroutine 19 [%s, %d minutes]:
%sgithub.com/guestwire/guestwire/examples/guestwire-node.(*fakeKubelet).stop(0xc000132000)
	/guestwire/examples/guestwire-node/deviceplugin_test.go:73 +0x85
testing.tRunner(0x34a7e092c248, 0x34a7e0902048)
	/usr/local/go/src/testing/testing.go:2042 +0x114
created by testing.(*T).Run in goroutine 8
	/usr/local/go/src/testing/testing.go:2101 +0x4c5`
	const at = "github.com/guestwire/guestwire/examples/guestwire-node.(*fakeKubelet).stop(0xc000132000) at /guestwire/examples/guestwire-node/deviceplugin_test.go:73"
	frame := func(function string) string {
		return function + "(0x34a7e090a050)\n\t/usr/local/go/src/place.go:9 +0x85\n"
	}
	for _, c := range []struct {
		state   string
		minutes int
		top     string
		want    string
	}{
		{"sync.WaitGroup.Wait", 6, frame("sync.(*WaitGroup).Wait"), "waits for 6 minutes at one place (sync.WaitGroup.Wait): " + at},
		{"syscall", 5, frame("os.(*Process).pidfdWait") + frame("os/exec.(*Cmd).Wait"), "waits for 5 minutes at one place (syscall): " + at},
		{"chan receive", 4, "", ""},
		{"chan receive", 16, frame("testing.(*T).Run"), ""},
		{"chan receive", 16, frame("testing.(*testState).waitParallel") + frame("testing.(*T).Parallel"), ""},
		{"chan receive", 16, frame("testing.tRunner.func1"), ""},
	} {
		if have := hangs(fmt.Sprintf(stack, c.state, c.minutes, c.top), 5*time.Minute); have != c.want {
			t.Errorf("%+v: %q", c, have)
		}
	}
	if have := hangs(strings.Replace(fmt.Sprintf(stack, "IO wait", 60, ""), "testing.tRunner", "pkg.serve", 1), time.Minute); have != "" {
		t.Errorf("a goroutine of a fixture: %q", have)
	}
}
