package main

import (
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"libvirt.org/go/libvirtxml"
)

var element = regexp.MustCompile(`(?s)<interface .*?</interface>`)

// TestDomains: of the domains that KubeVirt makes for an architecture, the two interfaces with the binding change, and
// no other octet.
func TestDomains(t *testing.T) {
	pod := newPod(t)
	records := wire(t, pod)
	socket, _ := startServer(t, pod, "-state", pod.State)
	// The interfaces of arm64 are those of amd64, and those of s390x under KubeVirt 1.5.0 those of now.
	off := &libvirtxml.DomainROM{Enabled: "no"}
	for _, want := range []struct {
		file, method string
		domain       protowire.Number
		model        string
		rom          *libvirtxml.DomainROM
	}{
		{"OnDefineDomain-amd64", hooks + "OnDefineDomain", 1, "virtio-non-transitional", off},
		{"OnDefineDomain-s390x", hooks + "OnDefineDomain", 1, "virtio", nil},
		{"OnDefineDomain-v1.5.0-amd64", hooks + "OnDefineDomain", 1, "virtio-non-transitional", off},
		{"MutateDomain-amd64", plugins + "DomainHookService/MutateDomain", 2, "virtio-non-transitional", off},
	} {
		t.Run(want.file, func(t *testing.T) {
			request := recorded(t, want.file)
			in, err := decode(request)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := call(t, socket, want.method, request)
			if err != nil {
				t.Fatal(err)
			}
			before, after := in[want.domain][0], answer[1][0]
			if a, b := element.Split(before, -1), element.Split(after, -1); strings.Join(a, "|") != strings.Join(b, "|") {
				t.Errorf("more than interfaces has changed:\n%s\nbefore\n%s", after, before)
			}
			was, is := element.FindAllString(before, -1), element.FindAllString(after, -1)
			if len(is) != 3 || is[2] != was[2] {
				t.Fatalf("interfaces:\n%s", strings.Join(is, "\n"))
			}
			for i, name := range []string{"eth0", blue} {
				var wanted, got libvirtxml.DomainInterface
				if err := wanted.Unmarshal(was[i]); err != nil {
					t.Fatal(err)
				}
				if err := got.Unmarshal(is[i]); err != nil {
					t.Fatal(err)
				}
				r := records[name]
				wanted.Target.Dev, wanted.MAC.Address, wanted.MTU.Size = r.Tap, r.MAC.String(), uint(r.MTU)
				wanted.Driver.Queues = []uint{1, 2}[i]
				a, _ := wanted.Marshal()
				if b, _ := got.Marshal(); a != b {
					t.Errorf("%s:\n%s\nwant\n%s", name, b, a)
				}
				if got.Model.Type != want.model || (got.ROM == nil) != (want.rom == nil) || got.ROM != nil && *got.ROM != *want.rom {
					t.Errorf("%s: model %s, ROM %+v", name, got.Model.Type, got.ROM)
				}
			}
			in[want.domain][0] = after
			if again, err := call(t, socket, want.method, encode(in)); err != nil || again[1][0] != after {
				t.Errorf("again: %v, %s", err, again[1])
			}
		})
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"another MAC":          {`"name":"default"`, `"macAddress":"02:00:00:00:00:77","name":"default"`, "network default: macAddress is 02:00:00:00:00:77, and the guest of eth0 has " + records["eth0"].MAC.String()},
		"a NIC without a tap":  {`"podInterfaceName":"eth0"`, `"podInterfaceName":"peer"`, "network default: NIC peer has no record in " + pod.State},
		"without tap":          {"ua-blue", "ua-green", "network blue: the domain has no interface with the alias ua-blue: in KubeVirt's configuration the binding needs domainAttachmentType: tap"},
		"no VM":                {`{"`, `["`, "VirtualMachineInstance: "},
		"a claim's network":    {`"multus":{"networkName":"blue-net"}`, `"resourceClaim":{"claimName":"nic","requestName":"dev"}`, "network blue: its source is neither pod nor multus, so KubeVirt does not say which NIC it is: give it one of these"},
		"absent, or of others": {`"binding":{"name":"guestwire"}`, `"binding":{"name":"passt"}`, ""},
	} {
		in, err := decode(recorded(t, "OnDefineDomain-amd64"))
		if err != nil {
			t.Fatal(err)
		}
		for n := range in {
			in[n][0] = strings.ReplaceAll(in[n][0], c.old, c.new)
		}
		answer, err := call(t, socket, hooks+"OnDefineDomain", encode(in))
		if c.want == "" && (err != nil || answer[1][0] != in[1][0]) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
