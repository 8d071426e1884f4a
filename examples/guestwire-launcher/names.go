package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/phase2/names"
)

// serveNames answers the guest of one NIC.
func serveNames(ctx context.Context, o *options) error {
	pins := os.NewFile(3, "pins") // before another file gets the number
	info, err := pins.Stat()
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return errors.New("names is started by guestwire-agent names or guestwire-agent run, which pin the addresses: start one of these")
	}
	// The proxies of a node's other guests have the same user: without this, one that was taken over could trace this one.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	ctx, stop := commandline.Signals(ctx)
	defer stop()
	vm, err := openLasting(o)
	if err != nil {
		return err
	}
	record, err := o.record(vm.Records())
	if err != nil {
		return err
	}
	proxy := names.Proxy{Pins: pins, Addresses: record.DNSProxy, ResolvConf: o.resolvConf, Log: vm.Log}
	if record.DNS != nil {
		proxy.Search = record.Options.Search(record.DNS.Search)
		for _, a := range record.DNS.Servers {
			proxy.Resolvers = append(proxy.Resolvers, netip.AddrPortFrom(a, 53))
		}
	}
	return proxy.Serve(ctx)
}

// record is that of the named NIC.
func (o *options) record(records []cache.Record) (cache.Record, error) {
	var found []cache.Record
	for _, r := range records {
		if len(r.DNSProxy) > 0 && (o.nic == "" || r.Name == o.nic) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return cache.Record{}, fmt.Errorf("no record in %s has names: give guestwire-agent setup a configuration with names", o.state)
	case 1:
		return found[0], nil
	}
	return cache.Record{}, commandline.Errorf("-nic is missing: name one of the NICs, such as %s", found[0].Name)
}
