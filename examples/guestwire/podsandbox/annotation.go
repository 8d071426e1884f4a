package podsandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// The annotations of a pod.
const (
	// Prefix begins all of them. A key with this prefix that is none of the following is an error.
	Prefix = "guestwire/"
	// Capability is the one of a CNI list's entry by which an engine gives the plugin the pod's annotations.
	Capability = "io.kubernetes.cri.pod-annotations"
	// CapabilityDNS is the one by which an engine gives the plugin the pod's DNS servers.
	CapabilityDNS = "dns"
	// NICPrefix is followed by a NIC's name in the pod: guestwire/nic.eth0. The value is a [Wish].
	NICPrefix = Prefix + "nic."
	// DevicesKey lists devices for the launcher's container in addition to /dev/net/tun, with commas between: kvm,
	// vhost-net.
	DevicesKey = Prefix + "devices"
	// ContainerKey names the container that gets records and devices; without it all containers of the pod do.
	ContainerKey = Prefix + "container"
)

// devices are what DevicesKey can list.
var devices = []string{"kvm", "vhost-net"}

// Wants is what the annotations of a pod ask for.
type Wants struct {
	NICs      map[string]Wish // by the NIC's name
	Devices   []string        // "kvm", "vhost-net"
	Container string          // empty: all containers
}

// Named returns the NICs that the annotations want to be wired, sorted.
func (w Wants) Named() []string {
	var nics []string
	for _, nic := range slices.Sorted(maps.Keys(w.NICs)) {
		if !w.NICs[nic].None {
			nics = append(nics, nic)
		}
	}
	return nics
}

// WishError is a mistake in what a pod wants. Its text is for the pod's author.
type WishError struct {
	Where string // such as: annotation guestwire/nic.eth0
	Err   error  // wraps a *cache.FieldError if a field of a Spec is wrong
}

func (e *WishError) Error() string { return e.Where + ": " + e.Err.Error() }
func (e *WishError) Unwrap() error { return e.Err }

// mostAnnotations is what Kubernetes takes of all annotations of a pod, in octets. An engine without it takes more.
const mostAnnotations = 256 << 10

// Read reads a pod's annotations; those without the prefix are ignored. The error is a *WishError.
func Read(annotations map[string]string) (Wants, error) {
	w := Wants{NICs: map[string]Wish{}}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value, bad := annotations[key], error(nil)
		nic, isNIC := strings.CutPrefix(key, NICPrefix)
		switch {
		case len(value) > mostAnnotations && strings.HasPrefix(key, Prefix):
			bad = fmt.Errorf("%d octets, want at most %d", len(value), mostAnnotations)
		case isNIC:
			if bad = checkNIC(nic); bad == nil {
				w.NICs[nic], bad = readWish(value)
			}
		case key == DevicesKey:
			w.Devices, bad = readDevices(value)
		case key == ContainerKey:
			if w.Container = value; value == "" {
				bad = errors.New("empty, want the name of a container of the pod")
			}
		case strings.HasPrefix(key, Prefix):
			bad = fmt.Errorf("no such annotation, want %sNIC, %s or %s", NICPrefix, DevicesKey, ContainerKey)
		}
		if bad != nil {
			return Wants{}, &WishError{Where: fmt.Sprintf("annotation %.400s", key), Err: bad}
		}
	}
	for nic, wish := range w.NICs {
		wish.where = "annotation " + NICPrefix + nic
		w.NICs[nic] = wish
	}
	return w, nil
}

// checkNIC refuses what is no name of a NIC.
func checkNIC(nic string) error {
	if len(nic) > 15 || CheckID(nic) != nil {
		return &cache.FieldError{Field: "nic", Reason: fmt.Sprintf("%.100q is no NIC's name: want 1 to 15 of A-Z a-z 0-9 _ . - and a letter or digit first", nic)}
	}
	return nil
}

func readDevices(value string) ([]string, error) {
	var list []string
	for word := range strings.SplitSeq(value, ",") {
		word = strings.Trim(word, " ")
		switch {
		case !slices.Contains(devices, word):
			return nil, fmt.Errorf("%.100q, want %s, with commas between; /dev/net/tun is there without being named", word, strings.Join(devices, ", "))
		case slices.Contains(list, word):
			return nil, fmt.Errorf("%q is in the list already", word)
		}
		list = append(list, word)
	}
	return list, nil
}

// Wish is what is wanted of one NIC: the value of an annotation guestwire/nic.NAME. It has one of these forms:
//
//	redirect                                    a binding's word: bridge, redirect, masquerade, routed, auto, macvtap,
//	                                            sriov, passt, slirp
//	none                                        the NIC stays as it is, whatever the CNI list says
//	{"binding": {"masquerade": {}}, "queues": 2}  an infra.Spec in JSON, without nic and state
type Wish struct {
	// None says that the NIC stays unwired.
	None bool

	where  string
	length int    // of the value, in bytes
	word   string // empty: fields
	spec   infra.Spec
	fields map[string]json.RawMessage // those that spec was read from
}

// readWish reads a value. The errors are the reasons alone.
func readWish(value string) (Wish, error) {
	value = strings.Trim(value, " \t\r\n")
	if strings.HasPrefix(value, "{") {
		return readObject([]byte(value))
	}
	if value == "none" {
		return Wish{None: true}, nil
	}
	if _, err := infra.NewBinding(cache.Kind(value)); err != nil {
		return Wish{}, fmt.Errorf("%w, or none, or an object of JSON", err)
	}
	return Wish{word: value}, nil
}

func readObject(text []byte) (Wish, error) {
	w := Wish{length: len(text)}
	if err := json.Unmarshal(text, &w.spec); err != nil {
		return Wish{}, err
	}
	if err := json.Unmarshal(text, &w.fields); err != nil {
		return Wish{}, err
	}
	if _, ok := w.fields["state"]; ok {
		return Wish{}, &cache.FieldError{Field: "state", Reason: "not here: the CNI list names the state directory"}
	}
	if _, ok := w.fields["for"]; ok {
		return Wish{}, &cache.FieldError{Field: "for", Reason: "not here: the NIC is wired for a network of the CNI list"}
	}
	return w, nil
}

// ReadArg reads the member guestwire of args.cni of a CNI configuration, which has the forms of a Wish: a string, or an
// object. The error is a *WishError.
func ReadArg(text json.RawMessage) (Wish, error) {
	const where = "args.cni.guestwire"
	text = bytes.Trim(text, " \t\r\n")
	var w Wish
	var err error
	if bytes.HasPrefix(text, []byte("{")) {
		w, err = readObject(text)
	} else {
		var value string
		if err = json.Unmarshal(text, &value); err != nil {
			err = errors.New("want a string or an object")
		} else {
			w, err = readWish(value)
		}
	}
	if err != nil {
		return Wish{}, &WishError{Where: where, Err: err}
	}
	w.where = where
	return w, nil
}
