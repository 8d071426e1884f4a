// Package unpacked finds what the install.sh of the rigs unpack: kernels and Debian packages.
package unpacked

import (
	"os"
	"path/filepath"
)

// Path returns a path below GUESTWIRE_CACHE, or below /var/cache/guestwire if that is not set.
func Path(elem ...string) string {
	dir := os.Getenv("GUESTWIRE_CACHE")
	if dir == "" {
		dir = "/var/cache/guestwire"
	}
	return filepath.Join(append([]string{dir}, elem...)...)
}
