package guest

import (
	"errors"
	"io"
	"os"
	"sync"
)

// vnetHeader is the size of struct virtio_net_hdr (linux/virtio_net.h).
const vnetHeader = 10

// maxFrame is more than a tap sends: 65535 octets, and the headers.
const maxFrame = 1 << 17

// Queues returns a port over the queues of a tap, as phase2.OpenTap opens them: each frame has a struct virtio_net_hdr
// in front, and there are no offloads. Close closes the files.
func Queues(files []*os.File) io.ReadWriteCloser {
	q := &queues{files: files, frames: make(chan []byte), done: make(chan struct{})}
	for _, f := range files {
		q.reading.Go(func() { q.receive(f) })
	}
	return q
}

// queues reads all files, as the kernel chooses the queue of a frame, and writes to the first one.
type queues struct {
	files   []*os.File
	frames  chan []byte
	reading sync.WaitGroup

	ending sync.Once
	done   chan struct{} // closed when a file has failed, or by Close
	err    error         // why, once done
}

func (q *queues) end(err error) {
	q.ending.Do(func() {
		q.err = err
		close(q.done)
	})
}

func (q *queues) receive(f *os.File) {
	buffer := make([]byte, maxFrame)
	for {
		n, err := f.Read(buffer)
		if err != nil {
			q.end(err)
			return
		}
		if n < vnetHeader {
			continue
		}
		select {
		case q.frames <- append([]byte{}, buffer[vnetHeader:n]...):
		case <-q.done:
			return
		}
	}
}

func (q *queues) Read(b []byte) (int, error) {
	select {
	case frame := <-q.frames:
		return copy(b, frame), nil
	case <-q.done:
		return 0, q.err
	}
}

func (q *queues) Write(frame []byte) (int, error) {
	n, err := q.files[0].Write(append(make([]byte, vnetHeader, vnetHeader+len(frame)), frame...))
	return max(0, n-vnetHeader), err
}

func (q *queues) Close() error {
	q.end(os.ErrClosed)
	var errs []error
	for _, f := range q.files {
		errs = append(errs, f.Close())
	}
	q.reading.Wait()
	return errors.Join(errs...)
}
