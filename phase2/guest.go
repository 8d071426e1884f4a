package phase2

import (
	"log/slog"
	"slices"

	"github.com/guestwire/guestwire/guestconfig"
)

// Guest returns the records and the DNS of ResolvConf, for package guestconfig. A guest without DHCP does not notice
// later changes. The error is that of reading ResolvConf, such as fs.ErrNotExist.
func (vm *VM) Guest() (guestconfig.Guest, error) {
	log := vm.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	conf, err := newResolvConf(vm.ResolvConf, vm.Records())
	if !slices.ContainsFunc(vm.Records(), needsResolvConf) {
		log = slog.New(slog.DiscardHandler) // the guest does not miss what the file lacks
	}
	if err == nil {
		err = conf.readFirst(log)
	}
	if err != nil {
		return guestconfig.Guest{}, err
	}
	return guestconfig.Guest{Records: vm.Records(), DNS: conf.last}, nil
}
