package commandline_test

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/examples/commandline"
)

// TestReady: the message reaches a socket with a path, and an abstract one. Without a service manager nothing is sent,
// and a socket that is not there is an error that names the variable.
func TestReady(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	for _, name := range []string{path, "@guestwire-test-" + strconv.FormatInt(time.Now().UnixNano(), 36)} {
		manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		defer manager.Close()
		t.Setenv("NOTIFY_SOCKET", name)
		if err := commandline.Ready(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		said := make([]byte, 64)
		if n, err := manager.Read(said); err != nil || string(said[:n]) != "READY=1" {
			t.Errorf("%s: %q, %v", name, said[:n], err)
		}
	}
	for name, want := range map[string]string{"": "", path + "x": "NOTIFY_SOCKET=" + path + "x: dial unixgram", "@guestwire-nobody": "unset the variable"} {
		t.Setenv("NOTIFY_SOCKET", name)
		err := commandline.Ready()
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}
