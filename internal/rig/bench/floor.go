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
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
	"github.com/guestwire/guestwire/phase1"
)

//go:embed floor/floor.c
var floorSource []byte

// floor is the running C program.
type floor struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
	used   time.Duration // the CPU time of the last run
}

// startFloor compiles the source in the directory, and starts the program there.
func startFloor(ctx context.Context, dir string, code []byte) (*floor, error) {
	source, program := filepath.Join(dir, "floor.c"), filepath.Join(dir, "floor")
	if err := os.WriteFile(source, code, 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, "gcc", "-O2", "-Wall", "-Wextra", "-o", program, source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w: %s", err, out)
	}
	f := &floor{cmd: exec.CommandContext(ctx, program)}
	f.cmd.Dir, f.cmd.Stderr = dir, &f.stderr
	var err error
	if f.in, err = f.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	f.out = bufio.NewReader(out)
	return f, f.cmd.Start()
}

// stop ends the program by closing its standard input.
func (f *floor) stop() {
	f.in.Close()
	_ = f.cmd.Wait() // run has returned its errors
}

// run carries out the list in the pod, and returns the time that the C program measured. The CPU time is in used then.
func (f *floor) run(list string, p *pod) (time.Duration, error) {
	if _, err := fmt.Fprintln(f.in, list, p.path(), p.state); err != nil {
		return 0, fmt.Errorf("floor: %w", err)
	}
	line, err := f.out.ReadString('\n')
	if err != nil {
		f.in.Close()
		return 0, fmt.Errorf("floor: %w: %s", errors.Join(err, f.cmd.Wait()), f.stderr.String())
	}
	var took time.Duration
	if _, err := fmt.Sscan(line, &took, &f.used); err != nil {
		return 0, fmt.Errorf("floor: %w", err)
	}
	return took, nil
}

// list is a list of steps for the floor, one per line, with the netlink messages in files beside it.
type list struct {
	path  string
	lines []string
	files int
}

func (l *list) add(words ...any) {
	l.lines = append(l.lines, strings.TrimSpace(fmt.Sprintln(words...)))
}

// file writes bytes to a file for the floor and returns its path.
func (l *list) file(data []byte) (string, error) {
	l.files++
	path := fmt.Sprintf("%s.%d", l.path, l.files)
	return path, os.WriteFile(path, data, 0o600)
}

func (l *list) write() error {
	return os.WriteFile(l.path, []byte(strings.Join(l.lines, "\n")+"\n"), 0o600)
}

// learn wires a pod by phase1 and makes the floor's lists and the scripts from phase1's operations. They fit all pods, as
// all pods are alike.
func (b *bench) learn(ctx context.Context) (err error) {
	p, err := newPod(ctx, b.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closePods([]*pod{p})) }()
	if err := p.waitSettled(ctx); err != nil {
		return err
	}
	if _, err := phase1.Setup(ctx, b.config(p)); err != nil {
		return err
	}
	files := map[string][]byte{}
	journalPath, err := journalOf(p)
	if err != nil {
		return err
	}
	for name, path := range map[string]string{journalFile: journalPath, recordFile: filepath.Join(p.state, recordFile)} {
		if files[name], err = os.ReadFile(path); err != nil {
			return err
		}
	}
	var journal wiring.Journal
	if err := json.Unmarshal(files[journalFile], &journal); err != nil {
		return err
	}
	plan, err := wiring.NewPlan(journal.Found, journal.Spec)
	if err != nil {
		return err
	}
	steps, err := plan.Steps(journal.Found)
	if err != nil {
		return err
	}
	if err := b.learnSetup(steps, journal, files); err != nil {
		return err
	}
	return netns.Do(p.file, func() error { return b.learnTeardown(ctx, plan, steps) })
}

// presentNames gives chains of the NIC its present name, which internal/kernel does too where the kernel binds chains to links.
func presentNames(ops []netstate.Op) []netstate.Op {
	if kernel.BindsNames() {
		return ops
	}
	ops = slices.Clone(ops)
	for i, op := range ops {
		set, is := op.(netstate.TableSet)
		if !is {
			continue
		}
		set.Table.Chains = slices.Clone(set.Table.Chains)
		for j, c := range set.Table.Chains {
			if c.Link != 0 {
				set.Table.Chains[j].Device = nic
			}
		}
		ops[i] = set
	}
	return ops
}

// journalOf returns the journal's path.
func journalOf(p *pod) (string, error) {
	identity, err := netns.Identify(p.file)
	if err == nil {
		err = netns.Do(p.file, identity.AddCookie)
	}
	return filepath.Join(p.node(), identity.Name(), nic+".journal"), err
}

const (
	journalFile = nic + ".journal"
	recordFile  = nic + ".json"
)

func (b *bench) learnSetup(ops []netstate.Op, journal wiring.Journal, files map[string][]byte) error {
	l := &list{path: filepath.Join(b.dir, "setup")}
	write := func(name, mode string) error {
		path, err := l.file(files[name])
		l.add("write", name, mode, path)
		return err
	}
	l.add("absent", journalFile)
	b.addSnapshot(l, nil)
	if b.binding.Kind() == (infra.Bridge{}).Kind() {
		path, err := l.file(askDummy())
		if err != nil {
			return err
		}
		answer := unix.EOPNOTSUPP
		if journal.Found.Dummy {
			answer = unix.EINVAL
		}
		l.add("route", path, int(answer))
	}
	path, err := l.file(askLog())
	if err != nil {
		return err
	}
	answer := unix.ENODEV
	if journal.Found.NoLog {
		answer = unix.EINVAL
	}
	l.add("nftables", path, int(answer))
	if err := write(journalFile, "600"); err != nil {
		return err
	}
	if err := l.apply(presentNames(ops)); err != nil {
		return err
	}
	b.addSnapshot(l, slices.DeleteFunc(slices.Clone(ops), func(op netstate.Op) bool {
		_, table := op.(netstate.TableSet)
		return table // Setup does not read back what it has just sent
	}))
	if err := write(recordFile, "644"); err != nil {
		return err
	}
	b.setupList, b.sends = l.path, describeSends(ops)
	b.dummy, b.log = journal.Found.Dummy, !journal.Found.NoLog
	if err := l.write(); err != nil {
		return err
	}
	b.setupScript, err = writeScript(filepath.Join(b.dir, "setup.sh"), ops)
	return err
}

// learnTeardown undoes the wiring step by step and records the operations. It runs in the namespace.
func (b *bench) learnTeardown(ctx context.Context, plan *wiring.Plan, setup []netstate.Op) error {
	ns, err := kernel.Open()
	if err != nil {
		return err
	}
	defer ns.Close()
	group := &list{path: filepath.Join(b.dir, "teardown-group")}
	single := &list{path: filepath.Join(b.dir, "teardown-single")}
	var script []netstate.Op
	for _, l := range []*list{group, single} {
		l.add("readback", journalFile)
		l.add("remove", recordFile)
		b.addSnapshot(l, setup)
	}
	for {
		now, err := ns.Snapshot(netstate.NamesFor(nic), wiring.Ask(infra.Spec{NIC: nic, Binding: b.binding}).Sysctls, nil)
		if err != nil {
			return err
		}
		ops, err := plan.Undo(now)
		if err != nil {
			return err
		}
		if len(ops) == 0 {
			break
		}
		if err := group.apply(ops); err != nil {
			return err
		}
		singly := deleteSingly(ops, now)
		if err := single.apply(singly); err != nil {
			return err
		}
		script = append(script, singly...)
		b.addSnapshot(group, nil)
		b.addSnapshot(single, nil)
		if err := ns.Apply(ctx, ops); err != nil {
			return err
		}
	}
	for _, l := range []*list{group, single} {
		l.add("remove", journalFile)
		if err := l.write(); err != nil {
			return err
		}
	}
	b.groupList, b.singleList = group.path, single.path
	b.teardownScript, err = writeScript(filepath.Join(b.dir, "teardown.sh"), script)
	return err
}

// deleteSingly replaces the deletion of a link group by a deletion of each link.
func deleteSingly(ops []netstate.Op, now netstate.Snapshot) []netstate.Op {
	var out []netstate.Op
	for _, op := range ops {
		group, ok := op.(netstate.GroupDel)
		if !ok {
			out = append(out, op)
			continue
		}
		for _, l := range now.Links {
			if l.Group == group.Group {
				out = append(out, netstate.LinkDel{Index: l.Index, Link: l.Name})
			}
		}
	}
	return out
}

// addSnapshot adds the reads of a Snapshot after the operations.
func (b *bench) addSnapshot(l *list, after []netstate.Op) {
	l.add("look")
	for _, op := range after {
		if qdisc, ok := op.(netstate.IngressAdd); ok {
			l.add("filters", qdisc.Index)
		}
	}
	l.add("tables")
	for _, op := range after {
		if t, ok := op.(netstate.TableSet); ok {
			l.add("rules", families[t.Table.Family], t.Table.Name)
		}
	}
	for _, path := range wiring.Ask(infra.Spec{NIC: nic, Binding: b.binding}).Sysctls {
		l.add("read", "/proc/sys/"+path)
	}
}

var families = map[firewall.Family]int{firewall.Inet: unix.NFPROTO_INET, firewall.Bridge: unix.NFPROTO_BRIDGE, firewall.NetDev: unix.NFPROTO_NETDEV}

// socketKind returns the netlink socket for an operation; empty: the operation is an ioctl or a write to a file.
func socketKind(op netstate.Op) string {
	switch op.(type) {
	case netstate.TapAdd, netstate.SysctlSet:
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
func (l *list) apply(ops []netstate.Op) error {
	for done := 0; done < len(ops); {
		end := done + 1
		for end < len(ops) && socketKind(ops[end]) == socketKind(ops[done]) && !sentAlone(ops[end]) && !sentAlone(ops[done]) {
			end++
		}
		switch op := ops[done].(type) {
		case netstate.TapAdd:
			if op.Tap.MultiQueue || op.Tap.Owner.GID != 0 {
				return fmt.Errorf("%v: the floor cannot", op)
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
			if err != nil {
				return err
			}
			path, err := l.file(joinMessages(messages, acknowledge))
			if err != nil {
				return err
			}
			l.add(socketKind(op), path, 0)
		}
		done = end
	}
	return nil
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

// askDummy returns the request of kernel.HasDummy.
func askDummy() []byte {
	r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("dummy"))
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("guestwire-probe")))
	r.AddData(nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1<<16)))
	r.AddData(info)
	return r.Serialize()
}

// askLog returns the request of kernel.HasLog.
func askLog() []byte {
	const config = unix.NFNL_SUBSYS_ULOG<<8 | 1 // NFULNL_MSG_CONFIG
	r := nl.NewNetlinkRequest(config, unix.NLM_F_ACK)
	r.AddRawData([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, firewall.LogGroup >> 8, firewall.LogGroup & 0xff})
	return r.Serialize()
}

// describeSends describes how many sends and calls the operations need.
func describeSends(ops []netstate.Op) string {
	operations, batches := map[string]int{}, map[string]int{}
	var taps, sysctls int
	last := ""
	for _, op := range ops {
		kind := socketKind(op)
		operations[kind]++
		if kind != last {
			batches[kind]++
		}
		last = kind
		switch op.(type) {
		case netstate.TapAdd:
			taps++
		case netstate.SysctlSet:
			sysctls++
		}
	}
	return fmt.Sprintf("%d operations by rtnetlink in %d send, %d by nftables in %d, %d taps, %d sysctl",
		operations["route"], batches["route"], operations["nftables"], batches["nftables"], taps, sysctls)
}
