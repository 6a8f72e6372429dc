# What a person types and what CI types are the same. `make help` lists it.

GO       ?= go
BIN      := $(CURDIR)/bin
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT   ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

# How long each fuzz target runs in fuzz-short.
FUZZTIME ?= 10s
# Given to `go test` by test and e2e, for example TESTFLAGS='-run TestExitCodes -v'.
TESTFLAGS ?=
# The bound on the whole of e2e.
E2E_TIMEOUT ?= 28m
# How long chaos goes on, in whole minutes, and the seed of all of it: a new one each
# time when empty.
CHAOS_MINUTES ?= 10
CHAOS_SEED ?=
# Given to `bin/cluster up`, for example '--help'.
CLUSTER_UP_ARGS ?=
# Given to hack/reliability, for example '-without-cluster' or '-list'.
RELIABILITY_ARGS ?=
# Given to `bin/sandbox-broker bench`.
BENCH_ARGS ?=
# What the local cluster has for the benchmark.
BENCH_POOLS := --no-stock-pool python-gvisor-no-stock --sandboxd-image localhost/sandbox-broker/sandbox-sandboxd:dev
# Given to `bin/bench-scale`, for example '--check' or '--profile DIR'.
BENCH_SCALE_ARGS ?=

MODULE   := github.com/sandbox-broker/sandbox-broker
LDFLAGS  := -s -w -X $(MODULE)/internal/version.Version=$(VERSION) -X $(MODULE)/internal/version.Commit=$(COMMIT)
# Static: the runner must start in any image, the broker in an empty one.
STATIC   := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)'
# The linter is pinned in a module of its own, so that its requirements stay out
# of the project's. The path is absolute because it runs in two modules.
LINT     := $(GO) tool -modfile=$(CURDIR)/hack/tools/lint/go.mod golangci-lint run
# Runs what follows with the variables that cluster-up's last line exports.
WITH_CLUSTER = vars="$$($(BIN)/cluster env)"; eval "$$vars";
SCRIPTS  := .ci/run $(wildcard hack/*.sh)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --warn-undefined-variables

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

## Building and checking

.PHONY: build
build: ## Build bin/sandbox-broker and bin/sandbox-runner, both static
	$(STATIC) -o $(BIN)/sandbox-broker ./cmd/sandbox-broker
	$(STATIC) -o $(BIN)/sandbox-runner ./cmd/sandbox-runner

.PHONY: runsc
runsc: $(BIN)/runsc ## Build gVisor's bin/runsc from its pinned module

$(BIN)/runsc: hack/tools/gvisor/go.mod hack/tools/gvisor/go.sum
	CGO_ENABLED=0 $(GO) build -C hack/tools/gvisor -trimpath -ldflags '-s -w' -o $@ gvisor.dev/gvisor/runsc

.PHONY: demo
demo: ## Show the main job on this machine: build what is missing, run programs in sandboxes
	@$(GO) run ./hack/demo

.PHONY: lint
lint: ## Run golangci-lint in both modules and shellcheck on the scripts
	$(LINT) ./...
	cd hack/cluster && $(LINT) --config $(CURDIR)/.golangci.yml ./...
	@command -v shellcheck >/dev/null || { echo 'lint: shellcheck is missing; Debian has it in the package shellcheck' >&2; exit 1; }
	shellcheck $(SCRIPTS)

.PHONY: test
test: ## Vet and test both modules, the main one with the race detector
	$(GO) vet ./...
	$(GO) vet -tags e2e ./...
	$(GO) test -race $(TESTFLAGS) ./...
	$(GO) vet -C hack/cluster ./...
	$(GO) test -C hack/cluster $(TESTFLAGS) ./...

.PHONY: golden
golden: ## Write the golden files of manifests, frames, help texts and reports anew
	$(GO) test ./deploy ./sandboxclient/wire ./cmd/sandbox-broker ./internal/bench -update

.PHONY: fuzz-short
fuzz-short: ## Run every fuzz target for FUZZTIME
	GO='$(GO)' hack/fuzz-short.sh $(FUZZTIME)

.PHONY: bench-scale
bench-scale: ## Measure what 10,000 leases cost, without a cluster
	$(GO) build -o $(BIN)/bench-scale ./hack/bench-scale
	$(BIN)/bench-scale $(BENCH_SCALE_ARGS)

## The local cluster (root, Linux)

.PHONY: cluster-tool
cluster-tool:
	$(GO) build -C hack/cluster -o $(BIN)/cluster .

.PHONY: cluster-up
cluster-up: build cluster-tool ## Start a real Kubernetes with gVisor, agent-sandbox and the broker
	@$(BIN)/cluster up $(CLUSTER_UP_ARGS)

.PHONY: cluster-down
cluster-down: cluster-tool ## Stop it and remove all that it left on the machine
	@$(BIN)/cluster down

.PHONY: cluster-status
cluster-status: cluster-tool ## Say what of it runs
	@$(BIN)/cluster status

.PHONY: cluster-load
cluster-load: build cluster-tool ## Put the project as it is now into the running cluster
	@$(BIN)/cluster load

.PHONY: e2e
e2e: build cluster-tool ## Run the tests that need the cluster
	$(WITH_CLUSTER) $(GO) test -race -count=1 -p 1 -timeout $(E2E_TIMEOUT) -tags e2e $(TESTFLAGS) ./test/...

.PHONY: chaos
chaos: build cluster-tool ## Break everything under running programs, for CHAOS_MINUTES, from CHAOS_SEED
	$(WITH_CLUSTER) CHAOS_MINUTES=$(CHAOS_MINUTES) CHAOS_SEED=$(CHAOS_SEED) \
		$(GO) test -race -count=1 -v -timeout $$(($(CHAOS_MINUTES) + 20))m -tags e2e -run '^TestChaos$$' $(TESTFLAGS) ./test/chaos

.PHONY: reliability
reliability: build runsc cluster-tool ## Run every test that docs/reliability.md names
	if ! [[ '$(RELIABILITY_ARGS)' =~ -without-cluster|-list ]]; then $(WITH_CLUSTER) fi; REQUIRE_RUNSC=1 $(GO) run ./hack/reliability $(RELIABILITY_ARGS)

.PHONY: bench
bench: build cluster-tool ## Measure runs on the cluster, beside other ways to run code
	$(WITH_CLUSTER) $(BIN)/sandbox-broker bench $(BENCH_POOLS) $(BENCH_ARGS)

.PHONY: clean
clean: ## Remove what was built here; the cluster and the caches stay
	rm -rf $(BIN) coverage.out
