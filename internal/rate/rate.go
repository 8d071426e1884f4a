// Package rate limits how often something happens, such as a line in a log that a guest can cause.
package rate

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Limit allows a burst of events, and then so many a second. Its methods can be called at the same time.
type Limit struct {
	perSecond, burst float64

	mu   sync.Mutex
	left float64
	last time.Time
}

// New returns a limit of which nothing is used.
func New(perSecond, burst int) *Limit {
	return &Limit{perSecond: float64(perSecond), burst: float64(burst), left: float64(burst), last: time.Now()}
}

// Allow reports whether the event may happen, and counts it if so.
func (l *Limit) Allow() bool { return l.wait() == 0 }

// Wait waits until the event may happen. It returns the error of ctx.
func (l *Limit) Wait(ctx context.Context) error {
	for {
		wait := l.wait()
		if wait == 0 {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// wait counts an event that may happen now. For another one it returns how long to wait.
func (l *Limit) wait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.left = min(l.burst, l.left+l.perSecond*now.Sub(l.last).Seconds())
	l.last = now
	if l.left < 1 {
		return max(time.Millisecond, time.Duration((1-l.left)/l.perSecond*float64(time.Second)))
	}
	l.left--
	return 0
}

// Log writes so many lines at most. The next line after others were left out has their number.
type Log struct {
	log   *slog.Logger
	limit *Limit

	mu      sync.Mutex
	leftOut int
}

// NewLog returns a log of ten lines a second, after a burst of fifty. A nil logger discards.
func NewLog(log *slog.Logger) *Log {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Log{log: log, limit: New(10, 50)}
}

func (l *Log) Info(text string, attrs ...any) { l.write(slog.LevelInfo, text, attrs) }
func (l *Log) Warn(text string, attrs ...any) { l.write(slog.LevelWarn, text, attrs) }

func (l *Log) write(level slog.Level, text string, attrs []any) {
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	allowed := l.limit.Allow()
	l.mu.Lock()
	leftOut := l.leftOut
	if allowed {
		l.leftOut = 0
	} else {
		l.leftOut++
	}
	l.mu.Unlock()
	if !allowed {
		return
	}
	if leftOut > 0 {
		attrs = append(attrs, "linesLeftOut", leftOut)
	}
	l.log.Log(context.Background(), level, text, attrs...)
}
