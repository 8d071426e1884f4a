package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Apply carries the operations out in order: neighbouring ones of nftables in one transaction,
// neighbouring ones of rtnetlink in one batch. ctx is looked at between batches. The errors are
// *infra.StepError; operations of the same rtnetlink batch that came after a failed one have been tried
// as well.
func (n *Namespace) Apply(ctx context.Context, ops []netstate.Op) error {
	for done := 0; done < len(ops); {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("before step %d of %d: %w", done+1, len(ops), context.Cause(ctx))
		}
		end := done + 1
		for end < len(ops) && transport(ops[end]) == transport(ops[done]) && transport(ops[done]) != single {
			end++
		}
		failures, err := n.applyBatch(ops[done:end])
		if err != nil {
			failures = append(failures, failure{0, err})
		}
		var errs []error
		for _, f := range failures {
			errs = append(errs, stepError(ops, done+f.message, f.err))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		done = end
	}
	return nil
}

// stepError is the failure of the operation at the index.
func stepError(ops []netstate.Op, at int, err error) error {
	command, _, _ := strings.Cut(ops[at].String(), "\n")
	return &infra.StepError{Step: at + 1, Steps: len(ops), Command: command, Err: err}
}

// What carries an operation into the kernel.
const (
	single = iota // an ioctl, a file, a program
	nft
	rtnl
)

func transport(op netstate.Op) int {
	switch op := op.(type) {
	case netstate.TapAdd, netstate.SysctlSet:
		return single
	case netstate.TableSet:
		if op.Table.Family.IPTables() != 0 {
			return single
		}
		return nft
	case netstate.TableDel:
		if op.Family.IPTables() != 0 {
			return single
		}
		return nft
	}
	return rtnl
}

func (n *Namespace) applyBatch(ops []netstate.Op) ([]failure, error) {
	if transport(ops[0]) == single {
		switch op := ops[0].(type) {
		case netstate.TapAdd:
			return nil, addTap(op)
		case netstate.SysctlSet:
			return nil, writeSysctl(op)
		case netstate.TableSet:
			return nil, setIPTables(op.Table)
		case netstate.TableDel:
			return nil, deleteIPTables(op.Family, op.Name)
		}
	}
	messages, acknowledge, err := Encode(ops)
	if err != nil {
		return nil, err
	}
	if transport(ops[0]) == rtnl {
		return n.route.send(messages, acknowledge)
	}
	failures, err := n.filter.send(messages, acknowledge)
	for i := range failures {
		// Which of our messages it was does not tell an operation: a table is many.
		failures[i].message = 0
	}
	return failures, err
}
