package podsandbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/longjson"
)

// TestRead: what the annotations ask for, and what is reported about a mistake.
func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		named       []string
		devices     []string
		container   string
		says        string // of the error; empty: none
	}{
		"nothing":           {},
		"others'":           {annotations: map[string]string{"kubernetes.io/config.source": "api", "guestwire.io/nic.eth0": "?", "guestwire": "?"}},
		"a word":            {annotations: map[string]string{"guestwire/nic.eth0": "redirect"}, named: []string{"eth0"}},
		"white space":       {annotations: map[string]string{"guestwire/nic.eth0": " redirect\n", "guestwire/devices": "kvm, vhost-net"}, named: []string{"eth0"}, devices: []string{"kvm", "vhost-net"}},
		"none":              {annotations: map[string]string{"guestwire/nic.eth0": "none", "guestwire/nic.net2": "auto", "guestwire/nic.net1": "{}"}, named: []string{"net1", "net2"}},
		"an object":         {annotations: map[string]string{"guestwire/nic.eth0": `{"binding": {"masquerade": {"ports": ["80"]}}, "queues": 2}`}, named: []string{"eth0"}},
		"all":               {annotations: map[string]string{"guestwire/nic.eth0": "passt", "guestwire/devices": "kvm", "guestwire/container": "vm"}, named: []string{"eth0"}, devices: []string{"kvm"}, container: "vm"},
		"an unknown one":    {annotations: map[string]string{"guestwire/binding": "redirect"}, says: "annotation guestwire/binding: no such annotation, want guestwire/nic.NIC, guestwire/devices or guestwire/container"},
		"the prefix":        {annotations: map[string]string{"guestwire/": ""}, says: "no such annotation"},
		"another case":      {annotations: map[string]string{"guestwire/NIC.eth0": "redirect"}, says: "no such annotation"},
		"no NIC":            {annotations: map[string]string{"guestwire/nic.": "redirect"}, says: "annotation guestwire/nic.: nic: "},
		"no NIC's name":     {annotations: map[string]string{"guestwire/nic.eth0/..": "redirect"}, says: "annotation guestwire/nic.eth0/..: nic: "},
		"an unknown word":   {annotations: map[string]string{"guestwire/nic.eth0": "Redirect"}, says: `annotation guestwire/nic.eth0: binding: "Redirect", want "bridge", "redirect"`},
		"a word, and none":  {annotations: map[string]string{"guestwire/nic.eth0": "yes"}, says: ", or none, or an object of JSON"},
		"empty":             {annotations: map[string]string{"guestwire/nic.eth0": ""}, says: `binding: "", want`},
		"half an object":    {annotations: map[string]string{"guestwire/nic.eth0": `{"queues": 2`}, says: "annotation guestwire/nic.eth0: "},
		"an unknown field":  {annotations: map[string]string{"guestwire/nic.eth0": `{"bindings": {}}`}, says: "bindings: no such field"},
		"nic":               {annotations: map[string]string{"guestwire/nic.eth0": `{"nic": "eth0"}`}, says: "nic: no such field"},
		"for":               {annotations: map[string]string{"guestwire/nic.eth0": `{"for": "podnet/eth0"}`}, says: "for: not here"},
		"state":             {annotations: map[string]string{"guestwire/nic.eth0": `{"state": "/etc"}`}, says: "state: not here"},
		"no device":         {annotations: map[string]string{"guestwire/devices": "tun"}, says: `annotation guestwire/devices: "tun", want kvm, vhost-net`},
		"a device twice":    {annotations: map[string]string{"guestwire/devices": "kvm,kvm"}, says: "kvm"},
		"devices, empty":    {annotations: map[string]string{"guestwire/devices": ""}, says: `"", want kvm`},
		"no container":      {annotations: map[string]string{"guestwire/container": ""}, says: "annotation guestwire/container: empty"},
		"a path for device": {annotations: map[string]string{"guestwire/devices": "../sda"}, says: "want kvm"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := podsandbox.Read(c.annotations)
			if c.says != "" {
				var wish *podsandbox.WishError
				if !errors.As(err, &wish) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want a WishError with %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if named := w.Named(); !reflect.DeepEqual(named, c.named) || !reflect.DeepEqual(w.Devices, c.devices) || w.Container != c.container {
				t.Errorf("NICs %q, devices %q, container %q", named, w.Devices, w.Container)
			}
		})
	}
}

// TestReadArg: args.cni has the forms of an annotation, a word as a string.
func TestReadArg(t *testing.T) {
	for text, says := range map[string]string{
		`"redirect"`:              "",
		`"none"`:                  "",
		` {"queues": 2} `:         "",
		`"{\"queues\": 2}"`:       "",
		`null`:                    "args.cni.guestwire: binding: ",
		`7`:                       "args.cni.guestwire: want a string or an object",
		`["redirect"]`:            "args.cni.guestwire: want a string or an object",
		`"router"`:                `args.cni.guestwire: binding: "router", want`,
		`{"guard": {"of": true}}`: "args.cni.guestwire: guard.of: no such field",
	} {
		_, err := podsandbox.ReadArg(json.RawMessage(text))
		if (err == nil) != (says == "") || err != nil && !strings.HasPrefix(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

// FuzzRead: whatever a pod's author writes is an error or has a Spec that is valid, and within what a pod may say.
func FuzzRead(f *testing.F) {
	f.Add("eth0", "redirect", "kvm")
	f.Add("eth0", "none", "kvm,vhost-net")
	f.Add("net1", `{"binding": {"masquerade": {"ports": ["80"], "maxConnections": 7}}, "owner": {"uid": 7}}`, "")
	f.Add("net1", `{"guard": {"off": true}}`, "")
	f.Add("../x", `{"owner": {"selinux": "a:b:c", "inside": false}, "device": {"rom": "/etc/shadow"}}`, "")
	f.Fuzz(func(t *testing.T, nic, value, devices string) {
		w, err := podsandbox.Read(map[string]string{"guestwire/nic." + nic: value, "guestwire/devices": devices})
		if err != nil {
			return
		}
		wish := w.NICs[nic]
		spec, wanted, err := podsandbox.Defaults{}.Make(&wish, nil)
		if err != nil || !wanted {
			return
		}
		if err := spec.Validate(); err != nil {
			t.Errorf("%q: %v", value, err)
		}
		masquerade, _ := spec.Binding.(infra.Masquerade)
		kind := spec.Binding.Kind()
		if !reflect.ValueOf(spec.Guard).IsZero() || spec.Owner.SELinux != "" || kind == "sriov" || kind == "macvtap" ||
			masquerade.Firewall != "" || masquerade.MaxConnections > infra.DefaultMaxConnections || spec.State != "" {
			t.Errorf("%q became %+v, which is more than a pod may say", value, spec)
		}
	})
}

// TestLongAnnotations: an annotation that is far too long has a short error, and so has a value in it.
func TestLongAnnotations(t *testing.T) {
	long := strings.Repeat("a", 4<<20)
	check := func(key, value string) {
		t.Helper()
		w, err := podsandbox.Read(map[string]string{key: value})
		if err == nil {
			wish := w.NICs["eth0"]
			_, _, err = podsandbox.Defaults{}.Make(&wish, nil)
		}
		if said := fmt.Sprint(err); err == nil && key != "guestwire/container" || len(said) > longjson.MostError {
			t.Errorf("%.100s: an error of %d octets: %.200s", key, len(said), said)
		}
	}
	for _, key := range []string{"nic.eth0", "devices", "container", "nic." + long, long} {
		check("guestwire/"+key, long)
		check("guestwire/"+key, long[:200_000])
	}
	wish := []byte(`{"binding": {"masquerade": {"ports": ["80/tcp"]}}, "mtu": 1400, "dns": {"servers": ["192.0.2.1"], "search": ["a"]}, "options": {"hostname": "a"}}`)
	for _, octets := range []int{4 << 20, 100_000} {
		for _, text := range longjson.Documents(t, wish, octets) {
			check("guestwire/nic.eth0", string(text))
		}
	}
}
