package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// monitor is a connection to QEMU's monitor (QMP).
type monitor struct {
	conn    *net.UnixConn
	log     *slog.Logger
	greeted chan struct{} // closed when QEMU has started, and answers
	ended   chan struct{} // closed when the connection has ended

	mu      sync.Mutex
	last    int                      // the id of the last command that execute has sent
	waiting map[int]chan error       // for the replies, by the command's id
	deleted map[string]chan struct{} // closed when QEMU has deleted the device, by the device's id
}

// newMonitor returns a monitor, and QEMU's end of the connection, which QEMU inherits. No file is needed, so the
// monitor works on a read-only root as well.
func newMonitor(log *slog.Logger) (*monitor, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	own, qemu := os.NewFile(uintptr(pair[0]), "monitor"), os.NewFile(uintptr(pair[1]), "QEMU's monitor")
	defer own.Close() // FileConn makes a copy
	conn, err := net.FileConn(own)
	if err != nil {
		qemu.Close()
		return nil, nil, err
	}
	m := &monitor{
		conn: conn.(*net.UnixConn), log: log, greeted: make(chan struct{}), ended: make(chan struct{}), waiting: map[int]chan error{}, deleted: map[string]chan struct{}{},
	}
	go m.read()
	m.send("qmp_capabilities") // QEMU takes no other command before this one
	return m, qemu, nil
}

// monitorArgs are QEMU's arguments for a monitor at a descriptor.
func monitorArgs(fd int) []string {
	return []string{"-chardev", fmt.Sprintf("socket,id=launcher-monitor,fd=%d", fd), "-mon", "chardev=launcher-monitor,mode=control"}
}

// read reads what QEMU says until the connection ends, as QEMU keeps in memory what is not read.
func (m *monitor) read() {
	defer close(m.ended)
	for lines, first := json.NewDecoder(m.conn), true; ; first = false {
		var line reply
		if lines.Decode(&line) != nil {
			return // closed, or QEMU has ended
		}
		if first {
			close(m.greeted)
		}
		m.take(line)
	}
}

// reply is what QEMU says: the reply to a command, or an event.
type reply struct {
	ID    int
	Error *struct{ Desc string }
	Event string
	Data  json.RawMessage
}

// take gives a reply, or the event of a deleted device, to the goroutine that waits for it.
func (m *monitor) take(line reply) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if line.Event != "" {
		var data struct{ Device string } // empty for a part of a device
		if line.Event == "DEVICE_DELETED" && json.Unmarshal(line.Data, &data) == nil && m.deleted[data.Device] != nil {
			close(m.deleted[data.Device])
			delete(m.deleted, data.Device)
		}
		return
	}
	var err error
	if line.Error != nil {
		err = errors.New(line.Error.Desc)
	}
	if answer, ok := m.waiting[line.ID]; ok {
		answer <- err
		delete(m.waiting, line.ID)
	} else if err != nil {
		m.log.Warn("QEMU refuses a command", "error", err)
	}
}

var errQEMUEnded = errors.New("QEMU has ended")

// execute sends a command with its files, and waits for QEMU's reply.
func (m *monitor) execute(ctx context.Context, command string, arguments any, files ...*os.File) error {
	answer := make(chan error, 1)
	m.mu.Lock()
	m.last++
	id := m.last
	m.waiting[id] = answer
	m.mu.Unlock()
	line, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments, "id": id})
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := m.conn.WriteMsgUnix(append(line, '\n'), rights, nil); err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-m.ended:
		return errQEMUEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// whenDeleted returns a channel that is closed when QEMU deletes the device. Ask for it before device_del.
func (m *monitor) whenDeleted(id string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.deleted[id] == nil {
		m.deleted[id] = make(chan struct{})
	}
	return m.deleted[id]
}

func (m *monitor) send(command string) {
	if _, err := fmt.Fprintf(m.conn, "{\"execute\": %q}\n", command); err != nil {
		m.log.Warn("QEMU gets no command", "command", command, "error", err)
	}
}

// pressAgain is the time after which the power button is pressed again: a guest that boots does not notice the first
// time.
const pressAgain = 5 * time.Second

// shutDown presses the guest's power button, and waits for QEMU's end. It returns false if QEMU has not ended after the
// limit.
func (m *monitor) shutDown(qemu *process, limit time.Duration) (ended bool) {
	m.log.Info("the guest is asked to shut down", "limit", limit)
	over := time.NewTimer(limit)
	defer over.Stop()
	again := time.NewTicker(pressAgain)
	defer again.Stop()
	for {
		m.send("system_powerdown")
		select {
		case <-qemu.ended:
			return true
		case <-over.C:
			m.log.Warn("the guest has not shut down", "limit", limit)
			return false
		case <-again.C:
		}
	}
}
