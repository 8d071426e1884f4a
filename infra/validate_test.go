package infra_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/longjson"
)

// TestValidate: what a Spec may say ends exactly where its documentation says, and the error names the field.
func TestValidate(t *testing.T) {
	ports := func(p ...infra.Ports) infra.Masquerade { return infra.Masquerade{Ports: p} }
	prefixes := func(p ...netip.Prefix) infra.Guard { return infra.Guard{Prefixes: p} }
	sources := func(a ...string) infra.Masquerade {
		s := &infra.Sidecar{}
		for _, text := range a {
			s.Sources = append(s.Sources, netip.MustParseAddr(text))
		}
		return infra.Masquerade{Sidecar: s}
	}
	networks := func(v4, v6 string) infra.Spec {
		return infra.Spec{Binding: infra.Masquerade{IPv4: netip.MustParsePrefix(v4), IPv6: netip.MustParsePrefix(v6)}}
	}
	ends := func(v4, guest, gateway string) infra.Spec {
		b := infra.Masquerade{}
		if v4 != "" {
			b.IPv4 = netip.MustParsePrefix(v4)
		}
		for text := range strings.FieldsSeq(guest) {
			b.Guest = append(b.Guest, netip.MustParseAddr(text))
		}
		for text := range strings.FieldsSeq(gateway) {
			b.Gateway = append(b.Gateway, netip.MustParseAddr(text))
		}
		return infra.Spec{Binding: b}
	}
	open := infra.Guard{Open: []infra.Ports{{First: 22}}}
	slow := cache.Limits{FromGuest: cache.Limit{BitsPerSecond: 8000}}
	const masquerade = "binding.masquerade."
	for name, c := range map[string]struct {
		spec  infra.Spec
		field string // of the error; empty: the Spec is accepted
	}{
		"256 queues": {infra.Spec{Queues: 256}, ""},
		"257 queues": {infra.Spec{Queues: 257}, "queues"},
		"-1 queues":  {infra.Spec{Queues: -1}, "queues"},

		"limits":              {infra.Spec{Limits: slow}, ""},
		"limits with auto":    {infra.Spec{Limits: slow, Binding: infra.Auto{}}, ""},
		"limits with macvtap": {infra.Spec{Limits: slow, Binding: infra.Macvtap{}}, "limits"},
		"limits with SR-IOV":  {infra.Spec{Limits: slow, Binding: infra.SRIOV{}}, "limits"},
		"limits with passt":   {infra.Spec{Limits: slow, Binding: infra.Passt{}}, "limits"},
		"limit of 7999":       {infra.Spec{Limits: cache.Limits{ToGuest: cache.Shape{BitsPerSecond: 7999}}}, "limits.toGuest.bitsPerSecond"},
		"MTU of 68":           {infra.Spec{MTU: 68}, ""},
		"MTU of 67":           {infra.Spec{MTU: 67}, "mtu"},
		"MTU of 65521":        {infra.Spec{MTU: 65521}, ""},
		"MTU of 65522":        {infra.Spec{MTU: 65522}, "mtu"},
		"MTU of -1":           {infra.Spec{MTU: -1}, "mtu"},
		"MTU with auto":       {infra.Spec{MTU: 1400, Binding: infra.Auto{}}, ""},
		"MTU with macvtap":    {infra.Spec{MTU: 1400, Binding: infra.Macvtap{}}, "mtu"},
		"MTU with SR-IOV":     {infra.Spec{MTU: 1400, Binding: infra.SRIOV{}}, "mtu"},
		"MTU with passt":      {infra.Spec{MTU: 1400, Binding: infra.Passt{}}, "mtu"},

		"context":                     {infra.Spec{Owner: infra.Owner{SELinux: "system_u:system_r:svirt_t:s0-s0:c0.c1023"}}, ""},
		"context without a range":     {infra.Spec{Owner: infra.Owner{SELinux: "u:r:vmm_t"}}, ""},
		"tap":                         {infra.Spec{Tap: "tap0"}, ""},
		"tap of sixteen":              {infra.Spec{Tap: "sixteencharacter"}, "tap"},
		"tap of a path":               {infra.Spec{Tap: "../x"}, "tap"},
		"tap called lo":               {infra.Spec{Tap: "lo"}, "tap"},
		"tap called all":              {infra.Spec{Tap: "all"}, "tap"},
		"tap called default":          {infra.Spec{Tap: "default"}, "tap"},
		"tap of macvtap":              {infra.Spec{Binding: infra.Macvtap{}, Tap: "tap0"}, "tap"},
		"no owner":                    {infra.Spec{}, "owner"},
		"no user, but a group":        {infra.Spec{Owner: infra.Owner{GID: 107}}, "owner"},
		"root":                        {infra.Spec{Owner: infra.Owner{Root: true}}, ""},
		"root and another":            {infra.Spec{Owner: infra.Owner{Root: true, UID: 107}}, "owner.root"},
		"type alone":                  {infra.Spec{Owner: infra.Owner{SELinux: "svirt_t"}}, "owner.selinux"},
		"context with an empty type":  {infra.Spec{Owner: infra.Owner{SELinux: "u:r::s0"}}, "owner.selinux"},
		"context with an empty range": {infra.Spec{Owner: infra.Owner{SELinux: "u:r:t:"}}, "owner.selinux"},
		"context of two lines":        {infra.Spec{Owner: infra.Owner{SELinux: "u:r:t\n"}}, "owner.selinux"},
		"context with a space":        {infra.Spec{Owner: infra.Owner{SELinux: "u:r:t:s0 ip"}}, "owner.selinux"},
		"context of 1025 characters":  {infra.Spec{Owner: infra.Owner{SELinux: "u:r:t:s0:" + strings.Repeat("c", 1016)}}, "owner.selinux"},

		"resolver":           {infra.Spec{DNS: &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}, ""},
		"no resolver":        {infra.Spec{DNS: &cache.DNS{Servers: []netip.Addr{{}}}}, "dns.servers[0]"},
		"resolver 0.0.0.0":   {infra.Spec{DNS: &cache.DNS{Servers: []netip.Addr{netip.IPv4Unspecified()}}}, "dns.servers[0]"},
		"resolver of many":   {infra.Spec{DNS: &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("::ffff:224.0.0.251")}}}, "dns.servers[1]"},
		"resolver of slirp":  {infra.Spec{Binding: infra.Slirp{}, DNS: &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}, "dns.servers"},
		"domains of slirp":   {infra.Spec{Binding: infra.Slirp{}, DNS: &cache.DNS{Search: []string{"example"}}}, ""},
		"domains of passt":   {infra.Spec{Binding: infra.Passt{}, DNS: &cache.DNS{Search: []string{"example"}}}, "dns"},
		"domain of a label":  {infra.Spec{DNS: &cache.DNS{Search: []string{"a.example.", ".", "a..b"}}}, "dns.search[2]"},
		"hostname":           {infra.Spec{Options: cache.Options{Hostname: "a\nb"}}, "options.hostname"},
		"device":             {infra.Spec{Device: cache.Device{ROM: "somewhere"}}, "device.rom"},
		"pointer":            {infra.Spec{Binding: &infra.Bridge{}}, "binding"},
		"embedded elsewhere": {infra.Spec{Binding: struct{ infra.Bridge }{}}, "binding"},

		// Loosening a guard that is not there is a misunderstanding, and so is opening ports that are not closed.
		"bridge opens":                  {infra.Spec{Guard: open}, "guard.open"},
		"redirect opens":                {infra.Spec{Binding: infra.Redirect{}, Guard: open}, "guard.open"},
		"auto in another order":         {infra.Spec{Binding: infra.Auto{Order: []cache.Kind{"masquerade", "redirect", "bridge"}}}, ""},
		"auto of passt":                 {infra.Spec{Binding: infra.Auto{Order: []cache.Kind{"redirect", "passt"}}}, "binding.auto.order[1]"},
		"auto of auto":                  {infra.Spec{Binding: infra.Auto{Order: []cache.Kind{"auto"}}}, "binding.auto.order[0]"},
		"auto of the same twice":        {infra.Spec{Binding: infra.Auto{Order: []cache.Kind{"redirect", "bridge", "redirect"}}}, "binding.auto.order[2]"},
		"auto opens":                    {infra.Spec{Binding: infra.Auto{}, Guard: open}, "guard.open"},
		"macvtap opens":                 {infra.Spec{Binding: infra.Macvtap{}, Guard: open}, "guard.open"},
		"sriov opens":                   {infra.Spec{Binding: infra.SRIOV{}, Guard: open}, "guard.open"},
		"passt opens":                   {infra.Spec{Binding: infra.Passt{}, Guard: open}, "guard.open"},
		"smallest networks":             {networks("10.9.0.4/30", "fd10:0:2::/126"), ""},
		"largest networks":              {networks("10.0.0.0/8", "fd00::/8"), ""},
		"IPv4 network of two addresses": {networks("10.9.0.4/31", "fd10:0:2::/126"), masquerade + "ipv4"},
		"IPv6 network of two addresses": {networks("10.9.0.4/30", "fd10:0:2::/127"), masquerade + "ipv6"},
		"IPv4 network too large":        {networks("10.0.0.0/7", "fd00::/8"), masquerade + "ipv4"},
		"IPv6 network too large":        {networks("10.0.0.0/8", "fc00::/7"), masquerade + "ipv6"},
		"IPv4 network of 33 bits":       {infra.Spec{Binding: infra.Masquerade{IPv4: netip.PrefixFrom(netip.MustParseAddr("10.9.0.0"), 33)}}, masquerade + "ipv4"},
		"IPv4 network for IPv6":         {networks("10.9.0.4/30", "10.9.0.0/24"), masquerade + "ipv6"},
		"IPv6 network for IPv4":         {networks("fd10:0:2::/126", "fd10:0:2::/126"), masquerade + "ipv4"},
		"baked addresses":               {ends("", "10.0.2.10 fd10:0:2::ff", "fd10:0:2::a 10.0.2.254"), ""},
		"baked guest alone":             {ends("", "10.0.2.1", ""), ""},
		"baked link-local addresses":    {ends("169.254.0.20/30", "169.254.0.21", "169.254.0.22"), ""},
		"no baked address":              {infra.Spec{Binding: infra.Masquerade{Guest: make([]netip.Addr, 1)}}, masquerade + "guest[0]"},
		"baked mapped address":          {ends("", "::ffff:10.0.2.10", ""), masquerade + "guest[0]"},
		"baked address with a zone":     {ends("", "", "fd10:0:2::a%eth0"), masquerade + "gateway[0]"},
		"two guests of IPv4":            {ends("", "10.0.2.10 10.0.2.11", ""), masquerade + "guest[1]"},
		"two gateways of IPv6":          {ends("", "", "fd10:0:2::a fd10:0:2::a"), masquerade + "gateway[1]"},
		"guest in another network":      {ends("", "169.254.0.21", ""), masquerade + "guest[0]"},
		"gateway in another network":    {ends("", "", "10.0.3.1"), masquerade + "gateway[0]"},
		"guest with the first address":  {ends("", "10.0.2.0", ""), masquerade + "guest[0]"},
		"guest with the last address":   {ends("", "10.0.2.255", ""), masquerade + "guest[0]"},
		"gateway for all routers":       {ends("", "", "fd10:0:2::"), masquerade + "gateway[0]"},
		"guest with the gateway's":      {ends("", "10.0.2.9", "10.0.2.9"), masquerade + "guest[0]"},
		"guest with routed's address":   {ends("169.254.75.0/24", "169.254.75.1", ""), masquerade + "ipv4"},
		"gateway with routed's address": {ends("169.254.75.0/24", "", ""), masquerade + "ipv4"},
		"routed's address beside":       {ends("169.254.75.0/24", "169.254.75.2", "169.254.75.3"), ""},
		"bridge, neighbours":            {infra.Spec{Guard: infra.Guard{MaxNeighbours: 100}}, "guard.maxNeighbours"},
		"redirect, neighbours":          {infra.Spec{Binding: infra.Redirect{}, Guard: infra.Guard{MaxNeighbours: 100}}, "guard.maxNeighbours"},
		"passt, neighbours":             {infra.Spec{Binding: infra.Passt{}, Guard: infra.Guard{MaxNeighbours: 100}}, "guard.maxNeighbours"},
		"auto, neighbours":              {infra.Spec{Binding: infra.Auto{}, Guard: infra.Guard{MaxNeighbours: 100}}, ""},
		"routed, neighbours":            {infra.Spec{Binding: infra.Routed{}, Guard: infra.Guard{MaxNeighbours: 65536}}, ""},
		"too many neighbours":           {infra.Spec{Binding: infra.Routed{}, Guard: infra.Guard{MaxNeighbours: 65537}}, "guard.maxNeighbours"},
		"fewer than no neighbours":      {infra.Spec{Binding: infra.Masquerade{}, Guard: infra.Guard{MaxNeighbours: -1}}, "guard.maxNeighbours"},
		"off, neighbours":               {infra.Spec{Binding: infra.Masquerade{}, Guard: infra.Guard{Off: true, MaxNeighbours: 100}}, ""},
		"masquerade opens":              {infra.Spec{Binding: infra.Masquerade{}, Guard: open}, ""},
		"macvtap with another MAC":      {infra.Spec{Binding: infra.Macvtap{}, Guard: infra.Guard{MACs: []cache.MAC{guestMAC}}}, "guard"},
		"sriov with a prefix":           {infra.Spec{Binding: infra.SRIOV{}, Guard: prefixes(netip.MustParsePrefix("10.0.2.0/24"))}, "guard"},
		"passt with another MAC":        {infra.Spec{Binding: infra.Passt{}, Guard: infra.Guard{MACs: []cache.MAC{guestMAC}}}, "guard"},
		"off":                           {infra.Spec{Guard: infra.Guard{Off: true}}, ""},
		"off with another MAC":          {infra.Spec{Guard: infra.Guard{Off: true, MACs: []cache.MAC{guestMAC}}}, ""},
		"off with another MAC, macvtap": {infra.Spec{Binding: infra.Macvtap{}, Guard: infra.Guard{Off: true, MACs: []cache.MAC{guestMAC}}}, "guard"},
		"off with a prefix":             {infra.Spec{Guard: infra.Guard{Off: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}}}, "guard.off"},
		"off with an open port":         {infra.Spec{Guard: infra.Guard{Off: true, Open: open.Open}}, "guard.off"},
		"guard of a group's MAC":        {infra.Spec{Guard: infra.Guard{MACs: []cache.MAC{guestMAC, {1}}}}, "guard.macs[1]"},
		"guard of a MAC twice":          {infra.Spec{Guard: infra.Guard{MACs: []cache.MAC{guestMAC, {2}, guestMAC}}}, "guard.macs[2]"},
		"guard of every IPv4 address":   {infra.Spec{Guard: prefixes(netip.MustParsePrefix("0.0.0.0/0"))}, ""},
		"guard of link-local addresses": {infra.Spec{Guard: prefixes(netip.MustParsePrefix("fe80::/64"))}, ""},
		"guard of no prefix":            {infra.Spec{Guard: prefixes(netip.Prefix{})}, "guard.prefixes[0]"},
		"guard of host bits":            {infra.Spec{Guard: prefixes(netip.MustParsePrefix("10.0.2.0/24"), netip.MustParsePrefix("10.1.0.1/24"))}, "guard.prefixes[1]"},
		"guard of mapped addresses":     {infra.Spec{Guard: prefixes(netip.MustParsePrefix("::ffff:10.0.0.0/104"))}, "guard.prefixes[0]"},
		"guard of groups":               {infra.Spec{Guard: prefixes(netip.MustParsePrefix("ff00::/8"))}, "guard.prefixes[0]"},
		"guard of the IPv4 loopback":    {infra.Spec{Guard: prefixes(netip.MustParsePrefix("127.0.0.0/8"))}, "guard.prefixes[0]"},
		"guard of the IPv6 loopback":    {infra.Spec{Guard: prefixes(netip.MustParsePrefix("::1/128"))}, "guard.prefixes[0]"},
		"off with an EtherType":         {infra.Spec{Guard: infra.Guard{Off: true, EtherTypes: []infra.EtherType{0x8863}}}, "guard.off"},
		"off with a VLAN":               {infra.Spec{Guard: infra.Guard{Off: true, VLANs: []uint16{5}}}, "guard.off"},
		"bridge, EtherTypes and VLANs":  {infra.Spec{Guard: infra.Guard{EtherTypes: []infra.EtherType{0x8863, 0x0600, 0xffff}, VLANs: []uint16{0, 1, 4094}}}, ""},
		"redirect, the same":            {infra.Spec{Binding: infra.Redirect{}, Guard: infra.Guard{EtherTypes: []infra.EtherType{0x8863}, VLANs: []uint16{5}}}, ""},
		"auto, the same":                {infra.Spec{Binding: infra.Auto{}, Guard: infra.Guard{EtherTypes: []infra.EtherType{0x8863}, VLANs: []uint16{5}}}, ""},
		"masquerade with an EtherType":  {infra.Spec{Binding: infra.Masquerade{}, Guard: infra.Guard{EtherTypes: []infra.EtherType{0x8863}}}, "guard.etherTypes"},
		"masquerade with a VLAN":        {infra.Spec{Binding: infra.Masquerade{}, Guard: infra.Guard{VLANs: []uint16{0}}}, "guard.vlans"},
		"macvtap with an EtherType":     {infra.Spec{Binding: infra.Macvtap{}, Guard: infra.Guard{EtherTypes: []infra.EtherType{0x8863}}}, "guard"},
		"sriov with a VLAN":             {infra.Spec{Binding: infra.SRIOV{}, Guard: infra.Guard{VLANs: []uint16{5}}}, "guard"},
		"passt with a VLAN":             {infra.Spec{Binding: infra.Passt{}, Guard: infra.Guard{VLANs: []uint16{5}}}, "guard"},
		"an EtherType that is a length": {infra.Spec{Guard: infra.Guard{EtherTypes: []infra.EtherType{0x05ff}}}, "guard.etherTypes[0]"},
		"the EtherType of IPv4":         {infra.Spec{Guard: infra.Guard{EtherTypes: []infra.EtherType{0x8863, 0x0800}}}, "guard.etherTypes[1]"},
		"the EtherType of ARP":          {infra.Spec{Guard: infra.Guard{EtherTypes: []infra.EtherType{0x0806}}}, "guard.etherTypes[0]"},
		"the EtherType of IPv6":         {infra.Spec{Guard: infra.Guard{EtherTypes: []infra.EtherType{0x86dd}}}, "guard.etherTypes[0]"},
		"the EtherType of 802.1Q":       {infra.Spec{Guard: infra.Guard{EtherTypes: []infra.EtherType{0x8100}}}, "guard.etherTypes[0]"},
		"the EtherType of 802.1ad":      {infra.Spec{Guard: infra.Guard{EtherTypes: []infra.EtherType{0x88a8}}}, "guard.etherTypes[0]"},
		"the EtherType of QinQ":         {infra.Spec{Guard: infra.Guard{EtherTypes: []infra.EtherType{0x9100}}}, "guard.etherTypes[0]"},
		"an EtherType twice":            {infra.Spec{Guard: infra.Guard{EtherTypes: []infra.EtherType{0x8863, 0x8864, 0x8863}}}, "guard.etherTypes[2]"},
		"a VLAN that is reserved":       {infra.Spec{Guard: infra.Guard{VLANs: []uint16{4094, 4095}}}, "guard.vlans[1]"},
		"a VLAN twice":                  {infra.Spec{Guard: infra.Guard{VLANs: []uint16{0, 5, 0}}}, "guard.vlans[2]"},
		"guard of a port that changes":  {infra.Spec{Binding: infra.Masquerade{}, Guard: infra.Guard{Open: []infra.Ports{{First: 1, Guest: 2}}}}, "guard.open[0]"},

		"one port as a range":                                 {infra.Spec{Binding: ports(infra.Ports{First: 80, Last: 80})}, ""},
		"range backwards":                                     {infra.Spec{Binding: ports(infra.Ports{First: 80, Last: 79})}, masquerade + "ports[0]"},
		"4096 ports become others":                            {infra.Spec{Binding: ports(infra.Ports{First: 1, Last: 4096, Guest: 10000})}, ""},
		"4097 ports become others":                            {infra.Spec{Binding: ports(infra.Ports{First: 1, Last: 4097, Guest: 10000})}, masquerade + "ports[0]"},
		"4096 ports become others, by halves":                 {infra.Spec{Binding: ports(infra.Ports{First: 1, Last: 2048, Guest: 10000}, infra.Ports{First: 4001, Last: 6048, Guest: 20000, Protocol: "udp"}, infra.Ports{First: 7000, Last: 9000})}, ""},
		"4097 ports become others, by halves":                 {infra.Spec{Binding: ports(infra.Ports{First: 1, Last: 2048, Guest: 10000}, infra.Ports{First: 4001, Last: 6049, Guest: 20000, Protocol: "udp"})}, masquerade + "ports[1]"},
		"many ports stay the same":                            {infra.Spec{Binding: ports(infra.Ports{First: 1, Last: 65535})}, ""},
		"many ports stay the same, said":                      {infra.Spec{Binding: ports(infra.Ports{First: 1, Last: 65535, Guest: 1})}, ""},
		"the last ports of the guest":                         {infra.Spec{Binding: ports(infra.Ports{First: 1, Last: 2, Guest: 65534})}, ""},
		"beyond the guest's last port":                        {infra.Spec{Binding: ports(infra.Ports{First: 1, Last: 2, Guest: 65535})}, masquerade + "ports[0]"},
		"the guest's port 1":                                  {infra.Spec{Binding: ports(infra.Ports{First: 2, Last: 999, Guest: 1})}, ""},
		"ports side by side":                                  {infra.Spec{Binding: ports(infra.Ports{First: 80, Last: 89}, infra.Ports{First: 90}, infra.Ports{First: 79})}, ""},
		"a port of two protocols":                             {infra.Spec{Binding: ports(infra.Ports{First: 53}, infra.Ports{First: 53, Protocol: "udp"})}, ""},
		"ports that meet":                                     {infra.Spec{Binding: ports(infra.Ports{First: 90}, infra.Ports{First: 80, Last: 90})}, masquerade + "ports[1]"},
		"routed":                                              {infra.Spec{Binding: infra.Routed{Sidecar: &infra.Sidecar{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.6")}}}, Guard: open}, ""},
		"routed with a VLAN":                                  {infra.Spec{Binding: infra.Routed{}, Guard: infra.Guard{VLANs: []uint16{5}}}, "guard.vlans"},
		"routed, too many connections":                        {infra.Spec{Binding: infra.Routed{MaxConnections: 1048577}}, "binding.routed.maxConnections"},
		"routed, a proxy elsewhere":                           {infra.Spec{Binding: infra.Routed{Sidecar: &infra.Sidecar{Sources: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}}, "binding.routed.sidecar.sources[0]"},
		"auto of routed with a MAC":                           {infra.Spec{Binding: infra.Auto{Order: []cache.Kind{"routed"}, MAC: guestMAC}}, "binding.auto.mac"},
		"most connections":                                    {infra.Spec{Binding: infra.Masquerade{MaxConnections: 1048576}}, ""},
		"too many connections":                                {infra.Spec{Binding: infra.Masquerade{MaxConnections: 1048577}}, masquerade + "maxConnections"},
		"negative connections":                                {infra.Spec{Binding: infra.Masquerade{MaxConnections: -1}}, masquerade + "maxConnections"},
		"a proxy's loopback addresses":                        {infra.Spec{Binding: sources("127.0.0.6", "::6")}, ""},
		"a routed port of the namespace with another number":  {infra.Spec{Binding: infra.Routed{Excluded: []infra.Ports{{First: 15008, Guest: 80}}}}, "binding.routed.excluded[0]"},
		"a routed port of the namespace twice":                {infra.Spec{Binding: infra.Routed{Excluded: []infra.Ports{{First: 15020, Last: 15021}, {First: 15021}}}}, "binding.routed.excluded[1]"},
		"port 0":                                              {infra.Spec{Binding: ports(infra.Ports{})}, masquerade + "ports[0]"},
		"a port of ICMP":                                      {infra.Spec{Binding: ports(infra.Ports{Protocol: "icmp", First: 1})}, masquerade + "ports[0]"},
		"a port that is excluded too":                         {infra.Spec{Binding: infra.Masquerade{Ports: []infra.Ports{{First: 80}}, Excluded: []infra.Ports{{First: 79, Last: 81}}}}, masquerade + "excluded[0]"},
		"an excluded port twice":                              {infra.Spec{Binding: infra.Masquerade{Excluded: []infra.Ports{{First: 80}, {First: 80}}}}, masquerade + "excluded[1]"},
		"an excluded port with another number":                {infra.Spec{Binding: infra.Masquerade{Excluded: []infra.Ports{{First: 80, Guest: 81}}}}, masquerade + "excluded[0]"},
		"passt's port 0":                                      {infra.Spec{Binding: infra.Passt{Ports: []infra.Ports{{}}}}, "binding.passt.ports[0]"},
		"an open port 0":                                      {infra.Spec{Binding: infra.Masquerade{}, Guard: infra.Guard{Open: []infra.Ports{{}}}}, "guard.open[0]"},
		"guard of IPv4 groups":                                {infra.Spec{Guard: prefixes(netip.MustParsePrefix("224.0.0.0/4"))}, "guard.prefixes[0]"},
		"a proxy without address":                             {infra.Spec{Binding: infra.Masquerade{Sidecar: &infra.Sidecar{Sources: []netip.Addr{{}}}}}, masquerade + "sidecar.sources[0]"},
		"a proxy elsewhere":                                   {infra.Spec{Binding: sources("::6", "10.0.0.1")}, masquerade + "sidecar.sources[1]"},
		"a proxy with a mapped address":                       {infra.Spec{Binding: sources("::ffff:127.0.0.6")}, masquerade + "sidecar.sources[0]"},
		"a proxy with a zone":                                 {infra.Spec{Binding: sources("fe80::6%lo")}, masquerade + "sidecar.sources[0]"},
		"masquerade with a group's MAC":                       {infra.Spec{Binding: infra.Masquerade{MAC: cache.MAC{1}}}, masquerade + "mac"},
		"passt with a group's MAC":                            {infra.Spec{Binding: infra.Passt{MAC: cache.MAC{1}}}, "binding.passt.mac"},
		"passt forwards no SCTP":                              {infra.Spec{Binding: infra.Passt{Ports: []infra.Ports{{First: 1}, {First: 1, Protocol: "sctp"}}}}, "binding.passt.ports[1]"},
		"passt with a port twice":                             {infra.Spec{Binding: infra.Passt{Ports: []infra.Ports{{First: 1}, {First: 1}}}}, "binding.passt.ports[1]"},
		"slirp":                                               {infra.Spec{Binding: infra.Slirp{IPv4: netip.MustParsePrefix("10.9.0.0/27"), IPv6: netip.MustParsePrefix("fd09::/64"), Ports: []infra.Ports{{First: 8001, Last: 8512}}}}, ""},
		"slirp of 513 ports":                                  {infra.Spec{Binding: infra.Slirp{Ports: []infra.Ports{{First: 80}, {First: 8001, Last: 8512}}}}, "binding.slirp.ports[1]"},
		"slirp with a small network":                          {infra.Spec{Binding: infra.Slirp{IPv4: netip.MustParsePrefix("10.9.0.0/28")}}, "binding.slirp.ipv4"},
		"slirp with a large IPv6 network":                     {infra.Spec{Binding: infra.Slirp{IPv6: netip.MustParsePrefix("fd09::/56")}}, "binding.slirp.ipv6"},
		"slirp with a small IPv6 network":                     {infra.Spec{Binding: infra.Slirp{IPv6: netip.MustParsePrefix("fd09::/120")}}, "binding.slirp.ipv6"},
		"slirp with a group's MAC":                            {infra.Spec{Binding: infra.Slirp{MAC: cache.MAC{1}}}, "binding.slirp.mac"},
		"slirp forwards no SCTP":                              {infra.Spec{Binding: infra.Slirp{Ports: []infra.Ports{{First: 1, Protocol: "sctp"}}}}, "binding.slirp.ports[0]"},
		"slirp with a port twice":                             {infra.Spec{Binding: infra.Slirp{Ports: []infra.Ports{{First: 1}, {First: 1}}}}, "binding.slirp.ports[1]"},
		"slirp opens":                                         {infra.Spec{Binding: infra.Slirp{}, Guard: open}, "guard.open"},
		"limits with slirp":                                   {infra.Spec{Limits: slow, Binding: infra.Slirp{}}, "limits"},
		"sriov":                                               {infra.Spec{Binding: infra.SRIOV{PCI: "0000:03:10.1", MAC: guestMAC, VLAN: 4094}}, ""},
		"sriov with a PCI address in a VLAN that is reserved": {infra.Spec{Binding: infra.SRIOV{PCI: "0000:03:10.1", VLAN: 4095}}, "binding.sriov.vlan"},
		"sriov in a VLAN that is reserved":                    {infra.Spec{Binding: infra.SRIOV{VLAN: 4095}}, "binding.sriov.vlan"},
		"sriov without a PCI address":                         {infra.Spec{Binding: infra.SRIOV{PCI: "03:10"}}, "binding.sriov.pci"},
		"bridge with a group's MAC":                           {infra.Spec{Binding: infra.Bridge{MAC: cache.MAC{1}}}, "binding.bridge.mac"},
		"redirect with a group's MAC":                         {infra.Spec{Binding: infra.Redirect{MAC: cache.MAC{1}}}, "binding.redirect.mac"},
		"auto with a group's MAC":                             {infra.Spec{Binding: infra.Auto{MAC: cache.MAC{1}}}, "binding.auto.mac"},
		"masquerade with two MACs":                            {infra.Spec{Binding: infra.Masquerade{MAC: guestMAC, NICMAC: true}}, masquerade + "mac"},
		"gateway with a group's MAC":                          {infra.Spec{Binding: infra.Masquerade{GatewayMAC: cache.MAC{1}}}, masquerade + "gatewayMAC"},
		"gateway with the guest's MAC":                        {infra.Spec{Binding: infra.Masquerade{GatewayMAC: guestMAC, MAC: guestMAC}}, masquerade + "gatewayMAC"},
		"gateway with another MAC":                            {infra.Spec{Binding: infra.Masquerade{GatewayMAC: guestMAC, MAC: cache.MAC{2}}}, ""},
		"guest of 253 octets":                                 {infra.Spec{Guest: strings.Repeat("g", 253)}, ""},
		"guest of 254 octets":                                 {infra.Spec{Guest: strings.Repeat("g", 254)}, "guest"},
		"guest of any text":                                   {infra.Spec{Guest: "default/ vm\u00e4\n"}, ""},
		"guest that is no UTF-8":                              {infra.Spec{Guest: "vm\xff"}, "guest"},
		"for of 253 octets":                                   {infra.Spec{For: strings.Repeat("f", 253)}, ""},
		"for of 254 octets":                                   {infra.Spec{For: strings.Repeat("f", 254)}, "for"},
		"for that is no UTF-8":                                {infra.Spec{For: "c1\xff"}, "for"},
		"sriov with a group's MAC":                            {infra.Spec{Binding: infra.SRIOV{MAC: cache.MAC{1}}}, "binding.sriov.mac"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := c.spec
			if spec.Binding == nil {
				spec.Binding = infra.Bridge{}
			}
			if c.field != "owner" && !spec.Owner.Root {
				spec.Owner.UID = 107
			}
			err := spec.Validate()
			var field *cache.FieldError
			switch {
			case c.field == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.field != "" && (!errors.As(err, &field) || field.Field != c.field):
				t.Errorf("have %v, want a FieldError of %s", err, c.field)
			}
		})
	}
}

// TestBindingOnce: a binding that is given twice is refused, however deep its own fields are.
func TestBindingOnce(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"binding":{"bridge":{}}}`:                                                  true,
		`{"binding":{"bridge":{},"bridge":{}}}`:                                      false,
		`{"binding":{"masquerade":{"ports":["80"]},"masquerade":{}}}`:                false,
		`{"binding":{"masquerade":{},"masquerade":{"sidecar":{}}}}`:                  false,
		`{"binding":{"masquerade":{"sidecar":{"sources":["::6"]},"loopback":true}}}`: true,
		`{"binding":{}}`: false,
		`{"binding":{"bridge":{},"redirect":{}}}`: false,
	} {
		var spec infra.Spec
		err := json.Unmarshal([]byte(text), &spec)
		if ok && err != nil || !ok && (err == nil || !strings.Contains(err.Error(), "binding: want an object with one member")) {
			t.Errorf("%s: %v, want it accepted: %t", text, err, ok)
		}
	}
}

// TestLongValues: a field that is far too long costs a few times its length, and its error is short.
func TestLongValues(t *testing.T) {
	for _, kind := range []cache.Kind{"masquerade", "bridge", "redirect", "routed", "macvtap", "sriov", "passt", "slirp", "auto"} {
		var spec infra.Spec
		filled(t, reflect.ValueOf(&spec).Elem())
		b, err := infra.NewBinding(kind)
		if err != nil {
			t.Fatal(err)
		}
		binding := reflect.New(reflect.TypeOf(b)).Elem()
		filled(t, binding)
		spec.Binding = binding.Interface().(infra.Binding)
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		if kind != "masquerade" { // which has tried the other fields
			text, err = json.Marshal(map[string]any{"binding": map[cache.Kind]any{kind: spec.Binding}})
			if err != nil {
				t.Fatal(err)
			}
		}
		check := func(path string, text []byte, octets int) {
			var spec infra.Spec
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := json.Unmarshal(text, &spec)
			if err == nil {
				err = spec.Validate()
			}
			said := fmt.Sprint(err)
			runtime.ReadMemStats(&after)
			if len(said) > longjson.MostError || err == nil {
				t.Errorf("%s: an error of %d octets: %.200s", path, len(said), said)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 32*uint64(octets) {
				t.Errorf("%s: %d octets allocated", path, used)
			}
		}
		for _, octets := range []int{300_000, 20_000} { // more than a value may have, and less
			for path, text := range longjson.Documents(t, text, octets) {
				check(path, text, octets)
			}
		}
	}
}
