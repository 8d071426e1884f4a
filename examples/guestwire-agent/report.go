package main

import (
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// printList prints a table.
func printList(w io.Writer, all []listed) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NIC\tPOD\tNAMESPACE\tBINDING\tATTACHED\tOWNER\tSINCE\tVERSION\tSTATE")
	for _, l := range all {
		pod := strings.Trim(l.Pod.Namespace+"/"+l.Pod.Name, "/")
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.NIC, orDash(pod), place(l.Wiring), binding(l.Wiring), orDash(l.attached), owner(l.Wiring), since(l.Wiring), orDash(l.Version), orDash(l.State))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, l := range all {
		if l.Unreadable != "" {
			fmt.Fprintf(w, "\n%s in %s: %s\n", l.NIC, place(l.Wiring), l.Unreadable)
		}
	}
	return nil
}

// binding is the kind, and whether the guest is on standby.
func binding(w phase1.Wiring) string {
	if w.Role != cache.RoleActive {
		return fmt.Sprintf("%s (%s)", w.Binding, w.Role)
	}
	return orDash(string(w.Binding))
}

func place(w phase1.Wiring) string {
	if len(w.FoundAt) == 0 {
		return w.Namespace + " (gone)"
	}
	return w.FoundAt[0]
}

// pathOf is the place if it is a path, which it need not be. Else it is the word PATH.
func pathOf(w phase1.Wiring) string {
	if len(w.FoundAt) == 0 || !exists(w.FoundAt[0]) {
		return "PATH"
	}
	return w.FoundAt[0]
}

func since(w phase1.Wiring) string {
	if w.Since.IsZero() {
		return "-"
	}
	return w.Since.Local().Format(time.DateTime)
}

// owner is user and group, and of an owner inside of another user namespace both of the node as well.
func owner(w phase1.Wiring) string {
	text := fmt.Sprintf("%d:%d", w.Owner.UID, w.Owner.GID)
	if w.Owner.GID == 0 && !w.Owner.Root {
		text = fmt.Sprintf("%d, any group", w.Owner.UID)
	}
	if w.Owner.Inside {
		text += fmt.Sprintf(" inside, %d:%d", w.OnNode.UID, w.OnNode.GID)
	}
	return text
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// printReport prints what status reports of one NIC. Failed is why kernel and record could not be compared; nil: they
// were.
func printReport(r *phase1.Report, failed error) {
	printLevels(func(table *tabwriter.Writer) { writeReport(table, r, failed) })
}

func writeReport(table *tabwriter.Writer, r *phase1.Report, failed error) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("NIC", "%s, %s", r.NIC, r.Binding)
	line("namespace", "%s, %s", place(r.Wiring), r.Namespace) // the other places may be this process's own
	if r.State != "" {
		line("record", "%s", filepath.Join(r.State, r.NIC+".json"))
	}
	group := "any group"
	if r.Owner.GID != 0 {
		group = fmt.Sprintf("group %d", r.Owner.GID)
	}
	if r.Owner.Inside && r.Owner.GID != 0 {
		group += fmt.Sprintf(" inside, %d on the node", r.OnNode.GID)
	}
	if r.Owner.Inside {
		line("owner", "user %d inside, %d on the node; %s", r.Owner.UID, r.OnNode.UID, group)
	} else {
		line("owner", "user %d, %s", r.Owner.UID, group)
	}
	if r.Owner.SELinux != "" {
		line("context", "%s", r.Owner.SELinux)
	}
	line("since", "%s, by guestwire %s", since(r.Wiring), r.Version)
	if r.For != "" {
		line("for", "%s", infra.ShellWord(r.For))
	}
	guest := []string{}
	if !r.Record.MAC.IsZero() {
		guest = append(guest, r.Record.MAC.String())
	}
	if v4 := r.Record.IPv4; v4 != nil {
		guest = append(guest, v4.Address.String())
	}
	if v6 := r.Record.IPv6; v6 != nil {
		for _, a := range v6.Addresses() {
			guest = append(guest, a.String())
		}
	}
	line("guest", "%s", strings.Join(append(guest, fmt.Sprintf("MTU %d", r.Record.MTU)), ", "))
	if v6 := r.Record.IPv6; v6 != nil {
		for _, p := range v6.Delegated {
			line("delegated", "%s, to a guest that asks by DHCPv6-PD", p)
		}
	}
	if r.Role != cache.RoleActive {
		line(string(r.Role), "since turn %d: the guest's tap is down until guestwire-agent activate", r.Turn)
	}
	if r.Record.Tap != "" {
		line("tap", "%s, %s", r.Record.Tap, count(r.Record.Queues, "queue"))
	}
	printAttached(line, &r.Counters)
	for _, l := range []struct {
		way string
		cache.Limit
	}{{"from the guest", r.Record.Limits.FromGuest}, {"to the guest", cache.Limit{BitsPerSecond: r.Record.Limits.ToGuest.BitsPerSecond}}} {
		if l.BitsPerSecond != 0 {
			line("limit", "%s: %s a second", l.way, count(l.BitsPerSecond, "bit"))
		}
		if l.PacketsPerSecond != 0 {
			line("limit", "%s: %s a second", l.way, count(l.PacketsPerSecond, "packet"))
		}
	}
	eachName(r.Names, r.Record.DNSProxy, func(text string) { line("names", "%s", text) })
	eachEntry(r.Egress, r.EgressWithin, r.Record.Options.NAT64, func(field, text string) { line(field, "%s", text) })
	if r := r.Record.Resolver; r.IsValid() {
		line("resolver", "%s", resolverText(r))
	}
	for _, l := range r.Record.Losses {
		line("lost", "%v", l)
	}
	for _, warning := range r.Record.Warnings {
		line("warning", "%s", warning)
	}
	switch {
	case failed != nil:
		line("kernel", "%v", failed)
	case r.Drift == nil:
		line("kernel", "as recorded")
	default:
		for _, d := range r.Drift.Differs {
			line("differs", "%v", d)
		}
	}
	for _, l := range []struct {
		way string
		*phase1.Count
	}{{"from the guest", r.FromGuest}, {"to the guest", r.ToGuest}} {
		if l.Count != nil {
			line("traffic", "%s: %s, %s", l.way, count(l.Packets, "packet"), count(l.Bytes, "octet"))
		}
	}
	if r.Opened != nil {
		line("opened", "%s that egress allows", count(*r.Opened, "connection"))
	}
	if r.Diverted != nil {
		line("diverted", "%s that egress diverts to the namespace", count(*r.Diverted, "connection"))
	}
	dropped := false
	for _, d := range r.Drops {
		if d.Packets > 0 && !d.Expected {
			line("dropped", "%s: %s, %s", count(d.Packets, "packet"), d.Reason, d.Meaning)
			dropped = true
		}
	}
	if !dropped {
		line("dropped", "nothing")
	}
	for _, d := range r.Drops {
		if d.Packets > 0 && d.Expected {
			line("expected", "%s dropped, which needs nothing: %s, %s", count(d.Packets, "packet"), d.Reason, d.Meaning)
		}
	}
}

// resolverText is how the guest asks a resolver on loopback.
func resolverText(at netip.Addr) string {
	return fmt.Sprintf("%v of the namespace, which the guest asks at port 53 of its gateway", at)
}

// eachName calls f for where the DNS proxy of the names listens, and for the first names.
func eachName(names []infra.Name, proxy []netip.AddrPort, f func(text string)) {
	const few = 8
	if len(names) == 0 {
		return
	}
	at := []string{}
	for _, a := range proxy {
		at = append(at, a.String())
	}
	f("the guest's questions to port 53 go to " + strings.Join(at, " and "))
	for i, n := range names {
		if i == few && len(names) > few+1 {
			f(fmt.Sprintf("(%d more)", len(names)-few))
			return
		}
		f(n.String())
	}
}

// eachEntry calls f for the entries of both lists, with the field's name: the first ones, the diverts and the last one.
// In the place of others the text says how many these are. A NAT64 prefix of the options is reported after them.
func eachEntry(egress, egressWithin []infra.Egress, nat64 netip.Prefix, f func(field, text string)) {
	const few, fewDiverts = 8, 64
	for _, list := range []struct {
		name    string
		entries []infra.Egress
	}{{"egress", egress}, {"egressWithin", egressWithin}} {
		more, diverts := 0, 0
		for i, e := range list.entries {
			divert := e.Divert.Port() != 0 && diverts < fewDiverts
			if i >= few && !divert && i < len(list.entries)-1 {
				more++
				continue
			}
			if more > 0 {
				f(list.name, fmt.Sprintf("(%d more)", more))
				more = 0
			}
			if divert {
				diverts++
			}
			f(list.name, e.String())
		}
	}
	if nat64.IsValid() && len(egress)+len(egressWithin) > 0 {
		f("nat64", fmt.Sprintf("an IPv4 network of egress is also its addresses in %s", nat64))
	}
}
