# "make help" lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo demo-vm test test-all crash networks kubernetes bench image lint fuzz install FORCE

# What the tests call, as Debian packages; gcc for the race detector; dnsmasq-base is the program
# without a service. What a virtual machine, the stock kernel and the DHCP clients take besides is in
# the install.sh.
DEBIAN := nftables iptables iproute2 iputils-ping ethtool tcpdump strace procps util-linux containernetworking-plugins gcc libc6-dev git dnsmasq-base wireguard-tools

# Whose tests run under Debian's kernel as well, which has dummy and others that not every kernel has.
STOCK := phase1 internal/rig/podnet internal/tap

# The packages whose tests take longest come first, and three run at once: most of a test's time it waits.
LONG := ./phase1 ./internal/rig/guests ./internal/rig/podnet

# The modules of go.work beside the library's, which "go test ./..." leaves out.
NESTED := examples internal/rig

# Each fuzz target's time, as -fuzztime takes it.
FUZZTIME ?= 20s

# What the tests execute.
PROGRAMS := bin/testreport bin/stockkernel bin/quickstart bin/agent bin/launcher bin/exporter bin/qemu bin/guestwire bin/guestwire-node bin/cri

MODULE := github.com/guestwire/guestwire
STATICCHECK := bin/staticcheck-v0.7.0

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 10

demo: ## a namespace's network is handed to a guest, used, and given back (root)
	go run ./internal/rig/quickstart

demo-vm: ## the same with a guest that boots (root, Debian: installs QEMU and libvirt)
	internal/rig/vm/install.sh
	go run ./internal/rig/quickstart -vm

install: ## what the tests call (root, Debian)
	@internal/rig/stockkernel/install.sh $(DEBIAN)
	@internal/rig/vm/install.sh
	@internal/rig/guests/install.sh
	@internal/rig/podnet/install.sh
	@internal/rig/container/install.sh
	@internal/rig/confine/install.sh
	@internal/rig/node/install.sh

# GUESTWIRE_REQUIRE makes a failure of what is a skip elsewhere: no namespace, no tool.
test test-all crash networks kubernetes: export GUESTWIRE_REQUIRE = 1
test test-all crash networks kubernetes: export GUESTWIRE_BIN = $(CURDIR)/bin
test test-all crash networks kubernetes: install $(PROGRAMS)

# Under the stock kernel run the tests in which the kernel has a say; GUESTWIRE_SELECT= means all.
test networks: export GUESTWIRE_SELECT = kernels
test-all: export TIMEOUT = 240

# "# again" tells testreport how a failed test is repeated alone.
test: ## all tests here, and under the stock kernel those in which the kernel has a say (root, Debian)
test-all: ## all tests here and under the stock kernel, and the whole crash harness, all clients: hours (root, Debian)
test test-all:
	@resolv=$$(cat /etc/resolv.conf); \
	{ \
		echo "# run: this kernel ($$(uname -r)), -race"; \
		echo '# again: GUESTWIRE_SELECT= go test -json -race -count=1 -timeout 45m -run "$$TEST" "$$PACKAGE"'; \
		GUESTWIRE_SELECT= go test -json -race -count=1 -p 3 -timeout 45m $(LONG) ./... $(NESTED:%=./%/...) || echo '# broken: go test'; \
		if [ $@ = test-all ]; then \
			echo '# run: this kernel, all of the crash harness, all clients'; \
			go test -json -count=1 -timeout 2h -run '$(CRASH)' ./phase1 -crash all || echo '# broken: crash harness'; \
			go test -json -count=1 -timeout 60m ./internal/rig/guests -clients all || echo '# broken: all of the clients'; \
			go test -json -count=1 -timeout 60m ./internal/rig/podnet -networks all -leases || echo '# broken: all networks'; \
			go test -json -count=1 -timeout 30m -run '^TestCrash$$' ./examples/cni -crash all || echo '# broken: crash harness of the CNI plugin'; \
		fi; \
		echo '# run: stock kernel'; \
		echo '# again: p=$${PACKAGE#$(MODULE)/}; $(STOCK_TEST) "$$p" $$([ "$$p" != phase1 ] || echo -crash few) -test.v=test2json -test.run "$$TEST" | go tool test2json -t -p "$$PACKAGE"'; \
		for p in $(STOCK); do \
			$(STOCK_TEST) "$$p" $$([ "$$p" != phase1 ] || echo -crash few) -test.v=test2json | \
				go tool test2json -t -p "$(MODULE)/$$p" || echo "# broken: $$p"; \
		done; \
		[ "$$resolv" = "$$(cat /etc/resolv.conf)" ] || echo '# broken: /etc/resolv.conf is not what it was'; \
	} | bin/testreport

STOCK_TEST := internal/rig/stockkernel/test.sh
CRASH := ^(TestCrash|TestGenerated)$$

# crash and networks run a test of PACKAGE on both kernels, and put what it prints as "doc: TEXT" into
# DOCUMENT, below that document's own text.
crash: PACKAGE = phase1
crash: DOCUMENT = docs/reliability.md
crash: HERE = -timeout 60m -run '$(CRASH)' -crash all
crash: THERE = -test.run '$(CRASH)' -crash few
crash: ROWS = cat
crash: ## kill and fail Setup and Teardown at every system call, and write docs/reliability.md (root, Debian)

networks: PACKAGE = internal/rig/podnet
networks: DOCUMENT = docs/networks.md
networks: HERE = -run '^TestMatrix$$' -update
networks: THERE = -update
networks: ROWS = sort -u | cut -d' ' -f2-
networks: ## measure each pod network with each binding on both kernels, and write docs/networks.md (root, Debian)

crash networks:
	@status=0; \
	{ \
		go test -count=1 -v ./$(PACKAGE) $(HERE) || status=1; \
		$(STOCK_TEST) $(PACKAGE) -test.v $(THERE) || status=1; \
		exit $$status; \
	} | tee bin/$@.log || status=1; \
	{ sed '/^<!-- make $@/q' $(DOCUMENT); echo; sed -n 's/^doc: //p' bin/$@.log | $(ROWS); } >bin/$@.md; \
	mv bin/$@.md $(DOCUMENT); \
	exit $$status

# Without a cluster's programs in the cache the first run builds them, which takes six to ten minutes. DOCUMENT= writes no
# document.
kubernetes: DOCUMENT = docs/kubernetes.md
kubernetes: RIG = internal/rig/kubernetes
kubernetes: ## VM pods on a Kubernetes with one node, and write docs/kubernetes.md (root, Debian)
	@programs=$$($(RIG)/install.sh); \
	status=0; \
	GUESTWIRE_KUBERNETES=$$programs go test -count=1 -v -timeout 60m ./$(RIG) | tee bin/$@.log || status=1; \
	if [ -n "$(DOCUMENT)" ] && [ $$status = 0 ]; then \
		{ sed '/^<!-- make $@/q' $(DOCUMENT); echo; sed -n 's/^doc: //p' bin/$@.log; } >bin/$@.md; \
		mv bin/$@.md $(DOCUMENT); \
	fi; \
	{ \
		echo '# run: Kubernetes'; \
		go tool test2json -t -p $(MODULE)/$(RIG) <bin/$@.log; \
		echo '# run: its container engine'; \
		GUESTWIRE_KUBERNETES=$$programs go test -json -count=1 -timeout 15m ./internal/rig/node || echo '# broken: container engine'; \
	} | bin/testreport || status=1; \
	exit $$status

# ONLY is one part of docs/performance.md, RUNS the number of rounds.
bench: bin/bench bin/stockkernel ## what docs/performance.md shows, and the datapath with flow tables (root, Debian)
	bin/bench $(addprefix -only ,$(ONLY)) $(addprefix -runs ,$(RUNS))
	[ -n "$(ONLY)" ] || bin/stockkernel -- $(CURDIR)/bin/bench -only datapath -runs 1

fuzz: ## each fuzz target for FUZZTIME
	@go list ./... | while read -r p; do \
		go test -list '^Fuzz' "$$p" | { grep '^Fuzz' || true; } | while read -r f; do \
			echo "$$p $$f"; \
			go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) "$$p"; \
		done; \
	done

# The reference under which engines import the image of guestwire-node; the manifests of examples/kubernetes name this one.
IMAGE ?= localhost/guestwire-node:dev

image: bin/guestwire-node bin/guestwire bin/agent ## bin/guestwire-node.tar: the image of examples/kubernetes, an OCI archive
	go run ./internal/rig/node/archive $(IMAGE) bin bin/guestwire-node.tar

lint: $(STATICCHECK) ## gofmt, go vet, staticcheck, bash -n
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt: $$unformatted"; exit 1; }
	go vet ./...
	$(STATICCHECK) ./...
	@for m in $(NESTED); do echo "$$m"; (cd "$$m" && go vet ./... && $(CURDIR)/$(STATICCHECK) ./...); done
	@for f in .ci/run internal/rig/*/*.sh internal/test/*/*.sh; do bash -n "$$f"; done

# Without -mod=mod the version would be looked up in this module's go.mod.
$(STATICCHECK):
	GOBIN=$(CURDIR)/bin GOFLAGS=-mod=mod GOWORK=off go install honnef.co/go/tools/cmd/staticcheck@v0.7.0
	mv bin/staticcheck $@

# Linked statically: it is the stock kernel's process 1 too.
bin/stockkernel bin/testreport bin/quickstart bin/bench: FORCE
	CGO_ENABLED=0 go build -o $@ ./internal/rig/$(@F)
bin/agent bin/launcher bin/exporter bin/qemu: FORCE
	CGO_ENABLED=0 go build -o $@ ./examples/$(@F)
bin/cri: FORCE
	CGO_ENABLED=0 go build -o $@ ./internal/rig/node/cri
bin/guestwire: FORCE
	CGO_ENABLED=0 go build -o $@ ./examples/cni
bin/guestwire-node: FORCE
	CGO_ENABLED=0 go build -o $@ ./examples/node
FORCE:
