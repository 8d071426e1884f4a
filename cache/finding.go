package cache

import "fmt"

// Finding is one thing of a report: what a guest does not get, or what is not as Setup left it.
type Finding struct {
	// Kind is for programs. The field that has the finding lists the kinds.
	Kind string `json:"kind"`

	// Grave reports whether Setup changes nothing because of it. A grave loss in a record is one
	// that AcceptLosses of the Spec has allowed.
	Grave bool `json:"grave,omitempty"`

	// Link is the link of the namespace, by the name that Setup gave it. Empty: none, or several.
	Link string `json:"link,omitempty"`

	// What is it, such as 10.96.0.0/12 or net1, or the whole of it in words if Why is empty.
	What string `json:"what"`

	// Why is the reason, a phrase. Empty: What says all.
	Why string `json:"why,omitempty"`

	// Way is what to do about it, a phrase. Empty: nothing is known.
	Way string `json:"way,omitempty"`
}

// String is the finding as a phrase, with its Kind if it has a Why, such as
//
//	next-hop 10.96.0.0/12: the guest gets one of 2, 10.244.1.2; routed keeps it
func (f Finding) String() string {
	text, way := f.What, ": "
	if f.Why != "" {
		text, way = fmt.Sprintf("%s %s: %s", f.Kind, f.What, f.Why), "; "
	}
	if f.Way != "" {
		text += way + f.Way
	}
	return text
}
