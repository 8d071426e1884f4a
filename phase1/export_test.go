package phase1

import "context"

// FollowFlowsIn is FollowFlows with room for so many octets of reports that wait.
func FollowFlowsIn(ctx context.Context, n NIC, room int, f func(Flow)) error {
	return n.followFlows(ctx, room, f)
}
