package commandline

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// Signals returns a context that ends with the first SIGHUP, SIGINT or SIGTERM. Further ones change nothing until stop
// is called: a service manager may send two (systemd's SendSIGHUP), and timeout(1) sends one to the process and one to
// its group. SIGQUIT ends the program at once. What the program's parent ignores stays ignored, as by nohup(1).
// The kept ones do not end it.
func Signals(parent context.Context, kept ...os.Signal) (ctx context.Context, stop func()) {
	ending := slices.DeleteFunc(NotIgnored(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM), func(s os.Signal) bool { return slices.Contains(kept, s) })
	if len(ending) == 0 { // which NotifyContext takes for all signals
		return context.WithCancel(parent)
	}
	return signal.NotifyContext(parent, ending...)
}

// NotIgnored returns those of the signals that the program's parent does not ignore.
func NotIgnored(signals ...os.Signal) (wanted []os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			wanted = append(wanted, s)
		}
	}
	return wanted
}
