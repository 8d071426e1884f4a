package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
)

// wantedOf is what an ADD wants by an entry with the spec, after plugins whose result has these DNS servers.
func wantedOf(t *testing.T, spec map[string]any, args string, servers ...string) ([]wantedNIC, error) {
	t.Helper()
	spec["owner"] = map[string]any{"uid": 107}
	text, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "n", "type": "guestwire", "spec": spec,
		"prevResult": map[string]any{"cniVersion": "1.0.0", "dns": map[string]any{"nameservers": servers}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := readConfig(&skel.CmdArgs{StdinData: text})
	if err != nil {
		t.Fatal(err)
	}
	return c.wanted(&skel.CmdArgs{IfName: "eth0", StdinData: text, Args: args})
}

// TestWhoGetsDNS: a guest that guestwire answers gets the DNS of the result. Others cannot get it, and are wired.
func TestWhoGetsDNS(t *testing.T) {
	for binding, want := range map[string]bool{"masquerade": true, "redirect": true, "passt": false, "slirp": false, "macvtap": false} {
		nics, err := wantedOf(t, map[string]any{"binding": map[string]any{binding: map[string]any{}}}, "", "192.0.2.1")
		if err != nil || len(nics) != 1 || (nics[0].spec.DNS != nil) != want {
			t.Errorf("%s: %+v, %v", binding, nics, err)
		}
	}
}

// TestResolversOfResult: a list's entry "allow resolvers" is about the DNS of the result, where the guest gets it. What
// is no server's address is refused by its name.
func TestResolversOfResult(t *testing.T) {
	for name, c := range map[string]struct {
		args, server, says string
	}{
		"a server":          {"", "192.0.2.1", ""},
		"of Kubernetes":     {"K8S_POD_NAME=a", "192.0.2.1", "spec.egress[0]: resolvers are those of dns.servers"},
		"a multicast group": {"", "ff02::fb", "prevResult.dns.nameservers[0]: ff02::fb, want a server's address"},
		"no address at all": {"", "::ffff:0.0.0.0", "prevResult.dns.nameservers[0]: "},
	} {
		spec := map[string]any{"binding": map[string]any{"routed": map[string]any{}}, "egress": []string{"allow resolvers 53/udp", "refuse all"}}
		nics, err := wantedOf(t, spec, c.args, c.server)
		if c.says == "" && (err != nil || len(nics) != 1 || nics[0].spec.DNS == nil || nics[0].spec.DNS.Servers[0].String() != c.server) {
			t.Errorf("%s: %+v, %v", name, nics, err)
		}
		if c.says != "" && (err == nil || !strings.HasPrefix(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// TestResolversOfNames: a DNS proxy asks what the engine names as the pod's DNS, unless the CNI list bounds the guest:
// whoever chooses the resolver chooses the addresses. A guest without a proxy reads resolv.conf, as containers do.
func TestResolversOfNames(t *testing.T) {
	egress := `"binding": {"routed": {}}, "egress": ["refuse all"]`
	names := egress + `, "names": ["a.example 443"]`
	proxy := `"egressWithin": ["allow gateway 15353/udp", "allow gateway 15353", "allow all"]`
	for name, c := range map[string]struct{ list, wish, server, want string }{
		"the pod's names":            {`{}`, names, "10.96.0.10", "10.96.0.10"},
		"a server of no address":     {`{}`, names, "none", ""},
		"a multicast group":          {`{}`, names, "ff02::fb", "!runtimeConfig.dns.servers[0]: ff02::fb, want a server's address"},
		"without names":              {`{}`, egress, "10.96.0.10", ""},
		"the pod's own":              {`{}`, names + `, "dns": {"servers": ["192.0.2.7"]}`, "10.96.0.10", "192.0.2.7"},
		"bounded by the list":        {`{` + proxy + `}`, names, "10.96.0.10", ""},
		"bounded, the list's server": {`{` + proxy + `, "dns": {"servers": ["192.0.2.7"]}}`, names, "10.96.0.10", "192.0.2.7"},
		"the list's names":           {`{` + names + `}`, ``, "10.96.0.10", ""},
	} {
		text, err := json.Marshal(map[string]any{
			"cniVersion": "1.0.0", "name": "n", "type": "guestwire", "spec": json.RawMessage(c.list),
			"runtimeConfig": map[string]any{
				"io.kubernetes.cri.pod-annotations": map[string]string{"guestwire/nic.eth0": `{` + c.wish + `}`},
				"dns":                               map[string]any{"servers": []string{c.server}, "searches": []string{"default.svc"}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		have := func() string {
			conf, err := readConfig(&skel.CmdArgs{StdinData: text})
			if err != nil {
				return "!" + err.Error()
			}
			nics, err := conf.wanted(&skel.CmdArgs{IfName: "eth0", StdinData: text, Args: "K8S_POD_NAME=a"})
			if err != nil {
				return "!" + err.Error()
			}
			if dns := nics[0].spec.DNS; dns != nil && len(dns.Servers) > 0 {
				return dns.Servers[0].String()
			}
			return ""
		}()
		if have != c.want && (!strings.HasPrefix(c.want, "!") || !strings.HasPrefix(have, c.want)) {
			t.Errorf("%s: %q, want %q", name, have, c.want)
		}
	}
}
