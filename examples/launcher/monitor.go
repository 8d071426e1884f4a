package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// monitor is a connection to QEMU's monitor (QMP).
type monitor struct {
	conn net.Conn
	log  *slog.Logger
}

// newMonitor returns a monitor, and QEMU's end of the connection, which QEMU inherits. No file is needed, so the monitor
// works on a read-only root as well.
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
	m := &monitor{conn, log}
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
	for lines := json.NewDecoder(m.conn); ; {
		var line struct {
			Error *struct{ Desc string }
		}
		if lines.Decode(&line) != nil {
			return // closed, or QEMU has ended
		}
		if line.Error != nil {
			m.log.Warn("QEMU refuses a command", "error", line.Error.Desc)
		}
	}
}

func (m *monitor) send(command string) {
	if _, err := fmt.Fprintf(m.conn, "{\"execute\": %q}\n", command); err != nil {
		m.log.Warn("QEMU gets no command", "command", command, "error", err)
	}
}

// pressAgain is the time after which the power button is pressed again: a guest that boots does not notice the first time.
const pressAgain = 5 * time.Second

// shutDown presses the guest's power button, and waits for QEMU's end. It returns false if QEMU has not ended after the
// limit.
func (m *monitor) shutDown(qemu *process, limit time.Duration) (ended bool) {
	m.log.Info("the guest is told to shut down", "limit", limit)
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
