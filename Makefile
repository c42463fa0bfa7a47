# Every target sets up what it needs by itself, once; see docs/development.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .make
ONLY ?=
PYTEST_ARGS ?=
# One more than there are cores: many tests wait for other processes most of the time.
WORKERS ?= $(shell expr $$(nproc) + 1)
MINUTES ?= 1
SEED ?=
RUNS ?= 200
CLUSTERS ?= 1000
VARIANT ?=
MUTANTS ?=
BEHAVIOUR ?= docs/behaviour
# Without compiled files, each of the hundreds of processes that tests start would compile Dray again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-quick simulate laws fuzz mutation check bench coverage-of-behaviour reference docs format clean help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 26

# --- set-up; stamps make a second run skip it ---

$(STAMPS)/python:
	@mkdir -p $(STAMPS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dray needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "installing python3-venv"; tools/apt-install python3-venv; }
	@touch $@

$(STAMPS)/venv: $(STAMPS)/python
	@echo "creating $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(STAMPS)/run: $(STAMPS)/venv pyproject.toml
	@echo "installing dray and what it runs on"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(STAMPS)/test: $(STAMPS)/run pyproject.toml
	@echo "installing what the tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

$(STAMPS)/lint: $(STAMPS)/test pyproject.toml
	@echo "installing the linters"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,lint]'
	@touch $@

$(STAMPS)/docs: $(STAMPS)/run pyproject.toml
	@echo "installing the site generator"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

$(STAMPS)/mutation: $(STAMPS)/test pyproject.toml
	@echo "installing Cosmic Ray"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,mutation]'
	@touch $@

$(STAMPS)/kubectl:
	@mkdir -p $(STAMPS)
	@command -v kubectl >/dev/null || tools/apt-install kubernetes-client
	@touch $@

# Real containers need root anyway; without it those tests are skipped, and say so.
$(STAMPS)/containers:
	@mkdir -p $(STAMPS)
	@if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
		for pair in busybox:busybox-static containerd:containerd docker-registry:docker-registry ip:iproute2 iptables:iptables; do \
			command -v $${pair%%:*} >/dev/null || tools/apt-install $${pair##*:} || echo "no $${pair##*:}; its tests are skipped"; \
		done; \
		test -x /usr/lib/cni/bridge || tools/apt-install containernetworking-plugins || echo "no CNI plugins; their tests are skipped"; \
	fi
	@touch $@

# The dashboard's tests use the system's Chromium; without it they are skipped, and say so.
$(STAMPS)/browser:
	@mkdir -p $(STAMPS)
	@if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
		command -v chromium >/dev/null || tools/apt-install chromium || echo "no chromium; its tests are skipped"; \
	fi
	@touch $@

include release.mk

# --- what people run ---

demo: $(STAMPS)/run ## four nodes and their stories, live; leaves them running with a dashboard
	@$(BIN)/python -m dray demo --keep

test: $(STAMPS)/test $(STAMPS)/kubectl $(STAMPS)/containers $(STAMPS)/browser ## run all tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -q $(PYTEST_ARGS)

# Without processes, kubectl or containers.
test-quick: $(STAMPS)/test ## run the tests that need no other program, in about three minutes
	@$(BIN)/python -m pytest -n $$(nproc) --dist loadfile --no-loadscope-reorder -q tests/unit tests/property tests/conformance $(PYTEST_ARGS)

fuzz: $(STAMPS)/test ## fuzz every decoder of a live server; MINUTES=n, SEED=s
	@$(BIN)/python -m tests.fuzz --minutes '$(MINUTES)' $(if $(SEED),--seed '$(SEED)')

simulate: $(STAMPS)/test ## run simulations with faults; RUNS=n SEED=s, VARIANT=name for one, CRASH=all
	@$(BIN)/python -m tests.simulation --runs $(RUNS) $(if $(SEED),--seed $(SEED)) $(if $(VARIANT),--variant $(VARIANT)) $(if $(CRASH),--crash $(CRASH))

laws: $(STAMPS)/test ## check on messy clusters that the tools agree; CLUSTERS=n SEED=s
	@$(BIN)/python -m tests.property.sim --clusters $(CLUSTERS) $(if $(SEED),--seed '$(SEED)')

mutation: $(STAMPS)/mutation ## run the tests on mutants of some packages; ONLY=allocator for one, SEED=s, MUTANTS=n
	@$(BIN)/python -m tools.mutation $(ONLY) $(if $(SEED),--seed '$(SEED)') $(if $(MUTANTS),--mutants '$(MUTANTS)')

check: $(STAMPS)/lint ## ruff, mypy, import contracts, purity
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/check_purity.py

bench: $(STAMPS)/test ## run the benchmarks; ONLY=pattern picks some
	@$(BIN)/python -m bench --only '$(ONLY)'

coverage-of-behaviour: $(STAMPS)/test ## which behaviour ids no test names
	@$(BIN)/python tools/coverage_of_behaviour.py --behaviours '$(BEHAVIOUR)' tests

reference: $(STAMPS)/run ## rewrite docs/reference and the generated pictures
	@$(BIN)/python -m tools.generate_reference

docs: $(STAMPS)/docs ## build the documentation site into site/; fails on broken links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(STAMPS)/lint ## let ruff format and fix what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove everything that was made here
	rm -rf $(VENV) $(STAMPS) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site
