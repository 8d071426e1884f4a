package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func (g *Guest) qmpSocket() string { return filepath.Join(g.dir, "qmp") }

// QMP is a connection to the QEMU of a guest.
type QMP struct {
	conn   *net.UnixConn
	lines  *json.Decoder
	events []qmpLine // that came while a reply was awaited
}

// qmpLine is what QEMU sends: a reply or an event.
type qmpLine struct {
	Return json.RawMessage
	Error  *struct{ Class, Desc string }
	Event  string
	Data   json.RawMessage
}

// QMP connects to QEMU. The caller closes the connection.
func (g *Guest) QMP(ctx context.Context) (*QMP, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", g.qmpSocket())
	if err != nil {
		return nil, err
	}
	q := &QMP{conn: conn.(*net.UnixConn), lines: json.NewDecoder(conn)}
	var greeting struct{ QMP any }
	if err := errors.Join(q.limit(ctx), q.lines.Decode(&greeting)); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	if err := q.Execute(ctx, "qmp_capabilities", nil); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

// Close closes the connection.
func (q *QMP) Close() error { return q.conn.Close() }

func (q *QMP) limit(ctx context.Context) error {
	deadline, _ := ctx.Deadline() // zero: none
	return q.conn.SetDeadline(deadline)
}

// Execute runs a command and waits for its end. The files go to QEMU with the command, as getfd needs it.
func (q *QMP) Execute(ctx context.Context, command string, arguments any, files ...*os.File) error {
	_, err := q.Ask(ctx, command, arguments, files...)
	return err
}

// Ask is Execute, and returns what the command returns.
func (q *QMP) Ask(ctx context.Context, command string, arguments any, files ...*os.File) (json.RawMessage, error) {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	text, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var control []byte
	if fds != nil {
		control = unix.UnixRights(fds...)
	}
	if err := q.limit(ctx); err != nil {
		return nil, err
	}
	if _, _, err := q.conn.WriteMsgUnix(append(text, '\n'), control, nil); err != nil {
		return nil, err
	}
	for {
		line, err := q.next()
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", command, err)
		case line.Event != "":
			q.events = append(q.events, line)
		case line.Error != nil:
			return nil, fmt.Errorf("%s: %s", command, line.Error.Desc)
		default:
			return line.Return, nil
		}
	}
}

// Await waits for an event and returns its data. Events that came since the last Await, of any name, count.
func (q *QMP) Await(ctx context.Context, event string) (json.RawMessage, error) {
	if err := q.limit(ctx); err != nil {
		return nil, err
	}
	for {
		var line qmpLine
		if len(q.events) > 0 {
			line, q.events = q.events[0], q.events[1:]
		} else {
			var err error
			if line, err = q.next(); err != nil {
				return nil, fmt.Errorf("event %s: %w", event, err)
			}
		}
		if line.Event == event {
			return line.Data, nil
		}
	}
}

func (q *QMP) next() (line qmpLine, err error) {
	err = q.lines.Decode(&line)
	return line, err
}
