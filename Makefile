# nox-mesh. `make demo` shows what it does; `make test` checks all of it.

VERSION ?= $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//')
ifeq ($(VERSION),)
VERSION := 0.0.0-dev
endif
ARCH    ?= amd64
TOOL    := go tool -modfile=tools.mod
LDFLAGS := -s -w -X main.version=$(VERSION)
export CGO_ENABLED ?= 0

.PHONY: help demo test unit race loop lab build package lint clean

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

LAB := NOX_MESH_LAB=1 go test -count=1 -timeout 25m -v ./packaging/lab -run

loop: ## four real machines (systemd-nspawn, root, Debian): rollout, crash, rollback
	$(LAB) "^TestLab"

lab: ## the loop, and all the ways to recover on Debian 12 and 13: writes dist/lab.json and docs/recovery.md
	$(LAB) "^(TestLab|TestRecovery)"

build: ## both programs into dist/
	@mkdir -p dist
	go build -trimpath -ldflags "$(LDFLAGS)" -o dist/ ./cmd/nox-mesh ./cmd/nox-mesh-host

package: ## the host's Debian package: make package VERSION=1.2.3
	@case "$(VERSION)" in [0-9]*) ;; *) echo "VERSION=$(VERSION) is no package version: make package VERSION=1.2.3" >&2; exit 2;; esac
	@mkdir -p dist/$(ARCH)
	GOOS=linux GOARCH=$(ARCH) go build -trimpath -ldflags "$(LDFLAGS)" -o dist/$(ARCH)/ ./cmd/nox-mesh-host
	@VERSION=$(VERSION) ARCH=$(ARCH) BINARY=dist/$(ARCH)/nox-mesh-host SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) \
		$(TOOL) nfpm package -f packaging/nfpm.yaml -p deb -t dist/

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not gofmt-ed:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	$(TOOL) staticcheck ./...

clean: ## remove what was built
	rm -rf dist
