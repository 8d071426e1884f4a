package main

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRelayReady: of what the command says, the manager is told that the command is ready, and nothing else.
func TestRelayReady(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	name := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	cmd := exec.Command("true")
	given := os.Getenv("TMPDIR")
	t.Setenv("TMPDIR", "/absent")
	if _, err := relayReady(cmd, 0); err == nil || !strings.Contains(err.Error(), "TMPDIR=DIR") {
		t.Errorf("without a directory: %v", err)
	}
	closed := t.TempDir() // below a directory that no other user can enter
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", closed)
	if _, err := relayReady(cmd, uint32(os.Getuid()+1)); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "cannot enter "+closed) {
		t.Errorf("in a directory that the user cannot enter: %v", err)
	}
	t.Setenv("TMPDIR", given)
	stop, err := relayReady(cmd, uint32(os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	own := strings.TrimPrefix(cmd.Env[len(cmd.Env)-1], "NOTIFY_SOCKET=")
	command, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: own})
	if err != nil {
		t.Fatal(err)
	}
	defer command.Close()
	for _, message := range []string{"MAINPID=1", "READY=10", "", "STATUS=served\nREADY=1\nMAINPID=1\n"} {
		if _, err := command.Write([]byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	told := make([]byte, 64)
	if n, err := manager.Read(told); err != nil || string(told[:n]) != "READY=1" {
		t.Errorf("the manager is told %q, %v", told[:n], err)
	}
	stop()
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
