package main

import (
	"flag"
	"strings"
	"time"

	"github.com/guestwire/guestwire/examples/commandline"
)

// options are the values of the flags.
type options struct {
	state, nic, resolvConf, plug, format, out, logTo string
	device                                           string
	events, quiet                                    bool
	shutdown                                         time.Duration
	command                                          []string
}

// verb is what the launcher can do.
type verb = commandline.Verb[options]

// formats are those of the verb config.
var formats = []string{"cloud-init", "networkd", "kernel"}

// flagSet has the verb's flags.
func (o *options) flagSet(v verb) *flag.FlagSet {
	set := commandline.NewFlags(v)
	set.String(&o.state, "state", "", "the agent's state `DIR`")
	set.String(&o.nic, "nic", "", "the NIC's `NAME` in the namespace; without it the only one")
	set.String(&o.resolvConf, "resolv-conf", "", "the `FILE` with the guest's DNS configuration, if the record has none; changes are followed; without it /etc/netns/NAME/resolv.conf of a named namespace, or /etc/resolv.conf, if that exists")
	set.Bool(&o.events, "events", "print events as lines of JSON")
	set.Bool(&o.quiet, "quiet", "log warnings and errors alone")
	set.String(&o.logTo, "log", "", "append the log to the `FILE`, in place of standard error")
	set.Func("shutdown", "the `TIME` that the guest has to shut down after such a signal, before QEMU is ended, such as 50s; without it none", commandline.Time(&o.shutdown, "50s"))
	set.String(&o.plug, "plug", "", "the `BUSES` for NICs that come while QEMU runs, ids with commas between, one for each NIC")
	set.String(&o.format, "format", formats[0], "the `FORMAT`: "+strings.Join(formats, ", "))
	set.String(&o.device, "device", "", "the guest's `LINK` that -format kernel configures, such as eth0; without it the kernel takes the first link, and klibc's ipconfig each")
	set.String(&o.out, "out", "", "the `DIR` to which the files are written, in place of standard output")
	return set.FlagSet
}
