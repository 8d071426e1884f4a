// Package confine tries guestwire under SELinux, AppArmor and seccomp, with the policies that docs/how-to/confine.md
// shows. SELinux and AppArmor enforce under Debian's kernel, seccomp under this one. The package has tests alone.
package confine
