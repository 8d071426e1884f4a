// Package sctp encodes and decodes the first two packets of an SCTP association, INIT and INIT ACK (RFC 9260 sections
// 3.3.2 and 3.3.3). Tests ask a host with them whether SCTP passes, also on kernels without SCTP.
package sctp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// The chunk types of an INIT and of its answer.
const (
	chunkInit    = 1
	chunkInitAck = 2
)

// paramCookie is the parameter type of the State Cookie, which an INIT ACK must have.
const paramCookie = 7

// The sizes of the common header, and of an INIT chunk without parameters.
const (
	headerSize = 12
	initSize   = 20
)

// Packet is an INIT, or an INIT ACK if it has a Cookie.
type Packet struct {
	// Source and Destination are ports.
	Source, Destination uint16
	// Tag is the verification tag: 0 in an INIT, the initiate tag of the INIT in its answer.
	Tag uint32
	// Initiate is the sender's initiate tag. It is not 0.
	Initiate uint32
	// Cookie is the State Cookie; nil: the packet is an INIT.
	Cookie []byte
}

// Answer returns the INIT ACK to an INIT.
func (p Packet) Answer(cookie []byte) Packet {
	return Packet{Source: p.Destination, Destination: p.Source, Tag: p.Initiate, Initiate: p.Initiate ^ 0x5a5a5a5a | 1, Cookie: cookie}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Marshal returns the packet's octets after the IP header, with the checksum.
func (p Packet) Marshal() []byte {
	kind, length := byte(chunkInit), initSize
	if p.Cookie != nil {
		kind, length = chunkInitAck, initSize+4+len(p.Cookie)
	}
	b := make([]byte, headerSize+(length+3)/4*4) // chunks are padded
	binary.BigEndian.PutUint16(b, p.Source)
	binary.BigEndian.PutUint16(b[2:], p.Destination)
	binary.BigEndian.PutUint32(b[4:], p.Tag)
	chunk := b[headerSize:]
	chunk[0] = kind
	binary.BigEndian.PutUint16(chunk[2:], uint16(length))
	binary.BigEndian.PutUint32(chunk[4:], p.Initiate)
	binary.BigEndian.PutUint32(chunk[8:], 1<<16) // the receiver window
	binary.BigEndian.PutUint16(chunk[12:], 1)    // outbound streams
	binary.BigEndian.PutUint16(chunk[14:], 1)    // inbound streams
	binary.BigEndian.PutUint32(chunk[16:], 1)    // the first TSN
	if p.Cookie != nil {
		binary.BigEndian.PutUint16(chunk[20:], paramCookie)
		binary.BigEndian.PutUint16(chunk[22:], uint16(4+len(p.Cookie)))
		copy(chunk[24:], p.Cookie)
	}
	// The checksum is in the octet order of RFC 9260 appendix A: the least significant octet first.
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// Parse decodes the octets after the IP header. Packets other than INIT and INIT ACK, and those with a wrong checksum,
// are errors.
func Parse(b []byte) (Packet, error) {
	if len(b) < headerSize+initSize {
		return Packet{}, fmt.Errorf("SCTP packet of %d octets, want %d or more", len(b), headerSize+initSize)
	}
	sum := crc32.Update(0, castagnoli, b[:8])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	sum = crc32.Update(sum, castagnoli, b[headerSize:])
	if have := binary.LittleEndian.Uint32(b[8:]); have != sum {
		return Packet{}, fmt.Errorf("SCTP checksum %08x, want %08x", have, sum)
	}
	p := Packet{
		Source: binary.BigEndian.Uint16(b), Destination: binary.BigEndian.Uint16(b[2:]),
		Tag: binary.BigEndian.Uint32(b[4:]), Initiate: binary.BigEndian.Uint32(b[headerSize+4:]),
	}
	chunk := b[headerSize:]
	length := int(binary.BigEndian.Uint16(chunk[2:]))
	switch {
	case length < initSize || length > len(chunk):
		return Packet{}, fmt.Errorf("SCTP chunk of %d octets in a packet of %d", length, len(b))
	case chunk[0] == chunkInit:
		return p, nil
	case chunk[0] != chunkInitAck:
		return Packet{}, fmt.Errorf("SCTP chunk of type %d", chunk[0])
	}
	for params := chunk[initSize:length]; len(params) >= 4; {
		size := int(binary.BigEndian.Uint16(params[2:]))
		if size < 4 || size > len(params) {
			break
		}
		if binary.BigEndian.Uint16(params) == paramCookie {
			p.Cookie = params[4:size:size]
			return p, nil
		}
		params = params[min(len(params), (size+3)/4*4):]
	}
	return Packet{}, errors.New("SCTP INIT ACK without a State Cookie")
}
