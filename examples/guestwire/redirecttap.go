package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// redirectTap is the plugin that guestwire replaces if it is installed under this name.
const redirectTap = "tc-redirect-tap"

func isRedirectTap() bool { return filepath.Base(os.Args[0]) == redirectTap }

// redirectTapSpec is what tc-redirect-tap does: every frame passes between the NIC and a tap of the caller's user. A
// jailer gives the VMM a /dev/net/tun of its own.
func redirectTapSpec(args *skel.CmdArgs) (infra.Spec, error) {
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	for name, id := range map[string]*uint32{"TC_REDIRECT_TAP_UID": &uid, "TC_REDIRECT_TAP_GID": &gid} {
		text := arg(args, name)
		if text == "" {
			continue
		}
		number, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return infra.Spec{}, &cache.FieldError{Field: "CNI_ARGS " + name, Reason: fmt.Sprintf("%q, want a number", text)}
		}
		*id = uint32(number)
	}
	spec := infra.Spec{
		Binding: infra.Redirect{}, Owner: infra.Owner{UID: uid, GID: gid, Root: uid == 0, OwnDevices: true},
		Tap: arg(args, "TC_REDIRECT_TAP_NAME"), Guard: infra.Guard{Off: true},
	}
	spec.Options.NoResponder = true
	return spec, spec.Validate()
}
