package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/lab"
)

// port sends and receives frames without allocation, and sleeps while it waits, like a virtual machine.
type port struct {
	fd int
	in []byte
}

// offloads has openTap keep a struct virtio_net_hdr in front of each frame, and take all offloads.
const offloads = true

func (s *scope) openTap(n lab.Namespace, name string, offloads bool) (*port, error) {
	file, err := openTapFile(n, name, offloads)
	if err != nil {
		return nil, err
	}
	return s.newPort(file)
}

// openTapFile attaches to a tap of the namespace.
func openTapFile(n lab.Namespace, name string, offloads bool) (file *os.File, err error) {
	err = n.Do(func() (err error) {
		if !offloads {
			file, err = tap.Open(name)
			return err
		}
		files, err := tap.OpenQueues(name, 1)
		if err != nil {
			return err
		}
		file = files[0]
		return control(file, func(fd int) error {
			return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6)
		})
	})
	return file, err
}

// control calls f with the number of a file.
func control(file syscall.Conn, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	controlled := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(controlled, err)
}

// openPacketSocket opens a packet socket at the other end of the pod's NIC, with offloads.
func (s *scope) openPacketSocket(p *pod, listen bool) (*port, error) {
	file, err := p.world.PacketSocket(p.peer, listen)
	if err != nil {
		return nil, err
	}
	socket, err := s.newPort(file)
	if err == nil {
		err = errors.Join(
			unix.SetsockoptInt(socket.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(socket.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)) // for a burst of 64 KiB each
	}
	return socket, err
}

// newPort takes a file over. The port is not in Go's network poller, which would run for each frame.
func (s *scope) newPort(file *os.File) (*port, error) {
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = unix.SetNonblock(fd, true)
	s.atEnd(func() error { return unix.Close(fd) })
	return &port{fd: fd, in: make([]byte, 1<<17)}, err
}

// receive returns the next frame, or nil if none comes in time. The frame is valid until the next call.
func (p *port) receive(wait time.Duration) ([]byte, error) {
	end := time.Now().Add(wait)
	for {
		n, err := unix.Read(p.fd, p.in)
		left := time.Until(end)
		switch {
		case err == nil:
			return p.in[:n], nil
		case err == unix.EAGAIN && left <= 0:
			return nil, nil
		case err == unix.EAGAIN:
			timeout := unix.NsecToTimespec(int64(left))
			_, err = unix.Ppoll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, &timeout, nil)
		}
		if err != nil && err != unix.EINTR { // Go's runtime signals its threads
			return nil, fmt.Errorf("read a frame: %w", err)
		}
	}
}

func (p *port) send(frame []byte) error {
	if _, err := unix.Write(p.fd, frame); err != nil {
		return fmt.Errorf("write a frame: %w", err)
	}
	return nil
}

func (p *port) sendBurst(frame []byte) error {
	for range burst {
		if err := p.send(frame); err != nil {
			return err
		}
	}
	return nil
}

// drain discards the frames that have arrived.
func (p *port) drain() error {
	for {
		if frame, err := p.receive(0); frame == nil {
			return err
		}
	}
}
