package golden

import (
	"regexp"
	"slices"
	"strings"
)

// document is a text in parts: a line, or a list of references.
type document []part

type part struct {
	line string // without references
	refs []reference
}

// reference names a content.
type reference struct{ key, content string }

// parse finds what tables hold. What it cannot write again as it was stays as it is.
func parse(text string) (d document) {
	lines := strings.Split(text, "\n")
	program := ""
	for i := 0; i < len(lines); i++ {
		d = append(d, part{line: lines[i]})
		if m := restore.FindStringSubmatch(lines[i]); m != nil {
			program = m[1]
		}
		if m := nftTable.FindStringSubmatch(lines[i]); m != nil {
			if end := slices.Index(lines[i:], "}"); end > 1 {
				if refs := parseTable(m[1], lines[i+1:i+end]); refs != nil {
					d = append(d, part{refs: refs})
					i += end - 1
				}
			}
		}
		if strings.HasPrefix(lines[i], "*") && program != "" {
			if end := slices.IndexFunc(lines[i:], func(l string) bool { return l == "COMMIT" || strings.HasPrefix(l, "-I ") }); end > 1 {
				if refs := parseRestore(program, lines[i+1:i+end]); refs != nil {
					d = append(d, part{refs: refs})
					i += end - 1
				}
			}
		}
	}
	return d
}

// parseTable finds the objects and chains of an nftables table; nil: there are other lines.
func parseTable(family string, lines []string) (refs []reference) {
	for i := 0; i < len(lines); i++ {
		if m := nftObject.FindStringSubmatch(lines[i]); m != nil {
			refs = append(refs, reference{family + " " + m[1] + " " + m[2], lines[i][1:] + "\n"})
			continue
		}
		m := nftChain.FindStringSubmatch(lines[i])
		end := slices.Index(lines[i:], "\t}")
		if m == nil || end < 0 {
			return nil
		}
		content := ""
		for _, rule := range lines[i+1 : i+end] {
			content += strings.TrimPrefix(rule, "\t\t") + "\n"
		}
		refs = append(refs, reference{family + " chain " + m[1], content})
		i += end
	}
	if !slices.Equal(tableLines(refs), lines) {
		return nil
	}
	return refs
}

// tableLines are those of which parseTable makes the references.
func tableLines(refs []reference) (lines []string) {
	for _, ref := range refs {
		_, name, _ := strings.Cut(ref.key, " ")
		content := contentLines(ref.content)
		if !strings.HasPrefix(name, "chain ") {
			lines = append(lines, "\t"+strings.Join(content, ""))
			continue
		}
		lines = append(lines, "\t"+name+" {")
		for _, rule := range content {
			lines = append(lines, "\t\t"+rule)
		}
		lines = append(lines, "\t}")
	}
	return lines
}

// parseRestore finds the chains of a table of iptables-restore: their declarations, then the rules of each; nil: it is
// another text.
func parseRestore(program string, lines []string) (refs []reference) {
	rules := map[string]string{}
	for _, l := range lines {
		words := strings.Fields(l)
		switch {
		case len(words) > 1 && strings.HasPrefix(l, ":"):
			refs = append(refs, reference{key: program + " chain " + words[0][1:]})
		case len(words) > 1 && words[0] == "-A":
			rules[words[1]] += l + "\n"
		}
	}
	for i, ref := range refs {
		refs[i].content = rules[strings.TrimPrefix(ref.key, program+" chain ")]
	}
	if !slices.Equal(restoreLines(refs), lines) {
		return nil
	}
	return refs
}

// restoreLines are those of which parseRestore makes the references.
func restoreLines(refs []reference) (lines []string) {
	for _, ref := range refs {
		lines = append(lines, ":"+ref.key[strings.LastIndex(ref.key, " ")+1:]+" - [0:0]")
	}
	for _, ref := range refs {
		lines = append(lines, contentLines(ref.content)...)
	}
	return lines
}

func contentLines(content string) []string {
	if content == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(content, "\n"), "\n")
}

func (d document) references() (refs []reference) {
	for _, p := range d {
		refs = append(refs, p.refs...)
	}
	return refs
}

// The lines that begin and end a table.
var (
	nftTable  = regexp.MustCompile(`^table ([a-z0-9]+) \S+ \{$`)
	nftObject = regexp.MustCompile(`^\t(set|map|flowtable) (\S+) \{`)
	nftChain  = regexp.MustCompile(`^\tchain (\S+) \{$`)
	restore   = regexp.MustCompile(`^(ip6?tables)-\S*restore `)
)
