package infra

import "fmt"

// Step is one operation of a plan.
type Step struct {
	// Command is what an administrator would type for the operation. A table of nftables or iptables has
	// several lines.
	Command string
}

// String is the command.
func (s Step) String() string { return s.Command }

// StepError says which operation of a plan the kernel refused.
type StepError struct {
	// Step counts from 1 to Steps, the number of the plan's operations.
	Step, Steps int
	// Command is the first line of Step.Command.
	Command string
	// Err wraps the kernel's errno.
	Err error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("step %d of %d: %s: %v", e.Step, e.Steps, e.Command, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }
