package tutorial

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

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
