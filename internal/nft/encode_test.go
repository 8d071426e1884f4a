package nft

import (
	"bytes"
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
	direction := netlink.AppendAttribute(nil, unix.NFTA_CT_DIRECTION, []byte{1})
	if bytes.Contains(marshal(&expr.Ct{Key: expr.CtKeySRC, Register: 1, Direction: 1}), direction) {
		t.Error("the direction of ct has one octet: see origin")
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
