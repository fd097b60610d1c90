# `make help` lists the targets. A new machine needs only Python 3.11 or newer and make: the first target
# that is run installs the pinned uv into .uv and the packages of requirements.lock into .venv, and later
# ones repeat that only after a change of the lock file or pyproject.toml.

UV_VERSION := 0.13.7

IS_RIGHT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	if "$$p" -c '$(IS_RIGHT)' 2>/dev/null; then echo "$$p"; exit; fi; done; echo python3)

UV := .uv/bin/uv
UV_READY := .uv/.ready-$(UV_VERSION)
READY := .venv/.ready
BIN := .venv/bin

ARGS ?=
KUBECONFIG ?=
UPGRADE ?=
N ?=
MINUTES ?= 10
OPERATIONS ?= 1000000
SEED ?=
QUICK ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test lint format types contracts conformance torture fuzz soak bench controlplane e2e bench-kube lock clean

help: ## list all targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## create .venv with all dependencies
	@printf 'ready: %s\n' .venv

demo: $(READY) ## run a mixed workload on a temporary instance (ARGS=--plan: only draw a plan)
	@$(BIN)/penstock demo $(ARGS)

test: lint types contracts ## run lint, types, contracts and all tests
	@printf '==> tests\n'
	@$(BIN)/pytest -n 2 --dist loadgroup $(ARGS)

lint: $(READY) ## check lint rules and formatting
	@printf '==> lint rules\n'
	@$(BIN)/ruff check .
	@printf '==> formatting\n'
	@$(BIN)/ruff format --check .

format: $(READY) ## format all files and apply automatic fixes
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

types: $(READY) ## check types with mypy in strict mode
	@printf '==> types\n'
	@$(BIN)/mypy

contracts: $(READY) ## check the import contracts between packages
	@printf '==> import contracts\n'
	@$(BIN)/lint-imports

conformance: $(READY) ## run only the tests that compare the output with Fluxion's
	@$(BIN)/pytest -n 2 tests/conformance $(ARGS)

torture: $(READY) ## kill N processes of an instance, then compare index and walker (N=100, OPERATIONS=1000000, SEED=)
	@$(BIN)/python -m tests.torture $(or $(N),100) $(SEED)
	@$(BIN)/python -m tests.property.index_histories --operations $(OPERATIONS) --seed $(or $(SEED),1)

fuzz: $(READY) ## handle N fuzzed facts and commands, and a tenth of them with PostgreSQL (N=1000000, SEED=1)
	@$(BIN)/python -m tests.fuzz --inputs $(or $(N),1000000) --seed $(or $(SEED),1)
	@$(BIN)/python -m tests.fuzz --inputs $$(( $(or $(N),1000000) / 10 )) --seed $(or $(SEED),1) --postgres

soak: $(READY) ## keep a simulated cluster busy and faulty, then check that all is in order (MINUTES=10, SEED=)
	@$(BIN)/python -m tests.kubernetes.soak $(MINUTES) $(SEED)

bench: $(READY) ## run the benchmarks and print the results (QUICK=1: some cells within two minutes)
	@$(BIN)/python -m bench --directory .cache/bench $(if $(QUICK),--quick) $(ARGS)
	@$(if $(QUICK),:,$(BIN)/python -m bench.state_costs)

controlplane: $(READY) ## build etcd, Kubernetes and kwok into the user's cache, for tests and `penstock dev`
	@$(BIN)/python hack/controlplane/build.py

e2e: $(READY) ## run the Kubernetes tests (KUBECONFIG=FILE: on that cluster; default: on a simulated one)
	@PENSTOCK_E2E_KUBECONFIG="$(abspath $(KUBECONFIG))" $(BIN)/pytest tests/kubernetes $(ARGS)

bench-kube: $(READY) ## compare with kube-scheduler on one control plane and print the results
	@$(BIN)/python -m bench.kube $(ARGS)

lock: $(UV_READY) ## compile requirements.lock from pyproject.toml (UPGRADE=--upgrade: to the newest versions)
	@printf '==> compiling requirements.lock\n'
	@$(UV) --system-certs pip compile pyproject.toml --group dev --universal --generate-hashes --no-emit-index-url \
		--no-header --quiet $(UPGRADE) -o requirements.lock

clean: ## remove all files that make and its tools have created
	@rm -rf .venv .uv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .cache dist
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Uses an installed uv of the pinned version; otherwise pip installs it into a separate environment.
$(UV_READY):
	@$(PYTHON) -c '$(IS_RIGHT)' || { \
		echo "Penstock needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Use another Python: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@if [ "$$($(UV) --version 2>/dev/null | cut -d ' ' -f 2)" = '$(UV_VERSION)' ]; then :; \
	elif [ "$$(uv --version 2>/dev/null | cut -d ' ' -f 2)" = '$(UV_VERSION)' ]; then \
		rm -rf .uv && mkdir -p .uv/bin && ln -s "$$(command -v uv)" $(UV); \
	else \
		printf '==> installing uv %s\n' '$(UV_VERSION)'; \
		rm -rf .uv && $(PYTHON) -m venv .uv && \
		.uv/bin/python -m pip install --quiet --disable-pip-version-check 'uv==$(UV_VERSION)'; \
	fi
	@touch $@

$(READY): requirements.lock pyproject.toml $(UV_READY)
	@if ! $(BIN)/python -c '$(IS_RIGHT)' 2>/dev/null; then \
		printf '==> creating .venv\n'; \
		$(UV) venv --quiet --clear --no-python-downloads --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv; \
	fi
	@printf '==> installing requirements.lock\n'
	@$(UV) --system-certs pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@printf '==> installing penstock\n'
	@$(UV) --system-certs pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@
