package depstest

import (
	"fmt"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestNumbers: limits that the documents name are those of the code.
func TestNumbers(t *testing.T) {
	const limits, cni = "docs/reference/limits.md", "docs/reference/cni.md"
	const routed, masquerade = "docs/bindings/routed.md", "docs/bindings/masquerade.md"
	for _, c := range []struct {
		page, text string // in one of the pages, with % for the value
		file, code string // a regular expression whose groups are the value, an expression of Go or words
		as         func(values []string) string
	}{
		{page: limits, text: "Linux before % is refused", file: "internal/netns/identity.go", code: `guestwire needs Linux (\S+) or`},
		{page: limits, text: "Tests run on Linux %", file: limits, code: `\| the kernel \| (\S+) \| (\S+) \| (\S+) \|`,
			as: func(kernels []string) string { return kernels[0] + ", " + kernels[1] + " and " + kernels[2] }},
		{page: routed, text: "open connections (% by default", file: "infra/masquerade.go", code: `const DefaultMaxConnections = (.*)`},
		{page: masquerade, text: "open connections (% by default", file: "infra/masquerade.go", code: `const DefaultMaxConnections = (.*)`},
		{page: routed, text: "at most % hosts of the NIC's networks, of each family", file: "internal/router/router.go", code: `const mostNextHops = (.*)`},
		{page: masquerade, text: "Neighbours: % by default", file: "internal/router/router.go", code: `const mostNextHops = (.*)`},
		{page: "docs/reference/configuration.md", text: "| `maxNeighbours` | number | %", file: "internal/router/router.go", code: `const mostNextHops = (.*)`},
		{page: masquerade, text: "Setup reserves %", file: "internal/router/sourceports.go", code: `spare = span{(\d+), (\d+)}`,
			as: func(span []string) string { return strings.Join(span, "-") }},
		{page: masquerade, text: "to one server at once: about %", file: "internal/router/sourceports.go", code: `spare = span{(\d+), (\d+)}`,
			as: func(span []string) string { return value(span[1] + "/100*100 - " + span[0] + "/100*100") }},
		{page: masquerade, text: "If fewer than % ports lie above", file: "internal/router/sourceports.go", code: `enoughPorts = (\d+)`},
		{page: masquerade, text: "a list has at most % ports that become others", file: "infra/ports.go", code: `const maxRedirected = (.*)`},
		{page: "docs/bindings/passt.md", text: "a list has at most % ports that become others", file: "infra/ports.go", code: `const maxRedirected = (.*)`},
		{page: limits, text: "`mtu`, from % (1280 with IPv6)", file: "internal/syntax/syntax.go", code: `MinMTU += (\d+)`},
		{page: limits, text: "with IPv6) to %.", file: "internal/syntax/syntax.go", code: `MaxMTU += (\d+)`},
		{page: limits, text: "At once, % addresses and ports of each family", file: "internal/firewall/pin.go", code: `const MaxPins = (.*)`},
		{page: limits, text: "at most % by one call", file: "phase1/pin.go", code: `maxPins += (\d+)`},
		{page: "docs/reference/configuration.md", text: "by itself (RFC 7217): %for a week", file: "internal/guestfilter/linklocal.go", code: `maxLocal += (\d+)`,
			as: func(number []string) string { return map[string]string{"4": "four "}[number[0]] }},
		{page: "docs/reference/configuration.md", text: "more than % others in an hour", file: "internal/guestfilter/linklocal.go", code: `maxMore += (\d+)`},
		{page: "docs/reference/configuration.md", text: "or % under masquerade and routed.", file: "internal/guestfilter/linklocal.go", code: `maxMoreRouted += (\d+)`},
		{page: routed, text: "send from % and fd00", file: "infra/masquerade.go", code: `AddrFrom4\(\[4\]byte{(\d+), (\d+), (\d+), (\d+)}`,
			as: func(octets []string) string { return strings.Join(octets, ".") }},
		{page: routed, text: "and %, which become", file: "infra/masquerade.go", code: `routedOwn = .*MustParseAddr\("(.*)"\)`},
		{page: "docs/reference/configuration.md", text: "have open to it. At most %.", file: "infra/masquerade.go", code: `const maxConnections = (.*)`},
		{page: "docs/reference/configuration.md", text: "at most % octets of UTF-8", file: "infra/spec.go", code: `const maxText = (.*)`},
		{page: "docs/reference/configuration.md", text: "queue pairs, at most %", file: "internal/syntax/syntax.go", code: `MaxQueues += (\d+)`},
		{page: "docs/reference/configuration.md", text: "into which the card puts the guest, at most %", file: "infra/ethertype.go", code: `const maxVLAN = (\d+)`},
		{page: "docs/reference/drop-reasons.md", text: "% a second of each reason", file: "internal/firewall/reason.go", code: `logPerSecond = (\d+)`},
		{page: "docs/explanation/*.md", text: "nflog group %", file: "internal/firewall/reason.go", code: `const LogGroup = (.*)`},
		{page: limits, text: "`sidecar`; at most % entries", file: "infra/egress.go", code: `const maxEgress = (.*)`},
		{page: limits, text: "`divert` of `egress`: at most % targets", file: "infra/egress.go", code: `const maxTargets = (.*)`},
		{page: limits, text: "and % ranges of a family", file: "internal/policy/boxes.go", code: `maxBoxes += (\d+)`},
		{page: cni, text: "| egress of at most % entries", file: "examples/guestwire/podsandbox/spec.go", code: `const MaxEgress = (.*)`},
		{page: cni, text: "| a value of at most % bytes |", file: "examples/guestwire/podsandbox/spec.go", code: `const MaxWish = (.*)`},
		{page: cni, text: "if it has them; else maxConnections up to %", file: "infra/masquerade.go", code: `const DefaultMaxConnections = (.*)`},
		{page: "README.md", text: "Setup takes % ms, once", file: "docs/results/performance.md", code: `redirect, Setup, ms +(\S+)`,
			as: func(ms []string) string {
				number, _ := strconv.ParseFloat(ms[0], 64)
				return fmt.Sprintf("%.0f", number)
			}},
		{page: "README.md", text: "the filter 0 to %", file: "docs/results/performance.md", code: `redirect, short TCP, from the guest .*? 1\.0(\d) ±`},
		{page: cni, text: "| ADD | % s |", file: "examples/guestwire/call.go", code: `\taddTime += (.*)`},
		{page: cni, text: "| CHECK | % s |", file: "examples/guestwire/call.go", code: `\tcheckTime += (.*)`},
		{page: cni, text: "| DEL | % s |", file: "examples/guestwire/call.go", code: `\tdelTime += (.*)`},
		{page: cni, text: "| GC | % s |", file: "examples/guestwire/call.go", code: `\tgcTime += (.*)`},
		{page: cni, text: "the versions % and 1.1.0", file: "examples/guestwire/main.go", code: `PluginSupports\("(.*)", "1\.1\.0"\)`,
			as: func(list []string) string { return strings.ReplaceAll(list[0], `", "`, ", ") }},
		{page: "docs/reference/metrics.md", text: "longer than % s", file: "examples/metrics/metrics.go", code: `\tpatience = (.*)`},
		{page: "docs/reference/metrics.md", text: "within % s", file: "examples/metrics/metrics.go", code: `\tinAll = (.*)`},
	} {
		source, err := os.ReadFile("../../../" + c.file)
		if err != nil {
			t.Fatal(err)
		}
		groups := regexp.MustCompile(c.code).FindStringSubmatch(string(source))
		if groups == nil {
			t.Errorf("%s has no %s", c.file, c.code)
			continue
		}
		number := value(groups[1])
		if c.as != nil {
			number = c.as(groups[1:])
		}
		want := strings.ReplaceAll(c.text, "%", number)
		pages, err := filepath.Glob("../../../" + c.page)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(strings.Join(strings.Fields(string(text)), " "), want)
		}
		if !found || number == "" {
			t.Errorf("%s does not say %q, which is what %s has", c.page, want, c.file)
		}
	}
}

// value is what an expression of Go comes to, a time in seconds; a text that is none, and a version, stay as they are.
func value(text string) string {
	if strings.Count(text, ".") > 0 && !strings.Contains(text, "time.") {
		return text
	}
	expression := strings.NewReplacer("time.Minute", "60", "time.Second", "1").Replace(text)
	v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, expression)
	if err != nil || v.Value == nil {
		return text
	}
	return fmt.Sprint(v.Value)
}
