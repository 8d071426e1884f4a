package main_test

import (
	"testing"
	"time"
)

// BenchmarkPlugin measures what the plugin adds to a pod's start and end: a call of ADD and one of DEL, each a process,
// as engines call it.
func BenchmarkPlugin(b *testing.B) {
	for name, binding := range map[string]string{"not wanted": "none", "redirect": "redirect", "masquerade": "masquerade", "bridge": "bridge"} {
		b.Run(name, func(b *testing.B) {
			n := newNode(b)
			s := n.sandbox("u1")
			rt := s.runtime("eth0", "guestwire/nic.eth0", binding)
			result := s.add(n.list("1.0.0", "podnet", n.flannel()), rt)
			s.ns.Settle("eth0")
			config := s.configuration(n.list("1.0.0", "podnet", n.guestwire(owner(""))).Plugins[0].Bytes, result, rt)
			var add, del time.Duration
			for b.Loop() {
				add += took(n, config, s.environ("ADD", "eth0"))
				del += took(n, config, s.environ("DEL", "eth0"))
			}
			b.ReportMetric(float64(add.Microseconds())/float64(b.N)/1000, "ms/ADD")
			b.ReportMetric(float64(del.Microseconds())/float64(b.N)/1000, "ms/DEL")
		})
	}
}

func took(n *node, config string, environ []string) time.Duration {
	n.Helper()
	begin := time.Now()
	if out, err := n.guestwireCalled(config, environ...); err != nil {
		n.Fatal(out, err)
	}
	return time.Since(begin)
}
