package tutorial

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Errorf(format string, args ...any) { r.failed += fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// TestType: what a page shows is compared with what its commands print.
func TestType(t *testing.T) {
	need(t) // a recorder that is skipped looks like one that has not failed
	const guest = "```sh\nstty echo; HOME=/ PS1='~ # ' dash -i; stty -echo # until exit\n```\n"
	for _, test := range []struct{ name, page, failure string }{
		{"lines", "```sh\ncd /usr\npwd; echo $HOME\n```\n\nText.\n\n```\n/usr\n/...\n```\n```sh\npwd\n```\n```\n/usr\n```\n", ""},
		{"lines left out", "```sh\nseq 9\n```\n```\n...\n3\n...\n```\n", ""},
		{"no output shown", "```sh\nseq 9\n```\n```go\nfunc\n```\n", ""},
		{"other output", "```sh\necho one; echo two\n```\n```\none\n```\n", "line 4: the page shows\none\nand the commands print\none\ntwo\n"},
		{"failure", "```sh\nfalse\ntrue\n```\n", "the shell has ended in\nfalse"},
		{"failure beside a daemon", "```sh\nsetsid sleep 1000 >/dev/null 2>&1 </dev/null &\nfalse\n```\n", "the shell has ended"},
		{"failure before a pipe", "```sh\nfalse | true\n```\n", "the shell has ended"},
		{"failure that is shown", "```sh\nls /none 2>&1 | cat # fails: it is not there\necho on\n```\n```\nls: ...\non\n```\n", ""},
		{"no failure", "```sh\ntrue # fails\n```\n", "the shell has ended"},
		{"a fresh machine", "```sh\n[ ! -e /run/netns ]; ls /usr/local/bin; ls -A ~\n```\n```\n```\n", ""},
		{"another shell", "```sh\ncd /; trap 'kill %%; exit' INT; echo on; sleep 1000 & wait # until Ctrl-C\n```\n```\non\n```\n```sh\nls go.work\n```\n", "the page leaves a command"},
		{"Ctrl-C", "```sh\n(trap 'exit 0' INT; echo on; read) # until Ctrl-C\n```\n```\non\n```\nPress Ctrl-C.\n", ""},
		{"guest", guest + "```console\n~ # echo $((1 + 1))\n2\n~ # true\n```\n```console\n~ # exit\n```\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &recorder{TB: t}
			ended := make(chan bool)
			go func() {
				defer close(ended)
				typePage(r, test.page)
			}()
			<-ended
			if (r.failed != "") != (test.failure != "") || !strings.Contains(r.failed, test.failure) {
				t.Errorf("%q; want %q", r.failed, test.failure)
			}
		})
	}
}

// TestWords: code is not counted.
func TestWords(t *testing.T) {
	if _, words := parse("# A page\n\nThree more words:\n\n```sh\ntrue\n```\n"); words != 6 {
		t.Errorf("%d words; want 6", words)
	}
}

// TestKill: the end of a shell whose machine has gone already kills no process of a machine that was made since then.
func TestKill(t *testing.T) {
	need(t)
	s := open(t, here(t), true)
	s.send("exit\n")
	for done := false; !done; {
		s.mu.Lock()
		more := s.more
		done = s.done
		s.mu.Unlock()
		if !done {
			<-more
		}
	}
	own, err := os.Stat("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		other := exec.Command("unshare", "--mount", "sleep", "1000")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			other.Process.Kill()
			other.Wait()
		})
		nstest.Eventually(t, func() error {
			of, err := os.Stat(fmt.Sprintf("/proc/%d/ns/mnt", other.Process.Pid))
			if err == nil && os.SameFile(of, own) {
				err = errors.New("it has no mounts of its own so far")
			}
			return err
		})
		s.kill()
		var end unix.Siginfo
		if err := unix.Waitid(unix.P_PID, other.Process.Pid, &end, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil || end.Signo != 0 {
			t.Fatalf("a process of another machine has ended: %v, signal %d", err, end.Signo)
		}
	}
}
