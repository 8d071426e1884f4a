package main

import (
	"context"

	"github.com/guestwire/guestwire/examples/nameproxy"
)

// runNames runs the DNS proxies of the node once: it ends with ctx, or if the node's NICs are not known.
func (o *options) runNames(ctx context.Context) error {
	node := nameproxy.Node(o.dir, o.names, nameproxy.User, o.log)
	node.Running = &o.proxies
	return node.Run(ctx)
}
