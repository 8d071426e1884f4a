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
	a, b := was.lines, is.lines
	best := make([][]int, len(a)+1) // lines that stay, of those from there
	for x := range best {
		best[x] = make([]int, len(b)+1)
	}
	for x := len(a) - 1; x >= 0; x-- {
		for y := len(b) - 1; y >= 0; y-- {
			if best[x][y] = max(best[x+1][y], best[x][y+1]); a[x] == b[y] {
				best[x][y] = best[x+1][y+1] + 1
			}
		}
	}
	var text strings.Builder
	for x, y := 0, 0; x < len(a) || y < len(b); {
		switch {
		case x < len(a) && y < len(b) && a[x] == b[y]:
			x, y = x+1, y+1
		case y == len(b) || x < len(a) && best[x+1][y] >= best[x][y+1]:
			fmt.Fprintf(&text, "-%d\t%s\n", was.first+x, a[x])
			x++
		default:
			fmt.Fprintf(&text, "+%d\t%s\n", is.first+y, b[y])
			y++
		}
	}
	if text.Len() == 0 {
		return ""
	}
	return is.name + "\n" + text.String()
}
