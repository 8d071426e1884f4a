// Package mutant holds the switches that command mutate builds into a package. Each switch has a number, and
// breaks the package in one place while the environment names that number.
package mutant

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
)

// The environment of a test binary.
const (
	Active = "GUESTWIRE_MUTANT"       // the number of the mutation that is on
	Trace  = "GUESTWIRE_MUTANT_TRACE" // a file that gets the numbers of the mutations that would change a value
)

// memory limits a mutated program: a loop without an end may append at each turn.
const memory = 4 << 30

var (
	active = number(os.Getenv(Active))
	trace  = os.Getenv(Trace)
	seen   sync.Map
)

func number(text string) int {
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(fmt.Sprintf("%s=%q: %v", Active, text, err))
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: memory, Max: memory}); err != nil {
		panic(err)
	}
	return n
}

// On says whether mutation n is on.
func On(n int) bool { return on(n, true) }

// on is On for a place where the mutation matters only if it would change the value at hand.
func on(n int, changes bool) bool {
	if trace != "" && changes {
		see(n)
	}
	return active == n
}

func see(n int) {
	if _, again := seen.LoadOrStore(n, true); again {
		return
	}
	f, err := os.OpenFile(trace, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return // a test may have left the file's namespace, or its user
	}
	defer f.Close()
	fmt.Fprintln(f, n)
}

// Or is c, or true.
func Or(n int, c bool) bool { return on(n, !c) || c }

// And is c, or false.
func And(n int, c bool) bool { return !on(n, c) && c }

// Not is c, or its contrary.
func Not(n int, c bool) bool { return on(n, true) != c }

// Condition is c, or with n true, or with n+1 false.
func Condition(n int, c bool) bool { return And(n+1, Or(n, c)) }

// Less is a < b, or a <= b.
func Less[T cmp.Ordered](n int, a, b T) bool { return a < b || on(n, a == b) && a == b }

// AtMost is a <= b, or a < b.
func AtMost[T cmp.Ordered](n int, a, b T) bool { return a < b || !on(n, a == b) && a == b }

// Int is v, or one more.
func Int[T ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr](n int, v T) T {
	if On(n) {
		return v + 1
	}
	return v
}

// NoError is err, or nil.
func NoError(n int, err error) error {
	if on(n, err != nil) {
		return nil
	}
	return err
}

// Zero is v, or its type's zero value.
func Zero[T any](n int, v T) T {
	if On(n) {
		var zero T
		return zero
	}
	return v
}

// Args are the arguments, or with n+i all but number i.
func Args[T any](n int, args ...T) []T { return Elements(n, args) }

// Elements is s, or with n+i all but element i.
func Elements[S ~[]E, E any](n int, s S) S {
	for i := range s {
		if On(n + i) {
			return slices.Concat(s[:i:i], s[i+1:])
		}
	}
	return s
}

// Entries is m, or with n+i all but keys[i].
func Entries[M ~map[K]V, K comparable, V any](n int, m M, keys ...K) M {
	for i, k := range keys {
		if On(n + i) {
			m = maps.Clone(m)
			delete(m, k)
		}
	}
	return m
}

// Hide is v, or nil if v is a T: a switch that has lost the case of that type.
func Hide[T, V any](n int, v V) V {
	if _, is := any(v).(T); on(n, is) && is {
		var none V
		return none
	}
	return v
}
