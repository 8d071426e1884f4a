package phase1_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// eachIPTables calls f with the programs for IPv4 and IPv6.
func eachIPTables(t *testing.T, f func(t *testing.T, v4, v6 string)) {
	for _, v4 := range []cache.Firewall{cache.FirewallIPTablesNFT, cache.FirewallIPTablesLegacy} {
		t.Run(string(v4), func(t *testing.T) {
			v6 := strings.Replace(string(v4), "ip", "ip6", 1)
			nstest.Need(t, string(v4), v6)
			f(t, string(v4), v6)
		})
	}
}

// saved is what iptables-save prints of both, without what counts.
func saved(n *nstest.Namespace, programs ...string) string {
	var lines []string
	for _, p := range programs {
		for line := range strings.Lines(n.Exec(p + "-save")) {
			if line, _, _ = strings.Cut(line, " ["); line[0] != '#' {
				lines = append(lines, p+": "+strings.TrimSpace(line)+"\n")
			}
		}
	}
	return strings.Join(lines, "")
}

// others are rules of other programs, in all chains from which the wiring jumps, one with a name like the
// wiring's.
func others(n *nstest.Namespace, programs ...string) {
	for _, p := range programs {
		for _, line := range []string{
			"-t raw -A PREROUTING -i lo -j ACCEPT",
			"-t filter -N gw-eth0-theirs-cap", "-t filter -A FORWARD -i lo -j gw-eth0-theirs-cap", "-t filter -A FORWARD -i lo -j DROP",
			"-t nat -N theirs", "-t nat -A PREROUTING -i lo -j theirs", "-t nat -A theirs -j RETURN", "-t nat -A POSTROUTING -o lo -j theirs",
			"-t nat -A OUTPUT -o lo -j theirs", "-t filter -A INPUT -i lo -j ACCEPT", "-t filter -A OUTPUT -o lo -j ACCEPT",
		} {
			n.Exec(append([]string{p}, strings.Fields(line)...)...)
		}
	}
}

// TestIPTables sets up by iptables beside rules of others: again it changes nothing, what is damaged is
// said and repaired, and Teardown leaves the others' rules as they were.
func TestIPTables(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachIPTables(t, func(t *testing.T, v4, v6 string) {
		n := nstest.NewNetwork(t)
		others(n.Pod, v4, v6)
		found, before := saved(n.Pod, v4, v6), settled(t, n)
		b := everyOption
		b.Firewall = cache.Firewall(v4)
		c := config(n, b)
		preview, err := c.Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := difference(before, n.Pod.Dump()); err != nil {
			t.Errorf("the plan changed the namespace: %v", err)
		}
		setup(t, c)
		wired := saved(n.Pod, v4, v6)
		for line := range strings.Lines(found) {
			if !strings.Contains(wired, line) {
				t.Errorf("Setup lost %s", line)
			}
		}

		// What iptables-restore makes of the text in the plan is what Setup makes.
		text := nstest.New(t, "text")
		others(text, v4, v6)
		restored := 0
		for _, step := range preview.Steps {
			command, rules, is := strings.Cut(step.Command, " --noflush <<'EOF'\n")
			if !is {
				continue
			}
			restored++
			path := filepath.Join(t.TempDir(), "rules")
			if err := os.WriteFile(path, []byte(strings.TrimSuffix(rules, "EOF")), 0o600); err != nil {
				t.Fatal(err)
			}
			text.Exec(command, "--noflush", path)
		}
		if restored == 0 {
			t.Error("the plan restores no table")
		}
		if err := difference(sorted(saved(text, v4, v6)), sorted(wired)); err != nil {
			t.Errorf("text and Setup: %v", err)
		}

		if preview, err := c.Plan(t.Context()); err != nil || len(preview.Steps) > 0 {
			t.Errorf("plan of a complete wiring: %v, %v; want no steps", preview, err)
		}
		setup(t, c)
		if err := difference(wired, saved(n.Pod, v4, v6)); err != nil {
			t.Errorf("Setup again: %v", err)
		}
		for _, d := range []struct{ line, says string }{
			{v4 + " -t nat -D gw-eth0-guest 1", "gw-eth0 of " + v4 + ": chain gw-eth0-guest lacks the rule"},
			{v6 + " -t nat -D gw-eth0-guest 2", "gw-eth0 of " + v6 + ": chain gw-eth0-guest lacks the rule"},
			{v4 + " -t nat -A gw-eth0-guest -j ACCEPT", "chain gw-eth0-guest has an extra rule: not a rule of guestwire: -j ACCEPT"},
			{v4 + " -t filter -F gw-eth0-through", "chain gw-eth0-through lacks the rule"},
			{v4 + " -t filter -D FORWARD -j gw-eth0-through", `chain gw-eth0-through is "filter", not "filter FORWARD"`},
			{v6 + " -t filter -A FORWARD -j gw-eth0-through", `chain gw-eth0-through is "filter FORWARD FORWARD", not "filter FORWARD"`},
			{v4 + " -t filter -A OUTPUT -j gw-eth0-input", `chain gw-eth0-input is "filter INPUT OUTPUT", not "filter INPUT"`},
			{v4 + " -t filter -N gw-eth0-more", "chain gw-eth0-more belongs to another program"},
			{v4 + " -t raw -F; " + v4 + " -t raw -X; " + v4 + " -t raw -A PREROUTING -i lo -j ACCEPT", "chain gw-eth0-loopback is gone"},
		} {
			n.Pod.Exec("sh", "-ec", d.line)
			var drift *phase1.DriftError
			if err := c.Check(t.Context()); !errors.As(err, &drift) || !strings.Contains(fmt.Sprint(drift.Differs), d.says) {
				t.Errorf("%s: Check says %v, want %s", d.line, err, d.says)
			}
			setup(t, c)
			if err := difference(sorted(wired), sorted(saved(n.Pod, v4, v6))); err != nil {
				t.Errorf("%s, after Setup: %v", d.line, err)
			}
		}
		teardown(t, n, c, before)
		if err := difference(found, saved(n.Pod, v4, v6)); err != nil {
			t.Errorf("after Teardown: %v", err)
		}
	})
}

// TestIPTablesLeft: where no program has used iptables, empty tables stay.
func TestIPTablesLeft(t *testing.T) {
	t.Parallel()
	eachIPTables(t, func(t *testing.T, v4, v6 string) {
		if cache.Firewall(v4) == cache.FirewallIPTablesLegacy {
			nstest.KernelDecides(t, "the tables are modules")
		}
		n := nstest.NewNetwork(t)
		c := config(n, infra.Masquerade{Firewall: cache.Firewall(v4)})
		setup(t, c)
		if err := c.Teardown(t.Context()); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(saved(n.Pod, v4, v6)) {
			_, line, _ = strings.Cut(strings.TrimSpace(line), ": ")
			if !strings.HasPrefix(line, "*") && !strings.HasSuffix(line, " ACCEPT") && line != "COMMIT" {
				t.Errorf("Teardown leaves %s", line)
			}
		}
	})
}

// TestIPTablesMissing wants a program that is not there to be named before anything is changed.
func TestIPTablesMissing(t *testing.T) {
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	path := os.Getenv("PATH")
	t.Setenv("PATH", "/nonexistent")
	for _, firewall := range []cache.Firewall{cache.FirewallIPTablesNFT, cache.FirewallIPTablesLegacy} {
		_, err := config(n, infra.Masquerade{Firewall: firewall}).Setup(t.Context())
		if !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "binding.masquerade.firewall") || !strings.Contains(err.Error(), string(firewall)) {
			t.Errorf("error %v, want one that names %s", err, firewall)
		}
	}
	// Who does not need them starts no process at all.
	c := config(n, infra.Masquerade{})
	setup(t, c)
	if err := c.Teardown(t.Context()); err != nil {
		t.Error(err)
	}
	t.Setenv("PATH", path)
	asFound(t, n, before)
}

// TestIPTablesInterrupted kills Setup and Teardown before the program's k-th process, or has that process
// fail. After a failure the namespace is as it was; after a kill, Setup and Teardown end as if nothing
// had happened.
func TestIPTablesInterrupted(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	agent := nstest.Program(t, "examples/guestwire-agent")
	eachIPTables(t, func(t *testing.T, v4, v6 string) {
		n := nstest.NewNetwork(t)
		others(n.Pod, v4, v6)
		found, before := saved(n.Pod, v4, v6), settled(t, n)
		c := config(n, infra.Masquerade{Firewall: cache.Firewall(v4), Loopback: true})
		c.DNS = nil
		dir := nstest.Dir(t)
		text, err := c.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "config"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{v4, v6} {
			real, err := exec.LookPath(p)
			if err != nil {
				t.Fatal(err)
			}
			script := fmt.Sprintf("#!/bin/sh\necho >>%s/count\n[ $(wc -l <%s/count) -ne $AT ] || { [ $HOW = fail ] || kill -KILL $PPID; exit 4; }\nexec %s \"$@\"\n", dir, dir, real)
			if err := os.WriteFile(filepath.Join(dir, p), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		// run reports whether the agent's run was long enough to be disturbed.
		run := func(verb, how string, at int) bool {
			t.Helper()
			if err := os.RemoveAll(filepath.Join(dir, "count")); err != nil {
				t.Fatal(err)
			}
			args := []string{verb, "-netns", n.Pod.Path(), "-nic", "eth0"}
			if verb == "setup" {
				args = append(args, "-config", filepath.Join(dir, "config"))
			}
			cmd := exec.Command(agent, args...)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOW="+how, fmt.Sprintf("AT=%d", at))
			out, err := cmd.CombinedOutput()
			count, _ := os.ReadFile(filepath.Join(dir, "count"))
			reached := strings.Count(string(count), "\n") >= at
			if reached == (err == nil) {
				t.Fatalf("%s, %s at %d: %v\n%s", verb, how, at, err, out)
			}
			return reached
		}
		back := func(what string) {
			t.Helper()
			if err := c.Teardown(t.Context()); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if err := difference(found, saved(n.Pod, v4, v6)); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		setup(t, c)
		wired := saved(n.Pod, v4, v6)
		back("undisturbed")
		const step = 47 // of some hundred processes
		ways := 0
		for at := 1; run("setup", "kill", at); at += step {
			what := fmt.Sprintf("killed at %d", at)
			if at/step%2 == 0 { // every other time without it
				setup(t, c)
				if err := difference(sorted(wired), sorted(saved(n.Pod, v4, v6))); err != nil {
					t.Errorf("%s, after Setup: %v", what, err)
				}
			}
			back(what)
			ways++
		}
		back("at last")
		for at := 2; run("setup", "fail", at); at += step {
			if err := difference(found, saved(n.Pod, v4, v6)); err != nil {
				t.Errorf("failed at %d: %v", at, err)
			}
			if left, err := os.ReadDir(n.State); err != nil || len(left) > 0 {
				t.Errorf("failed at %d: the state directory has %v, %v", at, left, err)
			}
			ways++
		}
		for at := 3; ; at += step {
			setup(t, c)
			if !run("teardown", "kill", at) {
				break
			}
			back(fmt.Sprintf("teardown killed at %d", at))
			ways++
		}
		if ways < 5 {
			t.Errorf("%d interruptions: does the agent call the programs?", ways)
		}
		asFound(t, n, before)
		if left, err := os.ReadDir(n.State); err != nil || slices.ContainsFunc(left, func(os.DirEntry) bool { return true }) {
			t.Errorf("the state directory has %v, %v", left, err)
		}
	})
}

// TestWithoutNFTables takes netfilter's sockets from Setup, as a kernel without nf_tables does: it goes on
// by iptables-legacy, if nothing is wanted that only nf_tables can do.
func TestWithoutNFTables(t *testing.T) {
	nstest.KernelDecides(t, "to ask for nf_tables loads it")
	t.Parallel()
	nstest.Need(t, "strace", "iptables-legacy", "ip6tables-legacy")
	agent := nstest.Program(t, "examples/guestwire-agent")
	s := newScene(t)
	before := settled(t, s.Network)
	c := config(s.Network, infra.Masquerade{Ports: each("8000")})
	c.DNS = nil
	path := filepath.Join(t.TempDir(), "config")
	run := func() (string, error) {
		t.Helper()
		text, err := c.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		// The second socket of the thread in the namespace is that of netfilter. Its processes are left alone.
		out, err := exec.Command("strace", "-f", "-b", "execve", "-o", "/dev/null", "-e", "inject=socket:error=EPROTONOSUPPORT:when=2", "-e", "trace=socket",
			agent, "setup", "-netns", s.Pod.Path(), "-nic", "eth0", "-config", path).CombinedOutput()
		return string(out), err
	}
	if out, err := run(); err == nil || !strings.Contains(out, "guard: this kernel has no nf_tables") || !strings.Contains(out, "guard.off") {
		t.Errorf("with the guest filter: %v, %s", err, out)
	}
	if err := difference(before, s.Pod.Dump()); err != nil {
		t.Errorf("the namespace was changed: %v", err)
	}
	c.Guard.Off = true
	if out, err := run(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if rules := s.Pod.Exec("nft", "list", "ruleset"); strings.Contains(rules, "guestwire") || strings.Contains(rules, "gw-eth0") {
		t.Errorf("nftables has\n%s", rules)
	}
	if r := s.wire(t, "guest", c); r.Firewall != cache.FirewallIPTablesLegacy {
		t.Errorf("the record says %q, want %q", r.Firewall, cache.FirewallIPTablesLegacy)
	}
	s.ask(t, []exchange{
		{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
		{from: "world", to: "pod:8001", want: "pod:8001 sees gateway"},
		{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"},
	})
	c.Down.CutOff = true // the guest has the tap open
	if err := c.Teardown(t.Context()); err != nil {
		t.Error(err)
	}
	asFound(t, s.Network, before)
}
