package phase1_test

import (
	"io"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// TestCutDiverted: a connection that was diverted goes on after a Setup whose list refuses it, and CutRefused ends it.
// While the list diverts it, CutRefused cuts nothing.
func TestCutDiverted(t *testing.T) {
	t.Parallel()
	eachRouter(t, diverting, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		l := s.listen(t, "tcp", "[::]:15443")
		var opened []*nstest.Question
		for family := range 2 {
			q, err := s.question("tcp", family, exchange{from: "guest", to: "beyond:9001"})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			accepted := accept(t, l, "diverted") // without a deadline: an emulated Setup may take minutes
			go io.Copy(accepted, accepted)
			if err := q.Echo(1, patience); err != nil {
				t.Fatal(err)
			}
			opened = append(opened, q)
		}
		cut(t, c, 0)
		c.Egress = policy(t, "refuse all")
		setup(t, c)
		for family, q := range opened {
			if err := q.Echo(1<<16, patience); err != nil {
				t.Errorf("an open connection: %v", err)
			}
			s.refused(t, "tcp", family, "beyond:9001")
		}
		cut(t, c, 2)
		for _, q := range opened {
			if err := q.Echo(1, patience); err == nil {
				t.Error("a connection that was cut goes on")
			}
		}
		cut(t, c, 0)
	})
}
