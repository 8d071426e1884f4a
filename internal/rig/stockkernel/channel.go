package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// The channel is a virtio serial port from the guest to the machine. It carries frames: a kind,
// the length of the body as four octets, big endian, and the body. One channel for all keeps the
// order, so the status comes after the last of the output.
const (
	frameReady  = 'r' // the kernel's release; the command is about to start
	frameStdout = 'o'
	frameStderr = 'e'
	frameStatus = 's' // the last one: exit status, decimal
	frameFault  = 'f' // the last one: why there was nothing to run, a sentence
)

// maxFrame bounds a frame's body.
const maxFrame = 32 << 10

func readFrame(r io.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("frame of %d octets", n)
	}
	body = make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, err
	}
	return head[0], body, nil
}

// frames writes frames, one at a time.
type frames struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frames) send(kind byte, body []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	frame := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)))
	_, err := f.w.Write(append(frame, body...))
	return err
}

// copy sends all that r has as frames of one kind.
func (f *frames) copy(kind byte, r io.Reader) error {
	buf := make([]byte, maxFrame)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := f.send(kind, buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
