package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
)

// mutation is one way to break a line.
type mutation struct {
	id   int // the switch's number
	pos  token.Position
	end  int // the last line
	what string
}

func (m mutation) String() string {
	return fmt.Sprintf("%s:%d: %s", m.pos.Filename, m.pos.Line, m.what)
}

// mutator finds the mutations of a package, and writes its files with a switch for each. No line moves, so a
// message of the compiler names the line that it is about.
type mutator struct {
	fset    *token.FileSet
	info    *types.Info
	pkg     *types.Package
	imports string            // of package mutant
	refused map[string]bool   // places whose mutations do not build, as place says
	sources map[string][]byte // by file name

	mutations []mutation
	unbuilt   int

	// Of the file at work.
	file    *ast.File
	source  []byte
	edits   []edit
	covered map[ast.Expr]bool // conditions that another mutation turns already
	stack   []ast.Node
	tags    int // number of switches whose tag has a name
}

// edit puts text around a stretch of a file, or in its place.
type edit struct {
	start, end  int
	open, close string
	replace     bool
}

// mutate returns the file's text with the switches in it.
func (m *mutator) mutate(f *ast.File) []byte {
	name := m.fset.Position(f.Pos()).Filename
	m.file, m.source, m.edits, m.covered, m.stack = f, m.sources[name], nil, map[ast.Expr]bool{}, nil
	before := len(m.mutations)
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok != token.VAR {
			continue
		}
		ast.Inspect(d, m.visit)
	}
	if len(m.mutations) == before {
		return m.source
	}
	at := m.offset(f.Name.End())
	m.edits = append(m.edits, edit{start: at, end: at, open: fmt.Sprintf("; import mutant %q", m.imports), replace: true})
	return m.text()
}

func (m *mutator) offset(p token.Pos) int { return m.fset.Position(p).Offset }

func (m *mutator) code(n ast.Node) string {
	return string(m.source[m.offset(n.Pos()):m.offset(n.End())])
}

// text carries the edits out. Of two with the same stretch the one that was added first is the outer one.
func (m *mutator) text() []byte {
	type event struct {
		at, other, seq int
		closes         bool
		text           string
		skip           int
	}
	var events []event
	for i, e := range m.edits {
		if e.replace {
			events = append(events, event{at: e.start, other: e.end, seq: i, text: e.open, skip: e.end - e.start})
			continue
		}
		events = append(events,
			event{at: e.start, other: e.end, seq: i, text: e.open},
			event{at: e.end, other: e.start, seq: i, text: e.close, closes: true})
	}
	slices.SortFunc(events, func(a, b event) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case a.closes != b.closes:
			if a.closes {
				return -1
			}
			return 1
		case a.other != b.other:
			return b.other - a.other // opens: the longer one first; closes: the shorter one, which began later
		case a.closes:
			return b.seq - a.seq
		}
		return a.seq - b.seq
	})
	var out []byte
	at := 0
	for _, e := range events {
		out = append(out, m.source[at:e.at]...)
		out = append(out, e.text...)
		at = e.at + e.skip
	}
	return append(out, m.source[at:]...)
}

// place is a line of a file.
func place(file string, line int) string {
	return fmt.Sprintf("%s:%d", file[strings.LastIndex(file, "/")+1:], line)
}

// add registers mutations of a node, with consecutive numbers, and returns the first; ok is false if they did
// not build.
func (m *mutator) add(n ast.Node, what ...string) (id int, ok bool) {
	pos, end := m.fset.Position(n.Pos()), m.fset.Position(n.End())
	for line := pos.Line; line <= end.Line; line++ {
		if m.refused[place(pos.Filename, line)] {
			m.unbuilt += len(what)
			return 0, false
		}
	}
	id = len(m.mutations) + 1
	for _, w := range what {
		m.mutations = append(m.mutations, mutation{id: len(m.mutations) + 1, pos: pos, end: end.Line, what: w})
	}
	return id, true
}

func (m *mutator) wrap(n ast.Node, open, close string) {
	m.edits = append(m.edits, edit{start: m.offset(n.Pos()), end: m.offset(n.End()), open: open, close: close})
}

// call wraps an expression into a call of package mutant.
func (m *mutator) call(e ast.Expr, function, what string) {
	if id, ok := m.add(e, what+": "+m.brief(e)); ok {
		m.wrap(e, fmt.Sprintf("mutant.%s(%d, ", function, id), ")")
	}
}

// brief is a node's code on one line.
func (m *mutator) brief(n ast.Node) string {
	text := strings.Join(strings.Fields(m.code(n)), " ")
	if r := []rune(text); len(r) > 70 {
		text = string(r[:67]) + "..."
	}
	return text
}

// visit finds what can be broken in a node. It is called for the parent first, which so has its edit around
// those of its children.
func (m *mutator) visit(n ast.Node) bool {
	if n == nil {
		m.stack = m.stack[:len(m.stack)-1]
		return true
	}
	switch n := n.(type) {
	case *ast.FuncType, *ast.ArrayType, *ast.MapType, *ast.StructType, *ast.ChanType, *ast.InterfaceType:
		return false
	case *ast.GenDecl:
		if n.Tok != token.VAR {
			return false
		}
	case *ast.BlockStmt:
		m.statements(n.List)
	case *ast.CaseClause:
		m.statements(n.Body)
	case *ast.CommClause:
		m.statements(n.Body)
	case *ast.IfStmt:
		m.condition(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			m.covered[n.Cond] = true
			m.call(n.Cond, "And", "loop never runs")
		}
	case *ast.SwitchStmt:
		m.switches(n)
	case *ast.TypeSwitchStmt:
		m.typeSwitch(n)
	case *ast.ReturnStmt:
		m.results(n)
	case *ast.BinaryExpr:
		m.binary(n)
	case *ast.CompositeLit:
		m.literal(n)
	case *ast.CallExpr:
		m.arguments(n)
	}
	if e, ok := n.(ast.Expr); ok && m.integer(e) {
		return false
	}
	m.stack = append(m.stack, n)
	return true
}

// statements drops each statement that can go while the rest still builds.
func (m *mutator) statements(list []ast.Stmt) {
	if parent, ok := m.parent(0).(*ast.IfStmt); ok && len(list) == 1 && parent.Else == nil {
		return // the condition is taken as false
	}
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || isBlank(s.Lhs) {
				continue
			}
		case *ast.ExprStmt:
			call, ok := s.X.(*ast.CallExpr)
			if !ok || m.code(call.Fun) == "panic" {
				continue
			}
		case *ast.IncDecStmt, *ast.SendStmt, *ast.DeferStmt, *ast.GoStmt:
		default:
			continue
		}
		if id, ok := m.add(s, "statement dropped: "+m.brief(s)); ok {
			m.wrap(s, fmt.Sprintf("if !mutant.On(%d) { ", id), " }")
		}
	}
}

func isBlank(list []ast.Expr) bool {
	return !slices.ContainsFunc(list, func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return !ok || id.Name != "_"
	})
}

// parent is the node above the one at work, or one further up.
func (m *mutator) parent(up int) ast.Node {
	if i := len(m.stack) - 1 - up; i >= 0 {
		return m.stack[i]
	}
	return nil
}

func (m *mutator) condition(c ast.Expr) {
	m.covered[c] = true
	if id, ok := m.add(c, "condition taken as true: "+m.brief(c), "condition taken as false: "+m.brief(c)); ok {
		m.wrap(c, fmt.Sprintf("mutant.Condition(%d, ", id), ")")
	}
}

// switches drops the cases of a switch. One that compares a value becomes one of conditions.
func (m *mutator) switches(s *ast.SwitchStmt) {
	var cases []ast.Expr
	for _, c := range s.Body.List {
		cases = append(cases, c.(*ast.CaseClause).List...)
	}
	if s.Tag == nil {
		for _, c := range cases {
			m.covered[c] = true
			m.call(c, "And", "case dropped")
		}
		return
	}
	if s.Init != nil || len(cases) == 0 {
		return
	}
	var what []string
	for _, c := range cases {
		what = append(what, "case dropped: "+m.brief(c))
	}
	id, ok := m.add(s.Tag, what...)
	if !ok {
		return
	}
	m.tags++
	tag := "mutantTag" + strconv.Itoa(m.tags)
	m.wrap(s.Tag, tag+" := (", "); true")
	for i, c := range cases {
		m.mutations[id-1+i].pos = m.fset.Position(c.Pos())
		m.wrap(c, fmt.Sprintf("mutant.And(%d, %s == (", id+i, tag), "))")
	}
}

func (m *mutator) typeSwitch(s *ast.TypeSwitchStmt) {
	var x ast.Expr
	switch a := s.Assign.(type) {
	case *ast.ExprStmt:
		x = a.X.(*ast.TypeAssertExpr).X
	case *ast.AssignStmt:
		x = a.Rhs[0].(*ast.TypeAssertExpr).X
	}
	for _, c := range s.Body.List {
		for _, kind := range c.(*ast.CaseClause).List {
			if m.code(kind) == "nil" {
				continue
			}
			if id, ok := m.add(kind, "case dropped: "+m.brief(kind)); ok {
				m.wrap(x, fmt.Sprintf("mutant.Hide[%s](%d, ", m.code(kind), id), ")")
			}
		}
	}
}

// results returns no error, and the contrary of a truth value.
func (m *mutator) results(r *ast.ReturnStmt) {
	want := m.signature().Results()
	if want.Len() != len(r.Results) {
		return
	}
	for i, e := range r.Results {
		t := want.At(i).Type()
		switch {
		case i == want.Len()-1 && isError(t):
			if m.code(e) != "nil" {
				m.call(e, "NoError", "nil returned instead of the error")
			}
		case types.Identical(t, types.Typ[types.Bool]) && !m.logical(e):
			m.covered[e] = true
			m.call(e, "Not", "the contrary returned")
		}
	}
}

// logical says whether an expression consists of conditions that are broken one by one.
func (m *mutator) logical(e ast.Expr) bool {
	b, ok := ast.Unparen(e).(*ast.BinaryExpr)
	return ok && (b.Op == token.LAND || b.Op == token.LOR)
}

// signature is that of the function around the node at work.
func (m *mutator) signature() *types.Signature {
	for i := len(m.stack) - 1; i >= 0; i-- {
		switch f := m.stack[i].(type) {
		case *ast.FuncLit:
			return m.info.TypeOf(f).(*types.Signature)
		case *ast.FuncDecl:
			return m.info.Defs[f.Name].Type().(*types.Signature)
		}
	}
	return types.NewSignatureType(nil, nil, nil, nil, nil, false)
}

// binary drops a term, and moves or turns a comparison.
func (m *mutator) binary(b *ast.BinaryExpr) {
	if m.info.Types[b].Value != nil {
		return
	}
	switch b.Op {
	case token.LAND, token.LOR:
		for _, x := range []ast.Expr{b.X, b.Y} {
			if inner, ok := ast.Unparen(x).(*ast.BinaryExpr); ok && inner.Op == b.Op {
				continue
			}
			m.covered[x] = true
			m.covered[ast.Unparen(x)] = true
			m.call(x, map[token.Token]string{token.LAND: "Or", token.LOR: "And"}[b.Op], b.Op.String()+" term dropped")
		}
	case token.EQL, token.NEQ:
		if !m.covered[b] {
			m.call(b, "Not", "comparison turned")
		}
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		id, ok := m.add(b, "boundary moved: "+m.brief(b))
		if !ok {
			return
		}
		function := map[token.Token]string{ // a > b is the contrary of a <= b
			token.LSS: "mutant.Less", token.GEQ: "!mutant.Less", token.LEQ: "mutant.AtMost", token.GTR: "!mutant.AtMost",
		}[b.Op]
		m.wrap(b, fmt.Sprintf("%s(%d, ", function, id), ")")
		at := m.offset(b.OpPos)
		m.edits = append(m.edits, edit{start: at, end: at + len(b.Op.String()), open: ",", replace: true})
	}
}

// literal drops elements, entries and fields.
func (m *mutator) literal(l *ast.CompositeLit) {
	t := m.info.TypeOf(l)
	if len(l.Elts) == 0 || strings.HasSuffix(types.TypeString(t, nil), "Error") {
		return
	}
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem() // &T is left out in a literal of pointers
	}
	_, addressed := m.parent(0).(*ast.UnaryExpr)
	switch u := t.Underlying().(type) {
	case *types.Struct:
		for i, e := range l.Elts {
			field := u.Field(min(i, u.NumFields()-1))
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				field, e = m.info.Uses[kv.Key.(*ast.Ident)].(*types.Var), kv.Value
			}
			m.field(field, e)
		}
	case *types.Slice:
		if l.Type == nil || addressed || slices.ContainsFunc(l.Elts, isKeyed) {
			return
		}
		var what []string
		for _, e := range l.Elts {
			what = append(what, "element dropped: "+m.brief(e))
		}
		if id, ok := m.add(l, what...); ok {
			m.locate(id, l.Elts)
			m.wrap(l, fmt.Sprintf("mutant.Elements(%d, ", id), ")")
		}
	case *types.Map:
		if l.Type == nil || addressed {
			return
		}
		var what, keys []string
		for _, e := range l.Elts {
			what = append(what, "entry dropped: "+m.brief(e))
			keys = append(keys, m.code(e.(*ast.KeyValueExpr).Key))
		}
		if slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, "{") }) {
			return
		}
		if id, ok := m.add(l, what...); ok {
			m.locate(id, l.Elts)
			m.wrap(l, fmt.Sprintf("mutant.Entries(%d, ", id), ", "+strings.Join(keys, ", ")+")")
		}
	}
}

func isKeyed(e ast.Expr) bool { _, ok := e.(*ast.KeyValueExpr); return ok }

// locate gives each of the mutations from id on the place of its own part.
func (m *mutator) locate(id int, parts []ast.Expr) {
	for i, p := range parts {
		m.mutations[id-1+i].pos = m.fset.Position(p.Pos())
	}
}

func (m *mutator) field(field *types.Var, e ast.Expr) {
	got := m.info.Types[e]
	if got.IsNil() || got.Value != nil && isZero(got.Value) {
		return
	}
	open := "Zero"
	if got.Value != nil || !types.Identical(got.Type, field.Type()) {
		name, ok := m.typeName(field.Type())
		if !ok {
			return
		}
		open += "[" + name + "]"
	}
	if id, ok := m.add(e, "field "+field.Name()+" left out: "+m.brief(e)); ok {
		m.wrap(e, fmt.Sprintf("mutant.%s(%d, ", open, id), ")")
	}
}

func isZero(v constant.Value) bool {
	switch v.Kind() {
	case constant.Bool:
		return !constant.BoolVal(v)
	case constant.String:
		return constant.StringVal(v) == ""
	}
	return constant.Sign(v) == 0
}

// typeName writes a type as the file at work can; ok is false if the file does not import what that takes.
func (m *mutator) typeName(t types.Type) (name string, ok bool) {
	ok = true
	name = types.TypeString(t, func(p *types.Package) string {
		if p == m.pkg {
			return ""
		}
		for _, spec := range m.file.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); path == p.Path() {
				if spec.Name != nil {
					return spec.Name.Name
				}
				return p.Name()
			}
		}
		ok = false
		return p.Name()
	})
	return name, ok
}

// arguments drops each of those that a function takes any number of.
func (m *mutator) arguments(c *ast.CallExpr) {
	if c.Ellipsis.IsValid() || len(c.Args) == 0 || strings.HasPrefix(m.code(c.Fun), "fmt.") {
		return
	}
	var element types.Type
	fixed := 1
	if sig, ok := m.info.TypeOf(c.Fun).(*types.Signature); ok && sig.Variadic() {
		fixed = sig.Params().Len() - 1
		element = sig.Params().At(fixed).Type().(*types.Slice).Elem()
	}
	if m.code(c.Fun) == "append" {
		_, assigned := m.parent(0).(*ast.AssignStmt)
		slice, ok := m.info.TypeOf(c.Args[0]).Underlying().(*types.Slice)
		if !ok || assigned && len(c.Args) == 2 {
			return // the statement is dropped
		}
		fixed, element = 1, slice.Elem()
	}
	if element == nil || len(c.Args) <= fixed || types.Identical(element, types.Universe.Lookup("any").Type().Underlying()) {
		return // any: words of a message
	}
	name, ok := m.typeName(element)
	if !ok {
		return
	}
	args := c.Args[fixed:]
	var what []string
	for _, a := range args {
		what = append(what, "argument dropped: "+m.brief(a))
	}
	if id, ok := m.add(c, what...); ok {
		m.locate(id, args)
		m.edits = append(m.edits, edit{
			start: m.offset(args[0].Pos()), end: m.offset(args[len(args)-1].End()),
			open: fmt.Sprintf("mutant.Args[%s](%d, ", name, id), close: ")...",
		})
	}
}

// integer makes a number one more, and says whether that is all there is to the expression.
func (m *mutator) integer(e ast.Expr) bool {
	v := m.info.Types[e]
	if v.Value == nil {
		return false
	}
	basic, ok := v.Type.Underlying().(*types.Basic)
	if !ok || basic.Info()&types.IsInteger == 0 || basic.Info()&types.IsUntyped != 0 || !strings.ContainsAny(m.code(e), "0123456789") {
		return true
	}
	hasNumber := false
	ast.Inspect(e, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		hasNumber = hasNumber || ok && lit.Kind == token.INT
		return true
	})
	if !hasNumber || m.isSize() || m.besideError(e) {
		return true
	}
	if name, ok := m.typeName(v.Type); ok {
		m.call(e, "Int["+name+"]", "one more")
	}
	return true
}

// isSize says whether the node at work is a size, which changes no result.
func (m *mutator) isSize() bool {
	c, ok := m.parent(0).(*ast.CallExpr)
	return ok && (m.code(c.Fun) == "make" || strings.HasPrefix(m.code(c.Fun), "fmt."))
}

// besideError says whether a number is returned together with an error, so that no caller looks at it.
func (m *mutator) besideError(e ast.Expr) bool {
	r, ok := m.parent(0).(*ast.ReturnStmt)
	if !ok {
		return false
	}
	want := m.signature().Results()
	last := r.Results[len(r.Results)-1]
	return last != e && m.code(last) != "nil" && want.Len() == len(r.Results) && isError(want.At(want.Len()-1).Type())
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }
