package kernel

import (
	"bytes"
	"testing"
)

// TestOverwrite: what repair replaces in place is what bytes.ReplaceAll replaces in a copy, also side by side and at
// the ends of a message.
func TestOverwrite(t *testing.T) {
	for _, message := range []string{"", "x", "dup", "dupdup", "xdupxdupx", "dudup", "dup\x00du"} {
		want := bytes.ReplaceAll([]byte(message), []byte("dup"), []byte("fwd"))
		have := []byte(message)
		overwrite(have, []byte("dup"), []byte("fwd"))
		if !bytes.Equal(have, want) {
			t.Errorf("%q becomes %q, want %q", message, have, want)
		}
	}
	for _, pair := range [][2][]byte{{dupName, fwdName}, {wideOriginal, narrowOriginal}, {wideReply, narrowReply}, {wantedChecksum, withoutChecksum}, {redirName, masqName}} {
		if len(pair[0]) != len(pair[1]) {
			t.Errorf("%x and %x differ in length", pair[0], pair[1])
		}
	}
}
