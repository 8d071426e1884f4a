package nft

import (
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
)

// writeFlowTable writes the attributes of a flow table (NFTA_FLOWTABLE_*).
func (w *writer) writeFlowTable(table string, f firewall.FlowTable) {
	w.bytes(nftables.NFTA_FLOWTABLE_TABLE, []byte(table))
	w.bytes(nftables.NFTA_FLOWTABLE_NAME, []byte(f.Name))
	flags := uint32(0)
	if f.Counts {
		flags = uint32(nftables.FlowtableFlagsCounter)
	}
	w.number32(nftables.NFTA_FLOWTABLE_FLAGS, flags)
	hook := w.open(nftables.NFTA_FLOWTABLE_HOOK)
	w.number32(nftables.NFTA_FLOWTABLE_HOOK_NUM, unix.NF_NETDEV_INGRESS)
	w.number32(nftables.NFTA_FLOWTABLE_PRIORITY, uint32(int32(f.Priority)))
	if len(f.Devices) > 0 {
		devices := w.open(nftables.NFTA_FLOWTABLE_DEVS)
		for _, d := range f.Devices {
			w.text(nftables.NFTA_DEVICE_NAME, d) // Linux 6.16 takes a name without a zero for the beginning of names
		}
		w.close(devices)
	}
	w.close(hook)
}

// parseFlowTable parses struct nfgenmsg and the attributes of a flow table (NFTA_FLOWTABLE_*), and returns also the
// name of its table. The head names flags that a flow table of guestwire does not have.
func parseFlowTable(m []byte) (image firewall.Declaration, table string, err error) {
	var f firewall.FlowTable
	var flags, hook uint32
	err = netlink.EachAttribute(m, netlink.SizeofNetfilter, func(attribute uint16, v []byte) error {
		switch attribute {
		case nftables.NFTA_FLOWTABLE_TABLE:
			table = unix.ByteSliceToString(v)
		case nftables.NFTA_FLOWTABLE_NAME:
			image.Name = unix.ByteSliceToString(v)
		case nftables.NFTA_FLOWTABLE_FLAGS:
			flags = netlink.BE32(v)
		case nftables.NFTA_FLOWTABLE_HOOK:
			return netlink.EachAttribute(v, 0, func(attribute uint16, v []byte) error {
				switch attribute {
				case nftables.NFTA_FLOWTABLE_HOOK_NUM:
					hook = netlink.BE32(v)
				case nftables.NFTA_FLOWTABLE_PRIORITY:
					f.Priority = int(int32(netlink.BE32(v)))
				case nftables.NFTA_FLOWTABLE_DEVS:
					return netlink.EachAttribute(v, 0, func(attribute uint16, device []byte) error {
						name := unix.ByteSliceToString(device)
						if attribute != nftables.NFTA_DEVICE_NAME {
							name += "*" // the beginning of names (NFTA_DEVICE_PREFIX, since Linux 6.17)
						}
						f.Devices = append(f.Devices, name)
						return nil
					})
				}
				return nil
			})
		}
		return nil
	})
	f.Counts = flags&uint32(nftables.FlowtableFlagsCounter) != 0
	flags &^= uint32(nftables.FlowtableFlagsCounter)
	image.Head = f.Head()
	if hook != unix.NF_NETDEV_INGRESS {
		image.Head += fmt.Sprintf(" hook %d;", hook)
	}
	if flags != 0 {
		image.Head += fmt.Sprintf(" flags %#x;", flags)
	}
	return image, table, err
}
