# `make run` to try it, `make check` while you work, `make test` before you push. All targets: `make help`.
SHELL := bash
# The target folder as Cargo reports it, because the configuration of Cargo may change it.
TARGET := $(shell cargo metadata --locked --no-deps --format-version 1 | sed -E 's/.*"target_directory":"([^"]*)".*/\1/')
E2E := $(TARGET)/debug/proviso-e2e
LISTEN ?= 127.0.0.1:3000
ADMIN_LISTEN ?= 127.0.0.1:3001
DENY_VERSION := 0.20.2
DENY := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/proviso/cargo-deny-$(DENY_VERSION)/bin/cargo-deny
GUESTS := --manifest-path examples/policies/Cargo.toml --locked
# The test programs that need only this repository. The programs `cluster` start programs of Kubernetes, or an OCI
# registry.
COMPUTING := --lib --bins --test standalone
WAITING := --test folder --test faults
STANDALONE := $(COMPUTING) $(WAITING)
# The tests that need a full node, or minutes.
NODE := --test node --test flows --test torture
# Clippy as the compiler of the workspace: Clippy lints everything that Cargo compiles, and warnings are errors.
CLIPPY := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings
# CI lints in the same pass as it compiles: LINT='format language', and `build` instead of `check`. See .ci/steps.
LINT ?= lint
CHECK ?= check
# Where `make release` puts the programs.
DIST := $(TARGET)/dist
# Tests of clusters wait more than they compute.
export RUST_TEST_THREADS ?= 4

.DEFAULT_GOAL := help
.PHONY: help run demo check computing waiting compile test e2e on-a-node short-torture torture previous kubernetes cluster cluster-down format language lint without-wasm release deny record bench fuzz fuzz-api tools harness control-plane node-tools

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: ## Build, and serve examples/quickstart on loopback
	cargo build --locked -p policy-server --no-default-features
	@printf '%s\n' '' \
	  'Serving examples/quickstart. Try, in another terminal, from this folder:' '' \
	  '  # Denied: an image from a registry that is not trusted' \
	  '  curl -d @examples/reviews/pod-create-untrusted-image.json http://$(LISTEN)/validate/cluster.trusted-registries' '' \
	  '  # Mutated: safe defaults are filled in (the patch is base64)' \
	  '  curl -d @examples/reviews/pod-create.json http://$(LISTEN)/validate/cluster.safe-defaults' '' \
	  '  # Allowed, and denied by the experiment: look for PolicyPreviewLog in this terminal' \
	  '  curl -d @examples/reviews/deployment-create.json http://$(LISTEN)/validate/cluster.required-labels' '' \
	  'Requests to services have an example of their own: docs/how-to/request-policies.md' '' \
	  'What is served: curl http://$(ADMIN_LISTEN)/readyz?verbose      Stop: Ctrl-C' ''
	@exec $(TARGET)/debug/policy-server --manifests examples/quickstart --listen $(LISTEN) --admin-listen $(ADMIN_LISTEN)

demo: tools ## Run a scripted demo of the quickstart: verdicts, previews, a reload, a bad manifest
	cargo build --locked -p policy-server --no-default-features
	bash examples/demo.sh $(TARGET)/debug/policy-server

check: tools lint ## Run every check and test that needs no Kubernetes: minutes
	cargo test --locked --workspace $(STANDALONE) --no-run
	@# Both at the same time: the tests in `waiting` mostly wait and need little CPU time.
	@$(MAKE) --no-print-directory --jobs=2 --keep-going computing waiting
	cargo test $(GUESTS)

computing:
	cargo test --locked --workspace $(COMPUTING)

# Prints the output at the end, so that it is not mixed with the output of `computing`.
waiting:
	@output=$$(cargo test --locked --workspace $(WAITING) 2>&1); status=$$?; echo "$$output"; exit $$status

test: tools $(LINT) control-plane ## Run every check and every test, except those of `make e2e`
	cargo test --locked --workspace
	cargo test $(GUESTS)

e2e: node-tools previous ## Run the tests that need a full node of Kubernetes (needs root)
	cargo build --locked --workspace --bins $(NODE)
	@# Both at the same time: the flows mostly wait.
	@$(MAKE) --no-print-directory --jobs=2 --keep-going on-a-node short-torture

on-a-node:
	cargo test --locked --workspace --no-fail-fast --test flows --test node

# Three minutes of the seed 1. Prints the output at the end, so that it is not mixed with the output of the flows.
short-torture:
	@output=$$(cargo test --locked --workspace --test torture 2>&1); status=$$?; echo "$$output"; exit $$status

torture: tools control-plane previous ## Run random edits and faults, and check all answers (MINUTES=10, SEED=1, STEPS=50, OTHER=path, OTHER_OPERATOR=path)
	cargo build --locked --workspace --bins $(NODE)
	cargo test --locked --workspace --test torture -- --minutes $(or $(MINUTES),10) --seed $(or $(SEED),$$RANDOM) \
	  $(and $(STEPS),--steps $(STEPS)) $(and $(OTHER),--other-server $(abspath $(OTHER))) \
	  $(and $(OTHER_OPERATOR),--other-operator $(abspath $(OTHER_OPERATOR)))

release: ## Build the programs for a release, with separate debug information; show the folder
	cargo build --locked --release -p operator -p policy-server -p proviso-cli
	@mkdir -p $(DIST)
	@for program in operator policy-server proviso; do \
	  objcopy --only-keep-debug --compress-debug-sections=zlib $(TARGET)/release/$$program $(DIST)/$$program.debug && \
	  objcopy --strip-all --add-gnu-debuglink=$(DIST)/$$program.debug $(TARGET)/release/$$program $(DIST)/$$program || exit 1; \
	done
	@ln -sf proviso $(DIST)/kubectl-proviso
	@ls -hl $(DIST)

# Compiles the tests of `make test` and `make e2e`, and the benchmarks.
compile:
	cargo test --locked --workspace --all-targets --no-run
	cargo test --locked --workspace $(NODE) --no-run
	cargo test $(GUESTS) --no-run

# The previous version of Proviso, for tests of updates. Built after the tests, which share its dependencies.
previous:
	@e2e/previous.sh >/dev/null

kubernetes: harness ## Build the missing programs of Kubernetes from source; show versions and folders
	@$(E2E) kubernetes

cluster: node-tools ## Start a full node to use by hand (needs root), and show how
	@$(E2E) up

cluster-down: harness ## Stop the full node of `make cluster`
	@$(E2E) down

format: ## Check the format
	cargo fmt --all --check
	cargo fmt --manifest-path examples/policies/Cargo.toml --all --check
	cargo fmt --manifest-path crates/core/fuzz/Cargo.toml --check
	cargo fmt --manifest-path crates/engines/fuzz/Cargo.toml --check

language: ## Check the language of comments and test names (CONTRIBUTING.md)
	@git ls-files '*.rs' | xargs awk -f lint/plain-english.awk

lint: format language ## Check format, language and lints, warnings are errors
	$(CLIPPY) cargo check --locked --workspace --all-targets
	$(CLIPPY) cargo check --locked --workspace $(NODE)
	$(CLIPPY) cargo check $(GUESTS) --all-targets

# A build of the whole workspace unifies the features of a dependency, so it cannot show that the operator compiles without wasm.
# proviso-e2e is here for its features of tokio: without them, Cargo would compile all dependents of tokio a second time.
without-wasm: ## Check that the operator compiles without wasmtime
	$(CLIPPY) cargo $(CHECK) --locked -p operator -p proviso-capabilities -p proviso-e2e
	! cargo tree --locked -p operator --edges normal --prefix none | grep '^wasmtime'

deny: $(DENY) ## Check licences, duplicates and origin of the dependencies; advisories where they can be fetched
	$(DENY) --locked check bans licenses sources
	@if timeout 300 $(DENY) fetch db; then $(DENY) --locked --offline check advisories; \
	else echo 'advisories were NOT checked: their database cannot be fetched, see above'; fi

# Built once for each machine, without optimisation: the build takes 140 s of CPU time, and a check 5 s.
$(DENY):
	env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=0 \
	  cargo install --locked --debug --version $(DENY_VERSION) --root $(DENY:/bin/cargo-deny=) cargo-deny

record: control-plane ## Write the recorded files that tests otherwise compare with the output of the code
	PROVISO_RECORD=1 cargo test --locked --workspace --lib
	PROVISO_RECORD=1 cargo test --locked --workspace --test standalone --test cluster -- ledger quickstart
	PROVISO_RECORD=1 cargo test --locked --workspace --test node -- charts

bench: control-plane ## Measure the engines, the policy server compared with a bare server, and the API calls of the operator
	cargo bench --locked --workspace --bench '*'

# Without AddressSanitizer: the only unsafe line of the programs does not run in calls from guests to their host, and the project
# of wasmtime fuzzes wasmtime with AddressSanitizer. Integer overflows and debug assertions are checked.
FUZZ := RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none
FUZZ_OPTIONS = -max_total_time=$(or $(SECONDS_TO_FUZZ),60) -timeout=30
# Long scripts from the beginning: a short script makes no useful sequence of calls.
FUZZ_SCRIPTS = $(FUZZ_OPTIONS) -len_control=0 -max_len=1024

fuzz: ## Fuzz the review parser, then the host functions of each calling convention, a minute each (SECONDS_TO_FUZZ=60)
	@command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	cd crates/core && mkdir -p fuzz/corpus/review && $(FUZZ) review fuzz/corpus/review ../../examples/reviews -- $(FUZZ_OPTIONS)
	cd crates/engines && for abi in wapc opa wasi; do \
	  mkdir -p fuzz/corpus/$$abi && $(FUZZ) $$abi fuzz/corpus/$$abi -- $(FUZZ_SCRIPTS) || exit 1; \
	done

fuzz-api: ## Fuzz the REST API with valid and invalid requests from its OpenAPI document (needs Python; EXAMPLES=50)
	cargo build --locked -p policy-server
	e2e/fuzz/api.sh $(TARGET)/debug/policy-server $(TARGET)/tmp --max-examples $(or $(EXAMPLES),50)

# Installs the programs that the tests need in addition to Rust, a C compiler and Go.
tools:
	@command -v curl >/dev/null || $(call install,curl)
	@command -v faketime >/dev/null || $(call install,faketime)

# Builds with the features of the tests of the whole workspace: with other features, the tests would compile most of it again.
# Cargo adds the features of dev-dependencies only if the build contains a test, so `--test node` is here.
harness:
	cargo build --locked --workspace --bin proviso-e2e --test node

# A target, and not a part of the first test that needs it, so that the progress is visible. It does not need the harness, so Go
# and Cargo can run at the same time: `make control-plane & make test`.
control-plane: tools
	@command -v go >/dev/null || $(call install,golang-go)
	@e2e/go/build.sh $$([ -n "$$KUBEBUILDER_ASSETS" ] || echo control-plane) registry

# Without root a full node cannot start, so no packages are installed.
node-tools: harness
	@[ "$$(id -u)" != 0 ] || { packages=$$($(E2E) packages) && [ -z "$$packages" ]; } || $(call install,$$packages)

# Installs a package. Use it after a check: `command -v X || $(call install,X)`.
install = { echo "installing $(1)"; \
	  sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$sudo apt-get update -q && $$sudo apt-get install -yq -o DPkg::Lock::Timeout=120 $(1) || \
	  { echo "install $(1) by the means of your system, then try again"; exit 1; }; }
