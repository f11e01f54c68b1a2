# Ichor. `make help` lists what there is.
SHELL := /bin/bash
export GOFLAGS := -buildvcs=false $(GOFLAGS)
BIN := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X ichor.maesh.dev/ichor/cmd/internal/version.Version=$(VERSION)
# Folders with Go code of this module.
PKGS := ./...

.DEFAULT_GOAL := help
.PHONY: help deps build demo test test-all bench lint fmt generate verify clean-tree race fuzz sim e2e e2e-real

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

deps: ## Install what the build and the tests call (Debian packages, idempotent)
	@hack/deps.sh

build: deps ## Build ichor and ichor-lab into bin/
	go build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/ichor ./cmd/ichor-lab

demo: build ## Show the main job on simulated nodes, in about a minute
	@go build -o $(BIN)/ ./e2e/demo
	@$(BIN)/demo -bin $(BIN)

test: deps ## Run the tests (unit, and end to end on the lab with real etcd, git and talosctl)
	@hack/tools.sh talosctl >/dev/null
	go test -timeout 20m $(PKGS)
	@for tool in kubernetes versitygw gitea; do hack/tools.sh --built $$tool >/dev/null 2>&1 || \
	  echo "skipped: the tests with real $$tool; hack/tools.sh $$tool builds it once (some minutes), make test-all does it too"; done

test-all: deps ## Everything that is longer: race over all, real Kubernetes, many seeds, long fuzzing
	@hack/tools.sh talosctl >/dev/null
	@hack/tools.sh kubernetes >/dev/null
	@hack/tools.sh versitygw >/dev/null
	@hack/tools.sh gitea >/dev/null
	go test -race -timeout 60m $(PKGS)
	go test -timeout 60m ./e2e/scenarios ./e2e/scale ./sync/forge/gitea ./e2e/lab/kube -args -long
	$(MAKE) sim SEEDS=10000
	$(MAKE) fuzz FUZZTIME=5m FUZZ=all

e2e-real: ## Build the suite for real nodes, bin/ichor-e2e (docs/e2e-real.md says what it wants to be told)
	go test -tags real -c -o $(BIN)/ichor-e2e ./e2e/real/suite

sim: SEEDS ?= 2000
sim: ## Simulate fleets with faults: make sim SEEDS=10000
	go test ./apply/plan/sim -run Fleets -timeout 60m -args -seeds $(SEEDS)

fuzz: FUZZTIME ?= 15s
fuzz: ## Fuzz each target for a while: make fuzz FUZZTIME=5m
	hack/fuzz.sh $(FUZZTIME) $(FUZZ)

bench: deps ## Benchmarks with the figures of the specification
	hack/bench.sh

fmt: ## Format the code
	@$$(hack/tools.sh gofumpt) -w $$(git ls-files '*.go')

lint: ## Formatting, vet, staticcheck
	@out=$$($$(hack/tools.sh gofumpt) -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not formatted (make fmt):"; echo "$$out"; exit 1; fi
	go vet $(PKGS)
	$$(hack/tools.sh staticcheck) $(PKGS)

generate: ## Make the generated files anew (schemas, docs/kinds.md, docs/commands)
	go run ./hack/gen-schemas
	go run ./hack/gen-docs
	go run ./cmd/ichor gen-docs docs

clean-tree:
	@if [ -n "$$(git status --porcelain)" ]; then echo "the tree is not clean:"; git status --short; git diff --stat; exit 1; fi

race: ## Race tests of the packages where goroutines meet
	go test -race -timeout 30m $$(hack/race-packages.sh)

verify: deps lint generate clean-tree race ## What CI runs after the tests: format, lint, generated files, race, fuzz, simulation
	$(MAKE) fuzz FUZZTIME=5s
	$(MAKE) sim SEEDS=200
