package domain_test

import (
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain"
)

func ofModel(model string, queues int) *cache.Record {
	return &cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: queues,
		MAC: cache.MAC{2, 0, 0, 0, 0, 7}, MTU: 1500, Device: cache.Device{Model: model},
	}
}

// TestTwoQueues: two are several already, and one is none to speak of.
func TestTwoQueues(t *testing.T) {
	for queues, want := range map[int]uint{1: 0, 2: 2, 256: 256} {
		for _, model := range []string{"", "virtio", "virtio-transitional", "virtio-non-transitional"} {
			iface, err := domain.Interface(ofModel(model, queues))
			if err != nil {
				t.Fatal(err)
			}
			have := uint(0)
			if iface.Driver != nil {
				have = iface.Driver.Queues
			}
			if have != want {
				t.Errorf("model %q with %d queues: have %d, want %d", model, queues, have, want)
			}
		}
	}
}

// TestRomlessModels: libvirt refuses a <rom> element for a device that is on no PCI bus.
func TestRomlessModels(t *testing.T) {
	for model, rom := range map[string]bool{"usb-net": false, "spapr-vlan": false, "lan9118": false, "smc91c111": false, "virtio": true, "e1000": true} {
		iface, err := domain.Interface(ofModel(model, 1))
		if err != nil {
			t.Fatal(err)
		}
		if (iface.ROM != nil) != rom {
			t.Errorf("%s: has a <rom> element: %t, want %t", model, iface.ROM != nil, rom)
		}
	}
}

// TestWholePCIAddress: each part of the address reaches libvirt, as a hexadecimal number.
func TestWholePCIAddress(t *testing.T) {
	r := ofModel("virtio", 1)
	r.Device.PCIAddress = "abcd:ef:1f.7"
	iface, err := domain.Interface(r)
	if err != nil {
		t.Fatal(err)
	}
	pci := iface.Address.PCI
	if *pci.Domain != 0xabcd || *pci.Bus != 0xef || *pci.Slot != 0x1f || *pci.Function != 7 {
		t.Errorf("have %x:%x:%x.%x", *pci.Domain, *pci.Bus, *pci.Slot, *pci.Function)
	}
}
