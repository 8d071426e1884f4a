package phase2

// For tests.
var (
	ParseResolvConf  = parseResolvConf
	FollowResolvConf = followResolvConf
)
