package commandline

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Signals returns a context that ends with the first SIGHUP, SIGINT or SIGTERM. Further ones change nothing until stop
// is called: a service manager may send two (systemd's SendSIGHUP), and timeout(1) sends one to the process and one to
// its group. SIGQUIT ends the program at once. What the program's parent ignores stays ignored, as by nohup(1).
func Signals(parent context.Context) (ctx context.Context, stop func()) {
	return signal.NotifyContext(parent, NotIgnored(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)...)
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
