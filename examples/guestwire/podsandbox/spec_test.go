package podsandbox_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/infra"
)

// TestMake: a pod's wish applied to what the list says. What is wanted is the Spec as JSON; "nothing", or "!" and the
// begin of an error.
func TestMake(t *testing.T) {
	const owner = `"owner":{"uid":107,"gid":107,"inside":true}`
	const names = `{"binding": {"routed": {}}, "egress": ["refuse all"], "names": ["b.example 443"]}`
	for name, c := range map[string]struct {
		list, wish string // a wish of "-": the pod says nothing
		trust      bool
		want       string
	}{
		"nothing is said":                {"", "-", false, "nothing"},
		"the list has no binding":        {`{"queues": 2}`, "-", false, "nothing"},
		"the list has one":               {`{"binding": {"redirect": {}}}`, "-", false, `{"binding":{"redirect":{}},` + owner + `}`},
		"none":                           {`{"binding": {"redirect": {}}}`, "none", false, "nothing"},
		"a word":                         {"", "masquerade", false, `{"binding":{"masquerade":{}},` + owner + `}`},
		"the list's word":                {`{"binding": {"masquerade": {"maxConnections": 9}}}`, "masquerade", false, `{"binding":{"masquerade":{"maxConnections":9}},` + owner + `}`},
		"another word":                   {`{"binding": {"masquerade": {"maxConnections": 9}}, "queues": 2}`, "redirect", false, `{"binding":{"redirect":{}},` + owner + `,"queues":2}`},
		"an object without a binding":    {"", `{"queues": 2}`, false, `{"binding":{"redirect":{}},` + owner + `,"queues":2}`},
		"an empty object":                {`{"binding": {"bridge": {}}}`, `{}`, false, `{"binding":{"bridge":{}},` + owner + `}`},
		"fields over fields":             {`{"queues": 2, "options": {"hostname": "a"}, "device": {"model": "e1000"}}`, `{"queues": 4, "options": {"leaseSeconds": 60}, "dns": {}}`, false, `{"binding":{"redirect":{}},` + owner + `,"queues":4,"dns":{},"options":{"leaseSeconds":60},"device":{"model":"e1000"}}`},
		"the list's DNS":                 {`{"binding": {"bridge": {}}, "dns": {"servers": ["192.0.2.1"]}}`, "masquerade", false, `{"binding":{"masquerade":{}},` + owner + `,"dns":{"servers":["192.0.2.1"]}}`},
		"the list's DNS, passt":          {`{"binding": {"bridge": {}}, "dns": {"servers": ["192.0.2.1"]}}`, "passt", false, `{"binding":{"passt":{}},` + owner + `}`},
		"the list's DNS, slirp":          {`{"dns": {"servers": ["192.0.2.1"], "search": ["example"]}}`, "slirp", false, `{"binding":{"slirp":{}},` + owner + `,"dns":{"search":["example"]}}`},
		"the pod's DNS, passt":           {"", `{"binding": {"passt": {}}, "dns": {"servers": ["192.0.2.1"]}}`, false, "!annotation guestwire/nic.eth0: dns: "},
		"routed":                         {"", "routed", false, `{"binding":{"routed":{}},` + owner + `}`},
		"routed in a mesh":               {"", `{"binding": {"routed": {"excluded": ["15008", "15020-15021", "15090"], "sidecar": {"sources": ["127.0.0.6", "::6"]}}}}`, false, `{"binding":{"routed":{"sidecar":{"sources":["127.0.0.6","::6"]},"excluded":["15008/tcp","15020-15021/tcp","15090/tcp"]}},` + owner + `}`},
		"connections of routed":          {`{"binding": {"masquerade": {"maxConnections": 9}}}`, `{"binding": {"routed": {}}}`, false, `{"binding":{"routed":{"maxConnections":9}},` + owner + `}`},
		"too many of routed":             {`{"binding": {"routed": {"maxConnections": 9}}}`, `{"binding": {"routed": {"maxConnections": 10}}}`, false, "!annotation guestwire/nic.eth0: binding.routed.maxConnections: 10, and at most 9"},
		"auto":                           {"", "auto", false, `{"binding":{"auto":{"order":["redirect","routed","masquerade"]}},` + owner + `}`},
		"auto of the list":               {`{"binding": {"auto": {}}}`, "-", false, `{"binding":{"auto":{"order":["redirect","routed","masquerade"]}},` + owner + `}`},
		"auto in the list's order":       {`{"binding": {"auto": {"order": ["masquerade"]}}}`, `{"binding": {"auto": {}}}`, false, `{"binding":{"auto":{"order":["masquerade"]}},` + owner + `}`},
		"auto in the pod's order":        {"", `{"binding": {"auto": {"order": ["bridge"]}}}`, false, `{"binding":{"auto":{"order":["bridge"]}},` + owner + `}`},
		"auto of passt":                  {"", `{"binding": {"auto": {"order": ["passt"]}}}`, false, "!annotation guestwire/nic.eth0: binding.auto.order[0]: "},
		"the list's owner":               {`{"owner": {"uid": 7}}`, "redirect", false, `{"binding":{"redirect":{}},"owner":{"uid":7,"inside":true}}`},
		"the list's owner on the node":   {`{"owner": {"uid": 7, "inside": false}}`, "redirect", false, `{"binding":{"redirect":{}},"owner":{"uid":7}}`},
		"the pod's owner":                {`{"owner": {"uid": 7, "gid": 7, "inside": false}}`, `{"owner": {"uid": 8}}`, false, `{"binding":{"redirect":{}},"owner":{"uid":8,"inside":true}}`},
		"the pod's owner on the node":    {"", `{"owner": {"uid": 8, "inside": false}}`, false, `{"binding":{"redirect":{}},"owner":{"uid":8}}`},
		"root":                           {`{"owner": {"root": true}}`, "redirect", false, `{"binding":{"redirect":{}},"owner":{"root":true,"inside":true}}`},
		"a context":                      {"", `{"owner": {"uid": 8, "selinux": "a:b:c"}}`, false, "!annotation guestwire/nic.eth0: owner.selinux: not for a pod to say"},
		"a context, trusted":             {"", `{"owner": {"uid": 8, "selinux": "a:b:c"}}`, true, `{"binding":{"redirect":{}},"owner":{"uid":8,"inside":true,"selinux":"a:b:c"}}`},
		"the list's context":             {`{"owner": {"uid": 7, "selinux": "a:b:c"}}`, `{"owner": {"uid": 8}}`, false, `{"binding":{"redirect":{}},"owner":{"uid":8,"inside":true,"selinux":"a:b:c"}}`},
		"the list's context, said":       {`{"owner": {"uid": 7, "selinux": "a:b:c"}}`, `{"owner": {"uid": 8, "selinux": "a:b:c"}}`, false, `{"binding":{"redirect":{}},"owner":{"uid":8,"inside":true,"selinux":"a:b:c"}}`},
		"a tap":                          {"", `{"tap": "tap0"}`, false, "!annotation guestwire/nic.eth0: tap: not for a pod to say"},
		"the list's tap":                 {`{"tap": "tap0"}`, "redirect", false, `{"binding":{"redirect":{}},"owner":{"uid":107,"gid":107,"inside":true},"tap":"tap0"}`},
		"egress":                         {"", `{"binding": {"routed": {}}, "egress": ["refuse all"]}`, false, `{"binding":{"routed":{}},` + owner + `,"egress":["refuse all"]}`},
		"egress within the list's":       {`{"binding": {"routed": {}}, "egress": ["allow 10.0.0.0/8", "refuse all"]}`, `{"egress": ["allow all"]}`, false, `{"binding":{"routed":{}},` + owner + `,"egress":["allow all"],"egressWithin":["allow 10.0.0.0/8","refuse all"]}`},
		"egress of another binding":      {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, `{"binding": {"masquerade": {}}, "egress": ["allow all"]}`, false, `{"binding":{"masquerade":{}},` + owner + `,"egress":["allow all"],"egressWithin":["refuse all"]}`},
		"egress beside egressWithin":     {`{"binding": {"routed": {}}, "egressWithin": ["refuse all"]}`, `{"egress": ["allow all"]}`, false, `{"binding":{"routed":{}},` + owner + `,"egress":["allow all"],"egressWithin":["refuse all"]}`},
		"egress as a third list":         {`{"binding": {"routed": {}}, "egress": ["refuse all"], "egressWithin": ["refuse all"]}`, `{"egress": ["allow all"]}`, false, "!annotation guestwire/nic.eth0: egress: not for a pod to say"},
		"egress, trusted":                {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, `{"egress": ["allow all"]}`, true, `{"binding":{"routed":{}},` + owner + `,"egress":["allow all"]}`},
		"the list's NAT64":               {`{"binding": {"routed": {}}, "egress": ["refuse all"], "options": {"nat64": "2001:db8:64::/96", "hostname": "a"}}`, `{"options": {"hostname": "b"}}`, false, `{"binding":{"routed":{}},` + owner + `,"options":{"hostname":"b","nat64":"2001:db8:64::/96"},"egress":["refuse all"]}`},
		"another NAT64":                  {`{"binding": {"routed": {}}, "egress": ["refuse all"], "options": {"nat64": "2001:db8:64::/96"}}`, `{"options": {"nat64": "2001:db8:65::/96"}}`, false, "!annotation guestwire/nic.eth0: options.nat64: not for a pod to say"},
		"NAT64 beside egressWithin":      {`{"binding": {"routed": {}}, "egressWithin": ["refuse all"]}`, `{"options": {"nat64": "2001:db8:65::/96"}}`, false, "!annotation guestwire/nic.eth0: options.nat64: not for a pod to say"},
		"NAT64 without egress":           {`{"options": {"nat64": "2001:db8:64::/96"}}`, `{"options": {"nat64": "2001:db8:65::/96"}}`, false, `{"binding":{"redirect":{}},` + owner + `,"options":{"nat64":"2001:db8:65::/96"}}`},
		"NAT64, trusted":                 {`{"binding": {"routed": {}}, "egress": ["refuse all"], "options": {"nat64": "2001:db8:64::/96"}}`, `{"options": {"nat64": "2001:db8:65::/96"}}`, true, `{"binding":{"routed":{}},` + owner + `,"options":{"nat64":"2001:db8:65::/96"},"egress":["refuse all"]}`},
		"no egress":                      {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, `{"egress": []}`, false, "!annotation guestwire/nic.eth0: egress: an empty list"},
		"null as egress":                 {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, `{"egress": null}`, false, "!annotation guestwire/nic.eth0: egress: want a list"},
		"a mistake in egress":            {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, `{"egress": ["allow all 80"]}`, false, "!annotation guestwire/nic.eth0: egress: the last entry"},
		"much egress":                    {"", `{"binding": {"routed": {}}, "egress": [` + strings.Repeat(`"allow all icmp", `, 63) + `"refuse all"]}`, false, `{"binding":{"routed":{}},` + owner + `,"egress":[` + strings.Repeat(`"allow all icmp",`, 63) + `"refuse all"]}`},
		"too much egress":                {"", `{"binding": {"routed": {}}, "egress": [` + strings.Repeat(`"allow all icmp", `, 64) + `"refuse all"]}`, false, "!annotation guestwire/nic.eth0: egress: 65 entries, and at most 64"},
		"another egressWithin":           {`{"binding": {"routed": {}}, "egressWithin": ["refuse all"]}`, `{"egressWithin": ["allow all"]}`, false, "!annotation guestwire/nic.eth0: egressWithin: not for a pod to say"},
		"egressWithin beside egress":     {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, `{"egress": ["allow all"], "egressWithin": ["allow all"]}`, false, "!annotation guestwire/nic.eth0: egressWithin: not for a pod to say"},
		"egressWithin, trusted":          {`{"binding": {"routed": {}}, "egressWithin": ["refuse all"]}`, `{"egressWithin": ["allow all"]}`, true, `{"binding":{"routed":{}},` + owner + `,"egressWithin":["allow all"]}`},
		"a way round egressWithin":       {`{"binding": {"routed": {}}, "egressWithin": ["refuse all"]}`, "redirect", false, "!annotation guestwire/nic.eth0: egressWithin: with the redirect binding"},
		"a way round by a sidecar":       {`{"binding": {"routed": {}}, "egressWithin": ["refuse all"]}`, `{"binding": {"routed": {"sidecar": {}}}}`, false, "!annotation guestwire/nic.eth0: egressWithin: the proxies"},
		"a way round by its own egress":  {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, `{"binding": {"passt": {}}, "egress": ["allow all"]}`, false, "!annotation guestwire/nic.eth0: egress: with the passt binding"},
		"the list's egress":              {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, "masquerade", false, `{"binding":{"masquerade":{}},` + owner + `,"egress":["refuse all"]}`},
		"egress without a binding":       {`{"egress": ["refuse all"]}`, "routed", false, `{"binding":{"routed":{}},` + owner + `,"egress":["refuse all"]}`},
		"egress for nobody":              {`{"egress": ["refuse all"]}`, "-", false, "nothing"},
		"egress without another":         {`{"egress": ["refuse all"]}`, `{"queues": 2}`, false, "!annotation guestwire/nic.eth0: egress: with the redirect binding"},
		"a way round egress":             {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, "redirect", false, "!annotation guestwire/nic.eth0: egress: with the redirect binding"},
		"resolvers of egress":            {`{"binding": {"routed": {}}, "dns": {"servers": ["10.96.0.10"]}, "egress": ["allow resolvers", "refuse all"]}`, `{"dns": {"servers": ["203.0.113.5"]}}`, false, "!annotation guestwire/nic.eth0: dns: not for a pod to say"},
		"resolvers of egressWithin":      {`{"binding": {"routed": {}}, "dns": {"servers": ["10.96.0.10"]}, "egressWithin": ["allow resolvers", "refuse all"]}`, `{"dns": {"servers": ["203.0.113.5"]}}`, false, "!annotation guestwire/nic.eth0: dns: not for a pod to say"},
		"the pod's resolvers":            {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, `{"dns": {"servers": ["203.0.113.5"]}, "egress": ["allow resolvers", "refuse all"]}`, false, `{"binding":{"routed":{}},` + owner + `,"dns":{"servers":["203.0.113.5"]},"egress":["allow resolvers","refuse all"],"egressWithin":["refuse all"]}`},
		"a divert":                       {`{"binding": {"routed": {}}, "egressWithin": ["allow gateway 15443/tcp", "allow 127.0.0.1 8000-8100", "allow all"]}`, `{"egress": ["divert all 443 :15443", "divert 192.0.2.7 80 127.0.0.1:8080", "allow all"]}`, false, `{"binding":{"routed":{}},` + owner + `,"egress":["divert all 443/tcp :15443","divert 192.0.2.7 80/tcp 127.0.0.1:8080","allow all"],"egressWithin":["allow gateway 15443/tcp","allow 127.0.0.1 8000-8100/tcp","allow all"]}`},
		"a divert without a list":        {"", `{"binding": {"routed": {}}, "egress": ["divert all 443 :15443", "allow all"]}`, false, "!annotation guestwire/nic.eth0: egress[0]: \"divert all 443/tcp :15443\": egressWithin does not allow the target: add \"allow gateway 15443/tcp\" there, or leave this entry out. Here egressWithin is what the node's CNI list allows: ask the node's operator"},
		"a divert to another port":       {`{"binding": {"routed": {}}, "egressWithin": ["allow gateway 15443/tcp", "allow all"]}`, `{"egress": ["allow 192.0.2.0/24", "divert all 443 :22", "allow all"]}`, false, "!annotation guestwire/nic.eth0: egress[1]: \"divert all 443/tcp :22\": egressWithin does not allow the target: add \"allow gateway 22/tcp\" there, or leave this entry out. Here egressWithin is"},
		"a divert within egressWithin":   {`{"binding": {"routed": {}}, "egressWithin": ["allow all"]}`, `{"egress": ["divert all 443 127.0.0.1:443", "allow all"]}`, false, "!annotation guestwire/nic.eth0: egress[0]: \"divert all 443/tcp 127.0.0.1:443\": egressWithin does not allow the target: add \"allow 127.0.0.1 443/tcp\" there, or leave this entry out. Here egressWithin is"},
		"a mistake in a divert":          {"", `{"binding": {"routed": {}}, "egress": ["divert all 443 [::1]:443", "allow all"]}`, false, "!annotation guestwire/nic.eth0: egress[0]: the kernel takes no packet for ::1 from a link"},
		"a divert, trusted":              {"", `{"binding": {"routed": {}}, "egress": ["divert all 443 :15443", "allow all"]}`, true, `{"binding":{"routed":{}},` + owner + `,"egress":["divert all 443/tcp :15443","allow all"]}`},
		"a divert, all trusted":          {`{"binding": {"routed": {}}, "egressWithin": ["refuse all"]}`, `{"egress": ["divert all 443 :22", "allow all"], "egressWithin": ["allow all"]}`, true, "!annotation guestwire/nic.eth0: egress[0]: \"divert all 443/tcp :22\": egressWithin does not allow the target: add \"allow gateway 22/tcp\" there, or leave this entry out"},
		"the list's divert":              {`{"binding": {"routed": {}}, "egress": ["divert all 443 :15443", "allow all"]}`, `{"egress": ["allow 192.0.2.0/24", "refuse all"]}`, false, `{"binding":{"routed":{}},` + owner + `,"egress":["allow 192.0.2.0/24","refuse all"],"egressWithin":["divert all 443/tcp :15443","allow all"]}`},
		"a divert of redirect":           {"", `{"egress": ["divert all 443 :15443", "allow all"]}`, false, "!annotation guestwire/nic.eth0: egress: with the redirect binding"},
		"no flows":                       {`{"binding": {"routed": {}}, "flows": true}`, `{"flows": false}`, false, "!annotation guestwire/nic.eth0: flows: not for a pod to say"},
		"flows, trusted":                 {"", `{"binding": {"routed": {}}, "flows": true}`, true, `{"binding":{"routed":{}},` + owner + `,"flows":true}`},
		"names":                          {"", `{"binding": {"routed": {}}, "egress": ["refuse all"], "names": ["a.example 443"], "dns": {"servers": ["203.0.113.5"]}}`, false, `{"binding":{"routed":{}},` + owner + `,"dns":{"servers":["203.0.113.5"]},"egress":["refuse all"],"names":["a.example 443/tcp"]}`},
		"names without egress":           {"", `{"binding": {"routed": {}}, "names": ["a.example 443"]}`, false, "!annotation guestwire/nic.eth0: names: without egress"},
		"names past the list's egress":   {`{"binding": {"routed": {}}, "egress": ["refuse all"]}`, `{"names": ["a.example 443"]}`, false, "!annotation guestwire/nic.eth0: names: without egress"},
		"names with an open egress":      {"", `{"binding": {"routed": {}}, "egress": ["allow all"], "names": ["a.example 443"]}`, false, `!annotation guestwire/nic.eth0: names: the guest can go everywhere without them: want egress to end with "refuse all"`},
		"names within the list's":        {`{"binding": {"routed": {}}, "egress": ["refuse metadata", "allow all"]}`, `{"egress": ["refuse all"], "names": ["a.example 443"]}`, false, `!annotation guestwire/nic.eth0: names: "divert all 53/udp :15353": egressWithin does not allow the target: add "allow gateway 15353/udp" there, or leave names out. Here egressWithin is what the node's CNI list allows, and the questions about names leave by the DNS proxy, which no list sees: ask the node's operator`},
		"names by one protocol":          {`{"binding": {"routed": {}}, "egressWithin": ["allow gateway 15353/udp", "allow all"]}`, `{"egress": ["refuse all"], "names": ["a.example 443"]}`, false, `!annotation guestwire/nic.eth0: names: "divert all 53/tcp :15353": egressWithin does not allow the target: add "allow gateway 15353/tcp" there, or leave names out. Here egressWithin is`},
		"names that the list allows":     {`{"binding": {"routed": {}}, "egressWithin": ["allow gateway 15353/udp", "allow gateway 15353", "refuse metadata", "allow all"]}`, `{"egress": ["refuse all"], "names": ["a.example 443"]}`, false, `{"binding":{"routed":{}},` + owner + `,"egress":["refuse all"],"egressWithin":["allow gateway 15353/udp","allow gateway 15353/tcp","refuse metadata","allow all"],"names":["a.example 443/tcp"]}`},
		"names of its own resolvers":     {`{"binding": {"routed": {}}, "egressWithin": ["allow gateway 15353/udp", "allow gateway 15353", "allow all"]}`, `{"egress": ["refuse all"], "names": ["a.example 443"], "dns": {"servers": ["203.0.113.5"]}}`, false, "!annotation guestwire/nic.eth0: dns: not for a pod to say"},
		"a mistake in names":             {"", `{"binding": {"routed": {}}, "egress": ["refuse all"], "names": ["a.example"]}`, false, "!annotation guestwire/nic.eth0: names"},
		"names of redirect":              {"", `{"egress": ["refuse all"], "names": ["a.example 443"]}`, false, "!annotation guestwire/nic.eth0: egress: with the redirect binding"},
		"the list's names":               {names, "masquerade", false, `{"binding":{"masquerade":{}},` + owner + `,"egress":["refuse all"],"names":["b.example 443/tcp"]}`},
		"the list's names, unsaid":       {names, "-", false, `{"binding":{"routed":{}},` + owner + `,"egress":["refuse all"],"names":["b.example 443/tcp"]}`},
		"names instead of the list's":    {names, `{"egress": ["refuse all"], "names": ["a.example 443"]}`, false, "!annotation guestwire/nic.eth0: egress: not for a pod to say"},
		"other names than the list's":    {names, `{"names": ["a.example 443"]}`, false, "!annotation guestwire/nic.eth0: names: not for a pod to say"},
		"no names, the list's":           {names, `{"names": null}`, false, "!annotation guestwire/nic.eth0: names: want a list"},
		"egress beside the list's names": {names, `{"egress": ["refuse all"]}`, false, "!annotation guestwire/nic.eth0: egress: not for a pod to say"},
		"resolvers of the list's names":  {names, `{"dns": {"servers": ["203.0.113.5"]}}`, false, "!annotation guestwire/nic.eth0: dns: not for a pod to say"},
		"a way round the list's names":   {names, "redirect", false, "!annotation guestwire/nic.eth0: egress: with the redirect binding"},
		"names, trusted":                 {names, `{"names": ["a.example 443"], "dns": {"servers": ["203.0.113.5"]}}`, true, `{"binding":{"routed":{}},` + owner + `,"dns":{"servers":["203.0.113.5"]},"egress":["refuse all"],"names":["a.example 443/tcp"]}`},
		"egress and names, trusted":      {names, `{"egress": ["refuse metadata", "refuse all"], "names": ["a.example 443"]}`, true, `{"binding":{"routed":{}},` + owner + `,"egress":["refuse metadata","refuse all"],"names":["a.example 443/tcp"]}`},
		"egress over names, trusted":     {names, `{"egress": ["allow all"]}`, true, `{"binding":{"routed":{}},` + owner + `,"egress":["allow all"]}`},
		"a mistake in the list's names":  {`{"binding": {"routed": {}}, "names": ["b.example 443"]}`, "-", false, `!spec.names: the guest can go everywhere without them`},
		"a guard":                        {"", `{"guard": {"off": true}}`, false, "!annotation guestwire/nic.eth0: guard: not for a pod to say"},
		"an empty guard":                 {`{"guard": {"macs": ["02:00:00:00:00:01"]}}`, `{"guard": {}}`, false, "!annotation guestwire/nic.eth0: guard: not for a pod to say"},
		"a guard, trusted":               {"", `{"guard": {"off": true}}`, true, `{"binding":{"redirect":{}},` + owner + `,"guard":{"off":true}}`},
		"the list's guard":               {`{"guard": {"off": true}}`, "bridge", false, `{"binding":{"bridge":{}},` + owner + `,"guard":{"off":true}}`},
		"macvtap":                        {"", "macvtap", false, "!annotation guestwire/nic.eth0: binding.macvtap: not for a pod to say"},
		"macvtap in an object":           {"", `{"binding": {"macvtap": {}}}`, false, "!annotation guestwire/nic.eth0: binding.macvtap: not for a pod to say"},
		"the list's macvtap":             {`{"binding": {"macvtap": {}}}`, `{"binding": {"macvtap": {}}}`, false, `{"binding":{"macvtap":{}},` + owner + `}`},
		"sriov":                          {"", "sriov", false, "!annotation guestwire/nic.eth0: binding.sriov: not for a pod to say"},
		"another sriov":                  {`{"binding": {"sriov": {"vlan": 5}}}`, `{"binding": {"sriov": {"vlan": 6}}}`, false, "!annotation guestwire/nic.eth0: binding.sriov: not for a pod to say"},
		"the list's sriov":               {`{"binding": {"sriov": {"vlan": 5}}}`, "sriov", false, `{"binding":{"sriov":{"vlan":5}},` + owner + `}`},
		"sriov, trusted":                 {"", `{"binding": {"sriov": {"vlan": 6}}}`, true, `{"binding":{"sriov":{"vlan":6}},` + owner + `}`},
		"passt":                          {"", `{"binding": {"passt": {"ports": ["80"]}}}`, false, `{"binding":{"passt":{"ports":["80/tcp"]}},` + owner + `}`},
		"passt by shared memory":         {"", `{"binding": {"passt": {"vhostUser": true}}}`, false, `{"binding":{"passt":{"vhostUser":true}},` + owner + `}`},
		"iptables":                       {"", `{"binding": {"masquerade": {"firewall": "iptables-legacy"}}}`, false, "!annotation guestwire/nic.eth0: binding.masquerade.firewall: not for a pod to say"},
		"iptables, trusted":              {"", `{"binding": {"masquerade": {"firewall": "iptables-legacy"}}}`, true, `{"binding":{"masquerade":{"firewall":"iptables-legacy"}},` + owner + `}`},
		"the list's iptables":            {`{"binding": {"masquerade": {"firewall": "iptables-nft", "maxConnections": 9}}}`, `{"binding": {"masquerade": {"ports": []}}}`, false, `{"binding":{"masquerade":{"ports":[],"maxConnections":9,"firewall":"iptables-nft"}},` + owner + `}`},
		"connections":                    {"", `{"binding": {"masquerade": {"maxConnections": 16384}}}`, false, `{"binding":{"masquerade":{"maxConnections":16384}},` + owner + `}`},
		"too many connections":           {"", `{"binding": {"masquerade": {"maxConnections": 16385}}}`, false, "!annotation guestwire/nic.eth0: binding.masquerade.maxConnections: 16385, and at most 16384"},
		"more connections than listed":   {`{"binding": {"masquerade": {"maxConnections": 9}}}`, `{"binding": {"masquerade": {"maxConnections": 10}}}`, false, "!annotation guestwire/nic.eth0: binding.masquerade.maxConnections: 10, and at most 9"},
		"more connections by auto":       {`{"binding": {"masquerade": {"maxConnections": 9}}}`, `{"binding": {"auto": {"order": ["masquerade"]}}}`, false, "!annotation guestwire/nic.eth0: binding.auto: with masquerade"},
		"more connections by its word":   {`{"binding": {"masquerade": {"maxConnections": 9}}}`, "auto", false, "!annotation guestwire/nic.eth0: binding.auto: with masquerade"},
		"auto without masquerade":        {`{"binding": {"masquerade": {"maxConnections": 9}}}`, `{"binding": {"auto": {"order": ["redirect"]}}}`, false, `{"binding":{"auto":{"order":["redirect"]}},` + owner + `}`},
		"many connections, listed":       {`{"binding": {"masquerade": {"maxConnections": 99999}}}`, `{"binding": {"masquerade": {"maxConnections": 99998}}}`, false, `{"binding":{"masquerade":{"maxConnections":99998}},` + owner + `}`},
		"more than may be":               {"", `{"options": {"hostname": "` + strings.Repeat("a", 4096) + `"}}`, false, "!annotation guestwire/nic.eth0: 4125 bytes, and at most 4096 are for a pod to say"},
		"more than may be, trusted":      {"", `{"queues": 2` + strings.Repeat(" ", 4096) + `}`, true, `{"binding":{"redirect":{}},` + owner + `,"queues":2}`},
		"an identity":                    {`{"guest": "a"}`, `{"guest": "b"}`, false, `{"binding":{"redirect":{}},"guest":"b",` + owner + `}`},
		"a MAC behind masquerade":        {"", `{"binding": {"masquerade": {"mac": "02:00:00:00:00:07", "gatewayMAC": "02:00:00:00:00:08"}}}`, false, `{"binding":{"masquerade":{"mac":"02:00:00:00:00:07","gatewayMAC":"02:00:00:00:00:08"}},` + owner + `}`},
		"a MAC on the network, bridge":   {"", `{"binding": {"bridge": {"mac": "02:00:00:00:00:07"}}}`, false, "!annotation guestwire/nic.eth0: binding.bridge.mac: not for a pod to say"},
		"a MAC on the network":           {"", `{"binding": {"redirect": {"mac": "02:00:00:00:00:07"}}}`, false, "!annotation guestwire/nic.eth0: binding.redirect.mac: not for a pod to say"},
		"a MAC on the network, auto":     {"", `{"binding": {"auto": {"mac": "02:00:00:00:00:07"}}}`, false, "!annotation guestwire/nic.eth0: binding.auto.mac: not for a pod to say"},
		"a MAC on the network, trusted":  {"", `{"binding": {"bridge": {"mac": "02:00:00:00:00:07"}}}`, true, `{"binding":{"bridge":{"mac":"02:00:00:00:00:07"}},` + owner + `}`},
		"an MTU":                         {"", `{"mtu": 1400}`, false, `{"binding":{"redirect":{}},` + owner + `,"mtu":1400}`},
		"a lower MTU than listed":        {`{"mtu": 1400}`, `{"mtu": 1300}`, false, `{"binding":{"redirect":{}},` + owner + `,"mtu":1300}`},
		"a higher MTU than listed":       {`{"mtu": 1400}`, `{"mtu": 1401}`, false, "!annotation guestwire/nic.eth0: mtu: 1401, and at most 1400"},
		"a higher MTU, trusted":          {`{"mtu": 1400}`, `{"mtu": 1401}`, true, `{"binding":{"redirect":{}},` + owner + `,"mtu":1401}`},
		"the list's MTU":                 {`{"mtu": 1400}`, `{"mtu": 0}`, false, `{"binding":{"redirect":{}},` + owner + `,"mtu":1400}`},
		"slirp":                          {"", `{"binding": {"slirp": {"ipv4": "10.9.0.0/24"}}}`, false, `{"binding":{"slirp":{"ipv4":"10.9.0.0/24"}},` + owner + `}`},
		"the list's MTU without a tap":   {`{"mtu": 1400}`, "passt", false, "!annotation guestwire/nic.eth0: mtu: 1400, but the passt binding"},
		"limits":                         {"", `{"limits": {}}`, false, "!annotation guestwire/nic.eth0: limits: not for a pod to say"},
		"limits, trusted":                {"", `{"limits": {"toGuest": {"bitsPerSecond": 8000}}}`, true, `{"binding":{"redirect":{}},` + owner + `,"limits":{"toGuest":{"bitsPerSecond":8000}}}`},
		"the list's limits":              {`{"limits": {"toGuest": {"bitsPerSecond": 8000}}}`, "bridge", false, `{"binding":{"bridge":{}},` + owner + `,"limits":{"toGuest":{"bitsPerSecond":8000}}}`},
		"no way around the limits":       {`{"limits": {"toGuest": {"bitsPerSecond": 8000}}}`, "passt", false, "!annotation guestwire/nic.eth0: limits: with the passt binding"},
		"a mistake of the pod":           {"", `{"queues": 300}`, false, "!annotation guestwire/nic.eth0: queues: 300, want"},
		"a mistake of the list":          {`{"queues": 300}`, "-", false, "!spec.queues: 300, want"},
		"a mistake in the list's form":   {`{"queue": 3}`, "-", false, "!spec.queue: no such field"},
		"a list that names the NIC":      {`{"nic": "eth0"}`, "-", false, "!spec.nic: no such field"},
		"a list that says for whom":      {`{"for": "podnet/eth0"}`, "-", false, "!spec.for: not here"},
		"a list that names the state":    {`{"state": "/run"}`, "-", false, "!spec.state: not here"},
		"a list that is no object":       {`"redirect"`, "-", false, "!spec: "},
		"a list with the order of auto":  {`{"binding": {"auto": {"order": ["x"]}}}`, "-", false, "!spec.binding.auto.order[0]: "},
	} {
		t.Run(name, func(t *testing.T) {
			have := func() string {
				var list json.RawMessage
				if c.list != "" {
					list = json.RawMessage(c.list)
				}
				d, err := podsandbox.ReadDefaults(list, c.trust)
				if err != nil {
					return "!" + err.Error()
				}
				var wish *podsandbox.Wish
				if c.wish != "-" {
					w, err := podsandbox.Read(map[string]string{"guestwire/nic.eth0": c.wish})
					if err != nil {
						return "!" + err.Error()
					}
					of := w.NICs["eth0"]
					wish = &of
				}
				spec, wanted, err := d.Make(wish, nil)
				if err != nil {
					return "!" + err.Error()
				}
				if !wanted {
					return "nothing"
				}
				text, err := json.Marshal(spec)
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}()
			if have != c.want && (!strings.HasPrefix(c.want, "!") || !strings.HasPrefix(have, c.want)) {
				t.Errorf("have %s\nwant %s", have, c.want)
			}
		})
	}
}

// TestEachFieldIsDecided: for each field of a Spec it is said what a pod may do with it. A field that is new in infra
// is refused, and this test fails, until Defaults.TrustPods and Make say it.
func TestEachFieldIsDecided(t *testing.T) {
	decided := map[string]string{"state": "", "for": "", "tap": `"tap0"`, "binding": `{"bridge": {}}`, "owner": `{"uid": 1}`, "queues": "1", "dns": "{}", "options": "{}", "device": "{}", "guard": "{}", "mtu": "1400", "guest": `"vm1"`, "limits": "{}", "acceptLosses": "true", "egress": `["refuse all"], "binding": {"routed": {}}`, "egressWithin": `["refuse all"], "binding": {"routed": {}}`, "flows": `true, "binding": {"routed": {}}`, "names": `["a.example 443"], "egress": ["refuse all"], "binding": {"routed": {}}`}
	fields := reflect.TypeFor[infra.Spec]()
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
		value, ok := decided[name]
		if !ok {
			t.Errorf("%s is a new field: say what a pod may do with it", name)
			continue
		}
		if value == "" {
			continue
		}
		w, err := podsandbox.Read(map[string]string{"guestwire/nic.eth0": `{"` + name + `": ` + value + `}`})
		if err != nil {
			t.Fatal(err)
		}
		wish := w.NICs["eth0"]
		if _, _, err := (podsandbox.Defaults{TrustPods: true}).Make(&wish, nil); err != nil {
			t.Error(err)
		}
	}
	for binding, decided := range map[infra.Binding][]string{
		infra.Bridge{}: {"mac"}, infra.Redirect{}: {"mac"}, infra.Macvtap{}: nil,
		infra.SRIOV{}: {"pci", "mac", "vlan", "managed"},
	} {
		knownFields(t, reflect.TypeOf(binding), decided)
	}
	knownFields(t, reflect.TypeFor[infra.Auto](), []string{"order", "mac"})
	knownFields(t, reflect.TypeFor[infra.Passt](), []string{"mac", "ports", "vhostUser"})
	knownFields(t, reflect.TypeFor[infra.Slirp](), []string{"ipv4", "ipv6", "mac", "ports"})
	knownFields(t, reflect.TypeFor[infra.Owner](), []string{"uid", "gid", "root", "inside", "ownDevices", "selinux"})
	knownFields(t, reflect.TypeFor[infra.Routed](), []string{"sidecar", "excluded", "maxConnections"})
	knownFields(t, reflect.TypeFor[infra.Masquerade](), []string{"ipv4", "ipv6", "guest", "gateway", "mac", "nicMAC", "gatewayMAC", "ports", "excluded", "loopback", "sidecar", "maxConnections", "firewall"})
}

func knownFields(t *testing.T, of reflect.Type, known []string) {
	t.Helper()
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if !slices.Contains(known, name) {
			t.Errorf("%s of %v is a new field: say what a pod may do with it", name, of)
		}
	}
}
