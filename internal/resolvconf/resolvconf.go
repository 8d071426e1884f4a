// Package resolvconf reads a resolv.conf(5).
package resolvconf

import (
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/guestwire/guestwire/cache"
)

const maxSize = 1 << 20

// Parse returns the name servers and search domains of the text, and the nameserver words that are no IP address. Of
// several search and domain lines the last one counts.
func Parse(text []byte) (dns cache.DNS, bad []string) {
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 2 || strings.HasPrefix(words[0], "#") || strings.HasPrefix(words[0], ";") {
			continue
		}
		switch words[0] {
		case "nameserver":
			if server, err := netip.ParseAddr(words[1]); err == nil {
				dns.Servers = append(dns.Servers, server)
			} else {
				bad = append(bad, words[1])
			}
		case "search":
			dns.Search = words[1:]
		case "domain":
			dns.Search = words[1:2]
		}
	}
	return dns, bad
}

// Read returns the file at path. A FIFO is refused.
func Read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would wait for a writer
	if err != nil {
		return nil, fmt.Errorf("DNS configuration: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, fmt.Errorf("DNS configuration: %w", err)
	} else if info.Mode()&fs.ModeNamedPipe != 0 {
		return nil, fmt.Errorf("DNS configuration: %s is a FIFO, whose changes cannot be followed: name a file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize))
	if err != nil {
		return nil, fmt.Errorf("DNS configuration: %w", err)
	}
	return text, nil
}
