package phase2

// ParseResolvConf is for tests.
var ParseResolvConf = parseResolvConf
