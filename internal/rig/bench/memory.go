package main

import (
	"errors"
	"io"
	"path/filepath"
	"time"

	"github.com/guestwire/guestwire/infra"
)

// measureMemory measures the launchers of a node with one guest, and of one with many.
func measureMemory(s *scope, w io.Writer, guests int) error {
	programs, err := s.build("examples/guestwire-launcher")
	if err != nil {
		return err
	}
	_, pods, err := s.newWorld(guests)
	if err != nil {
		return err
	}
	proportional, private := newRow("proportional (PSS), KiB", 2), newRow("private, KiB", 2)
	resident, anonymous := newRow("resident, KiB", 2), newRow("anonymous, KiB", 2)
	var launchers []*process
	for i, count := range []int{1, guests} {
		for _, p := range pods[len(launchers):count] {
			if _, err := p.setup(s.ctx, launcherSpec(infra.Redirect{})); err != nil {
				return err
			}
			l, err := s.serveLauncher(p, filepath.Join(programs, "guestwire-launcher"))
			if err != nil {
				return err
			}
			launchers = append(launchers, l)
		}
		if err := sleep(s.ctx, 2*time.Second); err != nil { // then a launcher has nothing to do
			return err
		}
		for _, l := range launchers {
			m, err := l.memory()
			if err := errors.Join(l.checkAlive(), err); err != nil {
				return err
			}
			proportional.add(i, m["Pss"])
			private.add(i, m["Private_Clean"]+m["Private_Dirty"])
			resident.add(i, m["Rss"])
			anonymous.add(i, m["Anonymous"])
		}
	}
	printTable(w, "A launcher, without a VMM", []string{"of one", "of many"}, []row{proportional, private, resident, anonymous})
	return nil
}
