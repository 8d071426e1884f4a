package logqueue

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestShort: control characters are shown, a long line lacks its middle, and other text stays as it is.
func TestShort(t *testing.T) {
	long := strings.Repeat("a", 4<<20)
	for text, want := range map[string]string{
		"": "", "one\n": "one\n", "one\ttwo\n  three": "one\ttwo\n  three", `a"b\c ä`: `a"b\c ä`,
		"e\x1b[2Jt\r\n": `e\x1b[2Jt\r` + "\n", "\xff\u202e\ufffd": `\xff\u202e` + "\ufffd",
		"one " + long + " two\nthree": "one " + long[:996] + " [4192313 octets] " + long[:995] + " two\nthree",
	} {
		if have := Short(text); have != want {
			t.Errorf("%.100q: %.3000q, want %.3000q", text, have, want)
		}
	}
	for _, c := range []string{"\x1b", "\xff", "ä", "\n\x1b"} {
		if have := Short(strings.Repeat(c, 100_000)); c != "\n\x1b" && len(have) > mostShort+100 || !utf8.ValidString(have) || strings.Contains(have, "\x1b") {
			t.Errorf("%q: %d octets, %.100q", c, len(have), have)
		}
	}
}

// newPipe returns a pipe, a queue that writes to it, and the number of bytes that were written until it was full.
func newPipe(t *testing.T, full bool) (r *os.File, q *Queue, filled int) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	for unix.SetNonblock(fds[1], true); full; filled++ {
		if _, err := unix.Write(fds[1], []byte{'.'}); err != nil {
			break
		}
	}
	unix.SetNonblock(fds[1], false) // as standard error is
	r, w := os.NewFile(uintptr(fds[0]), "reader"), os.NewFile(uintptr(fds[1]), "log")
	q = New(w, func(lines int) string { return fmt.Sprintf("%d lost\n", lines) })
	t.Cleanup(func() {
		r.Close() // ends a write that blocks
		q.Close()
		<-q.ended
		w.Close()
	})
	return r, q, filled
}

// write writes numbered lines, which must not block: a test that blocks here does not end.
func write(t *testing.T, q *Queue, first, lines, size int) {
	t.Helper()
	for i := range lines {
		if _, err := fmt.Fprintf(q, "%d %s\n", first+i, strings.Repeat("x", size)); err != nil {
			t.Fatal(err)
		}
	}
}

// want reads the lines up to the last one, and wants them all, in order, or counted as lost.
func want(t *testing.T, from io.Reader, last int) (lost int) {
	t.Helper()
	next := 0
	for lines := bufio.NewReader(from); next <= last; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("line %d: %q, %v", next, line, err)
		}
		var number int
		var word string
		if _, err := fmt.Sscan(line, &number, &word); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if word == "lost" {
			lost += number
			next += number
			continue
		}
		if number != next {
			t.Fatalf("line %d comes where %d is next", number, next)
		}
		next++
	}
	return lost
}

// TestQueueFull: a reader that stops keeps no Write waiting. What it did not get is counted where it is missing.
func TestQueueFull(t *testing.T) {
	r, q, filled := newPipe(t, true)
	write(t, q, 0, 1000, 1000)
	if err := q.Close(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	if _, err := q.Write([]byte("late\n")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	if _, err := io.CopyN(io.Discard, r, int64(filled)); err != nil {
		t.Fatal(err)
	}
	if lost := want(t, r, 999); lost == 0 || lost == 1000 {
		t.Errorf("%d lines of 1000 are lost", lost)
	}
}

// TestQueueSlow: a reader that reads a byte now and then gets each line, in order, or its loss.
func TestQueueSlow(t *testing.T) {
	r, q, filled := newPipe(t, true)
	for i := range 300 {
		write(t, q, i, 1, 2000)
		if _, err := io.CopyN(io.Discard, r, 1); err != nil {
			t.Fatal(err)
		}
		filled--
	}
	if _, err := io.CopyN(io.Discard, r, int64(filled)); err != nil {
		t.Fatal(err)
	}
	if lost := want(t, r, 299); lost == 0 {
		t.Error("no line is lost: write more")
	}
}

// TestQueueClosed: a pipe without a reader ends nothing. The next reader of a named pipe learns what it missed.
func TestQueueClosed(t *testing.T) {
	path := t.TempDir() + "/log"
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	r := open()
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	q := New(w, func(lines int) string { return fmt.Sprintf("%d lost\n", lines) })
	write(t, q, 0, 3, 10)
	if lost := want(t, r, 2); lost != 0 {
		t.Errorf("%d lines are lost", lost)
	}
	r.Close()
	write(t, q, 3, 4, 10)
	for empty := false; !empty; { // the goroutine has tried to write the last one, or will before the next one
		q.mu.Lock()
		empty = len(q.parts) == 0
		q.mu.Unlock()
	}
	r = open()
	defer r.Close()
	write(t, q, 7, 1, 10)
	var text bytes.Buffer
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	w.Close()
	if _, err := text.ReadFrom(r); err != nil {
		t.Error(err)
	}
	if got := text.String(); !strings.HasSuffix(got, "7 xxxxxxxxxx\n") || !strings.Contains(got, " lost\n") {
		t.Errorf("the next reader gets %q", got)
	}
}

// TestQueueNonblocking: a process that shares the file, as QEMU does, makes it non-blocking. Nothing is lost by that.
func TestQueueNonblocking(t *testing.T) {
	r, q, filled := newPipe(t, true)
	if err := unix.SetNonblock(int(q.file.Fd()), true); err != nil {
		t.Fatal(err)
	}
	write(t, q, 0, 100, 1000)
	time.Sleep(10 * time.Millisecond) // so that it finds the pipe full
	if _, err := io.CopyN(io.Discard, r, int64(filled)); err != nil {
		t.Fatal(err)
	}
	if lost := want(t, r, 99); lost != 0 {
		t.Errorf("%d lines are lost", lost)
	}
}
