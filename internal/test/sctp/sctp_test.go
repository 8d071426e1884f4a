package sctp

import (
	"bytes"
	"reflect"
	"testing"
)

// TestPacket encodes and decodes an INIT and its answer.
func TestPacket(t *testing.T) {
	init := Packet{Source: 4000, Destination: 9000, Initiate: 0x01020304}
	ack := init.Answer([]byte("gateway sees 10.0.0.1"))
	if ack.Tag != init.Initiate || ack.Source != 9000 || ack.Destination != 4000 || ack.Initiate == 0 {
		t.Errorf("answer %+v", ack)
	}
	for _, p := range []Packet{init, ack} {
		b := p.Marshal()
		if len(b)%4 != 0 {
			t.Errorf("%d octets: a chunk is not padded", len(b))
		}
		got, err := Parse(b)
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%+v, %v; want %+v", got, err, p)
		}
		for i := range b {
			damaged := bytes.Clone(b)
			damaged[i] ^= 1
			if got, err := Parse(damaged); err == nil {
				t.Errorf("octet %d changed: %+v and no error", i, got)
			}
		}
		for n := range b {
			if got, err := Parse(b[:n]); err == nil {
				t.Errorf("%d octets of %d: %+v and no error", n, len(b), got)
			}
		}
	}
}

// TestChecksum: a packet's checksum is the CRC32c of RFC 9260 appendix A, bit by bit, its least significant octet first.
func TestChecksum(t *testing.T) {
	b := Packet{Source: 4000, Destination: 9000, Initiate: 0x01020304}.Marshal()
	want := uint32(0)
	for i := range 4 {
		want |= uint32(b[8+i]) << (8 * i)
		b[8+i] = 0
	}
	sum := ^uint32(0)
	for _, octet := range b {
		sum ^= uint32(octet)
		for range 8 {
			sum = sum>>1 ^ 0x82f63b78*(sum&1)
		}
	}
	if ^sum != want {
		t.Errorf("checksum %08x, want %08x", want, ^sum)
	}
}
