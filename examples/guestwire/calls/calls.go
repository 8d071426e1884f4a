// Package calls counts the calls of the CNI plugin on a node. The plugin has no daemon: each process adds its own call
// to a file, and the programs that have metrics read it.
package calls

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/phase1"
)

// Operations are CNI's calls that are counted.
var Operations = [...]string{"ADD", "CHECK", "DEL"}

// Codes are the codes of errors that are distinguished, CNI's and the plugin's; 0 is success, and the last one (CNI's
// internal error) stands for all others.
var Codes = [...]uint{0, 7, 8, 100, 101, 102, 103, 999}

// Bounds are the upper bounds of the buckets of Latency, in seconds.
var Bounds = [...]float64{0.003, 0.01, 0.03, 0.1, 0.3, 1, 10}

// Table is what the file has: the calls by the places of their operation and code. Its size never changes.
type Table [len(Operations)][len(Codes)]Latency

// Latency is how many calls there were, and how long they took.
type Latency struct {
	Buckets     [len(Bounds) + 1]uint64 // not cumulative; the last one is above all Bounds
	Nanoseconds uint64                  // of all calls
}

// file is the Table in the node's directory (phase1.DefaultDir), where phase1 leaves it alone. Another layout needs
// another name, as programs of two versions can be on a node.
const file = "cni-calls"

// Count adds a call to those of the node. It waits for other processes until ctx ends. A process that is killed
// meanwhile loses its own call alone. It needs root. Dir is that of phase1.NIC.
func Count(ctx context.Context, dir, operation string, code uint, took time.Duration) error {
	unlock, err := directory.LockName(ctx, cmp.Or(dir, phase1.DefaultDir), file) // it makes the directory
	if err != nil {
		return err
	}
	defer unlock()
	table, err := Read(dir)
	if err != nil {
		return err
	}
	of, result := slices.Index(Operations[:], operation), slices.Index(Codes[:], code)
	if result < 0 {
		result = len(Codes) - 1
	}
	latency := &table[of][result]
	bucket, _ := slices.BinarySearch(Bounds[:], took.Seconds())
	latency.Buckets[bucket]++
	latency.Nanoseconds += uint64(took)
	var text bytes.Buffer
	if err := binary.Write(&text, binary.NativeEndian, table); err != nil {
		return err
	}
	in, err := directory.Open(filepath.Dir(pathIn(dir)))
	if err != nil {
		return err
	}
	defer in.Close()
	return directory.Write(in, file, text.Bytes(), 0o600)
}

// Read returns the calls of the node; an empty Table if there were none, or the file is no Table: the next Count begins
// anew, as after a boot.
func Read(dir string) (Table, error) {
	var table Table
	f, err := os.OpenFile(pathIn(dir), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return table, nil
	}
	if err != nil {
		return table, err
	}
	defer f.Close()
	size := binary.Size(table)
	text, err := io.ReadAll(io.LimitReader(f, int64(size)+1))
	if err == nil && len(text) == size {
		_, err = binary.Decode(text, binary.NativeEndian, &table)
	}
	return table, err
}

func pathIn(dir string) string { return filepath.Join(cmp.Or(dir, phase1.DefaultDir), file) }
