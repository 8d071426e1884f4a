package tap

// Sleep is what waits between two attempts to open a tap.
var Sleep = &sleep

// ClearUnlessShared is what Clear does after it has seen that no process has the tap open.
var ClearUnlessShared = clearUnlessShared
