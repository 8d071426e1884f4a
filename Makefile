# "make help" lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo demo-vm kvm-check test test-user lab test-all claims crash networks kubernetes bench image vm-image release release-check lint outdated vulncheck fuzz mutants pictures site install install-test go-version FORCE

MODULE := github.com/guestwire/guestwire
MODULES := . examples examples/kubevirt internal/rig
STATICCHECK := bin/staticcheck-v0.7.0
GOTESTSUM := bin/gotestsum-v1.13.0
D2 := bin/d2-v0.7.1
NFPM := bin/nfpm-v2.43.4
CYCLONEDX := bin/cyclonedx-gomod-v1.10.0
# 1.8 needs Go 1.26.
GOVULNCHECK := bin/govulncheck-v1.7.0

# The packages with goroutines of their own: the race detector watches their tests. Of phase1 it watches those with processes,
# with calls at once, with logs and with a guest that tries to get round a policy; test-all has it watch all.
RACE := ^$(MODULE)/(phase1/launch|phase1/pins|phase2|dhcp|guestwiretest|internal/child|internal/kernel|internal/netlink|internal/nft|internal/netns|internal/rate|internal/tap|internal/test|examples)(/|$$$$)

# What the tests execute.
PROGRAMS := bin/guestwire-agent bin/guestwire-launcher bin/guestwire-exporter bin/guestwire bin/guestwire-node
LAB_PROGRAMS := $(PROGRAMS) bin/qemu bin/cri bin/quickstart bin/kvmcheck bin/stockkernel bin/broker bin/kubevirt bin/krun bin/restored

# What make fuzz gives to each target, as -fuzztime takes it. lab and test-all give a number of inputs: the last moment of a time
# sometimes fails (context deadline exceeded).
FUZZTIME ?= 20s

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 10

# A Go before 1.21 does not get a newer one by itself, and says of go.mod that its version has another format.
go-version:
	@case $$(go version 2>&1) in \
		*' go1.'[0-9]' '* | *' go1.'[0-9].* | *' go1.1'[0-9]*  | *' go1.20'*) \
			echo "$$(go version) is too old: guestwire needs Go 1.25 (https://go.dev/doc/install; Go gets it by itself from 1.21 on)"; exit 1;; \
		*' go1.'*) ;; \
		*) echo "no Go: guestwire needs Go 1.25 (https://go.dev/doc/install)"; exit 1;; \
	esac
demo demo-vm kvm-check test test-user lab test-all release lint outdated vulncheck: go-version

demo: ## a namespace's network is handed to a guest, used, and given back; ARGS=-v prints the plans (root)
	go run ./internal/rig/quickstart $(ARGS)

demo-vm: ## the same with a guest that boots (root, Debian: installs QEMU and libvirt)
	internal/rig/vm/install.sh
	go run ./internal/rig/quickstart -vm $(ARGS)

# ONLY is one binding. EMULATED=1 is for a machine without KVM: the guests of QEMU are emulated.
KVM_CHECK = bin/kvmcheck -agent bin/guestwire-agent $(addprefix -only ,$(ONLY)) $(if $(EMULATED),-emulated)
kvm-check: bin/kvmcheck bin/guestwire-agent ## guests on KVM with each binding, and a report for an issue (root, Debian: installs QEMU and libvirt)
	@$(KVM_CHECK) -plan
	@internal/rig/vm/install.sh
	@$(KVM_CHECK) | tee bin/kvm-check.md

install-test:
	@internal/test/install.sh

install: install-test ## what the tests call: Debian packages, kernels, machines, engines (root, Debian)
	@for rig in stockkernel vm guests podnet divert container confine monitoring node site debian13; do internal/rig/$$rig/install.sh; done

# GUESTWIRE_REQUIRE makes a failure of what is a skip elsewhere: no namespace, no tool.
test lab test-all crash networks kubernetes: export GUESTWIRE_REQUIRE = 1
test lab test-all crash networks kubernetes: export GUESTWIRE_BIN = $(CURDIR)/bin
test: install-test $(PROGRAMS) bin/qemu bin/restored $(GOTESTSUM)
test-user: install-test $(GOTESTSUM)
lab test-all crash networks kubernetes: install $(LAB_PROGRAMS) $(GOTESTSUM)

# Under Debian's kernels run the tests in which the kernel has a say; SELECT= means all.
SELECT := kernels
test-all crash: SELECT :=
test-all: export TIMEOUT = 240
STOCK_TEST = GUESTWIRE_SELECT=$(SELECT) internal/rig/stockkernel/test.sh
# stock is the line for a package under Debian's kernel of a version.
stock = KERNEL=$1 $(STOCK_TEST) $2 $3 -test.v=test2json | go tool test2json -t -p debian-$1/$(notdir $2)
# What lab runs under 6.12, which answers partly as 6.1 and partly as later ones.
BETWEEN := ^(TestKernels|TestCutOffloaded|TestPinAgain|TestTeardownWithoutNIC)$$

# The commands of a target, one a line. A package whose tests take long comes first. Three run at once, as tests wait for
# most of their time. -timeout is more than three times what the packages of a line take on two idle cores: a line with
# longer ones has its own, and the last one counts. A test that hangs ends its package before that, by internal/test/leak.
GO_TEST := go test -json -count=1 -p 3 -timeout 20m

# The same with Debian 13's programs: nft, iptables, iproute2, libvirt, QEMU. Its tests are of packages called debian13/.
TRIXIE_TEST := internal/rig/debian13/run.sh $(GO_TEST)
TRIXIE_NAMES := sed 's,"$(MODULE)/,"debian13/,g'
TRIXIE_PACKAGES := ./phase2/... ./domain/... ./dhcp ./cache ./internal/firewall ./internal/nft ./internal/kernel

define TEST
packages=$$(go list ./... ./examples/... ./examples/kubevirt/... | grep -E '$(RACE)') && $(GO_TEST) -race ./examples ./phase1/pins $$packages
packages=$$(go list ./... | grep -vE '$(RACE)') && $(GO_TEST) -timeout 45m ./phase1 $$packages
$(GO_TEST) -race -run 'Once|FollowDrops|Progress|HostileEgress' ./phase1
endef

# README's command. What an ordinary user has to leave out is skipped, and says why, and so is what takes long and no right of
# a user decides; make test runs that.
define ORDINARY
internal/test/asuser.sh $(GO_TEST) -short ./...
endef

# Debian's kernels are emulated, on one core for most of the time: the long line runs beside the others.
define LAB
internal/test/fuzz.sh 20000x -json
& $(call stock,6.1,phase1,-crash few)
$(GO_TEST) -timeout 45m ./internal/rig/guests ./internal/rig/podnet ./internal/rig/...
$(call stock,6.1,internal/rig/podnet)
$(call stock,6.1,internal/tap)
$(call stock,6.1,internal/firewall)
$(call stock,6.12,phase1,-test.run '$(BETWEEN)')
$(TRIXIE_TEST) $(TRIXIE_PACKAGES) | $(TRIXIE_NAMES)
$(TRIXIE_TEST) -run 'FirewallText' ./phase1 | $(TRIXIE_NAMES)
$(TRIXIE_TEST) -run 'TestTutorials/(first-vm|libvirt)' ./internal/rig/guests | $(TRIXIE_NAMES)
endef

CRASH := ^(TestCrash|TestGenerated|TestComparison)$$
# Their guests need vhost-net, and a card with virtual functions: a machine of stockkernel has both.
DEVICES := ^(TestVhost|TestFunction)$$

# Guests under Debian 13's QEMU and libvirt.
TRIXIE_GUESTS := ^(TestTutorials|TestReadmeLauncher|TestLauncher|TestLauncherPlug|TestLibvirt|TestLibvirtPlug|TestPasst|TestSlirp)$$

define ALL
$(TEST)
$(ORDINARY)
$(LAB)
$(call stock,6.12,phase1,-crash few)
$(call stock,6.12,internal/rig/podnet)
$(call stock,6.12,internal/tap)
$(call stock,6.12,internal/firewall)
internal/test/fuzz.sh 1000000x -json
$(GO_TEST) -race -timeout 2h ./phase1 -crash few
$(GO_TEST) -timeout 2h -run '$(CRASH)' ./phase1 -crash all
$(GO_TEST) -timeout 45m -run '^TestCrash$$' ./examples/guestwire -crash all
$(GO_TEST) -timeout 45m ./internal/rig/guests -clients all
MACHINE=-functions $(call stock,6.1,internal/rig/guests,-test.run '$(DEVICES)')
$(GO_TEST) -timeout 45m ./internal/rig/podnet -networks all -leases
$(TRIXIE_TEST) -timeout 45m ./phase1/... ./internal/tap ./guestwiretest/... ./examples/... | $(TRIXIE_NAMES)
$(TRIXIE_TEST) -timeout 45m -run '$(TRIXIE_GUESTS)' ./internal/rig/guests | $(TRIXIE_NAMES)
! internal/rig/kubernetes/install.sh -ready || GUESTWIRE_KUBERNETES=$$(internal/rig/kubernetes/install.sh) $(GO_TEST) -timeout 45m ./internal/rig/kubernetes ./internal/rig/node
endef

define KUBERNETES
go test -count=1 -v -timeout 60m ./internal/rig/kubernetes | tee bin/kubernetes.log | go tool test2json -t -p $(MODULE)/internal/rig/kubernetes
$(GO_TEST) ./internal/rig/node
endef

export TEST ORDINARY LAB ALL KUBERNETES
export STARTED := $(shell date +%s)

test: ## the library and the examples on this machine's kernel (root, Debian)
	@internal/test/report.sh $@ <<<"$$TEST"

test-user: ## the library as an ordinary user with an empty HOME, without the long tests (root, Debian)
	@internal/test/report.sh $@ <<<"$$ORDINARY"

lab: ## what boots machines or Debian's kernels, and what starts engines and containers (root, Debian)
	@internal/test/report.sh $@ <<<"$$LAB"

test-all: ## test and lab in full: all tests under three kernels, all crash points, all clients, Kubernetes if it is built: hours (root, Debian)
	@internal/test/report.sh $@ <<<"$$ALL"
	@$(MAKE) -s claims LOGS=bin/test-all.json

# LOGS are those of runs of the tests.
claims: LOGS = bin/test.json bin/test-user.json bin/lab.json
claims: ## whether the tests that docs/proofs/claims.md names passed in the last test, test-user and lab, those of networks with a guest
	go test -count=1 -run '^TestClaims$$' ./internal/test/depstest -logs '$(addprefix $(CURDIR)/,$(LOGS))'

# crash and networks run a test of PACKAGE on this kernel and on Debian's KERNELS, and put what it prints as "doc: TEXT"
# into DOCUMENT, below that document's own text.
crash: KERNELS = 6.1
crash: PACKAGE = phase1
crash: DOCUMENT = docs/proofs/crash.md
crash: HERE = -timeout 3h -parallel 4 -run '$(if $(KINDS),^TestCrash$$/^at$$/$(KINDS),$(CRASH))' -crash all
crash: THERE = -test.run '$(CRASH)' -crash few
crash: FORMER = sed '1,/^<!-- make crash/d' $(DOCUMENT);
crash: ROWS = { $(if $(KINDS),$(FORMER)) cat; } | awk -f internal/test/crash.awk
# KINDS is a regular expression, such as '(Setup|undo),_bridge'; without it all kinds are tried.
crash: ## kill and fail Setup and Teardown at every system call, and replace docs/proofs/crash.md; KINDS=',_bridge' makes some rows (root, Debian)

networks: KERNELS = 6.1 6.12
networks: PACKAGE = internal/rig/podnet
networks: DOCUMENT = docs/results/networks.md
networks: HERE = -run '^TestMatrix$$' -update
networks: THERE = -update
networks: ROWS = sort -u | cut -d' ' -f2- | awk -f internal/test/networks.awk
networks: ## measure each pod network with each binding on three kernels, and write docs/results/networks.md (root, Debian)

crash networks:
	@status=0; \
	{ \
		go test -count=1 -v ./$(PACKAGE) $(HERE) || status=1; \
		for kernel in $(KERNELS); do KERNEL=$$kernel $(STOCK_TEST) $(PACKAGE) -test.v $(THERE) || status=1; done; \
		exit $$status; \
	} | tee bin/$@.log || status=1; \
	{ sed '/^<!-- make $@/q' $(DOCUMENT); echo; sed -n 's/^doc: //p' bin/$@.log | $(ROWS); } >bin/$@.md; \
	mv bin/$@.md $(DOCUMENT); \
	exit $$status

# Without a cluster's programs in the cache the first run builds them, which takes six to ten minutes, and some more for
# CRI-O, with which internal/rig/node runs.
kubernetes: DOCUMENT = docs/results/kubernetes.md
kubernetes: ## VM pods on a Kubernetes with one node, and write docs/results/kubernetes.md (root, Debian)
	@GUESTWIRE_KUBERNETES=$$(internal/rig/kubernetes/install.sh) internal/test/report.sh $@ <<<"$$KUBERNETES"
	@{ sed '/^<!-- make $@/q' $(DOCUMENT); echo; sed -n 's/^doc: //p' bin/$@.log; } >bin/$@.md
	@mv bin/$@.md $(DOCUMENT)

# ONLY is one part of docs/results/performance.md, RUNS the number of rounds.
bench: bin/bench bin/stockkernel ## print what docs/results/performance.md shows; ONLY=egress RUNS=3 for a part (root, Debian)
	bin/bench $(addprefix -only ,$(ONLY)) $(addprefix -runs ,$(RUNS))
	[ -n "$(ONLY)" ] || bin/stockkernel -- $(CURDIR)/bin/bench -only datapath -runs 1

fuzz: ## each fuzz target for FUZZTIME
	@internal/test/fuzz.sh $(FUZZTIME)

# The reference under which engines import the image of guestwire-node; the manifests of examples/kubernetes name this one.
IMAGE ?= localhost/guestwire-node:dev

image: bin/guestwire-node bin/guestwire bin/guestwire-agent bin/guestwire-launcher ## bin/guestwire-node.tar: the image of examples/kubernetes, an OCI archive
	go run ./internal/rig/node/archive $(IMAGE) bin bin/guestwire-node.tar

# The image's reference, which examples/kubernetes/vm/base names.
VM_IMAGE ?= localhost/guestwire-vm:dev

vm-image: ## bin/guestwire-vm.tar: the image of examples/kubernetes/vm, Linux in QEMU, an OCI archive (podman)
	CGO_ENABLED=0 go build -o examples/kubernetes/vm/ ./examples/guestwire-launcher
	podman build --tag $(VM_IMAGE) examples/kubernetes/vm
	mkdir -p bin && rm -f bin/guestwire-vm.tar
	podman save --format oci-archive --output bin/guestwire-vm.tar $(VM_IMAGE)

pictures: $(D2) ## draw docs/pictures/*.svg, each from the D2 source beside it
	go run ./internal/test/pictures $(D2) docs/pictures

site: $(D2) ## README and docs as a site in bin/site, and asks a browser (Debian: nodejs, npm, chromium, librsvg2-bin)
	@for program in node npm $${CHROMIUM:-chromium} rsvg-convert; do \
		command -v $$program >/dev/null || { echo "$@: $$program is missing: apt-get install nodejs npm chromium librsvg2-bin"; exit 1; }; \
	done
	GUESTWIRE_BIN=$(CURDIR)/bin go test -count=1 ./internal/test/pictures
	@$(MAKE) site/node_modules/.package-lock.json
	cd site && npm run build && npm test

site/node_modules/.package-lock.json: site/package-lock.json
	cd site && npm ci

lint: $(STATICCHECK) ## gofmt, go vet, staticcheck, go mod tidy, bash -n, comments within 120 columns, short sentences in public ones
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt: $$unformatted"; exit 1; }
	@for module in $(MODULES); do \
		echo "$$module"; \
		(cd "$$module" && export GOWORK=off && go vet ./... && $(CURDIR)/$(STATICCHECK) ./... && go mod tidy -diff); \
	done
	@for f in .ci/run internal/rig/*/*.sh internal/test/*.sh; do bash -n "$$f"; done
	@! git grep -nP '^(?=\t*// \S+ \S).{121}' -- '*.go'
	@go test -run '^TestPublicComments$$' ./internal/test/depstest

# FOR is the longest time that it asks.
FOR ?= 10m
outdated: ## which requirements have a newer version, and which of these needs a newer Go; FOR=60s limits the time
	@go build -o bin/outdated ./internal/test/outdated # go run would add a last line of its own
	@bin/outdated -for $(FOR) $(MODULES)

# ARGS are the program's, such as '-for 30m' or -report.
mutants: install-test ## which tests notice small faults in the product's code; ARGS='-for 30m' limits the time, the next run goes on (root, Debian)
	go run ./internal/rig/mutants $(ARGS)

# VULNDB is a database of vulnerabilities other than Go's own.
vulncheck: $(GOVULNCHECK) ## govulncheck in each module; VULNDB=file:///DIRECTORY where its database is not reachable
	@internal/test/vulncheck.sh $(CURDIR)/$(GOVULNCHECK) $(MODULES)

release: $(NFPM) $(CYCLONEDX) ## dist: programs, .deb, .rpm, archives, SBOMs and checksums of the commit, for amd64 and arm64
	@internal/rig/release/release.sh $(NFPM) $(CYCLONEDX) dist

release-check: export GUESTWIRE_REQUIRE = 1
release-check: export GUESTWIRE_RELEASE = $(CURDIR)/dist
release-check: export GUESTWIRE_NFPM = $(CURDIR)/$(NFPM)
release-check: export GUESTWIRE_CYCLONEDX = $(CURDIR)/$(CYCLONEDX)
release-check: release ## dist made again, installed in clean Debian roots, used and removed; arm64 emulated (root, Debian)
	@internal/rig/release/install.sh
	go test -count=1 -v -timeout 60m ./internal/rig/release

# Without -mod=mod the version would be looked up in this module's go.mod.
bin/staticcheck-%:
	GOBIN=$(CURDIR)/bin GOFLAGS=-mod=mod GOWORK=off go install honnef.co/go/tools/cmd/staticcheck@$*
	mv bin/staticcheck $@
bin/gotestsum-%:
	GOBIN=$(CURDIR)/bin GOFLAGS=-mod=mod GOWORK=off go install gotest.tools/gotestsum@$*
	mv bin/gotestsum $@
bin/d2-%:
	GOBIN=$(CURDIR)/bin GOFLAGS=-mod=mod GOWORK=off go install oss.terrastruct.com/d2@$*
	mv bin/d2 $@
bin/nfpm-%:
	GOBIN=$(CURDIR)/bin GOFLAGS=-mod=mod GOWORK=off go install github.com/goreleaser/nfpm/v2/cmd/nfpm@$*
	mv bin/nfpm $@
bin/cyclonedx-gomod-%:
	GOBIN=$(CURDIR)/bin GOFLAGS=-mod=mod GOWORK=off go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$*
	mv bin/cyclonedx-gomod $@

bin/govulncheck-%:
	GOBIN=$(CURDIR)/bin GOFLAGS=-mod=mod GOWORK=off go install golang.org/x/vuln/cmd/govulncheck@$*
	mv bin/govulncheck $@

# Linked statically: it is the stock kernel's process 1 too.
bin/stockkernel bin/quickstart bin/bench bin/kvmcheck: FORCE
	CGO_ENABLED=0 go build -o $@ ./internal/rig/$(@F)
bin/cri: FORCE
	CGO_ENABLED=0 go build -o $@ ./internal/rig/node/cri
bin/broker: FORCE
	CGO_ENABLED=0 go build -o $@ ./internal/rig/divert/broker
bin/krun: FORCE
	CGO_ENABLED=0 go build -o $@ ./internal/rig/container/krun
bin/restored: FORCE
	CGO_ENABLED=0 go build -o $@ ./internal/test/restored
$(PROGRAMS) bin/qemu bin/kubevirt: FORCE
	CGO_ENABLED=0 go build -o $@ ./examples/$(@F)
FORCE:
