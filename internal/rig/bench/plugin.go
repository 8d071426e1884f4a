package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/guestwire/guestwire/internal/rig/node"
)

// podList is a CNI list of Debian's bridge plugin, and what is chained to it.
const podList = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam":
	{"type": "host-local", "dataDir": "/run/cni/ipam", "ranges": [[{"subnet": "10.244.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}%s]}`

// chained is guestwire's entry in a list.
const chained = `, {"type": "guestwire", "capabilities": {"io.kubernetes.cri.pod-annotations": true}}`

// measurePlugin measures how long Debian's containerd takes to start a pod's sandbox, with the plugin in the pod's CNI
// list and without it.
func measurePlugin(s *scope, w io.Writer, rounds int) error {
	programs, err := s.build("examples/guestwire", "internal/rig/node/cri")
	if err != nil {
		return err
	}
	n, err := node.Open(node.Config{})
	if err != nil {
		return err
	}
	s.atEnd(n.Close)
	program, err := os.ReadFile(filepath.Join(programs, "guestwire"))
	if err != nil {
		return err
	}
	const lists = "/etc/cni/chained"
	e, err := node.NewEngine(n, node.EngineConfig{CRI: filepath.Join(programs, "cri"), Handlers: map[string]string{"chained": lists}})
	if err != nil {
		return err
	}
	if err := errors.Join(
		n.WriteFile(node.CNIBin+"/guestwire", string(program), 0o755),
		n.WriteFile(node.CNIConf+"/10-pods.conflist", fmt.Sprintf(podList, ""), 0o644),
		n.WriteFile(lists+"/10-pods.conflist", fmt.Sprintf(podList, chained), 0o644),
		e.Start(),
		e.Load(node.Pause()),
	); err != nil {
		return fmt.Errorf("%w (make install unpacks Debian's containerd)", err)
	}

	wishes := []string{"", "none", "redirect", "routed", "masquerade", "bridge"}
	took := newRow("", len(wishes))
	const warmUp = 2
	err = s.inTurns(rounds+warmUp, len(wishes), func(round, way int) error {
		c := node.PodConfig{Name: fmt.Sprintf("pod%d-%d", round, way), UID: fmt.Sprintf("uid%d-%d", round, way)}
		if wishes[way] != "" {
			c.Handler = "chained"
			c.Annotations = map[string]string{"guestwire/nic." + nic: wishes[way]}
		}
		begin := time.Now()
		p, err := e.RunPod(c)
		if err != nil {
			return err
		}
		if round >= warmUp {
			took.add(way, ms(time.Since(begin)))
		}
		_, err = os.Stat(n.Path("/run/guestwire/" + p.ID + "/" + nic + ".json"))
		if wired, want := err == nil, way > 1; wired != want {
			return fmt.Errorf("%s: a record is there: %t, want %t", wishes[way], wired, want)
		}
		return p.End()
	})
	if err != nil {
		return err
	}
	var rows []row
	for way, name := range []string{"and guestwire, not wanted", "and redirect", "and routed", "and masquerade", "and bridge"} {
		rows = append(rows, row{name, [][]float64{took.values[way+1], took.values[0]}})
	}
	printTable(w, "The start of a pod's sandbox, ms", []string{"guestwire", "without"}, rows)
	return nil
}
