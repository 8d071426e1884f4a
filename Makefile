# "make help" lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo demo-vm test crash networks bench lint fuzz mutate install FORCE

# What the tests call, as Debian packages; gcc for the race detector; dnsmasq-base is the program
# without a service. What a virtual machine, the stock kernel and the DHCP clients take besides is in
# the install.sh.
DEBIAN := nftables iptables iproute2 iputils-ping ethtool tcpdump strace procps util-linux containernetworking-plugins gcc libc6-dev dnsmasq-base

# Whose tests run under Debian's kernel as well, which has dummy and others that not every kernel has.
STOCK := phase1 internal/rig/podnet

# Each fuzz target's time, as -fuzztime takes it.
FUZZTIME ?= 20s

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
	@internal/rig/nstest/install.sh
	@internal/rig/podnet/install.sh

# GUESTWIRE_REQUIRE makes a failure of what is a skip elsewhere: no namespace, no tool.
test: export GUESTWIRE_REQUIRE = 1
test: export GUESTWIRE_BIN = $(CURDIR)/bin
test: install bin/testreport bin/stockkernel bin/agent bin/launcher bin/quickstart ## all tests, here and under the stock kernel (root, Debian)
	@resolv=$$(cat /etc/resolv.conf); \
	{ \
		echo "# run: this kernel ($$(uname -r)), -race"; \
		go test -json -race -count=1 -timeout 20m ./... || echo '# broken: go test'; \
		echo '# run: stock kernel'; \
		for p in $(STOCK); do \
			binary="$(CURDIR)/bin/$${p//\//-}.test"; \
			rm -f "$$binary"; \
			{ \
				go test -c -o "$$binary" "./$$p" && cd "$$p" && \
				"$(CURDIR)/bin/stockkernel" -timeout 20m \
					-env GUESTWIRE_REQUIRE=1 -env GUESTWIRE_BIN="$(CURDIR)/bin" -- "$$binary" -test.short -test.v=test2json | \
					go tool test2json -t -p "$(MODULE)/$$p"; \
			} || echo "# broken: $$p"; \
			cd "$(CURDIR)"; \
		done; \
		[ "$$resolv" = "$$(cat /etc/resolv.conf)" ] || echo '# broken: /etc/resolv.conf is not what it was'; \
	} | bin/testreport

# The tables go into the report, below its own text.
REPORT := docs/reliability.md

crash: export GUESTWIRE_REQUIRE = 1
crash: export GUESTWIRE_BIN = $(CURDIR)/bin
crash: install bin/stockkernel bin/agent ## kill and fail Setup and Teardown at every system call, and write docs/reliability.md (root, Debian)
	@go test -c -o bin/crash.test ./phase1; cd phase1; status=0; \
	{ \
		../bin/crash.test -test.timeout 30m -test.v -test.run '^(TestCrash|TestGenerated)$$' -crash all || status=1; \
		../bin/stockkernel -timeout 20m -env GUESTWIRE_REQUIRE=1 -env GUESTWIRE_BIN="$(CURDIR)/bin" -- \
			"$(CURDIR)/bin/crash.test" -test.short -test.v -test.run '^(TestCrash|TestGenerated)$$' || status=1; \
		exit $$status; \
	} | tee ../bin/crash.log || status=1; \
	cd ..; \
	{ sed '/^<!-- make crash/q' $(REPORT); echo; sed -n 's/^doc: //p' bin/crash.log; } >bin/reliability.md; \
	mv bin/reliability.md $(REPORT); \
	exit $$status

NETWORKS := docs/networks.md

networks: export GUESTWIRE_REQUIRE = 1
networks: export GUESTWIRE_BIN = $(CURDIR)/bin
networks: install bin/stockkernel bin/launcher ## measure each pod network with each binding on both kernels, and write docs/networks.md (root, Debian)
	@go test -c -o bin/networks.test ./internal/rig/podnet; cd internal/rig/podnet; status=0; \
	{ \
		../../../bin/networks.test -test.v -test.run '^TestMatrix$$' -update || status=1; \
		../../../bin/stockkernel -timeout 20m -env GUESTWIRE_REQUIRE=1 -env GUESTWIRE_BIN="$(CURDIR)/bin" -- \
			"$(CURDIR)/bin/networks.test" -test.short -test.v -test.run '^TestMatrix$$' -update || status=1; \
		exit $$status; \
	} | tee ../../../bin/networks.log || status=1; \
	cd ../../..; \
	{ sed '/^<!-- make networks/q' $(NETWORKS); echo; sed -n 's/^doc: //p' bin/networks.log | sort -u | cut -d' ' -f2-; } >bin/networks.md; \
	mv bin/networks.md $(NETWORKS); \
	exit $$status

bench: ## Setup and Teardown against a C program and scripts, the guest filter's cost, the responder beside dnsmasq (root), all other benchmarks
	go run ./internal/rig/bench
	go test -run '^$$' -bench . -benchmem ./...

fuzz: ## each fuzz target for FUZZTIME
	@go list ./... | while read -r p; do \
		go test -list '^Fuzz' "$$p" | { grep '^Fuzz' || true; } | while read -r f; do \
			echo "$$p $$f"; \
			go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) "$$p"; \
		done; \
	done

# Without PACKAGES all that have a recipe, which takes hours; EVERY=10 tries one mutation in ten.
EVERY ?= 1

mutate: ## break each line of PACKAGES, or one place in EVERY, and list what no test notices (root)
	go run ./internal/rig/mutate -every $(EVERY) $(PACKAGES)

lint: $(STATICCHECK) ## gofmt, go vet, staticcheck, bash -n
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt: $$unformatted"; exit 1; }
	go vet ./...
	$(STATICCHECK) ./...
	@for f in .ci/run internal/rig/*/*.sh; do bash -n "$$f"; done

# Without -mod=mod the version would be looked up in this module's go.mod.
$(STATICCHECK):
	GOBIN=$(CURDIR)/bin GOFLAGS=-mod=mod go install honnef.co/go/tools/cmd/staticcheck@v0.7.0
	mv bin/staticcheck $@

# Linked statically: it is the stock kernel's process 1 too.
bin/stockkernel bin/testreport bin/quickstart: FORCE
	CGO_ENABLED=0 go build -o $@ ./internal/rig/$(@F)
bin/agent bin/launcher: FORCE
	CGO_ENABLED=0 go build -o $@ ./examples/$(@F)
FORCE:
