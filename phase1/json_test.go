package phase1_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestJSON: what Plan and Check return can be printed for programs, with empty lists and no null.
func TestJSON(t *testing.T) {
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	text := func(value any) string {
		t.Helper()
		b, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "null") {
			t.Errorf("%s has a null", b)
		}
		return string(b)
	}
	plan := func() string {
		t.Helper()
		preview, err := phase1.Plan(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return text(preview)
	}
	for _, want := range []string{`{"steps":[{"kind":"tap-add",`, `{"kind":"tap-add","link":"eth0-tap","command":"ip tuntap add eth0-tap `, fmt.Sprintf(`"record":{"version":%d,`, cache.Version), `"refused":[]}`} {
		if have := plan(); !strings.Contains(have, want) {
			t.Errorf("%s\nwant %s", have, want)
		}
	}
	setup(t, c)
	if have, want := plan(), `{"steps":[],`; !strings.HasPrefix(have, want) {
		t.Errorf("%s\nwant %s", have, want)
	}
	n.Pod.IP("link set eth0-tap down")
	var drift *phase1.DriftError
	if err := phase1.Check(t.Context(), c); !errors.As(err, &drift) {
		t.Fatal(err)
	}
	want := `{"nic":"eth0","differs":[{"kind":"up","link":"eth0-tap","text":"eth0-tap is down"}],"missing":[{"kind":"link-set","link":"eth0-tap","command":"ip link set eth0-tap up"}]}`
	if have := text(drift); have != want {
		t.Errorf("%s\nwant %s", have, want)
	}
}
