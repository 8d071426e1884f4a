package dhcp

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/served"
)

var (
	clientDUID = []byte{0, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	serverDUID = append([]byte{0, 3, 0, 1}, responderMAC[:]...) // RFC 9915 section 11.4
)

// tlv is one DHCPv6 option.
func tlv(code uint16, parts ...[]byte) []byte {
	value := slices.Concat(parts...)
	b := binary.BigEndian.AppendUint16(nil, code)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(value))), value...)
}

func iaAddr(a string) []byte { return tlv(5, addr(a).AsSlice(), make([]byte, 8)) }

func iaNA(iaid byte, options ...[]byte) []byte {
	return tlv(3, []byte{0, 0, 0, iaid}, make([]byte, 8), slices.Concat(options...))
}

func iaPrefix(p string) []byte {
	return tlv(26, make([]byte, 8), []byte{byte(prefix(p).Bits())}, prefix(p).Addr().AsSlice())
}

func iaPD(iaid byte, options ...[]byte) []byte {
	return tlv(25, []byte{0, 0, 0, iaid}, make([]byte, 8), slices.Concat(options...))
}

func msg6(kind dhcpv6.MessageType, options ...[]byte) []byte {
	return append([]byte{byte(kind), 0xab, 0xcd, 0xef}, slices.Concat(options...)...)
}

func read6(t testing.TB, r reply) *dhcpv6.Message {
	t.Helper()
	if r.from != 547 || r.to != 546 || r.srcMAC != responderMAC || r.dstMAC != guestMAC || r.src != eui64.LinkLocal(responderMAC) || r.dst != guestLL {
		t.Errorf("from %v %v port %d to %v %v port %d", r.srcMAC, r.src, r.from, r.dstMAC, r.dst, r.to)
	}
	m := &dhcpv6.Message{MessageType: dhcpv6.MessageType(r.payload[0]), TransactionID: dhcpv6.TransactionID(r.payload[1:4])}
	// The client chooses the form of its identifier, and the library refuses forms that it does not know.
	err := m.Options.FromBytesWithParser(r.payload[4:], func(code dhcpv6.OptionCode, data []byte) (dhcpv6.Option, error) {
		if code == dhcpv6.OptionClientID {
			return &dhcpv6.OptionGeneric{OptionCode: code, OptionData: data}, nil
		}
		return dhcpv6.ParseOption(code, data)
	})
	if err != nil {
		t.Fatal(err)
	}
	if m.TransactionID != (dhcpv6.TransactionID{0xab, 0xcd, 0xef}) {
		t.Errorf("transaction %v", m.TransactionID)
	}
	return m
}

// outline returns a message in short: its type, associations and status codes.
func outline(m *dhcpv6.Message) string {
	parts := []string{m.MessageType.String()}
	status := func(o dhcpv6.Options) string {
		var b strings.Builder
		for _, opt := range o {
			switch opt := opt.(type) {
			case *dhcpv6.OptIAAddress:
				fmt.Fprintf(&b, " %v/%s", opt.IPv6Addr, seconds(opt.ValidLifetime))
				if opt.PreferredLifetime != opt.ValidLifetime {
					fmt.Fprintf(&b, "(%s)", seconds(opt.PreferredLifetime))
				}
			case *dhcpv6.OptIAPrefix:
				fmt.Fprintf(&b, " %v/%s", opt.Prefix, seconds(opt.ValidLifetime))
			case *dhcpv6.OptStatusCode:
				fmt.Fprintf(&b, " status %d", opt.StatusCode)
			}
		}
		return b.String()
	}
	for _, opt := range m.Options.Options {
		switch opt := opt.(type) {
		case *dhcpv6.OptIANA:
			parts = append(parts, fmt.Sprintf("NA %d%s", opt.IaId[3], status(opt.Options.Options)))
		case *dhcpv6.OptIATA:
			parts = append(parts, fmt.Sprintf("TA %d%s", opt.IaId[3], status(opt.Options.Options)))
		case *dhcpv6.OptIAPD:
			parts = append(parts, fmt.Sprintf("PD %d%s", opt.IaId[3], status(opt.Options.Options)))
		case *dhcpv6.OptStatusCode:
			parts = append(parts, fmt.Sprintf("status %d", opt.StatusCode))
		default:
			switch opt.Code() {
			case dhcpv6.OptionPreference:
				parts = append(parts, fmt.Sprintf("preference %d", m.Options.Preference()))
			case dhcpv6.OptionRapidCommit:
				parts = append(parts, "rapid")
			}
		}
	}
	return strings.Join(parts, ", ")
}

func seconds(d time.Duration) string {
	if d == time.Duration(served.Infinite)*time.Second {
		return "inf"
	}
	return fmt.Sprint(int(d / time.Second))
}
