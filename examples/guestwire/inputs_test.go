package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/guestwire/guestwire/internal/test/longjson"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// input is what a plugin is called with.
type input struct {
	environ map[string]string
	members map[string]any
	text    *string // instead of the members
}

func (in input) call(n *node, command string) (string, *types.Error) {
	n.Helper()
	text, err := json.Marshal(in.members)
	if err != nil {
		n.Fatal(err)
	}
	if in.text != nil {
		text = []byte(*in.text)
	}
	environ := os.Environ()
	for name, value := range in.environ {
		environ = append(environ, name+"="+value)
	}
	environ = append(environ, "CNI_COMMAND="+command)
	out, err := n.ExecPlugin(n.Context(), filepath.Join(n.plugins, "guestwire"), text, environ)
	var reported *types.Error
	if err != nil && !errors.As(err, &reported) {
		n.Errorf("%s: neither success nor an error of CNI: %v", command, err)
		reported = &types.Error{}
	}
	return string(out), reported
}

// fault makes one field of an input wrong, or another one.
type fault struct {
	name string
	do   func(*input)
	// other: the input is that of another attachment, which is no fault: the wiring stays.
	other bool
	// moved: the list has another state. If the namespace does not lead to the wiring, it stays for a GC of its list.
	moved bool
	// says is what a DEL says that cannot know where the journal is.
	says string
}

const fieldTooLong = 100_000

// faults are those of each variable of a call, each member of a list's entry, and of the input as a whole.
func faults() []fault {
	var all []fault
	add := func(f fault) { all = append(all, f) }
	for _, name := range []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"} {
		for kind, value := range map[string]string{"missing": "", "wrong": "../ =;\x01", "huge": strings.Repeat("a", fieldTooLong)} {
			f := fault{name: name + " " + kind, do: func(in *input) { in.environ[name] = value }}
			if name == "CNI_CONTAINERID" {
				f.says = "CNI_CONTAINERID: "
			}
			add(f)
		}
	}
	add(fault{name: "CNI_CONTAINERID another", other: true, do: func(in *input) { in.environ["CNI_CONTAINERID"] = "c-another" }})
	add(fault{name: "CNI_IFNAME another", other: true, do: func(in *input) { in.environ["CNI_IFNAME"] = "net7" }})

	members := [][]string{{"cniVersion"}, {"name"}, {"state"}, {"dir"}}
	others := []string{"type", "spec", "trustPods", "everyNIC", "tapResult", "capabilities", "runtimeConfig", "args", "prevResult"}
	if *crash == "few" {
		members = append(members, others) // all of them at once
	} else {
		for _, name := range others {
			members = append(members, []string{name})
		}
	}
	for _, names := range members {
		for kind, value := range map[string]any{"missing": nil, "of a wrong type": []any{7}, "wrong": "../ \x01", "huge": strings.Repeat("a", fieldTooLong)} {
			name := strings.Join(names, ", ")
			f := fault{name: name + " " + kind, do: func(in *input) {
				for _, name := range names {
					if in.members[name] = value; value == nil {
						delete(in.members, name)
					}
				}
			}}
			f.moved = name == "state" && value == nil
			if name == "dir" {
				f.says = map[bool]string{true: "no journal", false: "DEL takes the state "}[value == nil]
			}
			add(f)
		}
	}
	add(fault{name: "state another", moved: true, do: func(in *input) { in.members["state"] = "/run/another" }})
	add(fault{name: "dir another", says: "no journal", do: func(in *input) { in.members["dir"] = "/run/another.lock" }})
	add(fault{name: "state by a link", do: func(in *input) {
		state := in.members["state"].(string)
		in.members["state"] = filepath.Join(filepath.Dir(state), "link", filepath.Base(state))
	}})
	for _, version := range []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "1.2.0", "2.0.0", "x.y", "1.0.0.0"} {
		add(fault{name: "cniVersion " + version, do: func(in *input) { in.members["cniVersion"] = version }})
	}
	for _, text := range []string{"", "null", "[]", "7", `{"cniVersion": "1.0.0", "name": "podn`, strings.Repeat("[", fieldTooLong)} {
		f := fault{name: fmt.Sprintf("the input %.20q", text), says: "DEL takes the state ", do: func(in *input) { in.text = &text }}
		if text == "null" { // an entry without members
			f.says, f.moved = "no journal", true
		}
		add(f)
	}
	slices.SortFunc(all, func(a, b fault) int { return strings.Compare(a.name, b.name) })
	return all
}

// TestLongFields: each variable of a call, and each member of its input, with a value that is far too long. ADD and
// CHECK succeed, or print an error that is short, and they cost a few times the length. A pod that is wired stays so.
func TestLongFields(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	b := newInputBed(t)
	b.wrapper = []string{"sh", "-c", `ulimit -d 262144 && exec "$0" "$@"`} // 256 MiB of memory
	failed := 0
	try := func(name string, change func(*input)) {
		for _, command := range []string{"ADD", "CHECK"} {
			in := b.right(b.beside)
			change(&in)
			_, err := in.call(b.node, command)
			said, message := b.said(), ""
			if err != nil {
				failed++
				message = err.Error()
			}
			if said += message; len(said) > longjson.MostError || strings.Contains(message, "\n") || strings.Contains(said, "out of memory") {
				b.Errorf("%s, %s: %d octets: %.300s", command, name, len(said), said)
			}
		}
	}
	in := b.right(b.beside)
	in.members["prevResult"] = map[string]any{
		"cniVersion": "0.4.0", "interfaces": []any{map[string]any{"name": "eth0", "sandbox": "/run/netns/x"}},
		"ips": []any{map[string]any{"address": "10.31.0.2/24", "version": "4", "interface": 0}},
		"dns": map[string]any{"nameservers": []any{"192.0.2.53"}, "search": []any{"example"}, "domain": "example"},
	}
	in.members["args"] = map[string]any{"cni": map[string]any{"guestwire": "redirect"}}
	document, err := json.Marshal(in.members)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range longjson.Documents(t, document, 1<<20) {
		whole := string(text)
		try(path, func(in *input) { in.text = &whole })
	}
	for _, member := range []string{"state", "dir"} {
		try(member, func(in *input) { in.members[member] = "/" + strings.Repeat("a", 1<<20) })
	}
	for name := range in.environ {
		for _, value := range []string{"", "/", "K8S_POD_UID="} {
			try(name+"="+value, func(in *input) { in.environ[name] = value + strings.Repeat("a", fieldTooLong) })
		}
	}
	if failed < 50 {
		t.Errorf("%d calls fail: the test does not make the fields long", failed)
	}
	b.wrapper = nil
	if _, err := b.right(b.beside).call(b.node, "CHECK"); err != nil {
		t.Errorf("the pod: %v", err)
	}
	b.right(b.beside).call(b.node, "DEL")
	b.clean()
}

// inputBed is a node with one wired pod beside the one that is tried.
type inputBed struct {
	*node
	list      *networkList
	beside    *sandboxOf
	unchanged []string // the files of the pod beside
}

func newInputBed(t *testing.T) *inputBed {
	n := newNode(t)
	b := &inputBed{node: n, list: n.list("1.0.0", "podnet", n.guestwire(owner("")))}
	b.beside = b.pod()
	if err := os.Symlink(".", filepath.Join(filepath.Dir(n.state), "link")); err != nil {
		t.Fatal(err)
	}
	b.add(b.beside)
	b.unchanged = n.files()
	return b
}

// pod is a sandbox with a NIC that no plugin takes down.
func (b *inputBed) pod() *sandboxOf {
	s := b.sandbox("")
	s.uid = "u-" + s.ns.Name
	s.ns.IP("link add eth0 type veth peer name v0")
	s.ns.IP("link set v0 up")
	s.ns.IP("link set eth0 up")
	s.ns.IP("addr add 10.31.0.2/24 dev eth0")
	return s
}

// right is the input of a call for the pod, without a fault.
func (b *inputBed) right(s *sandboxOf) input {
	b.Helper()
	in := input{environ: map[string]string{"CNI_PATH": b.plugins}}
	for _, pair := range s.environ("ADD", "eth0") {
		name, value, _ := strings.Cut(pair, "=")
		in.environ[name] = value
	}
	text := s.configuration(b.list.Plugins[0].Bytes, nil, s.runtime("eth0", "guestwire/nic.eth0", "redirect"))
	if err := json.Unmarshal([]byte(text), &in.members); err != nil {
		b.Fatal(err)
	}
	in.members["prevResult"], in.members["args"] = map[string]any{}, map[string]any{}
	return in
}

func (b *inputBed) add(s *sandboxOf) {
	b.Helper()
	if out, err := b.right(s).call(b.node, "ADD"); err != nil {
		b.Fatalf("ADD: %v, %s", err, out)
	}
}

// TestDeleteNeverFails: DEL with each field missing, wrong, huge, of another version, before and after ADD, with the
// namespace alive, gone, replaced, and the caller's own. It exits with 0 and prints no result. Nothing is left, or the
// journal is named, with the command that removes it.
func TestDeleteNeverFails(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	b := newInputBed(t)
	for i, f := range faults() {
		for j, place := range []string{"alive", "gone", "replaced", "own"} {
			if *crash == "few" && i%4 != j { // each field meets each place by one of its faults
				continue
			}
			b.tryDelete(f, place)
		}
	}
	b.beside.wired("eth0")
	if _, err := b.right(b.beside).call(b.node, "CHECK"); err != nil {
		t.Errorf("the pod beside: %v", err)
	}
	b.right(b.beside).call(b.node, "DEL")
	b.clean()
}

func (b *inputBed) tryDelete(f fault, place string) {
	b.Helper()
	s := b.pod()
	at := f.name + ", " + place
	delete := func(faulty bool) string {
		in := b.right(s)
		in.environ["CNI_NETNS"] = map[string]string{"alive": s.ns.Path(), "gone": s.ns.Path(), "replaced": b.beside.ns.Path(), "own": b.ns.Path()}[place]
		if faulty {
			f.do(&in)
		}
		if out, err := in.call(b.node, "DEL"); err != nil || out != "" {
			b.Errorf("%s: %v, %s", at, err, out)
		}
		return b.said()
	}
	delete(true) // before ADD
	if files := b.files(); !slices.Equal(files, b.unchanged) {
		b.Errorf("%s: before ADD a DEL makes it %q", at, files)
	}
	b.add(s)
	journal := ""
	for _, file := range b.files() {
		if strings.HasSuffix(file, ".journal") && !slices.Contains(b.unchanged, file) {
			journal = filepath.Join(filepath.Dir(b.state), file)
		}
	}
	if journal == "" {
		b.Fatalf("%s: no journal in %q: %s", at, b.files(), b.said())
	}
	if place != "alive" {
		s.ns.Gone()
	}
	said := delete(true)
	if len(said) > 2*longjson.MostError { // with what is left
		b.Errorf("%s: DEL says %d octets", at, len(said))
	}
	_, err := os.Lstat(journal)
	cleaned := slices.Equal(b.files(), b.unchanged)
	switch stays := f.other && !cleaned || f.moved && place != "alive"; {
	case stays && err != nil:
		b.Errorf("%s: the journal of another attachment: %v", at, err)
	case stays, cleaned:
	case f.says != "" && strings.Contains(said, f.says), strings.Contains(said, journal+" of "+s.dirOf()+" (guestwire-agent "):
	default:
		b.Errorf("%s: %q are left, the journal %s (%v), and DEL says %s", at, b.files(), journal, err, said)
	}
	if of := b.beside.dirOf(); strings.Contains(said, of+" (guestwire-agent ") && !strings.Contains(f.name, "CNI_CONTAINERID") {
		b.Errorf("%s: DEL names %s: %s", at, of, said)
	}
	if way := wayOut(said, journal+" of "+s.dirOf()); way != nil {
		nstest.Run(b, nstest.Program(b, "examples/guestwire-agent"), way...)
	}
	delete(false)
	if !slices.Equal(b.files(), b.unchanged) { // records that were removed by a DEL which did not find the journals
		if f.says == "" {
			b.Errorf("%s: after another DEL it is %q", at, b.files())
		}
		b.collect(b.list, types.GCAttachment{ContainerID: b.beside.id, IfName: "eth0"})
	}
	if files := b.files(); !slices.Equal(files, b.unchanged) {
		b.Errorf("%s: after a GC it is %q", at, files)
	}
	b.said()
	if place == "alive" {
		s.ns.Gone()
	}
}

// wayOut is the call of the agent that the text names for a journal; nil: it names none.
func wayOut(said, left string) []string {
	_, rest, ok := strings.Cut(said, left+" (guestwire-agent ")
	if !ok {
		return nil
	}
	way, _, _ := strings.Cut(rest, ")")
	return strings.Fields(way)
}

// TestOtherCallsAndFaults: GC and STATUS with the same faults, and with wrong attachments. They succeed, or print an
// error of CNI. The pod, which is valid, stays wired.
func TestOtherCallsAndFaults(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	b := newInputBed(t)
	all := faults()
	valid := func(name string, attachments any) {
		all = append(all, fault{name: "valid-attachments " + name, do: func(in *input) { in.members["cni.dev/valid-attachments"] = attachments }})
	}
	beside := map[string]any{"containerID": b.beside.id, "ifname": "eth0"}
	without := func(member string) map[string]any {
		m := maps.Clone(beside)
		delete(m, member)
		return m
	}
	valid("a number", 7)
	valid("an object", beside)
	valid("a text", strings.Repeat("a", fieldTooLong))
	valid("without a container", []any{without("containerID")})
	valid("without a NIC", []any{without("ifname")})
	valid("a number as a NIC", []any{map[string]any{"containerID": b.beside.id, "ifname": 7}})
	valid("null beside it", []any{nil})
	for _, f := range all {
		for _, command := range []string{"GC", "STATUS"} {
			in := b.right(b.beside)
			in.members["cniVersion"] = "1.1.0"
			in.members["cni.dev/valid-attachments"] = []any{beside}
			if f.do(&in); f.other {
				continue // they have no attachment
			}
			out, err := in.call(b.node, command)
			if out != "" {
				b.Errorf("%s, %s: %s", command, f.name, out)
			}
			if files := b.files(); !slices.Equal(files, b.unchanged) {
				b.Fatalf("%s, %s: %v; it is %q", command, f.name, err, files)
			}
		}
	}
	if _, err := b.right(b.beside).call(b.node, "CHECK"); err != nil {
		b.Error(err)
	}
	b.right(b.beside).call(b.node, "DEL")
	b.clean()
}
