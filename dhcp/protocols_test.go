package dhcp

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/protocols.md")

// TestProtocols: the tables of docs/protocols.md are those of the tests.
func TestProtocols(t *testing.T) {
	const path = "../docs/protocols.md"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := string(have)
	for name, rows := range map[string]string{
		"DHCPv4": table4(), "DHCPv6": table6(), "ARP": tableARP(),
		"neighbour solicitations": tableNS(), "router solicitations": tableRS(),
	} {
		begin, end := "<!-- "+name+": go test ./dhcp -update -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(want, begin)
		_, after, found := strings.Cut(rest, end)
		if !ok || !found {
			t.Fatalf("%s has no place for %s", path, name)
		}
		want = before + begin + rows + end + after
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(have) {
		t.Errorf("%s is not what the tests are: go test ./dhcp -update", path)
	}
}

func orSilence(text string) string {
	if text == "" {
		return "silence"
	}
	return text
}

func orNone(k Kind) string {
	if k == nothing {
		return ""
	}
	return k.String()
}

func table4() string {
	var b strings.Builder
	b.WriteString("| source | the guest sends | answer | event |\n| --- | --- | --- | --- |\n")
	for _, c := range situations4() {
		source, situation, _ := strings.Cut(c.name, ": ")
		answer := "silence"
		if c.want != silence {
			answer = fmt.Sprintf("%v to %s", c.want, c.to)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", source, situation, answer, orNone(c.ev))
	}
	return b.String()
}

func table6() string {
	var b strings.Builder
	b.WriteString("| section | the guest sends | answer | event |\n| --- | --- | --- | --- |\n")
	for _, c := range situations6() {
		section, situation, ok := strings.Cut(c.name, ": ")
		if !ok || strings.Contains(section, " ") {
			section, situation = "", c.name
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", section, situation, orSilence(c.want), orNone(c.ev))
	}
	return b.String()
}

func tableARP() string {
	var b strings.Builder
	b.WriteString("| the guest sends | answer |\n| --- | --- |\n")
	for _, c := range situationsARP() {
		answer := "silence"
		if c.answer {
			answer = "the gateway's MAC"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", c.name, answer)
	}
	return b.String()
}

func tableNS() string {
	var b strings.Builder
	b.WriteString("| the guest sends | answer |\n| --- | --- |\n")
	for _, c := range situationsNS() {
		fmt.Fprintf(&b, "| %s | %s |\n", c.name, orSilence(c.want))
	}
	return b.String()
}

func tableRS() string {
	var b strings.Builder
	b.WriteString("| the guest sends | answer |\n| --- | --- |\n")
	for _, c := range situationsRS() {
		answer := "silence"
		if c.to != "" {
			answer = "advertisement to " + c.to
		}
		fmt.Fprintf(&b, "| %s | %s |\n", c.name, answer)
	}
	return b.String()
}
