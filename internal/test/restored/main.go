// Restored stands in for Firecracker where there is no KVM: it restores a guest from a snapshot, by the
// API.
//
//	restored --api-sock PATH
//
// The file at snapshot_path is a guest in JSON. It answers ARP and ping at its address. It asks no one for its
// addresses or its gateway's MAC, which a snapshot has baked in. It pings another host, and the request is answered
// when the guest is.
package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/tap"
)

// guest is what the stand-in has of a snapshot.
type guest struct {
	ID         string     `json:"iface_id"`
	Tap        string     `json:"host_dev_name"`
	MAC        cache.MAC  `json:"guest_mac"`
	Address    netip.Addr `json:"address"`
	GatewayMAC cache.MAC  `json:"gateway_mac"`
	Asks       netip.Addr `json:"asks"`
}

// load is the body of PUT /snapshot/load: LoadSnapshotConfig of src/vmm/src/vmm_config/snapshot.rs, by the commit
// 81b38b9dad60 of 2026. Firecracker refuses other members of load and of its backend, and ignores those of an override.
type load struct {
	Snapshot string `json:"snapshot_path"`
	Memory   struct {
		Path string `json:"backend_path"`
		Type string `json:"backend_type"`
	} `json:"mem_backend"`
	Resume    bool       `json:"resume_vm"`
	Overrides []override `json:"network_overrides"`
}

type override struct{ ID, Tap string }

func (o *override) UnmarshalJSON(text []byte) error {
	var g guest
	err := json.Unmarshal(text, &g)
	o.ID, o.Tap = g.ID, g.Tap
	return err
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "restored:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 || os.Args[1] != "--api-sock" {
		return errors.New("want --api-sock PATH")
	}
	api, err := net.Listen("unix", os.Args[2])
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /snapshot/load", func(w http.ResponseWriter, r *http.Request) {
		if err := restore(r); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"fault_message": err.Error()})
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return http.Serve(api, mux)
}

// restore runs the guest of the request until the process ends, and waits until the guest is answered.
func restore(r *http.Request) error {
	var l load
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&l); err != nil {
		return err
	}
	if _, err := os.Stat(l.Memory.Path); err != nil || l.Memory.Type != "File" || !l.Resume {
		return fmt.Errorf("want a memory file and resume_vm: %+v, %w", l, err)
	}
	text, err := os.ReadFile(l.Snapshot)
	if err != nil {
		return err
	}
	var g guest
	if err := json.Unmarshal(text, &g); err != nil {
		return err
	}
	for _, o := range l.Overrides {
		if o.ID != g.ID {
			return fmt.Errorf("the snapshot has no interface %s", o.ID)
		}
		g.Tap = o.Tap
	}
	nic, err := tap.Open(g.Tap)
	if err != nil {
		return err
	}
	answered := make(chan struct{})
	go g.serve(nic, answered)
	return g.ask(nic, answered)
}

// ask sends echo requests until one is answered, for a minute.
func (g guest) ask(nic *os.File, answered <-chan struct{}) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 600 {
		if _, err := nic.Write(g.echo(g.Asks, 8, []byte{0, 1, 0, 1})); err != nil {
			return err
		}
		select {
		case <-answered:
			return nil
		case <-tick.C:
		}
	}
	return fmt.Errorf("%v does not answer the guest", g.Asks)
}

// echo is a frame to the gateway with an echo message, whose text follows the checksum.
func (g guest) echo(to netip.Addr, kind byte, text []byte) []byte {
	src, dst := g.Address.As4(), to.As4()
	message := append([]byte{kind, 0, 0, 0}, text...)
	frame.PutChecksum(0, message, 2)
	header := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0} // version 4, TTL 64, ICMP
	binary.BigEndian.PutUint16(header[2:], uint16(frame.IPv4Len+len(message)))
	header = append(append(header, src[:]...), dst[:]...)
	frame.PutChecksum(0, header, 10)
	return append(append(frame.AppendEthernet(nil, g.GatewayMAC, g.MAC, frame.TypeIPv4), header...), message...)
}

// serve answers ARP and echo requests, and closes answered with the first echo reply. It ends when the tap does.
func (g guest) serve(nic *os.File, answered chan<- struct{}) {
	buffer := make([]byte, 65536)
	for done := false; ; {
		n, err := nic.Read(buffer)
		if err != nil {
			fmt.Fprintln(os.Stderr, "restored:", err)
			return
		}
		e, _ := frame.ParseEthernet(buffer[:n])
		var answer []byte
		switch a, is := frame.ParseARP(e.Body); {
		case e.Type == frame.TypeARP && is && a.Operation == frame.ARPRequest && a.Target == g.Address:
			answer = frame.ARP{Operation: frame.ARPReply, SenderMAC: g.MAC, Sender: g.Address, TargetMAC: a.SenderMAC, Target: a.Sender}.
				Append(frame.AppendEthernet(nil, a.SenderMAC, g.MAC, frame.TypeARP))
		case e.Type == frame.TypeIPv4 && e.Dst == g.MAC && len(e.Body) > frame.IPv4Len+4 && e.Body[0] == 0x45 && e.Body[9] == 1:
			length := min(int(binary.BigEndian.Uint16(e.Body[2:])), len(e.Body))
			from, message := netip.AddrFrom4([4]byte(e.Body[12:16])), e.Body[frame.IPv4Len:max(length, frame.IPv4Len+4)]
			switch {
			case message[0] == 8:
				answer = g.echo(from, 0, message[4:])
			case message[0] == 0 && from == g.Asks && !done:
				done = true
				close(answered)
			}
		}
		if answer != nil {
			if _, err := nic.Write(answer); err != nil {
				fmt.Fprintln(os.Stderr, "restored:", err)
			}
		}
	}
}
