package main

import (
	"flag"
	"strings"
	"time"

	"github.com/guestwire/guestwire/examples/commandline"
)

// options are the values of the flags.
type options struct {
	state, resolvConf, plug, format, out, logTo string
	device                                      string
	events, quiet                               bool
	shutdown                                    time.Duration
	command                                     []string
}

// verb is what the launcher can do.
type verb = commandline.Verb[options]

// formats are those of the verb config.
var formats = []string{"cloud-init", "networkd", "kernel"}

// flagSet has the verb's flags.
func (o *options) flagSet(v verb) *flag.FlagSet {
	set := flag.NewFlagSet(v.Name, flag.ContinueOnError)
	for _, name := range strings.Fields(v.Flags) {
		switch name {
		case "state":
			set.StringVar(&o.state, name, "", "the agent's state `DIR`")
		case "resolv-conf":
			set.StringVar(&o.resolvConf, name, "", "the `FILE` with the guest's DNS configuration, if the record has none; changes are followed; without it /etc/resolv.conf, if it exists")
		case "events":
			set.BoolVar(&o.events, name, false, "print events as lines of JSON")
		case "quiet":
			set.BoolVar(&o.quiet, name, false, "log warnings and errors alone")
		case "log":
			set.StringVar(&o.logTo, name, "", "append the log to the `FILE`, in place of standard error")
		case "shutdown":
			set.Func(name, "the `TIME` that the guest has to shut down after such a signal, before QEMU is ended, such as 50s; without it none", commandline.Time(&o.shutdown, "50s"))
		case "plug":
			set.StringVar(&o.plug, name, "", "the `BUSES` for NICs that come while QEMU runs, ids with commas between, one for each NIC")
		case "format":
			set.StringVar(&o.format, name, formats[0], "the `FORMAT`: "+strings.Join(formats, ", "))
		case "device":
			set.StringVar(&o.device, name, "", "the guest's `LINK` that -format kernel configures, such as eth0; without it the kernel takes the first link, and klibc's ipconfig each")
		case "out":
			set.StringVar(&o.out, name, "", "the `DIR` to which the files are written, in place of standard output")
		}
	}
	return set
}
