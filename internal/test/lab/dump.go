package lab

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// ErrNoProgram means that a program is not installed.
var ErrNoProgram = errors.New("not in PATH")

// Need says which of the programs are missing. The error is ErrNoProgram.
func Need(programs ...string) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", strings.Join(missing, ", "), ErrNoProgram)
}

// Dump is what an administrator sees of the namespace: everything that a wiring could change. It leaves out what the
// kernel changes by itself: timers, numbers of tc's actions, carriers, which the kernel notices late.
//
// Dump runs ip(8), bridge(8), tc(8) and nft(8). The error is ErrNoProgram if one is missing.
func (n Namespace) Dump() (string, error) {
	if err := Need("ip", "bridge", "tc", "nft"); err != nil {
		return "", fmt.Errorf("a dump is made by ip, bridge and tc (Debian's package iproute2) and nft (nftables): %w", err)
	}
	text, err := n.Run("/bin/sh", "-c", dump)
	if err != nil {
		return "", fmt.Errorf("dump of the namespace: %w", err)
	}
	return carriers.ReplaceAllString(timers.ReplaceAllString(text, ""), ""), nil
}

// Settled is the dump once it does not change by itself any more, for a minute at most.
func (n Namespace) Settled() (string, error) {
	dump, err := n.Dump()
	for end := time.Now().Add(time.Minute); err == nil; {
		last := dump
		time.Sleep(100 * time.Millisecond)
		var links string
		if links, err = n.Run("ip", "-br", "link"); err != nil {
			break
		}
		if dump, err = n.Dump(); err != nil {
			break
		}
		if !unnoticed.MatchString(links) && Stable(last) == Stable(dump) {
			return dump, nil
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("the namespace changes by itself: %s\n%s", Diff(Stable(last), Stable(dump)), links)
		}
	}
	return "", err
}

// dump prints everything that a wiring could change. Peers' namespaces are printed by number, or
// ip(8) would look for their names among those that others make and delete meanwhile.
const dump = `set -e
[ ! -d /run/netns ] || mount -t tmpfs none /run/netns
for command in "ip -d link" "ip -d addr" "ip -d route show table all" "ip -6 -d route show table all" \
	"ip rule" "ip -6 rule" "bridge -d link" "tc qdisc" "nft -s -t list ruleset"; do
	echo "# $command"
	$command
done
for command in "ip neigh show nud permanent" "bridge fdb show"; do # in the order of a table of hashes
	echo "# $command"
	$command | sort
done
for link in $(ls /proc/sys/net/ipv4/conf); do
	case $link in all|default) continue ;; esac
	echo "# tc filter show dev $link ingress"
	tc filter show dev "$link" ingress
done
cd /proc/sys/net
for key in ipv4/ip_forward ipv6/conf/all/forwarding ipv6/conf/default/disable_ipv6 \
	ipv4/ip_unprivileged_port_start ipv4/ping_group_range; do
	[ ! -e "$key" ] || grep "" /dev/null "$key"
done
for key in ipv4/forwarding ipv4/arp_ignore ipv4/rp_filter ipv4/route_localnet \
	ipv6/forwarding ipv6/accept_ra ipv6/addr_gen_mode ipv6/disable_ipv6; do
	grep "" "${key%%/*}"/conf/*/"${key#*/}" || [ "${key%%/*}" = ipv6 ]
done`

// timers of bridges run all the time, and actions of tc have numbers that the kernel counts.
var timers = regexp.MustCompile(`_timer +[0-9.]+|index [0-9]+ ref [0-9]+ bind [0-9]+`)

// carriers are noticed up to a second late, and so is what follows from them.
var carriers = regexp.MustCompile(`NO-CARRIER,|,LOWER_UP| state [A-Z]+| state (disabled|forwarding|learning|listening)| linkdown`)

// unnoticed are carriers that the kernel is to act upon, up to a second after they came: then come
// link-local addresses and routes.
var unnoticed = regexp.MustCompile(`(?m)^\S+ +(DOWN|LOWERLAYERDOWN) .*\bLOWER_UP\b`)

// Stable takes out what time changes: the seconds that are left of a lifetime.
func Stable(dump string) string {
	var lines []string
	for line := range strings.Lines(dump) {
		for _, word := range strings.Fields(line) {
			if strings.HasSuffix(word, "sec") && word != "0sec" {
				line = strings.Replace(line, word, "SECONDS", 1)
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

// Diff says in which lines two dumps differ; empty: they are equal. Lines that are gone begin with -, new ones with +,
// below the command whose output they are.
func Diff(before, after string) string {
	if before == after {
		return ""
	}
	b, a := strings.Split(before, "\n"), strings.Split(after, "\n")
	// common[i][j] is how many lines b[i:] and a[j:] have in common, in order.
	common := make([][]int, len(b)+1)
	for i := range common {
		common[i] = make([]int, len(a)+1)
	}
	for i := len(b) - 1; i >= 0; i-- {
		for j := len(a) - 1; j >= 0; j-- {
			if b[i] == a[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var text strings.Builder
	command, said := "", ""
	say := func(sign, line string) {
		if command != said {
			fmt.Fprintln(&text, command)
			said = command
		}
		fmt.Fprintln(&text, sign+line)
	}
	for i, j := 0, 0; i < len(b) || j < len(a); {
		switch {
		case i < len(b) && j < len(a) && b[i] == a[j]:
			if strings.HasPrefix(b[i], "# ") {
				command = b[i]
			}
			i, j = i+1, j+1
		case j == len(a) || i < len(b) && common[i+1][j] >= common[i][j+1]:
			say("-", b[i])
			i++
		default:
			say("+", a[j])
			j++
		}
	}
	return text.String()
}
