package child

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/tap"
)

// ErrNoSELinux means that the kernel runs without SELinux.
var ErrNoSELinux = errors.New("this kernel runs without SELinux")

// TryContext takes on the SELinux context as the creation of a tap does, and opens the device that creates taps. It
// changes nothing. The error is ErrNoSELinux, unix.EINVAL for what is no context of the policy, or fs.ErrPermission
// with the rules that the policy lacks.
func TryContext(context string) error {
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("context %s: %w", context, err)
	}
	if !strings.Contains(string(known), "\tselinuxfs\n") { // as is_selinux_enabled(3) asks
		return fmt.Errorf("context %s: %w", context, ErrNoSELinux)
	}
	return CallsOn(tap.Device).inContext(context)
}

// Make makes the calls in order, until one fails, and closes the file. Its error names the call that failed. An SELinux
// context is that of the process that makes them, a child of this one. If it is empty, this thread makes them.
func (c *Calls) Make(context string) error {
	if context != "" {
		return c.inContext(context)
	}
	return c.inThread()
}

// inContext makes the calls in the SELinux context.
func (c *Calls) inContext(context string) error {
	const attribute = "/proc/self/attr/current" // proc_pid_attr(5)
	enter := &Calls{}
	enter.open(attribute)
	enter.list = append(enter.list, systemCall{"write " + attribute, unix.SYS_WRITE, [3]uintptr{opened, enter.text(context), uintptr(len(context))}, 0})
	calls := append(enter.list, c.list...)
	p, err := inChild(calls, nil)
	runtime.KeepAlive(enter)
	runtime.KeepAlive(c)
	if err != nil {
		return fmt.Errorf("context %s: %w", context, err)
	}
	if p.errno == 0 {
		return nil
	}
	call, errno := calls[p.call], unix.Errno(p.errno)
	if needed := rulesFor(context, call, errno); needed != "" {
		return fmt.Errorf("%s in the context %s: %w: the policy has to allow %s; ausearch -m AVC shows what it has denied", call.name, context, errno, needed)
	}
	if call.number == unix.SYS_WRITE && errno == unix.EINVAL {
		return fmt.Errorf("the loaded policy has no context %s: %w", context, errno)
	}
	return fmt.Errorf("%s in the context %s: %w", call.name, context, errno)
}

// rulesFor names the rules without which SELinux denies the call; empty: something else has refused it.
func rulesFor(context string, call systemCall, errno unix.Errno) string {
	own, target := ownDomain(), domain(context)
	switch {
	case call.number == unix.SYS_WRITE && errno == unix.EACCES:
		return fmt.Sprintf(`"allow %s self:process setcurrent; allow %[1]s %s:process dyntransition;"`, own, target)
	case call.number == unix.SYS_OPENAT && errno == unix.EACCES:
		return fmt.Sprintf(`"allow %s tun_tap_device_t:chr_file { open read write ioctl };" (ls -Z %s shows the device's type)`, target, tap.Device)
	case call.number == unix.SYS_IOCTL && errno == unix.EACCES:
		return fmt.Sprintf(`"allow %s self:tun_socket { create relabelfrom relabelto };"`, target)
	case call.number == unix.SYS_IOCTL && errno == unix.EPERM:
		return fmt.Sprintf(`"allow %s self:capability net_admin;" (in a user namespace self:cap_userns)`, target)
	}
	return ""
}

// ownDomain is this process's.
func ownDomain() string {
	context, err := os.ReadFile("/proc/self/attr/current")
	if err != nil {
		return "this process's domain"
	}
	return domain(strings.TrimRight(string(context), "\x00\n"))
}

// domain is the type of a context, user:role:type:range.
func domain(context string) string {
	if parts := strings.Split(context, ":"); len(parts) >= 3 {
		return parts[2]
	}
	return context
}
