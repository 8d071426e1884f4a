// Package launch starts an unprivileged command, such as a launcher or a VMM, in a network namespace.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/command"
	"github.com/guestwire/guestwire/internal/idmap"
	"github.com/guestwire/guestwire/internal/netns"
)

// Run calls Start, then cmd.Wait. It returns the error of the one that fails. When ctx ends, the command gets SIGTERM,
// also if it is stopped, and SIGKILL after twenty seconds, or after cmd.WaitDelay if that is longer. A launcher gives
// its VMM ten (phase2/vmm). The error is the command's own end also then. If ctx has ended before, it is
// context.Cause(ctx).
//
// A command of exec.CommandContext is an error, as that kills it when its context ends.
func Run(ctx context.Context, cmd *exec.Cmd, ns *os.File, owner infra.Owner, groups ...uint32) error {
	return command.Run(ctx, cmd, grace, func() error { return Start(cmd, ns, owner, groups...) })
}

// Start is cmd.Start for an unprivileged command, such as the launcher. The command
//
//   - is in the namespace of the open file ns. If ns is nil, it is in the process's own;
//   - sees the links of ns in /sys, in a mount namespace of its own, if the caller may mount that. Most containers may
//     not: there a VMM takes the tap's descriptors ([phase2.OpenTap]);
//   - sees the files of /etc/netns/NAME in /etc, if ns has that name (ip-netns(8)). It is an error if it cannot;
//   - has owner's user and group. GID 0 is the user's group in the user database, or else the user's number;
//   - has no other groups than the named ones. If the user namespace denies setgroups(2), it has the caller's;
//   - has no capability, also as user 0;
//   - has no_new_privs set, and a new session keyring;
//   - has a new session without a terminal, so pass Ctrl-C on to it;
//   - has the files that cmd names alone. A terminal among them is a way out (docs/explanation/security.md);
//   - gets SIGKILL when the caller's process ends, unless its AppArmor profile or SELinux domain changes (prctl(2)).
//
// Its children do not get SIGKILL. If the caller runs in a container or a service, the end of that ends them, too. If
// cmd.Env is nil, the command has the caller's HOME.
//
// The errors are those of cmd.Start, and
//
//	fs.ErrPermission   SETUID, SETGID or KILL is missing, for another user
//	fs.ErrPermission   SETPCAP is missing, or SYS_ADMIN to enter ns
//	*cache.FieldError  owner names no user, or one that this user namespace does not have
//	*cache.FieldError  owner.Inside is set
//	fs.ErrPermission   the program's file has capabilities, which the command cannot get (setcap -r)
//	others             a field of cmd.SysProcAttr contradicts this list; the error names it
func Start(cmd *exec.Cmd, ns *os.File, owner infra.Owner, groups ...uint32) error {
	if err := startAs(cmd, ns, owner, groups); err != nil {
		return fmt.Errorf("start %s as user %d: %w", cmd.Path, owner.UID, err)
	}
	return nil
}

// grace is the time between SIGTERM and SIGKILL.
const grace = 20 * time.Second

func startAs(cmd *exec.Cmd, ns *os.File, owner infra.Owner, groups []uint32) error {
	given := cmd.SysProcAttr
	attributes := &syscall.SysProcAttr{}
	if given != nil {
		if err := checkAttributes(given); err != nil {
			return err
		}
		*attributes = *given
	}
	credential, err := credentialFor(owner, groups)
	if err != nil {
		return err
	}
	attributes.Credential, attributes.Pdeathsig = credential, syscall.SIGKILL
	// A process can push input into the terminal of its session (TIOCSTI), as if the caller's user typed it. A new
	// session has a process group of its own, and no terminal to leave.
	attributes.Setsid, attributes.Setpgid, attributes.Noctty = true, false, false

	// The command inherits from the thread that starts it, so the thread is the command's own.
	return command.Start(cmd, netns.OnThread, func() error {
		if err := dropPrivileges(ns, credential); err != nil {
			return err
		}
		err := start(cmd, attributes)
		if err != nil && cmd.Dir != "" { // cmd.Start reports the program then
			if _, errDir := os.Stat(cmd.Dir); errDir != nil {
				err = errDir
			}
		}
		return err
	})
}

// start is cmd.Start with the attributes, and without files that cmd does not name.
func start(cmd *exec.Cmd, attributes *syscall.SysProcAttr) error {
	entries, err := os.ReadDir("/proc/thread-self/fd")
	if err != nil {
		return fmt.Errorf("files that the command would inherit: %w", err)
	}
	given, files := cmd.SysProcAttr, cmd.ExtraFiles
	defer func() { cmd.SysProcAttr, cmd.ExtraFiles = given, files }()
	cmd.SysProcAttr = attributes
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			return fmt.Errorf("files that the command would inherit: %w", err)
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if missing := fd - 2 - len(cmd.ExtraFiles); err == nil && flags&unix.FD_CLOEXEC == 0 && missing > 0 {
			cmd.ExtraFiles = slices.Concat(cmd.ExtraFiles, make([]*os.File, missing)) // nil closes the command's (os.ProcAttr)
		}
	}
	err = cmd.Start()
	if inherited := 2 + len(cmd.ExtraFiles); errors.Is(err, unix.EBADF) && len(cmd.ExtraFiles) > len(files) {
		err = fmt.Errorf("%w: file %d is open without close-on-exec, at the limit of open files: close it, or raise RLIMIT_NOFILE", err, inherited)
	}
	return err
}

// checkAttributes refuses what contradicts Start.
func checkAttributes(a *syscall.SysProcAttr) error {
	const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNET
	for _, f := range []struct {
		name  string
		given bool
		why   string
	}{
		{"Credential", a.Credential != nil, "owner and groups name the user"},
		{"AmbientCaps", len(a.AmbientCaps) > 0, "the command gets no capability"},
		{"Foreground", a.Foreground, "the command has a session of its own, and not the caller's terminal"},
		{"Pgid", a.Pgid != 0, "the command has a session of its own, and no process group of another session"},
		{"Pdeathsig", a.Pdeathsig != 0 && a.Pdeathsig != syscall.SIGKILL, "the command gets SIGKILL"},
		{"Ptrace", a.Ptrace, "the tracer would be a thread that the caller does not have"},
		{"Cloneflags", a.Cloneflags&namespaces != 0, "the command stays in the user namespace, and in the network namespace that is named"},
		{"Unshareflags", a.Unshareflags&namespaces != 0, "the command stays in the user namespace, and in the network namespace that is named"},
		{"UidMappings", len(a.UidMappings) > 0, "the command stays in the user namespace"},
		{"GidMappings", len(a.GidMappings) > 0, "the command stays in the user namespace"},
	} {
		if f.given {
			return fmt.Errorf("SysProcAttr.%s: %s: leave it out", f.name, f.why)
		}
	}
	return nil
}

// credentialFor returns the user and the groups of the command.
func credentialFor(owner infra.Owner, groups []uint32) (*syscall.Credential, error) {
	if owner.Inside {
		return nil, &cache.FieldError{Field: "owner.inside", Reason: "the command would stay in this user namespace: have the container's engine start the launcher, or name the user by the numbers of this user namespace, without inside"}
	}
	if owner.UID == 0 && !owner.Root {
		return nil, &cache.FieldError{Field: "owner", Reason: "missing: name the command's user (Owner.UID, or Owner.Root; guestwire-agent -uid, where 0 is root)"}
	}
	if err := idmap.CheckOwner(owner); err != nil {
		return nil, err
	}
	groups = slices.Compact(slices.Sorted(slices.Values(groups)))
	c := &syscall.Credential{Uid: owner.UID, Gid: groupOf(owner), Groups: groups}
	// The owner is checked. The group may be one of the user database.
	if err := idmap.Check("owner.gid", "/proc/self/gid_map", c.Gid); err != nil {
		return nil, err
	}
	for _, g := range groups {
		if err := idmap.Check("groups", "/proc/self/gid_map", g); err != nil {
			return nil, err
		}
	}
	has, err := os.Getgroups()
	if err != nil {
		return nil, fmt.Errorf("supplementary groups: %w", err)
	}
	missing := slices.ContainsFunc(groups, func(g uint32) bool { return !slices.Contains(has, int(g)) })
	switch {
	case !missing && len(has) == len(groups):
		c.NoSetGroups = true // needs no capability
	case setgroupsDenied():
		if missing {
			return nil, &cache.FieldError{Field: "groups", Reason: fmt.Sprintf("this user namespace denies setgroups(2), and the caller has only the groups %d: name some of them, or none", has)}
		}
		c.NoSetGroups = true
	}
	return c, nil
}

// groupOf returns the group of the owner's processes.
func groupOf(o infra.Owner) uint32 {
	if o.GID != 0 || o.UID == 0 {
		return o.GID
	}
	if u, err := user.LookupId(strconv.FormatUint(uint64(o.UID), 10)); err == nil {
		if gid, err := strconv.ParseUint(u.Gid, 10, 32); err == nil {
			return uint32(gid)
		}
	}
	return o.UID
}

// setgroupsDenied reports whether the user namespace denies setgroups(2) to everybody (user_namespaces(7)).
func setgroupsDenied() bool {
	text, err := os.ReadFile("/proc/self/setgroups")
	return err == nil && strings.HasPrefix(string(text), "deny")
}

// isOtherNetNS reports whether ns is another network namespace than the calling thread's. Nil is not.
func isOtherNetNS(ns *os.File) (bool, error) {
	if ns == nil {
		return false, nil
	}
	wanted, err := netns.Identify(ns)
	if err != nil {
		return false, err
	}
	var own unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return false, &fs.PathError{Op: "stat", Path: "/proc/thread-self/ns/net", Err: err}
	}
	return own.Dev != wanted.Device || own.Ino != wanted.Inode, nil
}

// dropPrivileges moves the calling thread into ns, if there is one, and removes all by which a command of the
// credential could gain privileges. The thread keeps the capabilities by which the command becomes that user; they end
// with exec, as nothing passes them on.
func dropPrivileges(ns *os.File, c *syscall.Credential) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	need := func(capability int, name, what string) error {
		if sets[capability/32].Effective&(1<<(capability%32)) != 0 {
			return nil
		}
		return fmt.Errorf("%s is missing, which %s: %w", name, what, fs.ErrPermission)
	}
	other, err := isOtherNetNS(ns)
	if err != nil {
		return err
	}
	if other {
		if err := need(unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "enters another network namespace"); err != nil {
			return err
		}
		if err := netns.Enter(ns); err != nil {
			return err
		}
		if err := ownFiles(ns); err != nil {
			return err
		}
	}
	if r, e, s := unix.Getresuid(); slices.ContainsFunc([]int{r, e, s}, func(id int) bool { return uint32(id) != c.Uid }) {
		if err := need(unix.CAP_SETUID, "CAP_SETUID", "changes the user"); err != nil {
			return err
		}
	}
	// The kernel asks for this also when it sends the death signal (kill(2)).
	if r, e, _ := unix.Getresuid(); uint32(r) != c.Uid && uint32(e) != c.Uid {
		if err := need(unix.CAP_KILL, "CAP_KILL", "ends a command of another user"); err != nil {
			return err
		}
	}
	r, e, s := unix.Getresgid()
	if !c.NoSetGroups || slices.ContainsFunc([]int{r, e, s}, func(id int) bool { return uint32(id) != c.Gid }) {
		if err := need(unix.CAP_SETGID, "CAP_SETGID", "changes the groups"); err != nil {
			return err
		}
	}
	for capability := 0; ; capability++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(capability), 0, 0, 0)
		if err == unix.EINVAL {
			break // the kernel has no more
		}
		if err != nil {
			return fmt.Errorf("bounding set: %w", err)
		}
		if has == 0 {
			continue
		}
		if err := need(unix.CAP_SETPCAP, "CAP_SETPCAP", "empties the bounding set"); err != nil {
			return err
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0); err != nil {
			return fmt.Errorf("bounding set: %w", err)
		}
	}
	// What is not inheritable is not ambient either.
	for i := range sets {
		sets[i].Inheritable = 0
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("inheritable set: %w", err)
	}
	if err := leaveKeyring(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}

// leaveKeyring gives the calling thread a session keyring of its own. Who has one may read its keys, whatever the user.
func leaveKeyring() error {
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	switch err {
	case nil, unix.ENOSYS, unix.EPERM: // without keys in the kernel, or in an engine's seccomp filter, which the command has, too
		return nil
	}
	return fmt.Errorf("session keyring (the limits are the sysctls kernel.keys.*): %w", err)
}
