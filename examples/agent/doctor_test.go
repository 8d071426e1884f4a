package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModules: a kernel that loads no modules is a warning, and one that was built without them is none.
func TestModules(t *testing.T) {
	for _, c := range []struct{ disabled, loader, want string }{
		{"0", "/sbin/modprobe", ""},
		{"", "", ""},
		{"1", "/sbin/modprobe", "kernel.modules_disabled is 1"},
		{"0", "/bin/true", "sysctl -w kernel.modprobe=/sbin/modprobe"},
		{"0", "\n", "sysctl -w kernel.modprobe=/sbin/modprobe"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"modules_disabled": c.disabled, "modprobe": c.loader} {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var f findings
		f.modules(dir)
		if said := len(f) > 0; said != (c.want != "") || said && (f[0].Level != warning || !strings.Contains(f[0].Text, c.want)) {
			t.Errorf("modules_disabled %q, modprobe %q: %v, want %q", c.disabled, c.loader, f, c.want)
		}
	}
}
