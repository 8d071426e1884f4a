package podnet

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
)

// vlans is a guest's device with VLAN links (802.1Q), as a guest's system has them on one network card.
type vlans struct {
	device io.ReadWriteCloser
	writes sync.Mutex
	done   chan struct{} // closed when the device has ended

	mu    sync.Mutex
	links map[uint16]*vlanLink
}

// Octets of an Ethernet frame before its EtherType, and of a tag.
const (
	beforeType = 12
	tagLen     = 4
	tagged     = 0x8100
	maskVLAN   = 0x0fff
)

// newVLANs reads the device until Close.
func newVLANs(device io.ReadWriteCloser) *vlans {
	v := &vlans{device: device, done: make(chan struct{}), links: map[uint16]*vlanLink{}}
	go v.receive()
	return v
}

// Close closes the device, and with it all links.
func (v *vlans) Close() error {
	err := v.device.Close()
	<-v.done
	return err
}

// Link returns the link of a VLAN, which sends with the VLAN's tag and receives what has the tag; 0: the frames without
// a tag. Each link can be a guest's Port. A link that is asked for again replaces the one before.
func (v *vlans) Link(id uint16) io.ReadWriteCloser {
	l := &vlanLink{of: v, id: id, frames: make(chan []byte, 256), closed: make(chan struct{})}
	v.mu.Lock()
	v.links[id] = l
	v.mu.Unlock()
	return l
}

func (v *vlans) receive() {
	defer close(v.done)
	buffer := make([]byte, 1<<16)
	for {
		n, err := v.device.Read(buffer)
		if err != nil {
			return
		}
		frame, id := buffer[:n], uint16(0)
		if n >= beforeType+tagLen && binary.BigEndian.Uint16(frame[beforeType:]) == tagged {
			id = binary.BigEndian.Uint16(frame[beforeType+2:]) & maskVLAN
			frame = slices.Delete(frame, beforeType, beforeType+tagLen)
		}
		v.mu.Lock()
		l := v.links[id]
		v.mu.Unlock()
		if l == nil {
			continue
		}
		select {
		case l.frames <- slices.Clone(frame):
		default: // a link that nobody reads loses frames, as a full queue does
		}
	}
}

type vlanLink struct {
	of     *vlans
	id     uint16
	frames chan []byte
	close  sync.Once
	closed chan struct{}
}

func (l *vlanLink) Read(b []byte) (int, error) {
	select {
	case frame := <-l.frames:
		return copy(b, frame), nil
	case <-l.closed:
		return 0, os.ErrClosed
	case <-l.of.done:
		return 0, net.ErrClosed
	}
}

func (l *vlanLink) Write(frame []byte) (int, error) {
	if len(frame) < beforeType {
		return 0, errors.New("no whole Ethernet header")
	}
	out := frame
	if l.id != 0 {
		tag := binary.BigEndian.AppendUint16([]byte{tagged >> 8, tagged & 0xff}, l.id)
		out = slices.Concat(frame[:beforeType], tag, frame[beforeType:])
	}
	l.of.writes.Lock()
	defer l.of.writes.Unlock()
	if _, err := l.of.device.Write(out); err != nil {
		return 0, err
	}
	return len(frame), nil
}

// Close ends a Read. The device stays open.
func (l *vlanLink) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}
