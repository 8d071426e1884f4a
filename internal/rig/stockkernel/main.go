// Command stockkernel runs a command under a kernel that Debian ships, in QEMU, with this
// machine's files: its root file system read-only by 9p under an overlay that forgets.
//
//	stockkernel [-v] [-kernel 6.12] [-timeout 10m] [-append ARGUMENTS] [-functions] [-env KEY=VALUE]... [--] COMMAND [ARGUMENT]...
//
// The command runs as root in the current directory with the caller's environment, all modules
// of that kernel at hand and no network but lo. Its standard output and error arrive as they are
// written. What it writes to files is lost. Compile outside: emulation is ten to twenty times
// slower.
//
// The exit status is the command's, 128 and the number if a signal ended it, 124 after the
// timeout, and 125 if the kernel did not boot or ended too early. ("go run" makes a 1 of them all.)
//
// Needs Linux on amd64, root to read all files, and what install.sh fetches. See init.go for the
// other end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// Statuses that are not the command's, as timeout(1) and containers have them.
const (
	statusTimeout = 124
	statusFailed  = 125
)

// kernels are the directories of the cache in which install.sh puts the versions.
var kernels = map[string]string{"6.1": "kernel", "6.12": "kernel-6.12"}

func main() {
	if os.Getpid() == 1 {
		guestMain()
		return
	}
	// QEMU must die with the thread that started it.
	runtime.LockOSThread()
	var (
		verbose = flag.Bool("v", false, "show the kernel's console on standard error")
		version = flag.String("kernel", "6.1", "`VERSION` of Linux: 6.1, which is Debian 12's, or 6.12, which is Debian 13's")
		timeout = flag.Duration("timeout", 10*time.Minute, "end the kernel after this time, boot included")
		cpus    = flag.Int("cpus", 2, "number of virtual CPUs")
		memory  = flag.Int("memory", 2048, "MiB of memory, of which files that are written may take half")
		more    = flag.String("append", "", "`ARGUMENTS` for the kernel in addition, such as security=selinux")
		sriov   = flag.Bool("functions", false, "a machine with an IOMMU and a card with virtual functions, by the QEMU of Debian's backports")
		env     = os.Environ()
	)
	flag.Func("env", "set `KEY=VALUE` for the command; may be repeated", func(s string) error {
		env = append(env, s)
		return nil
	})
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}

	cached, ok := kernels[*version]
	if !ok {
		fmt.Fprintf(os.Stderr, "stockkernel: -kernel %s: there are 6.1 and 6.12\n", *version)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, errTimeout)
	defer cancel()

	if *sriov {
		env = append(env, "GUESTWIRE_FUNCTIONS="+functions)
		// The kernel measures the second CPU's speed wrongly, and drivers of functions would not wait for the card.
		*more += " lpj=10000000"
	}
	status, err := run(ctx, cached, machine{cpus: *cpus, memory: *memory, arguments: *more, functions: *sriov, verbose: *verbose}, flag.Args(), env)
	if err != nil {
		fmt.Fprintln(os.Stderr, "stockkernel:", err)
		status = statusFailed
	}
	if errors.Is(err, errTimeout) {
		status = statusTimeout
	}
	os.Exit(status)
}

var errTimeout = errors.New("timeout")

// run boots the machine with a kernel of the cache, runs the command in it and returns its exit status.
func run(ctx context.Context, cached string, m machine, args, env []string) (int, error) {
	dir, err := os.Getwd()
	if err != nil {
		return 0, fmt.Errorf("current directory: %w", err)
	}
	k, err := findKernel(cached)
	if err != nil {
		return 0, fmt.Errorf("stock kernel (internal/rig/stockkernel/install.sh fetches it): %w", err)
	}
	return m.run(ctx, k, task{Args: args, Env: append(env, "GUESTWIRE_CARD="+card, "GUESTWIRE_CARDS="+wired[0]+" "+wired[1]), Dir: dir, ModuleDir: k.moduleDir})
}
