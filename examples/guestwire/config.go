package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/examples/schema"
	"github.com/guestwire/guestwire/infra"
)

// config is what the engine gives to the plugin: the list's entry, with what the engine adds to it.
type config struct {
	paths
	CNIVersion string          `json:"cniVersion"`
	Spec       json.RawMessage `json:"spec"`
	TrustPods  bool            `json:"trustPods"`
	EveryNIC   bool            `json:"everyNIC"`
	TapResult  bool            `json:"tapResult"`
	// Capabilities are what the engine is asked to add to RuntimeConfig.
	Capabilities map[string]bool `json:"capabilities"`
	Args         struct {
		CNI struct {
			Guestwire        json.RawMessage `json:"guestwire"`
			LogicNetworkName string          `json:"logicNetworkName"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`
		DNS         struct {
			Servers  []string `json:"servers"`
			Searches []string `json:"searches"`
		} `json:"dns"`
	} `json:"runtimeConfig"`
	PrevResult json.RawMessage `json:"prevResult"`
}

// entrySchema returns the JSON schema of an entry of a CNI list. What an engine adds can be anything.
func entrySchema() schema.Schema {
	entry := schema.New(struct {
		config
		Type string `json:"type"`
	}{})
	spec := schema.New(infra.Spec{})
	delete(spec, "$schema")
	delete(spec.Properties(), "state")
	delete(spec.Properties(), "for")
	members := entry.Properties()
	members["spec"] = spec
	for _, engines := range []string{"args", "runtimeConfig", "prevResult"} {
		members[engines] = schema.Schema{}
	}
	return entry
}

// readConfig reads what a call needs of the configuration. The errors are those of CNI.
func readConfig(args *skel.CmdArgs) (config, error) {
	var c config
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return c, types.NewError(types.ErrInvalidNetworkConfig, "guestwire: entry of the CNI list: "+err.Error(), "")
	}
	c.TapResult = c.TapResult || isRedirectTap()
	return c, c.complete()
}

// misplaced are members of spec that may be sought beside it; dns is one of CNI's own.
var misplaced = []string{"binding", "owner", "queues", "mtu", "limits", "options", "device", "guard", "egress", "egressWithin", "names", "flows", "guest", "tap", "nic"}

// ofKubeVirt reports whether the entry is that of a KubeVirt network binding. Multus calls it by itself, after the
// plugins that make the NIC, and hands their result to KubeVirt alone. With a result, the network's name says nothing:
// a pod can set it.
func (c config) ofKubeVirt() bool { return c.Args.CNI.LogicNetworkName != "" && c.PrevResult == nil }

// defaults are what the list says for each NIC.
func (c config) defaults(args *skel.CmdArgs) (podsandbox.Defaults, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(args.StdinData, &members); err != nil {
		return podsandbox.Defaults{}, err
	}
	for _, name := range misplaced {
		if _, ok := members[name]; ok {
			return podsandbox.Defaults{}, &cache.FieldError{Field: name, Reason: `is a member of "spec" in the CNI list's entry, and not one beside it`}
		}
	}
	return podsandbox.ReadDefaults(c.Spec, c.TrustPods)
}

// wantedNIC is a NIC that an ADD wires. Its Spec has no State.
type wantedNIC struct {
	name string
	spec infra.Spec
}

// wanted returns the wanted NICs of an ADD: the one that the engine names comes first, if it is among them.
func (c config) wanted(args *skel.CmdArgs) ([]wantedNIC, error) {
	d, err := c.defaults(args)
	if err != nil {
		return nil, err
	}
	if isRedirectTap() && c.Spec == nil {
		spec, err := redirectTapSpec(args)
		return []wantedNIC{{args.IfName, spec}}, err
	}
	annotated, err := podsandbox.Read(c.RuntimeConfig.Annotations)
	if err != nil {
		return nil, err
	}
	wishes := map[string]*podsandbox.Wish{args.IfName: nil}
	if wish, ok := annotated.NICs[args.IfName]; ok {
		wishes[args.IfName] = &wish
	} else if c.Args.CNI.Guestwire != nil {
		wish, err := podsandbox.ReadArg(c.Args.CNI.Guestwire)
		if err != nil {
			return nil, err
		}
		wishes[args.IfName] = &wish
	}
	if c.EveryNIC {
		for nic, wish := range annotated.NICs {
			wishes[nic] = &wish
		}
	}
	var nics []wantedNIC
	for _, nic := range slices.Sorted(maps.Keys(wishes)) {
		// The DNS of the engine is that of the pod. A DNS proxy on the node sees no resolv.conf of the pod.
		dns := func(proxy bool) (*cache.DNS, error) {
			if proxy && len(c.RuntimeConfig.DNS.Servers) > 0 {
				return dnsOf("runtimeConfig.dns.servers", c.RuntimeConfig.DNS.Servers, c.RuntimeConfig.DNS.Searches)
			}
			if nic == args.IfName {
				return c.dns(args)
			}
			return nil, nil
		}
		spec, wanted, err := d.Make(wishes[nic], dns)
		if err != nil {
			return nil, err
		}
		if wanted {
			nics = append(nics, wantedNIC{nic, spec})
		}
	}
	slices.SortStableFunc(nics, func(a, b wantedNIC) int {
		first := func(n wantedNIC) int {
			if n.name == args.IfName {
				return 0
			}
			return 1
		}
		return first(a) - first(b)
	})
	return nics, nil
}

// dns is the DNS configuration of the plugins before this one; nil: they have none. On Kubernetes it is nil as well:
// there containers get the kubelet's resolv.conf and not CNI's, and so does a guest.
func (c config) dns(args *skel.CmdArgs) (*cache.DNS, error) {
	var result struct{ DNS types.DNS }
	if c.PrevResult == nil || strings.Contains(args.Args, "K8S_POD_") {
		return nil, nil
	}
	if err := json.Unmarshal(c.PrevResult, &result); err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "guestwire: prevResult.dns: "+err.Error(), "")
	}
	search := result.DNS.Search
	if len(search) == 0 && result.DNS.Domain != "" {
		search = []string{result.DNS.Domain}
	}
	return dnsOf("prevResult.dns.nameservers", result.DNS.Nameservers, search)
}

// dnsOf is the DNS of the servers, which the field has; nil: there is none.
func dnsOf(field string, servers, search []string) (*cache.DNS, error) {
	dns := cache.DNS{Search: search}
	for i, text := range servers {
		server, err := netip.ParseAddr(text)
		if err != nil {
			say("%s: DNS server %q is left out: not an IP address", field, text)
			continue
		}
		if server.Unmap().IsUnspecified() || server.Unmap().IsMulticast() {
			return nil, &cache.FieldError{Field: fmt.Sprintf("%s[%d]", field, i), Reason: fmt.Sprintf("%s, want a server's address: correct the dns of the plugins before or of the pod, or name dns in this entry's spec", text)}
		}
		dns.Servers = append(dns.Servers, server)
	}
	if len(dns.Servers) == 0 && len(dns.Search) == 0 {
		return nil, nil
	}
	return &dns, nil
}

// result returns what the plugins before this one have left, as it came, in the version of the configuration.
func (c config) result() ([]byte, error) {
	if c.ofKubeVirt() {
		c.PrevResult = json.RawMessage("{}")
	}
	var members map[string]json.RawMessage
	err := json.Unmarshal(c.PrevResult, &members)
	if c.PrevResult == nil || err != nil || members == nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig,
			"guestwire: prevResult is missing: guestwire makes no NIC; put its entry last into a list (a .conflist), after the plugin that makes the NIC", "")
	}
	var written string
	if text, ok := members["cniVersion"]; ok {
		if err := json.Unmarshal(text, &written); err != nil {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, "guestwire: prevResult.cniVersion is no version: "+err.Error(), "")
		}
	}
	if written != "" && written != c.CNIVersion {
		return c.convert(written)
	}
	if members["cniVersion"], err = json.Marshal(c.CNIVersion); err != nil {
		return nil, err
	}
	return json.Marshal(members)
}

// convert returns a result that was written in another version.
func (c config) convert(from string) ([]byte, error) {
	result, err := version.NewResult(from, c.PrevResult)
	if err == nil {
		result, err = result.GetAsVersion(c.CNIVersion)
	}
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("guestwire: prevResult of version %s in a list of version %s: %v", from, c.CNIVersion, err), "")
	}
	var text bytes.Buffer
	err = result.PrintTo(&text)
	return text.Bytes(), err
}
