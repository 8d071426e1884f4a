// Package passt describes a guest's network to passt(1), from a record of Phase1. It is for launchers without libvirt,
// which starts passt itself.
package passt

import (
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/internal/refusal"
)

// maxSocket is the length of the longest path of a Unix socket (unix(7)).
const maxSocket = 107

// Args returns passt's arguments, without the program's name. socket is the path at which passt creates its socket, and
// to which the VMM connects (domain/qemu: Options.Socket). No file may be there.
//
// Start passt in the namespace, as the launcher's user, before the VMM: by launch.Start, for example. passt stays in
// the foreground, dies with its parent, and ends when the VMM disconnects. It needs user namespaces
// (user.max_user_namespaces). Debian 12's passt does not know --vhost-user, and ends with an error.
//
// If passt ends before QEMU, the guest has no network. Remove the socket, and start passt again with the same
// arguments. QEMU 9.2 and later connects to it if the Netdev, or the data of a Chardev's backend, has reconnect-ms.
// From 8.0 on it is reconnect, in seconds.
//
// The guest gets the NIC's addresses and routes, the record's MTU, and the DNS of /etc/resolv.conf. The VMM sets the
// guest's MAC. A *cache.FieldError: the record is not valid or of another binding, or the path cannot be a socket's.
// Source: passt(1).
func Args(rec *cache.Record, socket string) ([]string, error) {
	return refusal.Describe(rec, func(rec *cache.Record) ([]string, error) { return newArgs(rec, socket) })
}

func newArgs(rec *cache.Record, socket string) ([]string, error) {
	var r refusal.First
	r.If(rec.Passt == nil, "binding", "%s, want passt: the guest of another binding needs no passt", rec.Binding)
	r.If(socket == "", "socket", "missing, want the path at which passt makes its socket")
	r.If(len(socket) > maxSocket, "socket", "%q has %d bytes, want at most %d: name a directory with a shorter path", socket, len(socket), maxSocket)
	if err := r.Err(); err != nil {
		return nil, err
	}
	args := []string{"--foreground", "--one-off", "--socket", socket, "--interface", rec.Name, "--mtu", strconv.Itoa(rec.MTU)}
	if rec.Passt.VhostUser {
		args = append(args, "--vhost-user")
	}
	for _, protocol := range []string{"tcp", "udp"} {
		var specs []string
		for _, f := range rec.Passt.Forwards {
			if f.Protocol == protocol {
				specs = append(specs, spec(f))
			}
		}
		if len(specs) > 0 { // without the argument, passt forwards nothing
			args = append(args, "--"+protocol+"-ports", strings.Join(specs, ","))
		}
	}
	return args, nil
}

// spec returns the forward as passt reads it: 80, 80:8080, 8000-8010, 8000-8010:9000-9010.
func spec(f cache.Forward) string {
	text := ports(f.First, f.Last)
	if f.Guest != f.First {
		text += ":" + ports(f.Guest, f.Guest+f.Last-f.First)
	}
	return text
}

func ports(first, last uint16) string {
	text := strconv.Itoa(int(first))
	if last != first {
		text += "-" + strconv.Itoa(int(last))
	}
	return text
}
