package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// line is the host's end of a serial console.
type line interface {
	io.ReadWriteCloser
	SetWriteDeadline(time.Time) error
}

// console is the guest's serial console: a Unix socket to which the VMM connects, or a terminal that the VMM has.
type console struct {
	listener net.Listener  // nil: a terminal
	done     chan struct{} // closed when no more output can come
	running  sync.Mutex    // held while a command runs
	commands int           // number of commands sent; guarded by running

	mu     sync.Mutex
	conn   line          // nil until the VMM has connected
	data   []byte        // all output, without carriage returns
	more   chan struct{} // closed and replaced when data grows
	closed error         // why no more output can come; nil: the line is open
}

var errEnded = errors.New("guest has ended")

func listenConsole(path string, uid, gid int) (*console, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chown(path, uid, gid); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	c := &console{listener: l, done: make(chan struct{}), more: make(chan struct{})}
	go c.receive(func() (line, error) { return l.Accept() })
	return c, nil
}

// openTerminal returns a console and its terminal, for a VMM whose console is its standard input and output. The
// terminal changes no octet. The caller closes it when the VMM has it.
func openTerminal() (*console, *os.File, error) {
	end, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	terminal, err := otherEnd(end)
	if err != nil {
		return nil, nil, errors.Join(err, end.Close())
	}
	c := &console{done: make(chan struct{}), more: make(chan struct{})}
	go c.receive(func() (line, error) { return end, nil })
	return c, terminal, nil
}

// otherEnd opens a terminal by its other end, see pts(4).
func otherEnd(end *os.File) (*os.File, error) {
	raw, err := end.SyscallConn() // and not Fd, after which the file has no deadlines
	if err != nil {
		return nil, err
	}
	var number int
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		if failed == nil {
			number, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
		if failed == nil {
			// No echo, no lines, no signals, and no translation of line ends.
			failed = unix.IoctlSetTermios(int(fd), unix.TCSETS, &unix.Termios{Cflag: unix.CS8 | unix.CREAD})
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	return os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
}

func (c *console) receive(open func() (line, error)) {
	defer close(c.done)
	conn, err := open()
	if errors.Is(err, net.ErrClosed) {
		err = errEnded
	}
	c.mu.Lock()
	c.conn, c.closed = conn, err
	c.mu.Unlock()
	if err != nil {
		return
	}
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		c.mu.Lock()
		c.data = append(c.data, bytes.ReplaceAll(buf[:n], []byte("\r"), nil)...)
		close(c.more)
		c.more = make(chan struct{})
		if err == io.EOF || errors.Is(err, unix.EIO) { // EIO: nobody has the terminal open any more
			err = errEnded
		}
		c.closed = err
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// stopAccepting closes the listener: no VMM will connect any more.
func (c *console) stopAccepting() error {
	if c.listener == nil {
		return nil
	}
	err := c.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// hasEnded reports whether the VMM has closed the line, or will never open it.
func (c *console) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed != nil
}

// close closes the console and waits until no more output can come.
func (c *console) close() error {
	err := c.stopAccepting()
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		err = errors.Join(err, conn.Close())
	}
	<-c.done
	return err
}

func (c *console) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.data)
}

// waitFor waits until the guest has printed text.
func (c *console) waitFor(ctx context.Context, text string) error {
	_, _, err := c.find(ctx, 0, regexp.MustCompile(regexp.QuoteMeta(text)))
	return err
}

// find waits for a match after the first from octets. It returns the output before the match, and its groups.
func (c *console) find(ctx context.Context, from int, pattern *regexp.Regexp) (before string, groups []string, err error) {
	for {
		c.mu.Lock()
		data, more, closed := c.data[from:], c.more, c.closed
		c.mu.Unlock()
		if at := pattern.FindSubmatchIndex(data); at != nil {
			for i := 2; i < len(at); i += 2 {
				groups = append(groups, string(data[at[i]:at[i+1]]))
			}
			return string(data[:at[0]]), groups, nil
		}
		if closed != nil {
			return string(data), nil, closed
		}
		select {
		case <-ctx.Done():
			return string(data), nil, context.Cause(ctx)
		case <-c.done:
		case <-more:
		}
	}
}

// write sends the text to the guest.
func (c *console) write(ctx context.Context, text string) error {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn == nil {
		return errEnded
	}
	deadline, _ := ctx.Deadline() // zero: none
	if err := conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err := io.WriteString(conn, text)
	return err
}

// run runs a line in the guest's shell (guest/init) and returns its output.
func (c *console) run(ctx context.Context, command string) (string, error) {
	if strings.ContainsAny(command, "\n\r") {
		return "", errors.New("more than one line")
	}
	c.running.Lock()
	defer c.running.Unlock()
	c.mu.Lock()
	from := len(c.data)
	c.mu.Unlock()
	c.commands++
	if err := c.write(ctx, command+"\n"); err != nil {
		return "", err
	}
	out, groups, err := c.find(ctx, from, regexp.MustCompile(fmt.Sprintf(`\nguestwire: exit (\d+) of %d\n`, c.commands)))
	if err != nil {
		return out, err
	}
	code, err := strconv.Atoi(groups[0])
	if err != nil {
		return out, err
	}
	if code != 0 {
		return out, &ExitError{Code: code, Output: out}
	}
	return out, nil
}

// ExitError means that a command failed in the guest.
type ExitError struct {
	Code   int
	Output string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("exit code %d: %s", e.Code, strings.TrimSpace(e.Output))
}
