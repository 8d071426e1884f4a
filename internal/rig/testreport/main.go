// Command testreport reads what "go test -json" prints for one run or several, shows how each
// package ended and what failed, and closes with a table and a line of counts:
//
//	{ echo '# run: this kernel'; go test -json ./... || echo '# broken: go test'; } | testreport
//
// The input is a stream of events (go doc test2json), one a line. Two other lines mean something:
// "# run: NAME" begins a run, and "# broken: WHAT" says that the command before it ended badly,
// which counts as a failure if none has been seen since the last such line. All others are passed on.
//
// A third line, "# again: COMMAND", says how to repeat a failed test of the run, which bash finds as $PACKAGE and, as a
// regular expression, $TEST. At the end, when nothing else runs, up to three failed tests are repeated, once each. A
// test that passes then counts as passed, and is named with what it printed: its cause is still to be found.
//
// A test with subtests is counted through them. A run without tests is a failure, as is a package
// without a result. The last line is "N passed, N failed, N skipped"; the exit status is 1 if
// anything failed.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

func main() {
	ok, err := report(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// report copies r's digest to w and says whether all is well.
func report(r io.Reader, w io.Writer) (ok bool, err error) {
	out := bufio.NewWriter(w)
	c := counter{w: out}
	if err := c.read(r, out.Flush); err != nil {
		return false, err
	}
	if err := c.repeat(out.Flush); err != nil {
		return false, err
	}
	ok = c.summary()
	return ok, out.Flush()
}

// read takes all lines in, and calls flush after each: progress is to be seen when it is made.
func (c *counter) read(r io.Reader, flush func() error) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			c.line(line)
			if err := flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	c.endRun()
	return nil
}
