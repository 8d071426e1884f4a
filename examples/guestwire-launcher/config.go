package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/guestconfig"
	"github.com/guestwire/guestwire/phase2"
)

// printConfig prints the configuration of a guest without DHCP, or writes its files to the directory out. What the
// format leaves out is printed to standard error.
func printConfig(vm *phase2.VM, format, device, state, out string) error {
	guest, err := vm.Guest()
	if err != nil {
		return err
	}
	var files guestconfig.Files
	switch format {
	case "cloud-init":
		if state, err = filepath.Abs(state); err != nil {
			return err
		}
		files, err = guestconfig.NoCloud(guest, guestconfig.Instance{ID: filepath.Base(state)})
		if out == "" {
			maps.DeleteFunc(files.Contents, func(name, _ string) bool { return name != "network-config" })
		}
	case "networkd":
		files, err = guestconfig.Networkd(guest)
	case "kernel":
		files, err = kernelLine(guest, device)
	}
	if err != nil {
		return err
	}
	for _, w := range files.Warnings {
		fmt.Fprint(os.Stderr, commandline.Line("guestwire-launcher: warning:", w))
	}
	if out != "" {
		return writeFiles(out, files.Contents)
	}
	for _, name := range slices.Sorted(maps.Keys(files.Contents)) {
		if len(files.Contents) > 1 {
			fmt.Fprintln(stdout, "# "+name)
		}
		fmt.Fprint(stdout, files.Contents[name])
	}
	return nil
}

// kernelLine is the kernel's argument, as a file.
func kernelLine(guest guestconfig.Guest, device string) (guestconfig.Files, error) {
	if len(guest.Records) > 1 {
		var names []string
		for _, r := range guest.Records {
			names = append(names, r.Name)
		}
		return guestconfig.Files{}, errors.New("the kernel's ip= configures one interface, and the guest has " + strings.Join(names, ", "))
	}
	line, warnings, err := guestconfig.KernelIP(guest.Records[0], guest.DNS, device)
	return guestconfig.Files{Contents: map[string]string{"cmdline": line + "\n"}, Warnings: warnings}, err
}

func writeFiles(dir string, contents map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range contents {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
