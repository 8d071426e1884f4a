package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft"
	"github.com/guestwire/guestwire/internal/undo"
	"github.com/guestwire/guestwire/internal/wiring"
)

//go:embed floor/floor.c
var floorSource []byte

// floor is the running C program, which carries out lists of system calls.
type floor struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

func (s *scope) startFloor(dir string) (*floor, error) {
	source, program := filepath.Join(dir, "floor.c"), filepath.Join(dir, "floor")
	if err := os.WriteFile(source, floorSource, 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(s.ctx, "gcc", "-O2", "-Wall", "-Wextra", "-o", program, source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w: %s", err, out)
	}
	f := &floor{cmd: exec.CommandContext(s.ctx, program)}
	f.cmd.Stderr = &f.stderr
	var err error
	if f.in, err = f.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	f.out = bufio.NewReader(out)
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	s.atEnd(func() error {
		f.in.Close()
		return f.cmd.Wait()
	})
	return f, nil
}

// run carries out the list in the pod, and returns what the C program measured.
func (f *floor) run(list string, p *pod) (took cost, err error) {
	if _, err := fmt.Fprintln(f.in, list, path(p.Namespace), p.state); err != nil {
		return took, fmt.Errorf("floor: %w", err)
	}
	line, err := f.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &took.wall, &took.cpu)
	}
	if err != nil {
		err = fmt.Errorf("floor: %w: %s", err, f.stderr.String())
	}
	return took, err
}

// list is a list of steps for the floor, one per line, with netlink messages and contents in files beside it.
type list struct {
	path  string
	lines []string
	files int
	err   error
}

// add adds a step. Bytes become a file, and its path the word.
func (l *list) add(words ...any) {
	for i, word := range words {
		if data, ok := word.([]byte); ok {
			l.files++
			path := fmt.Sprintf("%s.%d", l.path, l.files)
			l.err = errors.Join(l.err, os.WriteFile(path, data, 0o600))
			words[i] = path
		}
	}
	l.lines = append(l.lines, strings.TrimSpace(fmt.Sprintln(words...)))
}

func (l *list) write() error {
	return errors.Join(l.err, os.WriteFile(l.path, []byte(strings.Join(l.lines, "\n")+"\n"), 0o600))
}

const (
	journalFile = nic + ".journal"
	recordFile  = nic + ".json"
)

// lists are the paths of a binding's lists.
type lists struct {
	setup, check, teardown string
	sysctls                []string
}

// newLists wires a pod by phase1, and makes the floor's lists from phase1's operations.
func newLists(ctx context.Context, dir string, binding infra.Binding) (l lists, err error) {
	l = lists{setup: filepath.Join(dir, "setup"), check: filepath.Join(dir, "check"), teardown: filepath.Join(dir, "teardown")}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return l, err
	}
	return l, inScope(ctx, func(s *scope) error {
		_, pods, err := s.newWorld(1)
		if err != nil {
			return err
		}
		p := pods[0]
		if _, err := p.setup(ctx, infra.Spec{Binding: binding}); err != nil {
			return err
		}
		return l.write(ctx, p)
	})
}

// write writes the lists for a wired pod.
func (l *lists) write(ctx context.Context, p *pod) error {
	path, err := p.journal()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	record, err := os.ReadFile(filepath.Join(p.state, recordFile))
	if err != nil {
		return err
	}
	var journal wiring.Journal
	if err := json.Unmarshal(text, &journal); err != nil {
		return err
	}
	plan, err := journal.Plan()
	if err != nil {
		return err
	}
	steps, err := plan.Steps(journal.Found)
	if err != nil {
		return err
	}
	questions := wiring.Ask(journal.NIC, journal.Spec)
	l.sysctls = slices.Concat(questions.Sysctls, questions.Hinders)

	setup := &list{path: l.setup}
	setup.add("absent", journalFile)
	l.addSnapshot(setup, nil)
	setup.add("write", journalFile, "600", text)
	setup.apply(presentNames(steps))
	l.sysctls = plan.SysctlPaths()
	l.addSnapshot(setup, slices.DeleteFunc(slices.Clone(steps), func(op netstate.Op) bool {
		_, table := op.(netstate.TableSet)
		return table // Setup does not read back what it has just sent
	}))
	setup.add("write", recordFile, "644", record)

	check := &list{path: l.check}
	check.add("readback", journalFile)
	l.sysctls = slices.Concat(plan.SysctlPaths(), plan.Hinders())
	l.addSnapshot(check, steps)
	check.add("readback", recordFile)
	if err := errors.Join(setup.write(), check.write()); err != nil {
		return err
	}
	return p.Do(func() error { return l.writeTeardown(ctx, plan) })
}

// writeTeardown undoes the wiring step by step and records the operations. It runs in the namespace.
func (l *lists) writeTeardown(ctx context.Context, plan *wiring.Plan) error {
	ns, err := kernel.Open()
	if err != nil {
		return err
	}
	defer ns.Close()
	t := &list{path: l.teardown}
	t.add("readback", journalFile)
	t.add("remove", recordFile)
	found, made := plan.Journal().Found, plan.Made()
	l.sysctls = made.Sysctls
	l.addSnapshot(t, nil)
	for {
		now, err := ns.SnapshotForUndo(made.NIC.Names, made.Sysctls, nil)
		if err != nil {
			return err
		}
		ops, err := undo.Steps(found, now, made)
		if err != nil {
			return err
		}
		if len(ops) == 0 {
			break
		}
		t.apply(ops)
		l.addSnapshot(t, nil)
		if err := ns.Apply(ctx, ops); err != nil {
			return err
		}
	}
	t.add("remove", journalFile)
	return t.write()
}

// addSnapshot adds the reads of a Snapshot after the operations.
func (l *lists) addSnapshot(to *list, after []netstate.Op) {
	to.add("look")
	for _, op := range after {
		if qdisc, ok := op.(netstate.IngressAdd); ok {
			to.add("filters", qdisc.Index)
		}
	}
	to.add("tables")
	for _, op := range after {
		if t, ok := op.(netstate.TableSet); ok {
			to.add("rules", families[t.Table.Family], t.Table.Name)
		}
	}
	for _, path := range l.sysctls {
		to.add("read", "/proc/sys/"+path)
	}
}

var families = map[firewall.Family]int{firewall.Inet: unix.NFPROTO_INET, firewall.Bridge: unix.NFPROTO_BRIDGE, firewall.NetDev: unix.NFPROTO_NETDEV}

// presentNames gives chains of the NIC its present name, which internal/kernel does too where the kernel binds chains
// to links.
func presentNames(ops []netstate.Op) []netstate.Op {
	ops = slices.Clone(ops)
	for i, op := range ops {
		if set, is := op.(netstate.TableSet); is && !nft.BindsNames() {
			set.Table.Chains = slices.Clone(set.Table.Chains)
			for j, c := range set.Table.Chains {
				if c.Link != 0 {
					set.Table.Chains[j].Device = nic
				}
			}
			ops[i] = set
		}
	}
	return ops
}

// socketKind returns the netlink socket for an operation; empty: the operation is an ioctl or a write to a file.
func socketKind(op netstate.Op) string {
	switch op.(type) {
	case netstate.TapAdd, netstate.TapReset, netstate.SysctlSet:
		return ""
	case netstate.TableSet, netstate.TableDel:
		return "nftables"
	}
	return "route"
}

// sentAlone reports whether an operation is sent by itself, outside of a batch.
func sentAlone(op netstate.Op) bool {
	_, deletion := op.(netstate.LinkDel)
	return deletion || socketKind(op) == ""
}

// apply adds operations in the batches of kernel.Apply, but a link's deletion by itself.
func (l *list) apply(ops []netstate.Op) {
	for done := 0; done < len(ops); {
		end := done + 1
		for end < len(ops) && socketKind(ops[end]) == socketKind(ops[done]) && !sentAlone(ops[end]) && !sentAlone(ops[done]) {
			end++
		}
		switch op := ops[done].(type) {
		case netstate.TapAdd:
			if op.Tap.MultiQueue || op.Tap.Owner.GID != 0 {
				l.err = errors.Join(l.err, fmt.Errorf("%v: the floor cannot", op))
			}
			flags := unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL
			if op.VNetHeader {
				flags |= unix.IFF_VNET_HDR
			}
			l.add("tap", op.Index, op.Link, flags, op.Tap.Owner.UID)
		case netstate.SysctlSet:
			l.add("sysctl", "/proc/sys/"+op.Path, op.Value)
		default:
			messages, acknowledge, err := kernel.Encode(ops[done:end])
			l.err = errors.Join(l.err, err)
			l.add(socketKind(op), joinMessages(messages, acknowledge), 0)
		}
		done = end
	}
}

// joinMessages returns the messages as one datagram.
func joinMessages(messages [][]byte, acknowledge int) []byte {
	var out []byte
	for i, m := range messages {
		m = slices.Clone(m)
		binary.NativeEndian.PutUint32(m[8:], uint32(1000+i))
		if i == acknowledge {
			binary.NativeEndian.PutUint16(m[6:], binary.NativeEndian.Uint16(m[6:])|unix.NLM_F_ACK)
		}
		out = append(out, m...)
		for len(out)%unix.NLMSG_ALIGNTO != 0 {
			out = append(out, 0)
		}
	}
	return out
}
