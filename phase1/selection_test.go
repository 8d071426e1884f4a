package phase1_test

import "github.com/guestwire/guestwire/internal/rig/nstest"

// selection: Debian's kernel is a Linux 6.1 with all modules.
var selection = nstest.Selection{
	Kernels: []nstest.Selected{
		{Test: "TestWiring", Why: "the holder is a dummy; nft prints the rules as that kernel has them"},
		{Test: "TestTraffic", Why: "tc, bridge, NAT and the guest filter are that kernel's"},
		{Test: "TestAgain/(bridge|masquerade)", Why: "what that kernel answers is compared with what it was asked for"},
		{Test: "TestRestore", Why: "which routes and addresses go with others, and in which order they come back"},
		{Test: "TestShapes/(IPv6_off_for_new_links|jumbo.*)/bridge", Why: "a dummy's sysctls and MTU"},
		{Test: "TestTeardownAfterDeletion/bridge", Why: "a chain goes with its link before Linux 6.16"},
		{Test: "TestTeardownWithoutNIC", Why: "the same of the NIC"},
		{Test: "TestForceTeardown/(bridge|masquerade)/(removed|of_another_version)", Why: "a dummy has what the NIC had; the rules of a masquerade say what forwarded"},
		{Test: "TestByHand", Why: "the same by the commands of the documentation"},
		{Test: "TestRepair/bridge/(ip_link_del_eth0-br|.*vlan_filtering.*|.*action_drop)", Why: "a dummy without its bridge; VLAN filtering and gact, which not every kernel has"},
		{Test: "TestRepair/redirect/(nft_flush_ruleset|.*clsact)", Why: "chains at the ingress of a link"},
		{Test: "TestRedirectShares/clsact", Why: "tc and nftables at the ingress of one link"},
		{Test: "TestAuto/macvlan", Why: "the kinds of links"},
		{Test: "TestFirewallText/(bridge,_loosened|masquerade,_everything)", Why: "rules as that kernel has them"},
		{Test: "TestForwarding/everything", Why: "IPv6 forwards in the whole namespace before Linux 6.17; iptables-legacy is modules"},
		{Test: "TestOtherLinksDoNotForward/nftables", Why: "IPv6 forwards in the whole namespace"},
		{Test: "TestLearnedRoute", Why: "accept_ra where IPv6 forwards in the whole namespace"},
		{Test: "TestSharedSysctls/masquerade,_then_redirect", Why: "forwarding is shared by the NICs"},
		{Test: "TestTwoMasquerades", Why: "the same"},
		{Test: "TestMaxConnections/nftables", Why: "ct count"},
		{Test: "TestHostileFrames/IPv4_and_IPv6", Why: "the guest filter as that kernel evaluates it"},
		{Test: "TestIPTablesLeft/iptables-legacy", Why: "the tables are modules"},
		{Test: "TestFollowDrops", Why: "counters, limits and nflog groups are modules, in three families"},
		{Test: "TestWithoutNFTables", Why: "to ask for nf_tables loads it"},
		{Test: "TestMacvtap", Why: "a module"},
		{Test: "TestPasst", Why: "sysctls"},
		{Test: "TestCard", Why: "the machine has a card to give away"},
		{Test: "TestCNIDelete/host-device/bridge", Why: "a plugin deletes a dummy"},
		{Test: "TestGenerated", Why: "what Teardown gives back, by chance"},
		{Test: "TestCrash/at/(Setup,_bridge|undo,_masquerade)", Why: "a way back over a dummy, and over the namespace's forwarding"},
	},
	Short: []nstest.Selected{
		{Test: "TestConfigJSON", Why: "no kernel"},
		{Test: "TestJournals", Why: "no kernel"},
		{Test: "TestWiring", Why: "the wiring as ip, bridge, tc and nft print it"},
		{Test: "TestTraffic", Why: "each binding from Setup to Teardown, with a guest"},
		{Test: "TestAgain", Why: "Setup, Check and Teardown called twice"},
		{Test: "TestRestore", Why: "Teardown gives everything back"},
		{Test: "TestForwarding/everything/nftables", Why: "who answers whom behind a masquerade"},
		{Test: "TestHostileFrames/IPv4_and_IPv6", Why: "the guest filter"},
	},
}
