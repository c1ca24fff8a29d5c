# nox-mesh. `make demo` shows what it does; `make test` checks all of it.

VERSION ?= $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//')
ifeq ($(VERSION),)
VERSION := 0.0.0-dev
endif
ARCH    ?= amd64
TOOL    := go tool -modfile=tools.mod
LDFLAGS := -s -w -X main.version=$(VERSION)
export CGO_ENABLED ?= 0
# The Go that go.mod names, with its security fixes, where it can be had.
export GOTOOLCHAIN ?= $(shell GOTOOLCHAIN=auto timeout 120 go version >/dev/null 2>&1 && echo auto || echo local)

.PHONY: help demo test unit race attacks loop lab simulate bench build package lint vuln clean

help: ## say what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: ## show the whole loop: a good release, then a broken one
	@go run -ldflags "$(LDFLAGS)" ./cmd/nox-mesh demo

test: lint race loop ## everything: lint, all tests with the race detector, the loop on real machines

race: # the race detector needs cgo and a C compiler
	@.ci/needs "the race detector" gcc:gcc ld:binutils
	@echo '#include <stdlib.h>' | gcc -E - >/dev/null 2>&1 || .ci/needs "the race detector" no-libc-headers:libc6-dev
	@.ci/needs "checking the package's scripts" shellcheck:shellcheck || true
	CGO_ENABLED=1 go test -race -timeout 15m ./...

unit: ## tests without the race detector and the lab: quick
	go test -short ./...

attacks: ## what a hostile node or stranger may try, each attempt and how it is refused
	@mkdir -p dist && rm -f dist/attacks.txt
	NOX_MESH_ATTACKS=$(CURDIR)/dist/attacks.txt go test -count=1 ./server -run '^TestAttacks$$'; status=$$?; cat dist/attacks.txt; exit $$status

LAB := NOX_MESH_LAB=1 go test -count=1 -timeout 25m -v ./packaging/lab -run

loop: ## real machines (systemd-nspawn, root, Debian): rollout, crash, rollback on four; the server as a package on one
	$(LAB) "^TestLab"

lab: ## the loop, and all the ways to recover on Debian 12 and 13: writes dist/lab.json and docs/recovery.md
	$(LAB) "^(TestLab|TestRecovery)"

SEEDS ?= 1000

simulate: ## how good the stager judges: 1,000 fleets in each world, some ten minutes; writes its table into docs/stager.md
	@mkdir -p dist
	go run -ldflags "$(LDFLAGS)" ./cmd/nox-mesh simulate --seeds $(SEEDS) --markdown > dist/simulate.md
	@sed -i -e '/<!-- simulate: begin -->/,/<!-- simulate: end -->/{//!d}' -e '/<!-- simulate: begin -->/r dist/simulate.md' docs/stager.md

EVENTS ?= 1000000

bench: ## measure replay, start, query and append on a log of a million events, some minutes: writes dist/bench.json and its table into docs/performance.md
	@mkdir -p dist
	@echo "needs about 2 GB in $${TMPDIR:-/tmp}"
	NOX_MESH_BENCH=$(CURDIR)/dist/bench.json NOX_MESH_BENCH_EVENTS=$(EVENTS) go test -count=1 -timeout 40m ./server -run '^TestBench$$' -v
	@sed -i -e '/<!-- bench: begin -->/,/<!-- bench: end -->/{//!d}' -e '/<!-- bench: begin -->/r dist/bench.md' docs/performance.md

build: ## both programs into dist/
	@mkdir -p dist
	go build -trimpath -ldflags "$(LDFLAGS)" -o dist/ ./cmd/nox-mesh ./cmd/nox-mesh-host

package: ## the Debian packages of host and server: make package VERSION=1.2.3
	@case "$(VERSION)" in [0-9]*) ;; *) echo "VERSION=$(VERSION) is no package version: make package VERSION=1.2.3" >&2; exit 2;; esac
	@mkdir -p dist/$(ARCH)
	GOOS=linux GOARCH=$(ARCH) go build -trimpath -ldflags "$(LDFLAGS)" -o dist/$(ARCH)/ ./cmd/nox-mesh ./cmd/nox-mesh-host
	@export VERSION=$(VERSION) ARCH=$(ARCH) SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0); \
	BINARY=dist/$(ARCH)/nox-mesh-host $(TOOL) nfpm package -f packaging/nfpm.yaml -p deb -t dist/ && \
	BINARY=dist/$(ARCH)/nox-mesh $(TOOL) nfpm package -f packaging/server/nfpm.yaml -p deb -t dist/

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not gofmt-ed:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	$(TOOL) staticcheck ./...

# The database of vulnerabilities; without the network's own one, that of a
# module: make vuln VULNDB=module
VULNDB ?= https://vuln.go.dev
VULNDB_MODULE := golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018

vuln: ## look for known vulnerabilities in what the programs call
ifeq ($(VULNDB),module)
	@mkdir -p dist
	rm -rf dist/vulndb
	go run golang.org/x/vulndb/cmd/indexdb@$(lastword $(subst @, ,$(VULNDB_MODULE))) \
		-vulns "$$(go mod download -json $(VULNDB_MODULE) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/data/osv" -out dist/vulndb
	go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 -db "file://$(CURDIR)/dist/vulndb" ./...
else
	go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 -db $(VULNDB) ./...
endif

clean: ## remove what was built
	rm -rf dist
