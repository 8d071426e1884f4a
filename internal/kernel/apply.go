package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft"
)

// Apply carries out the operations in order. Neighbouring nftables operations are one transaction, and neighbouring
// rtnetlink operations are one batch, but the deletion of a group (see deleteGroup). Neighbouring deletions of
// connections share one list of the connections. Apply checks ctx between batches.
//
// A failed operation is a *infra.StepError; several are joined. rtnetlink does not stop at a failure: the
// operations after it in the same batch have been tried. An nftables transaction that failed changed
// nothing. An operation that this package does not know is an error before any operation is carried out.
//
// It is no failure if a route or an address that an operation adds is there already, with all its properties, or if one
// that an operation removes is not there: the kernel adds and removes some by itself, after the plan was made.
func (n *Namespace) Apply(ctx context.Context, ops []netstate.Op) error {
	carriers := make([]carrier, len(ops))
	for i, op := range ops {
		c, err := carrierOf(op)
		if err != nil {
			return stepError(ops, i, err)
		}
		carriers[i] = c
	}
	for done := 0; done < len(ops); {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("before step %d of %d: %w", done+1, len(ops), context.Cause(ctx))
		}
		end := done + 1
		for end < len(ops) && carriers[end] == carriers[done] && carriers[done] != ofItsOwn && carriers[done] != deletion && (settles(ops[end]) || !settles(ops[end-1])) {
			end++
		}
		failures, err := n.applyBatch(ctx, carriers[done], ops[done:end])
		if err != nil {
			failures = append(failures, netlink.Failure{Message: 0, Err: err})
		}
		var errs []error
		for _, f := range failures {
			errs = append(errs, stepError(ops, done+f.Message, f.Err))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if err := n.settle(ctx, ops[done:end]); err != nil {
			return fmt.Errorf("before step %d of %d: %w", end+1, len(ops), err)
		}
		done = end
	}
	return nil
}

func settles(op netstate.Op) bool {
	add, is := op.(netstate.AddressAdd)
	return is && add.Settle
}

// settle waits for the local routes of addresses that the operations have added: the kernel makes those of IPv6
// addresses in a work queue (addrconf_dad_start). After two seconds it leaves the rest to the next comparison.
func (n *Namespace) settle(ctx context.Context, ops []netstate.Op) error {
	added := map[netstate.OffStack]bool{}
	for _, op := range ops {
		if add, is := op.(netstate.AddressAdd); is && add.Settle {
			added[netstate.OffStack{Link: add.Address.Link, Address: add.Address.Prefix.Addr()}] = true
		}
	}
	pending := func() (bool, error) {
		var s netstate.Snapshot
		for _, read := range []func(*netlink.Socket, *netstate.Snapshot) error{readLinks, readAddresses, readRoutes} {
			if err := read(n.route, &s); err != nil {
				return false, err
			}
		}
		return slices.ContainsFunc(s.OffStack, func(o netstate.OffStack) bool { return added[netstate.OffStack{Link: o.Link, Address: o.Address}] }), nil
	}
	if !slices.ContainsFunc(ops, settles) {
		return nil
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if waiting, err := pending(); err != nil || !waiting {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// stepError is the failure of the operation at the index.
func stepError(ops []netstate.Op, at int, err error) error {
	step := netstate.Step(ops[at])
	command, _, _ := strings.Cut(step.String(), "\n")
	return &infra.StepError{Step: at + 1, Steps: len(ops), Kind: step.Kind, Link: step.Link, Command: command, Err: err}
}

// carrier is the way by which an operation gets into the kernel.
type carrier string

const (
	ofItsOwn  carrier = "a call of its own" // ioctls, a write to a file, or processes of iptables
	nfnetlink carrier = "nfnetlink"
	rtnetlink carrier = "rtnetlink"
	deletion  carrier = "rtnetlink, on a socket of its own"
	conntrack carrier = "nfnetlink, of connection tracking"
)

// carrierOf names every operation, as a new one must not be taken for one of rtnetlink.
func carrierOf(op netstate.Op) (carrier, error) {
	switch op := op.(type) {
	case netstate.TapAdd, netstate.TapReset, netstate.SysctlSet:
		return ofItsOwn, nil
	case netstate.TableSet:
		return tableCarrier(op.Table.Family)
	case netstate.TableChange:
		return nfnetlink, nil
	case netstate.TableDel:
		return tableCarrier(op.Family)
	case netstate.GroupDel:
		return deletion, nil
	case netstate.ConnectionsDel:
		return conntrack, nil
	case netstate.LinkAdd, netstate.LinkSet, netstate.LinkDel, netstate.BridgeSet, netstate.BridgePortSet, netstate.ConfSet,
		netstate.AddressAdd, netstate.AddressDel, netstate.RouteAdd, netstate.RouteDel, netstate.NeighbourAdd, netstate.NeighbourDel,
		netstate.IngressAdd, netstate.IngressDel, netstate.ShapeSet, netstate.FilterAdd, netstate.FilterDel:
		return rtnetlink, nil
	}
	return "", fmt.Errorf("unknown operation %T", op)
}

func tableCarrier(f firewall.Family) (carrier, error) {
	if f.IPTables() != 0 {
		return ofItsOwn, nil
	}
	if !nft.IsFamily(f) {
		return "", fmt.Errorf("unknown family of tables %q", f)
	}
	return nfnetlink, nil
}

func (n *Namespace) applyBatch(ctx context.Context, c carrier, ops []netstate.Op) ([]netlink.Failure, error) {
	if reset, is := ops[0].(netstate.TapReset); is {
		return nil, n.ResetTap(reset)
	}
	if c == ofItsOwn {
		return nil, applyOne(ops[0])
	}
	if c == nfnetlink {
		return n.Tables.Send(ctx, ops)
	}
	if c == conntrack {
		return n.forgetConnections(ctx, ops)
	}
	if c == deletion {
		return nil, n.deleteGroup(ops[0].(netstate.GroupDel))
	}
	messages, _, err := Encode(ops)
	if err != nil {
		return nil, err
	}
	failures, err := sendRoute(n.route, messages)
	if err != nil {
		return failures, err
	}
	return withoutOvertaken(n.route, ops, failures)
}

// applyOne carries out an operation that does not go by netlink.
func applyOne(op netstate.Op) error {
	switch op := op.(type) {
	case netstate.TapAdd:
		return addTap(op)
	case netstate.SysctlSet:
		return writeSysctl(op)
	case netstate.TableSet:
		return setIPTables(op.Table)
	case netstate.TableDel:
		return deleteIPTables(op.Family, op.Name)
	}
	return fmt.Errorf("%T needs netlink", op)
}
