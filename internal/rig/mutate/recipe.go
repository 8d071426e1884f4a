package main

// recipe says with which tests a package's mutations are looked for.
type recipe struct {
	pkg    string
	stages []stage // in order; a mutation that one of them finds is not given to the next
	root   bool    // the tests lay namespaces: they run in a namespace of their own, as a mutation may lose the way
}

// stage is a package of tests, and how its test binary is called.
type stage struct {
	pkg  string
	args []string
}

// The stages that several recipes have. Those come first that take a moment and find most.
var (
	golden    = stage{"internal/wiring", []string{"-test.skip=TestInterrupted|TestFailedMessages|TestDamage"}}
	damage    = stage{"internal/wiring", []string{"-test.run=TestDamage"}}
	interrupt = stage{"internal/wiring", []string{"-test.run=TestInterrupted|TestFailedMessages"}}
	record    = stage{"cache", []string{"-test.skip=TestReaderSeesWhole"}}
	plans     = []stage{{pkg: "infra"}, {pkg: "internal/netstate"}, {pkg: "internal/firewall"}, golden, damage, interrupt}
	// Tests with a kernel: those that meet most of the code in a few seconds, then what else is not too long.
	input    = stage{"phase1", []string{"-test.run=^Test(BadInput|ConfigJSON|State|LockIsOurs|LostNamespace|Teardown)"}}
	wired    = stage{"phase1", []string{"-test.short", "-test.run=^Test(Refused|Wiring|Again|Restore|Tables|Guard|Macvtap|Passt|IPTables$|RedirectShares|LargeTable|FirewallText)"}}
	restored = stage{"phase1", []string{"-test.short", "-test.run=^Test(Shapes|Repair|Auto|PlantedFiles|SwappedDirectory|FullDisk|Forwarding|LearnedRoute|SharedSysctls|OneStateForTwo|Scan|AtOnce|IPTables.|WithoutNFTables|NoLeak|HostileFrames|SegmentSize|MaxConnections|ServedPorts)"}}
)

var recipes = []recipe{
	{pkg: "infra", stages: plans},
	{pkg: "internal/firewall", stages: plans},
	{pkg: "internal/netstate", stages: plans},
	{pkg: "internal/compare", stages: plans},
	{pkg: "internal/wiring", stages: plans},
	{pkg: "cache", stages: []stage{record, {pkg: "infra"}, {pkg: "domain"}, {pkg: "cache"}}},
	{pkg: "dhcp", stages: []stage{{"dhcp", []string{"-test.skip=TestAllocations"}}}}, // the switches allocate
	{pkg: "domain", stages: []stage{{pkg: "domain"}}},
	{pkg: "domain/cloudhypervisor", stages: []stage{{pkg: "domain/cloudhypervisor"}}},
	{pkg: "domain/firecracker", stages: []stage{{pkg: "domain/firecracker"}}},
	{pkg: "domain/passt", stages: []stage{{pkg: "domain/passt"}}},
	{pkg: "domain/qemu", stages: []stage{{pkg: "domain/qemu"}}},
	{pkg: "guestconfig", stages: []stage{{pkg: "guestconfig"}}},
	{pkg: "internal/frametext", stages: []stage{{pkg: "internal/frametext"}}},
	{pkg: "internal/statefile", stages: []stage{{pkg: "internal/statefile"}, {pkg: "cache"}}},
	{pkg: "internal/strictjson", stages: []stage{{pkg: "internal/strictjson"}, {pkg: "cache"}, {pkg: "infra"}}},
	{pkg: "internal/syntax", stages: []stage{{pkg: "internal/syntax"}, {pkg: "cache"}, {pkg: "infra"}}},
	{pkg: "internal/netns", stages: []stage{{pkg: "internal/netns"}, wired}, root: true},
	{pkg: "internal/tap", stages: []stage{{pkg: "internal/tap"}, wired}, root: true},
	{pkg: "internal/kernel", stages: []stage{{pkg: "internal/kernel"}, wired, restored}, root: true},
	{pkg: "phase1", stages: []stage{input, wired, restored}, root: true},
	{pkg: "phase2", stages: []stage{{"phase2", []string{"-test.short"}}}, root: true}, // without guests
}
