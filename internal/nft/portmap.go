package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
)

// sizeofPort is the length of an element: three attributes that hold attributes, and two ports, padded.
const sizeofPort = 28

// writePortMap writes the messages of a map and of its elements. Number is the map's in the transaction.
func (w *writer) writePortMap(family firewall.Family, table string, m firewall.PortMap, number uint32) {
	w.beginTables(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, family)
	w.text(unix.NFTA_SET_TABLE, table)
	w.text(unix.NFTA_SET_NAME, m.Name)
	w.number32(unix.NFTA_SET_FLAGS, unix.NFT_SET_MAP)
	w.number32(unix.NFTA_SET_KEY_TYPE, typePort)
	w.number32(unix.NFTA_SET_KEY_LEN, 2)
	w.number32(unix.NFTA_SET_ID, number)
	w.number32(unix.NFTA_SET_DATA_TYPE, typePort)
	w.number32(unix.NFTA_SET_DATA_LEN, 2)
	description := w.open(unix.NFTA_SET_DESC)
	w.number32(unix.NFTA_SET_DESC_SIZE, uint32(m.Size()))
	w.close(description)
	w.writePorts(family, table, m, number)
}

// writePorts writes the messages of a map's elements. Number is 0 for a map that is there already.
func (w *writer) writePorts(family firewall.Family, table string, m firewall.PortMap, number uint32) {
	var ports [][2]uint16 // each, and what it becomes
	for _, r := range m.Ranges {
		for i := range int(r.Last-r.First) + 1 {
			ports = append(ports, [2]uint16{r.First + uint16(i), r.To + uint16(i)})
		}
	}
	w.writeSetElements(unix.NFT_MSG_NEWSETELEM, family, table, m.Name, number, len(ports), func(index int) {
		element := w.open(unix.NFTA_LIST_ELEM)
		w.data(unix.NFTA_SET_ELEM_KEY, netlink.EncodeBE16(ports[index][0]))
		w.data(unix.NFTA_SET_ELEM_DATA, netlink.EncodeBE16(ports[index][1]))
		w.close(element)
	})
}

// appendPorts parses struct nfgenmsg and a list of elements, and appends the ports and what they become. Others becomes
// true for an element without a port.
func appendPorts(ranges *[]firewall.PortRange, others *bool, message []byte) error {
	return eachElement(message, func(e element) {
		if len(e.key) != 2 || len(e.data) != 2 {
			*others = true
			return
		}
		from := binary.BigEndian.Uint16(e.key)
		*ranges = append(*ranges, firewall.PortRange{First: from, Last: from, To: binary.BigEndian.Uint16(e.data)})
	})
}
