package main

import (
	"fmt"
	"io"

	"github.com/guestwire/guestwire/infra"
)

// measureNamespaces wires one namespace after the other, and compares the first tenth with the last one.
func measureNamespaces(s *scope, w io.Writer, namespaces int) error {
	world, _, err := s.newWorld(0)
	if err != nil {
		return err
	}
	var tenths []row
	for range 10 {
		pods, err := world.newPods(namespaces / 10)
		if err != nil {
			return err
		}
		took := newRow("", 1)
		err = s.inTurns(1, len(pods), func(_, i int) error {
			setup, err := timed(func() error {
				_, err := pods[i].setup(s.ctx, infra.Spec{Binding: infra.Masquerade{}})
				return err
			})
			took.add(0, ms(setup.wall))
			return err
		})
		if err != nil {
			return err
		}
		tenths = append(tenths, took)
	}
	setup := row{fmt.Sprintf("masquerade, Setup, ms, %d namespaces", namespaces), [][]float64{tenths[9].values[0], tenths[0].values[0]}}
	printTable(w, "Namespaces", []string{"last 10%", "first 10%"}, []row{setup})
	return nil
}
