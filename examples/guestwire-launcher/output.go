package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/guestwire/guestwire/examples/logqueue"
	"github.com/guestwire/guestwire/phase2"
)

// stdout is standard output; failed is the first error of a write.
var stdout = &output{}

type output struct{ failed error }

func (o *output) Write(b []byte) (int, error) {
	n, err := os.Stdout.Write(b)
	o.failed = cmp.Or(o.failed, err)
	return n, err
}

// stderr is standard error, and logged is where the log goes: the same, or the file of -log. While a guest is served
// they are queues, and so are the events.
var (
	stderr io.Writer = os.Stderr
	logged           = stderr
	queues []*logqueue.Queue
)

// newQueue returns a queue for the file.
func newQueue(file *os.File, lost func(lines int) string) io.Writer {
	q := logqueue.New(file, lost)
	queues = append(queues, q)
	return q
}

func linesLost(lines int) string {
	return fmt.Sprintf("guestwire-launcher: %d lines were lost: the reader of standard error was too slow, or gone\n", lines)
}

func eventsLost(lines int) string {
	return eventLine(phase2.Event{Time: time.Now(), Kind: "events-lost", Text: fmt.Sprintf("%d events were lost: their reader was too slow, or gone", lines)})
}

// eventLine is the event as a line of JSON.
func eventLine(e phase2.Event) string {
	text, err := json.Marshal(e)
	if err != nil {
		text = []byte(strconv.Quote(err.Error()))
	}
	return string(text) + "\n"
}
