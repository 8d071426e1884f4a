package node

import (
	"os"
	"testing"
	"time"
)

const bridgeList = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true,
  "ipam": {"type": "host-local", "dataDir": "/run/cni/ipam", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`

func TestEngine(t *testing.T) {
	begin := time.Now()
	since := func(s string) { t.Log(s, time.Since(begin)); begin = time.Now() }
	n := New(t, Config{})
	since("node")
	if err := n.WriteFile(CNIConf+"/10-pods.conflist", bridgeList, 0o644); err != nil {
		t.Fatal(err)
	}
	e := n.StartEngine(t, EngineConfig{Programs: os.Getenv("ENGINE")})
	since("engine")
	t.Log(e.Version)
	p, err := e.RunPod(PodConfig{Name: "p1", UID: "u1"})
	if err != nil {
		t.Fatal(err)
	}
	since("pod")
	t.Logf("%+v", p)
	c, err := p.StartContainer(ContainerConfig{Name: "c", Image: BusyboxImage, Command: []string{"sleep", "inf"}, Devices: []string{"/dev/net/tun"}})
	if err != nil {
		t.Fatal(err)
	}
	since("container")
	t.Logf("%+v", c)
	if err := p.End(); err != nil {
		t.Fatal(err)
	}
	since("end")
}
