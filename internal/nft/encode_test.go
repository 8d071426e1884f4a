package nft

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
)

// TestLacks: what this package writes of its own, the library does not. A test that fails says that the library does by
// now, and that the function can go.
func TestLacks(t *testing.T) {
	marshal := func(e expr.Any) []byte {
		octets, err := expr.Marshal(unix.NFPROTO_UNSPEC, e)
		if err != nil {
			t.Fatal(err)
		}
		return octets
	}
	flags := netlink.AppendAttribute(nil, unix.NFTA_PAYLOAD_CSUM_FLAGS, []byte{0, 0, 0, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR})
	if bytes.Contains(marshal(&expr.Payload{OperationType: expr.PayloadWrite, CsumType: expr.CsumTypeNone, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR}), flags) {
		t.Error("a payload has flags without a checksum: see setAddress")
	}
	ports := netlink.AppendAttribute(nil, unix.NFTA_MASQ_REG_PROTO_MIN, []byte{0, 0, 0, 1})
	masq := marshal(&expr.Masq{ToPorts: true, RegProtoMin: 1, RegProtoMax: 2})
	if !bytes.Contains(masq, ports) {
		t.Errorf("masq has no ports: %x", masq)
	}
	if bytes.Contains(masq, netlink.AppendAttribute(nil, unix.NFTA_MASQ_FLAGS, []byte{0, 0, 0, specifiedPorts})) {
		t.Error("masq has flags beside ports: see masquerade")
	}
}

// TestDirected: the library writes the direction of ct wrongly, as v0.3.0 does, or as this package does. Its master of
// 2025-11-19 does the latter. With a release of that the body of directed goes: w.add(&expr.Ct{Key: key, Register:
// register, Direction: direction}) is the same, and expr has our keys.
func TestDirected(t *testing.T) {
	text := func(write func(w *writer)) string {
		var w writer
		write(&w)
		text, err := appendExpressions(nil, w.octets)
		if err != nil || w.failed != nil {
			t.Fatal(err, w.failed)
		}
		return string(text)
	}
	keys := []uint32{unix.NFT_CT_SRC, unix.NFT_CT_PROTO_DST, ctDestination4, ctDestination6}
	right := 0
	for _, key := range keys {
		want := text(func(w *writer) { w.directed(key, true, 1) })
		have := text(func(w *writer) { w.add(&expr.Ct{Key: expr.CtKey(key), Register: 1, Direction: 1}) })
		four, none := strings.Replace(want, " 3=01]", " 3=00000001]", 1), strings.Replace(want, " 3=01]", "]", 1)
		switch have {
		case want:
			right++
		case four, none:
		default:
			t.Errorf("the library writes %s, want %s", have, want)
		}
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	released := regexp.MustCompile(`google/nftables v[0-9.]+\n`).Match(mod)
	if right != 0 && right != len(keys) || right != 0 && released {
		t.Errorf("the library writes %d of %d directions right: see directed", right, len(keys))
	}
}
