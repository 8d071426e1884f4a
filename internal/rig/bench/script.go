package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// writeScript writes the operations as a shell script with as few processes as the programs allow. It returns path.
func writeScript(path string, ops []netstate.Op) (string, error) {
	var before, late, after, ip, ipLast, tc, bridge strings.Builder
	var sysctl []string
	for _, op := range ops {
		text := op.String()
		command, rest, _ := strings.Cut(text, " ")
		switch o := op.(type) {
		case netstate.TableSet:
			if o.Table.Family == firewall.NetDev || len(o.Table.Flows) > 0 { // before Linux 6.16 the hook needs the tap
				late.WriteString(o.Table.String())
			} else {
				before.WriteString(o.Table.String())
			}
			continue
		case netstate.TableDel:
			after.WriteString(rest + "\n")
			continue
		case netstate.BridgePortSet:
			command = "ip"
			rest = "link set " + o.Link + " type bridge_slave learning off" // by ip(8), which saves a process of bridge(8)
		}
		switch {
		case command == "tc":
			tc.WriteString(rest + "\n")
		case command == "bridge":
			bridge.WriteString(rest + "\n")
		case command == "sysctl":
			sysctl = append(sysctl, strings.TrimPrefix(rest, "-w "))
		case tc.Len() > 0:
			ipLast.WriteString(rest + "\n")
		default:
			ip.WriteString(rest + "\n")
		}
	}
	var script strings.Builder
	for _, part := range []struct{ name, command, input string }{
		{"nft-before", "nft -f", before.String()},
		{"ip", "ip -batch", ip.String()},
		{"", "sysctl -qw " + strings.Join(sysctl, " "), strings.Join(sysctl, " ")},
		{"nft-late", "nft -f", late.String()},
		{"bridge", "bridge -batch", bridge.String()},
		{"tc", "tc -batch", tc.String()},
		{"ip-last", "ip -batch", ipLast.String()},
		{"nft-after", "nft -f", after.String()},
	} {
		switch {
		case part.input == "":
		case part.name == "":
			fmt.Fprintln(&script, part.command)
		default:
			file := path + "." + part.name
			if err := os.WriteFile(file, []byte(part.input), 0o600); err != nil {
				return "", err
			}
			fmt.Fprintln(&script, part.command, file)
		}
	}
	return path, os.WriteFile(path, []byte(script.String()), 0o600)
}

// programs returns the names of the programs that a script calls.
func programs(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		names = append(names, strings.Fields(line)[0])
	}
	return strings.Join(names, ", ")
}
