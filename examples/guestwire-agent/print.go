package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/guestwire/guestwire/examples/logqueue"
)

// Output for people. Names of links, chains and mounts are those that a program in the namespace has chosen, so they
// could hold control characters of a terminal.
var stdout, stderr = &plain{to: os.Stdout}, &plain{to: os.Stderr}

// log is standard error while a command runs.
var log *logqueue.Queue

// queueLog has standard error written by a queue from now on, as its reader must not end or delay a guest.
func queueLog() {
	log = logqueue.New(os.Stderr, func(lines int) string {
		return fmt.Sprintf("guestwire-agent: %d lines were lost: the reader of standard error was too slow, or gone\n", lines)
	})
	stderr.to = log
}

// plain writes text as logqueue.Plain returns it. failed is the first error of a write.
type plain struct {
	to     io.Writer
	failed error
}

func (p *plain) Write(b []byte) (int, error) {
	if err := p.write(logqueue.Plain(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// write writes a plain text, which may have colours by now.
func (p *plain) write(text string) error {
	_, err := io.WriteString(p.to, text)
	p.failed = cmp.Or(p.failed, err)
	return err
}

// count is a number of things: 1 packet, 2 packets.
func count[N int | uint64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// errSaid is wrapped by an error that is on standard output already.
var errSaid = errors.New("said")

// said marks an error that standard output has already.
func said(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w%w", errSaid, err)
}

func printJSON(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	var escaped strings.Builder // what stdout would replace
	for _, c := range string(text) {
		switch {
		case c == '\n' || unicode.IsPrint(c):
			escaped.WriteRune(c)
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			fmt.Fprintf(&escaped, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&escaped, `\u%04x`, c)
		}
	}
	_, err = fmt.Fprintln(stdout, escaped.String())
	return err
}
