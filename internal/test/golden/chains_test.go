package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// nftText is a text with an nftables table, which has a set and the chains, given as "NAME: RULE; RULE".
func nftText(name string, chains ...string) Text {
	var b strings.Builder
	b.WriteString("ip link\nnft -f - <<EOF\ntable netdev guestwire-eth0 {\n\tset seen { size 4; }\n")
	for _, c := range chains {
		chain, rules, _ := strings.Cut(c, ": ")
		fmt.Fprintf(&b, "\tchain %s {\n\t\t%s\n\t}\n", chain, strings.ReplaceAll(rules, "; ", "\n\t\t"))
	}
	b.WriteString("}\nEOF\n\n{ }\nip link del eth0\n")
	return Text{name, b.String()}
}

// restoreText is a text of iptables-restore, with a chain that has no rule.
func restoreText(name, rule string) Text {
	return Text{name, "iptables-nft-restore --noflush <<EOF\n*filter\n:to - [0:0]\n:none - [0:0]\n-A to " + rule + "\n-A to -j DROP\n-I INPUT 1 -j to\nCOMMIT\nEOF\n"}
}

// write is what -update does with the texts.
func write(t *testing.T, texts ...Text) {
	t.Helper()
	*update = true
	defer func() { *update = false }()
	c := NewChains(t, "chains", texts)
	for _, text := range texts {
		Compare(t, text.Name, c.Short(text.Name))
	}
	c.Compare(t)
}

func inTestdata(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("testdata/chains", 0o755); err != nil {
		t.Fatal(err)
	}
}

// wantFile wants the file to have the text, apart from the head.
func wantFile(t *testing.T, name, want string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimPrefix(string(text), chainsHead+"\n"); got != want {
		t.Errorf("%s is\n%swant\n%s", name, got, want)
	}
}

// The texts of the tests: most have the rule of 10.0.0.1, and one has no limit.
func texts() []Text {
	return []Text{
		nftText("a.txt", "guest: limit; saddr 10.0.0.2 accept; goto drop-spoof", "other: accept", "drop-spoof: drop"),
		nftText("b.txt", "guest: limit; saddr 10.0.0.1 accept; goto drop-spoof", "drop-spoof: drop"),
		nftText("c.txt", "guest: saddr 10.0.0.1 accept; goto drop-spoof", "drop-spoof: drop"),
		nftText("d.txt", "guest: limit; saddr 10.0.0.1 accept; goto drop-spoof", "drop-spoof: drop"),
		restoreText("e.txt", "-p tcp"), restoreText("f.txt", "-p udp"),
	}
}

const (
	shortB  = "ip link\nnft -f - <<EOF\ntable netdev guestwire-eth0 {\n\tset seen,\n\tguest,\n\tdrop-spoof\n}\nEOF\n\n{ }\nip link del eth0\n"
	netdevs = `set seen #1
	set seen { size 4; }

chain guest #1-3
not #3	limit
not #2	saddr 10.0.0.1 accept
#2	saddr 10.0.0.2 accept
	goto drop-spoof

chain other #1
	accept

chain drop-spoof #1
	drop
`
)

// TestChains: each rule is printed once, and a text names its chains. NewChains itself expands the texts.
func TestChains(t *testing.T) {
	inTestdata(t)
	write(t, texts()...)
	wantFile(t, "b.txt", shortB)
	wantFile(t, "a.txt", strings.Replace(shortB, "\tguest", "\tguest #2, other", 1))
	wantFile(t, "c.txt", strings.Replace(shortB, "\tguest", "\tguest #3", 1))
	wantFile(t, "e.txt", "iptables-nft-restore --noflush <<EOF\n*filter\n\tto, none\n-I INPUT 1 -j to\nCOMMIT\nEOF\n")
	wantFile(t, "f.txt", "iptables-nft-restore --noflush <<EOF\n*filter\n\tto #2, none\n-I INPUT 1 -j to\nCOMMIT\nEOF\n")
	wantFile(t, "chains/netdev.txt", netdevs)
	wantFile(t, "chains/iptables.txt", "chain to #1-2\n#1\t-A to -p tcp\n#2\t-A to -p udp\n\t-A to -j DROP\n\nchain none #1\n")
}

// TestChainNumbersStay: a rule that changes changes its line, and a text that comes first takes no number.
func TestChainNumbersStay(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func([]Text) []Text
		netdevs []string // old and new, by turns
	}{
		{"a rule of all", func(all []Text) []Text {
			for i := range all {
				all[i].Text = strings.ReplaceAll(all[i].Text, "goto drop-spoof", "jump drop-spoof")
			}
			return all
		}, []string{"\tgoto drop-spoof", "\tjump drop-spoof"}},
		{"a rule of some", func(all []Text) []Text {
			for i := range all {
				all[i].Text = strings.ReplaceAll(all[i].Text, "saddr 10.0.0.1", "saddr 10.0.0.9")
			}
			return all
		}, []string{"saddr 10.0.0.1", "saddr 10.0.0.9"}},
		{"a text that is first", func(all []Text) []Text {
			return append([]Text{nftText("0.txt", "guest: limit; goto drop-spoof", "drop-spoof: drop")}, all...)
		}, []string{"guest #1-3", "guest #1-4", "not #2	saddr 10.0.0.1", "#1,3	saddr 10.0.0.1"}},
		{"the text of #2 goes", func(all []Text) []Text { return all[1:] }, []string{
			"guest #1-3", "guest #1,3", "not #3", "#1", "not #2	saddr", "	saddr", "#2	saddr 10.0.0.2 accept\n", "", "chain other #1\n	accept\n\n", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTestdata(t)
			write(t, texts()...)
			write(t, c.change(texts())...)
			wantFile(t, "chains/netdev.txt", strings.NewReplacer(c.netdevs...).Replace(netdevs))
			wantFile(t, "b.txt", shortB)
			wantFile(t, "c.txt", strings.Replace(shortB, "\tguest", "\tguest #3", 1))
		})
	}
}

// collected notes failures.
type collected struct {
	testing.TB
	all string
}

func (c *collected) Helper()                           {}
func (c *collected) Errorf(format string, args ...any) { c.all += fmt.Sprintf(format, args...) }
func (c *collected) Fatal(args ...any)                 { c.all += fmt.Sprint(args...) }

// TestChainsDiffer: a chain that no text has, one that is missing, and a file without any are failures.
func TestChainsDiffer(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func() error
		want   string
	}{
		{"none", func() error { return nil }, ""},
		{"stale chain", func() error { return replace("chain other", "chain stale #1\n\taccept\n\nchain other") }, "- chain stale #1"},
		{"stale number", func() error { return replace("chain other #1\n", "chain other #1-2\n#2\tdrop\n") }, "- #2\tdrop"},
		{"missing chain", func() error { return replace("chain other #1\n\taccept\n\n", "") }, "+ chain other #1"},
		{"missing rule", func() error { return replace("not #3\tlimit\n", "") }, "+ not #3\tlimit"},
		{"another rule", func() error { return replace("10.0.0.2", "10.0.0.3") }, "+ #2\tsaddr 10.0.0.2"},
		{"stale file", func() error { return os.WriteFile("testdata/chains/inet.txt", nil, 0o600) }, "chains/inet.txt has chains that no text has"},
		{"missing file", func() error { return os.Remove("testdata/chains/iptables.txt") }, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTestdata(t)
			write(t, texts()...)
			if err := c.damage(); err != nil {
				t.Fatal(err)
			}
			found := &collected{TB: t}
			NewChains(t, "chains", texts()).Compare(found)
			if c.want == "" && found.all != "" || !strings.Contains(found.all, c.want) {
				t.Errorf("failures %q, want %q", found.all, c.want)
			}
		})
	}
}

// replace changes the file of the chains.
func replace(from, to string) error {
	const path = "testdata/chains/netdev.txt"
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), from) {
		return fmt.Errorf("%s has no %q", path, from)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(text), from, to, 1)), 0o600)
}
