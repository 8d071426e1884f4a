package dhcp

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// writer6 writes one message at b[start:], which is never longer than the server's limit.
type writer6 struct {
	server *server6
	q      request6
	b      []byte
	start  int
}

// appendHead appends room for the headers, the message's head, and both identifiers.
func (w *writer6) appendHead(kind dhcpv6.MessageType, msg []byte) {
	w.b = append(w.b, make([]byte, udp6Len)...)
	w.b = append(w.b, byte(kind), msg[1], msg[2], msg[3])
	if w.q.clientID != nil {
		w.appendOption(dhcpv6.OptionClientID, w.q.clientID)
	}
	w.appendOption(dhcpv6.OptionServerID, w.server.duid)
}

// room returns how many octets the message can still get.
func (w *writer6) room() int { return w.server.limit - (len(w.b) - w.start - udp6Len) }

// appendOption appends the option if there is room, and reports whether there was.
func (w *writer6) appendOption(code dhcpv6.OptionCode, value []byte) bool {
	if 4+len(value) > w.room() {
		return false
	}
	w.b = appendOption6(w.b, code, value)
	return true
}

func (w *writer6) appendStatus(code iana.StatusCode) {
	w.appendOption(dhcpv6.OptionStatusCode, []byte{byte(code >> 8), byte(code)})
}

// appendAssociations answers each identity association, in the guest's order: the first IA_NA gets all
// addresses, the others a status that says that there is none. Given reports whether the addresses were given.
func (w *writer6) appendAssociations() (given bool) {
	for code, ia := range w.q.options.all() {
		switch code {
		case dhcpv6.OptionIANA:
			if len(ia) < iaHeadLen {
				continue
			}
			if given {
				w.appendRefusal(code, ia, iaHeadLen, iana.StatusNoAddrsAvail)
				continue
			}
			given = w.appendLease(ia)
		case dhcpv6.OptionIATA:
			w.appendRefusal(code, ia, iaidLen, iana.StatusNoAddrsAvail)
		case dhcpv6.OptionIAPD:
			w.appendRefusal(code, ia, iaHeadLen, iana.StatusNoPrefixAvail)
		}
	}
	return given
}

// appendLease appends an IA_NA with the guest's addresses, if there is room, and reports whether there was. Other
// addresses that the guest wants to renew get lifetimes of zero, which end them (RFC 9915 section 18.3.4).
func (w *writer6) appendLease(ia []byte) bool {
	start := len(w.b)
	if 4+iaHeadLen+len(w.server.iaAddresses) > w.room() {
		return false
	}
	w.b = appendOption6(w.b, dhcpv6.OptionIANA, nil) // its length follows
	w.b = append(w.b, ia[:iaidLen]...)
	w.b = append(w.b, w.server.times...)
	w.b = append(w.b, w.server.iaAddresses...)
	if w.q.kind == dhcpv6.MessageTypeRenew || w.q.kind == dhcpv6.MessageTypeRebind {
		for code, value := range options6(ia[iaHeadLen:]).all() {
			if a, ok := address6(code, value); ok && !slices.Contains(w.server.addresses, a) && 4+iaAddrLen <= w.room() {
				w.b = appendAddress6(w.b, a, 0, 0)
			}
		}
	}
	binary.BigEndian.PutUint16(w.b[start+2:], uint16(len(w.b)-start-4))
	return true
}

// appendRefusal appends an association with a status and nothing else. Head is the length of the
// association's fixed part.
func (w *writer6) appendRefusal(code dhcpv6.OptionCode, ia []byte, head int, status iana.StatusCode) {
	if len(ia) < head {
		return
	}
	value := make([]byte, head, iaHeadLen+6)
	copy(value, ia[:iaidLen]) // T1 and T2, if there are any, stay zero
	w.appendOption(code, appendOption6(value, dhcpv6.OptionStatusCode, []byte{byte(status >> 8), byte(status)}))
}

// appendClass appends the vendor class to the answer for a client of UEFI's HTTP boot, if there is something to boot.
// The enterprise number is the client's.
func (w *writer6) appendClass() {
	if !w.server.bootsByHTTP {
		return
	}
	for code, class := range w.q.options.all() {
		if code == dhcpv6.OptionVendorClass && len(class) > 6 && bytes.HasPrefix(class[6:], []byte(httpClient)) {
			at := len(w.b) + 4
			if w.appendOption(code, class[:6+len(httpClient)]) {
				binary.BigEndian.PutUint16(w.b[at+4:], uint16(len(httpClient)))
			}
			return
		}
	}
}

// appendConfiguration appends the options that the guest asks for, as far as there is room.
func (w *writer6) appendConfiguration() {
	w.appendClass()
	for _, o := range w.server.options {
		// RFC 9915 section 21.23: only the reply to an INFORMATION-REQUEST has this option.
		if o.code == dhcpv6.OptionInformationRefreshTime && w.q.kind != dhcpv6.MessageTypeInformationRequest {
			continue
		}
		if w.q.wants(o.code) && len(o.wire) <= w.room() {
			w.b = append(w.b, o.wire...)
		}
	}
}
