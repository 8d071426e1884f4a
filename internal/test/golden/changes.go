package golden

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Inputs are the fields of a struct that a room's tables are made of, one by one. Groups are the types of fields whose
// own fields are inputs.
type Inputs struct{ Groups []reflect.Type }

func (i Inputs) isGroup(t reflect.Type) bool { return slices.Contains(i.Groups, t) }

// Names are those of the inputs of a type.
func (i Inputs) Names(t reflect.Type) []string { return i.names(t, "") }

func (i Inputs) names(t reflect.Type, name string) (all []string) {
	if !i.isGroup(t) {
		return []string{name[1:]}
	}
	for n := range t.NumField() {
		if !t.Field(n).IsExported() {
			continue // computed
		}
		all = append(all, i.names(t.Field(n).Type, name+"."+t.Field(n).Name)...)
	}
	return all
}

// Changed are the inputs that differ, and their values.
func (i Inputs) Changed(was, is any) (names, values []string) {
	return i.changed(reflect.ValueOf(was), reflect.ValueOf(is), "")
}

func (i Inputs) changed(was, is reflect.Value, name string) (names, values []string) {
	if !i.isGroup(was.Type()) {
		if reflect.DeepEqual(was.Interface(), is.Interface()) {
			return nil, nil
		}
		return []string{name[1:]}, []string{fmt.Sprintf("%s %v", name[1:], is.Interface())}
	}
	for f := range was.NumField() {
		if !was.Type().Field(f).IsExported() {
			continue
		}
		n, v := i.changed(was.Field(f), is.Field(f), name+"."+was.Type().Field(f).Name)
		names, values = append(names, n...), append(values, v...)
	}
	return names, values
}

// Changes are differences of tables under headings. Chains that differ as under an earlier heading have that heading in
// place of the lines.
type Changes struct {
	// Names are pairs of texts, several in a row. Tables that differ by other names alone have these in place of lines.
	Names [][]string
	first map[string]string // the heading of a chain with its lines
	text  strings.Builder
}

// Add reports whether the tables differ.
func (c *Changes) Add(heading, was, is string) bool {
	c.text.WriteString("\n== " + heading + "\n")
	if c.first == nil {
		c.first = map[string]string{}
	}
	for _, pairs := range c.Names {
		if was != is && strings.NewReplacer(pairs...).Replace(was) == is {
			for pair := range slices.Chunk(pairs, 2) {
				c.text.WriteString(pair[1] + " for " + pair[0] + "\n")
			}
			return true
		}
	}
	diff := DiffTables(was, is)
	as, headings := map[string][]string{}, []string(nil)
	for _, chain := range chainsOf(diff) {
		name, _, _ := strings.Cut(chain, "\n")
		earlier, there := c.first[chain]
		if !there {
			c.first[chain] = heading
			c.text.WriteString(chain)
			continue
		}
		if as[earlier] == nil {
			headings = append(headings, earlier)
		}
		as[earlier] = append(as[earlier], name)
	}
	for _, earlier := range headings {
		c.text.WriteString(strings.Join(as[earlier], ", ") + " as: " + earlier + "\n")
	}
	return diff != ""
}

func (c *Changes) String() string { return c.text.String() }

// chainsOf cuts a difference before each name.
func chainsOf(diff string) (all []string) {
	for line := range strings.Lines(diff) {
		if strings.HasPrefix(line, "+") || strings.HasPrefix(line, "-") {
			all[len(all)-1] += line
		} else {
			all = append(all, line)
		}
	}
	return all
}

// block is a table's head with its sets, or a chain.
type block struct {
	name  string // "netdev", "netdev guest"
	lines []string
	first int // the number of the first line
}

// blocks finds them in the text of tables.
func blocks(text string) (all []block) {
	family := ""
	for l := range strings.Lines(text) {
		words := strings.Fields(l)
		switch {
		case words[0] == "table":
			family = words[1]
			all = append(all, block{name: family, lines: []string{strings.TrimSuffix(l, " {\n")}})
		case words[0] == "chain":
			all = append(all, block{name: family + " " + words[1], first: 1})
		case words[0] == "}":
		default:
			last := &all[len(all)-1]
			if words[0] == "type" {
				last.first = 0
			}
			last.lines = append(last.lines, strings.TrimSpace(l))
		}
	}
	return all
}

// DiffTables is what differs between texts of tables, a line each, below the chain's name.
func DiffTables(was, is string) string {
	var text strings.Builder
	before, after := blocks(was), blocks(is)
	find := func(in []block, name string) block {
		if at := slices.IndexFunc(in, func(b block) bool { return b.name == name }); at >= 0 {
			return in[at]
		}
		return block{name: name}
	}
	var gone []string
	for _, b := range before {
		if now := find(after, b.name); now.lines != nil {
			text.WriteString(diffLines(b, now))
		} else {
			gone = append(gone, b.name)
		}
	}
	for _, b := range after {
		if find(before, b.name).lines == nil {
			text.WriteString(diffLines(block{name: b.name}, b))
		}
	}
	if gone != nil {
		text.WriteString("gone: " + strings.Join(gone, ", ") + "\n")
	}
	return text.String()
}

func diffLines(was, is block) string {
	var text strings.Builder
	same := common(was.lines, is.lines)
	for x, y := 0, 0; x < len(was.lines) || y < len(is.lines); {
		switch {
		case x < len(was.lines) && same[x] == y:
			x, y = x+1, y+1
		case x < len(was.lines) && same[x] < 0:
			fmt.Fprintf(&text, "-%d\t%s\n", was.first+x, was.lines[x])
			x++
		default:
			fmt.Fprintf(&text, "+%d\t%s\n", is.first+y, is.lines[y])
			y++
		}
	}
	if text.Len() == 0 {
		return ""
	}
	return is.name + "\n" + text.String()
}
