# `make run` to try it, `make test` before you push. All targets: `make help`.
SHELL := bash
# Cargo's own word: its configuration may put it elsewhere.
TARGET := $(shell cargo metadata --locked --no-deps --format-version 1 | sed -E 's/.*"target_directory":"([^"]*)".*/\1/')
E2E := $(TARGET)/debug/proviso-e2e
LISTEN ?= 127.0.0.1:3000
ADMIN_LISTEN ?= 127.0.0.1:3001
GUESTS := --manifest-path examples/policies/Cargo.toml --locked

.DEFAULT_GOAL := help
.PHONY: help run demo test e2e kubernetes cluster cluster-down lint deny crds openapi ledger recordings bench fuzz fuzz-api tools harness control-plane node-tools

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: ## Build, and serve examples/quickstart on loopback
	cargo build --locked -p policy-server
	@printf '%s\n' '' \
	  'Serving examples/quickstart. Try, in another terminal, from this folder:' '' \
	  '  # Denied: an image from a registry that is not trusted' \
	  '  curl -d @examples/reviews/pod-create-untrusted-image.json http://$(LISTEN)/validate/cluster.trusted-registries' '' \
	  '  # Mutated: safe defaults are filled in (the patch is base64)' \
	  '  curl -d @examples/reviews/pod-create.json http://$(LISTEN)/validate/cluster.safe-defaults' '' \
	  '  # Allowed, and denied by the experiment: look for PolicyPreviewLog in this terminal' \
	  '  curl -d @examples/reviews/deployment-create.json http://$(LISTEN)/validate/cluster.required-labels' '' \
	  'What is served: curl http://$(ADMIN_LISTEN)/readyz?verbose      Stop: Ctrl-C' ''
	@exec $(TARGET)/debug/policy-server --manifests examples/quickstart --listen $(LISTEN) --admin-listen $(ADMIN_LISTEN)

demo: tools ## Let the quickstart show itself: verdicts, previews, a reload, a bad manifest
	cargo build --locked -p policy-server
	bash examples/demo.sh $(TARGET)/debug/policy-server

test: tools lint control-plane ## Run every check and every test, but those of `make e2e`
	cargo test --locked --workspace
	cargo test $(GUESTS)

e2e: node-tools ## Run the tests that need a full node of Kubernetes, and so root
	cargo build --locked --workspace --bins
	cargo test --locked --workspace --test node --test flows

kubernetes: harness ## Build what is missing of Kubernetes, from source; show versions and folders
	@$(E2E) kubernetes

cluster: node-tools ## Start a full node to use by hand (needs root), and show how
	@$(E2E) up

cluster-down: harness ## End it
	@$(E2E) down

lint: ## Check format and lints, warnings are errors
	cargo fmt --all --check
	cargo fmt --manifest-path examples/policies/Cargo.toml --all --check
	cargo fmt --manifest-path crates/core/fuzz/Cargo.toml --check
	cargo fmt --manifest-path crates/engines/fuzz/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --test node --test flows -- -D warnings
	cargo clippy $(GUESTS) --all-targets -- -D warnings

deny: ## Check advisories, licences and duplicates of the dependencies
	@command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny --locked check

crds: ## Generate crds/*.yaml from the types
	cargo run --locked -q -p proviso-crds --bin crdgen -- crds charts/proviso-crds/templates

openapi: ## Generate docs/openapi.json from the code
	cargo run --locked -q -p proviso-api --bin openapi -- docs/openapi.json

ledger: ## Write docs/guide/rego-ledger.md from its cases
	PROVISO_RECORD=1 cargo test --locked --workspace --test ledger

recordings: ## Record examples/reviews anew from a real API server
	PROVISO_E2E_RECORD=1 cargo test --locked --workspace --test quickstart_in_a_cluster

bench: ## Measure the engines, and the server beside a bare one
	cargo bench --locked --workspace --bench '*'

# Without AddressSanitizer: the one unsafe line of all this is not on the way from guests to their host, and what wasmtime does
# is fuzzed with it by its own project. Overflows and the like are checked.
FUZZ := RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none
FUZZ_OPTIONS = -max_total_time=$(or $(SECONDS_TO_FUZZ),60) -timeout=30
# Long scripts from the beginning: what they are made of says little by itself.
FUZZ_SCRIPTS = $(FUZZ_OPTIONS) -len_control=0 -max_len=1024

fuzz: ## Fuzz the review envelope, then what guests of each kind ask of their host, a minute each (SECONDS_TO_FUZZ=60)
	@command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	cd crates/core && mkdir -p fuzz/corpus/review && $(FUZZ) review fuzz/corpus/review ../../examples/reviews -- $(FUZZ_OPTIONS)
	cd crates/engines && for abi in wapc opa wasi; do \
	  mkdir -p fuzz/corpus/$$abi && $(FUZZ) $$abi fuzz/corpus/$$abi -- $(FUZZ_SCRIPTS) || exit 1; \
	done

fuzz-api: ## Ask the REST API everything that its OpenAPI document allows, and more (needs Python; EXAMPLES=50)
	cargo build --locked --workspace --bins
	e2e/fuzz/api.sh $(TARGET)/debug/policy-server $(TARGET)/tmp --max-examples $(or $(EXAMPLES),50)

# What the tests need beside Rust and a C compiler.
tools:
	@command -v curl >/dev/null || $(call install,curl)
	@command -v faketime >/dev/null || $(call install,faketime)
	@command -v go >/dev/null || $(call install,golang-go)

# Features are those of the whole workspace: with others, the tests would compile everything again.
harness:
	cargo build --locked --workspace --bin proviso-e2e

# Here and not in the first test that wants it, so that the progress is seen.
control-plane: harness
	@$(E2E) kubernetes --control-plane

# Without root nothing comes of a full node, so nothing is installed either.
node-tools: harness
	@[ "$$(id -u)" != 0 ] || { packages=$$($(E2E) packages) && [ -z "$$packages" ]; } || $(call install,$$packages)

# As the rest of a command that found something missing.
install = { echo "installing $(1)"; \
	  sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$sudo apt-get update -q && $$sudo apt-get install -yq -o DPkg::Lock::Timeout=120 $(1) || \
	  { echo "install $(1) by the means of your system, then try again"; exit 1; }; }
