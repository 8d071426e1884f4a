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

// appendAssociations answers each identity association, in the guest's order: the first one of each kind gets all that
// the guest can have, the others a status that says that there is nothing. It reports whether the addresses were given.
func (w *writer6) appendAssociations() bool {
	var given [len(w.server.associations)]bool
	for code, ia := range w.q.options.all() {
		i := w.server.kindOf(code)
		if i < 0 || len(ia) < w.server.associations[i].head {
			continue
		}
		a, leased := &w.server.associations[i], w.server.associations[i].leased
		if given[i] {
			leased = nil
		}
		if w.appendAssociation(a, ia, leased) && leased != nil {
			given[i] = true
		}
	}
	return given[ofAddresses]
}

// appendAssociation appends an association with what is leased in it, if there is room, and reports whether there was.
// What else the guest wants to renew gets lifetimes of zero, which end it (RFC 9915 section 18.3.4). An association in
// which there is nothing gets a status.
func (w *writer6) appendAssociation(a *association, ia, leased []byte) bool {
	start, times := len(w.b), make([]byte, timesLen)
	if leased != nil {
		times = w.server.times
	}
	if 4+a.head+max(len(leased), statusLen) > w.room() {
		return false
	}
	w.b = appendOption6(w.b, a.code, ia[:iaidLen]) // its length follows
	w.b = append(w.b, times[:a.head-iaidLen]...)
	w.b = append(w.b, leased...)
	if w.q.kind == dhcpv6.MessageTypeRenew || w.q.kind == dhcpv6.MessageTypeRebind {
		for n := range a.items(ia) {
			if !slices.Contains(a.networks, n) && 4+iaPrefixLen <= w.room() {
				w.b = a.appendItem(w.b, n, 0, 0)
			}
		}
	}
	if len(w.b) == start+4+a.head {
		w.appendStatus(a.none)
	}
	binary.BigEndian.PutUint16(w.b[start+2:], uint16(len(w.b)-start-4))
	return true
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
