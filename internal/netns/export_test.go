package netns

import "context"

// WithoutHandles makes Find walk, as on a kernel whose namespaces have no handles, until the returned function is
// called.
func WithoutHandles() (end func()) {
	noHandles = true
	return func() { noHandles = false }
}

var OpenBelow = openBelow

// Tables returns a new table's method.
func Tables() (has func(task string) bool) {
	return new(tables).has
}

// LookAtFiles visits the caller's open files as a walk does, calls each with their number so far, and returns it.
func LookAtFiles(ctx context.Context, each func(n int)) (n int) {
	f := finder{ctx: ctx}
	_ = f.each("/proc/self/fd", func(int, string) {
		n++
		each(n)
	})
	return n
}
