package crosvm_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/crosvm"
	"github.com/guestwire/guestwire/internal/test/records"
)

// vhostUser makes the record one of passt by shared memory.
func vhostUser(r *cache.Record, o *crosvm.Options) {
	records.Passt(r)
	r.Passt.VhostUser, o.Socket = true, "/run/guestwire/passt.sock"
}

// cases are the arguments in testdata, with the names of their files.
var cases = records.Cases[crosvm.Options]{
	"default": func(*cache.Record, *crosvm.Options) {},
	"number":  func(r *cache.Record, _ *crosvm.Options) { r.Tap = "12" },
	"boolean": func(r *cache.Record, _ *crosvm.Options) { r.Tap = "true" },
	"queues":  func(r *cache.Record, o *crosvm.Options) { r.Queues, o.VCPUs = 4, 4 },
	"fd":      func(_ *cache.Record, o *crosvm.Options) { o.FD = 3 },
	"macvtap": func(r *cache.Record, o *crosvm.Options) { records.Macvtap(r); o.FD = 7 },
	"vhost":   func(r *cache.Record, _ *crosvm.Options) { r.Device.Driver = "vhost" },
	"everything": func(r *cache.Record, o *crosvm.Options) {
		r.Device = cache.Device{Model: "virtio", Driver: "vhost", ROM: "off", PCIAddress: "0000:00:1f.0", LinkState: "up"}
		o.FD, o.VCPUs = 3, 2
	},
	"passt": vhostUser,
	"passt-placed": func(r *cache.Record, o *crosvm.Options) {
		vhostUser(r, o)
		r.Device.PCIAddress, o.Socket = "0000:00:05.0", `/run/a,b"[\].sock`
	},
}

// TestArgs compares the arguments with testdata, and reads them as crosvm does. crosvm's own parser has read the files
// of testdata, at the commit f1e797a68dad of 2026.
func TestArgs(t *testing.T) {
	records.Golden(t, ".txt", cases, func(t *testing.T, r *cache.Record, o crosvm.Options) string {
		args, err := crosvm.Args(r, o)
		if err != nil || len(args) != 2 {
			t.Fatalf("got %q, %v, want an argument and its value", args, err)
		}
		have := parse(t, args[0], args[1])
		for key, want := range map[string]string{"tap-name": r.Tap, "socket": o.Socket} {
			if got, is := have[key]; is && got != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
		return strings.Join(args, "\n") + "\n"
	})
}

// keys are what the arguments have, with the values that crosvm takes: NetParameters (devices/src/virtio/net.rs) and
// VhostUserFrontendOption (src/crosvm/config.rs). A word without a value is a flag.
var keys = map[string]map[string]string{
	"--net": {
		"tap-name": `".*"`, "tap-fd": "[0-9]+", "mac": "(..:){5}..", "vq-pairs": "[0-9]+", "vhost-net": "", "pci-address": "0000:..:..\\..",
		"packed-queue": "", "mrg-rxbuf": "",
	},
	"--vhost-user": {"type": "net", "socket": `".*"`, "max-queue-size": "[0-9]+", "pci-address": "0000:..:..\\.."},
}

// word is key=value, key="value" or key. In quotes, a backslash stands before a quote and a backslash (serde_keyvalue).
var word = regexp.MustCompile(`^([a-z-]+)(?:=("(?:[^"\\]|\\["\\])*"|[^,"'\[\]]+))?(?:,|$)`)

// parse reads the value of an argument: its words without quotes.
func parse(t *testing.T, argument, text string) map[string]string {
	t.Helper()
	have := map[string]string{}
	for text != "" {
		m := word.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%s: %s is no word", argument, text)
		}
		text = text[len(m[0]):]
		want, known := keys[argument][m[1]]
		if _, twice := have[m[1]]; !known || twice || !regexp.MustCompile("^(?:"+want+")$").MatchString(m[2]) {
			t.Errorf("%s has %s, want %q, once", argument, m[0], want)
		}
		have[m[1]] = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `"`, "").Replace(m[2])
	}
	return have
}
