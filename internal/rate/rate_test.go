package rate

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimit: the burst, then so many a second, and never more than the burst after a rest.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(10, 3)
		allowed := func() (n int) {
			for range 100 {
				if l.Allow() {
					n++
				}
			}
			return n
		}
		for i, c := range []struct {
			rest time.Duration
			want int
		}{{0, 3}, {0, 0}, {100 * time.Millisecond, 1}, {250 * time.Millisecond, 2}, {time.Hour, 3}} {
			time.Sleep(c.rest)
			if n := allowed(); n != c.want {
				t.Errorf("%d: %d allowed, want %d", i, n, c.want)
			}
		}
		before := time.Now()
		for range 5 {
			if err := l.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(before); took < 490*time.Millisecond || took > 510*time.Millisecond {
			t.Errorf("five events took %v, want half a second", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if l.Wait(ctx) == nil {
			t.Error("Wait allows an event after the end")
		}
	})
}

// TestLog: lines above the limit are left out and counted.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := NewLog(slog.New(slog.NewTextHandler(&out, nil)))
		for range 1000 {
			log.Warn("full")
		}
		if n := strings.Count(out.String(), "\n"); n != 50 {
			t.Errorf("%d lines, want 50", n)
		}
		out.Reset()
		time.Sleep(time.Second)
		log.Info("empty", "of", 7)
		log.Info("empty")
		if text := out.String(); !strings.Contains(text, "msg=empty of=7 linesLeftOut=950\n") || strings.Count(text, "linesLeftOut") != 1 {
			t.Errorf("the log has\n%s", text)
		}
		NewLog(nil).Warn("nobody reads this")
	})
}
