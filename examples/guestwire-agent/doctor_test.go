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
		if said := len(f) > 0; said != (c.want != "") || said && (f[0].Kind != warning || !strings.Contains(f[0].Why, c.want)) {
			t.Errorf("modules_disabled %q, modprobe %q: %v, want %q", c.disabled, c.loader, f, c.want)
		}
	}
}

// TestSecurity: SELinux that enforces, and a profile of AppArmor, are warnings with the page that has the rules.
func TestSecurity(t *testing.T) {
	const lsm, enforce, profile = "/sys/kernel/security/lsm", "/sys/fs/selinux/enforce", "/proc/self/attr/apparmor/current"
	for _, c := range []struct {
		files   map[string]string
		context string
		level   string
		want    string
	}{
		{map[string]string{}, "", ok, "not seen here"},
		{map[string]string{lsm: "capability,yama"}, "", ok, "nothing confines"},
		{map[string]string{lsm: "capability,selinux", enforce: "0"}, "", ok, "nothing confines"},
		{map[string]string{enforce: "1"}, "u:r:vmm_t", ok, "nothing confines"},
		{map[string]string{enforce: "1"}, "", warning, "owner.selinux has to name the launcher's context"},
		{map[string]string{lsm: "capability,apparmor", profile: "unconfined\n"}, "", ok, "nothing confines"},
		{map[string]string{profile: "docker-default (enforce)\n"}, "", warning, "by docker-default (enforce): docs/how-to/confine.md"},
	} {
		root := t.TempDir()
		for name, text := range c.files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var f findings
		f.security(root, c.context)
		if len(f) != 1 || f[0].Kind != c.level || !strings.Contains(f[0].Why, c.want) {
			t.Errorf("%v: %v, want %s with %q", c.files, f, c.level, c.want)
		}
	}
}
