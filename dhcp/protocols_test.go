package dhcp

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/golden"
)

// TestProtocols: the tables of docs/reference/protocols.md and docs/proofs/protocols.md are those of the tests.
func TestProtocols(t *testing.T) {
	golden.Parts(t, "../docs/reference/protocols.md", "dhcp", map[string]string{"reasons": tableReasons(t), "events": tableEvents(t)})
	golden.Parts(t, "../docs/proofs/protocols.md", "dhcp", map[string]string{
		"DHCPv4": table4(), "DHCPv6": table6(situations6()), "DHCPv6 of several addresses": table6(situationsSeveral6()),
		"DHCPv6 of prefixes": table6(situationsDelegated6()), "ARP": table(situationsARP()),
		"neighbour solicitations": table(situationsNS()), "router solicitations": table(situationsRS()),
	})
}

// orSilence returns the answer, or the reason why there is none.
func orSilence(answer string, why Reason) string {
	switch {
	case answer != "":
		return answer
	case why != "":
		return "silence: `" + string(why) + "`"
	}
	return "silence"
}

// orNone returns the name of an event.
func orNone(k Kind) string {
	if k == "" {
		return ""
	}
	return "`" + string(k) + "`"
}

func table4() string {
	var b strings.Builder
	b.WriteString("| source | the guest sends | answer | event |\n| --- | --- | --- | --- |\n")
	for _, c := range situations4() {
		source, situation, _ := strings.Cut(c.name, ": ")
		answer := ""
		if c.want != silence {
			answer = fmt.Sprintf("%v to %s", c.want, c.to)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", source, situation, orSilence(answer, c.why), orNone(c.ev))
	}
	return b.String()
}

func table6(rows []situation6) string {
	var b strings.Builder
	b.WriteString("| section | the guest sends | answer | event |\n| --- | --- | --- | --- |\n")
	for _, c := range rows {
		section, situation, ok := strings.Cut(c.name, ": ")
		if !ok || strings.Contains(section, " ") {
			section, situation = "", c.name
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", section, situation, orSilence(c.want, c.why), orNone(c.ev))
	}
	return b.String()
}

func table(rows []situation) string {
	var b strings.Builder
	b.WriteString("| the guest sends | answer |\n| --- | --- |\n")
	for _, c := range rows {
		fmt.Fprintf(&b, "| %s | %s |\n", c.name, orSilence(c.want, c.why))
	}
	return b.String()
}

// documentedName is a row of the table in a type's doc comment.
type documentedName struct{ name, text string }

func documentedNames(t *testing.T, file, typ string) (names []documentedName) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	doc := regexp.MustCompile(`(?://.*\n)+type ` + typ + ` `).FindString(string(source))
	for _, m := range regexp.MustCompile(`(?m)^//\t(\S+) +(.*)$`).FindAllStringSubmatch(doc, -1) {
		names = append(names, documentedName{m[1], m[2]})
	}
	return names
}

func tableReasons(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| reason | what is ignored |\n| --- | --- |\n")
	for _, n := range documentedNames(t, "ignored.go", "Reason") {
		fmt.Fprintf(&b, "| `%s` | %s |\n", n.name, n.text)
	}
	return b.String()
}

func tableEvents(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| event | when | level in the log |\n| --- | --- | --- |\n")
	for _, n := range documentedNames(t, "event.go", "Kind") {
		fmt.Fprintf(&b, "| `%s` | %s | %v |\n", n.name, n.text, kinds[indexOf(Kind(n.name))].level)
	}
	return b.String()
}
