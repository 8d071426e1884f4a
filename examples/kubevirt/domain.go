package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"

	"libvirt.org/go/libvirtxml"

	"github.com/guestwire/guestwire/cache"
)

// instance is what the hooks need of a VirtualMachineInstance.
type instance struct {
	Spec struct {
		Domain struct {
			Devices struct {
				Interfaces []struct {
					Name, MacAddress, State string
					Binding                 struct{ Name string }
				}
			}
		}
		Networks []struct {
			Name   string
			Pod    *struct{}
			Multus *struct{ Default bool }
		}
	}
	Status struct {
		ActivePods map[string]string // the nodes by the pods' UIDs
		Interfaces []struct{ Name, PodInterfaceName, Mac string }
	}
}

// nic is a NIC of a pod that an interface of the instance is bound to.
type nic struct {
	network, name string // the interface's, and in the pod; an empty name: KubeVirt does not say it
	mac           string // that the instance wants; empty: any
	running       string // the MAC of the running guest; empty: none runs yet
}

// bound returns the NICs of the interfaces with the binding.
func bound(vmi, binding string) (i instance, nics []nic, err error) {
	if err := json.Unmarshal([]byte(vmi), &i); err != nil {
		return i, nil, fmt.Errorf("VirtualMachineInstance: %w", err)
	}
	for _, iface := range i.Spec.Domain.Devices.Interfaces {
		if iface.Binding.Name == binding && iface.State != "absent" {
			n := nic{network: iface.Name, name: i.podNIC(iface.Name), mac: iface.MacAddress}
			for _, s := range i.Status.Interfaces {
				if s.Name == iface.Name {
					n.running = s.Mac
				}
			}
			nics = append(nics, n)
		}
	}
	return i, nics, nil
}

// podNIC returns the name of a network's NIC in the pod, as KubeVirt's pkg/network/namescheme does. It is empty for a
// network of another source than pod and multus: its NIC has the name that the driver of a resourceClaim gave it.
func (i instance) podNIC(network string) string {
	for _, n := range i.Spec.Networks {
		switch {
		case n.Name != network:
		case n.Multus != nil && !n.Multus.Default:
			return fmt.Sprintf("pod%x", sha256.Sum256([]byte(network)))[:len("pod")+11]
		case n.Multus == nil && n.Pod == nil:
			return ""
		}
	}
	for _, s := range i.Status.Interfaces {
		if s.Name == network && s.PodInterfaceName != "" {
			return s.PodInterfaceName
		}
	}
	return "eth0"
}

// errUnnamed is the error for a network whose NIC has no name.
func (n nic) errUnnamed() error {
	return fmt.Errorf("network %s: its source is neither pod nor multus, so KubeVirt does not say which NIC it is: "+
		"give it one of these, or another binding", n.network)
}

// connect connects a domain's interface to the tap of the record. The rest of the text stays as it is, as libvirtxml
// does not know all that KubeVirt writes. The interface keeps what KubeVirt chose for the architecture: its model, and
// its ROM or none.
func connect(domain string, n nic, r cache.Record) (string, error) {
	if r.Tap == "" {
		return "", fmt.Errorf("the binding %s has no tap: use redirect, bridge, routed or masquerade", r.Binding)
	}
	if mac, err := cache.ParseMAC(n.mac); n.mac != "" && (err != nil || mac != r.MAC) {
		return "", fmt.Errorf("macAddress is %s, and the guest of %s has %s: leave macAddress out", n.mac, n.name, r.MAC)
	}
	// At the target of a migration KubeVirt drops the domain that it gets, and the guest keeps what it had at the source.
	if mac, err := cache.ParseMAC(n.running); n.running != "" && (err != nil || mac != r.MAC) {
		return "", fmt.Errorf("the running guest has the MAC %s, and %s of this pod is wired for %s: a guest can only migrate to a pod that is wired for its MAC",
			n.running, n.name, r.MAC)
	}
	iface, start, end, err := findInterface(domain, "ua-"+n.network)
	if err != nil {
		return "", err
	}
	iface.Target = &libvirtxml.DomainInterfaceTarget{Dev: r.Tap, Managed: "no"}
	iface.MAC = &libvirtxml.DomainInterfaceMAC{Address: r.MAC.String()}
	iface.MTU = &libvirtxml.DomainInterfaceMTU{Size: uint(r.MTU)}
	if iface.Driver == nil && r.Queues > 1 {
		iface.Driver = &libvirtxml.DomainInterfaceDriver{}
	}
	if iface.Driver != nil {
		iface.Driver.Queues = uint(r.Queues)
	}
	text, err := iface.Marshal()
	return domain[:start] + text + domain[end:], err
}

// interfaces finds the elements by their text. In Go's XML all other < are escaped.
var interfaces = regexp.MustCompile(`(?s)<interface\s.*?</interface>`)

// findInterface returns the interface with the alias, and its place in the text.
func findInterface(domain, alias string) (iface libvirtxml.DomainInterface, start, end int, err error) {
	for _, at := range interfaces.FindAllStringIndex(domain, -1) {
		iface = libvirtxml.DomainInterface{}
		if err := iface.Unmarshal(domain[at[0]:at[1]]); err != nil {
			return iface, 0, 0, err
		}
		if iface.Alias != nil && iface.Alias.Name == alias {
			return iface, at[0], at[1], nil
		}
	}
	return iface, 0, 0, fmt.Errorf("the domain has no interface with the alias %s: in KubeVirt's configuration the binding needs domainAttachmentType: tap", alias)
}
