package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestModuleOrder(t *testing.T) {
	dir := t.TempDir()
	const dep = `kernel/net/9p/9pnet.ko: kernel/fs/netfs/netfs.ko
kernel/fs/netfs/netfs.ko:
kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/fscache/fscache.ko kernel/fs/netfs/netfs.ko
kernel/fs/fscache/fscache.ko: kernel/fs/netfs/netfs.ko
`
	if err := os.WriteFile(filepath.Join(dir, "modules.dep"), []byte(dep), 0o600); err != nil {
		t.Fatal(err)
	}
	k := kernel{moduleDir: dir}
	got, err := k.modules([]string{"9pnet", "9p"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"kernel/fs/netfs/netfs.ko", "kernel/net/9p/9pnet.ko",
		"kernel/fs/fscache/fscache.ko", "kernel/fs/9p/9p.ko",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := k.modules([]string{"dummy"}); err == nil || !strings.Contains(err.Error(), "no module dummy") {
		t.Errorf("a module that is not there: error %v", err)
	}
}

func TestChannel(t *testing.T) {
	var b bytes.Buffer
	f := &frames{w: &b}
	long := strings.Repeat("0123456789", maxFrame/5)
	if err := f.copy(frameStdout, strings.NewReader(long)); err != nil {
		t.Fatal(err)
	}
	if err := f.send(frameStatus, []byte("7")); err != nil {
		t.Fatal(err)
	}
	whole := bytes.Clone(b.Bytes())
	var out []byte
	for {
		kind, body, err := readFrame(&b)
		if err != nil {
			t.Fatal(err)
		}
		if kind == frameStatus {
			if string(body) != "7" {
				t.Errorf("status %q, want 7", body)
			}
			break
		}
		if kind != frameStdout {
			t.Errorf("kind %q", kind)
		}
		out = append(out, body...)
	}
	if string(out) != long {
		t.Errorf("%d octets arrived and are not the %d that were sent", len(out), len(long))
	}

	if _, _, err := readFrame(bytes.NewReader(whole[:len(whole)/4])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a frame that breaks off: error %v", err)
	}
	if _, _, err := readFrame(strings.NewReader("o\xff\xff\xff\xff")); err == nil {
		t.Error("a frame of 4 GiB is taken")
	}
}
