# gyre: every target sets up what it needs by itself. `make quickstart` and `make test` are all a newcomer types.

SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
HARNESSES := .cache/harnesses
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export RAY_USAGE_STATS_ENABLED := 0
export NO_MKDOCS_2_WARNING := 1

.PHONY: help setup quickstart test check lint unit docs wheel warm-start harnesses clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

setup: $(VENV)/.ready ## make the virtual environment with exact pins

$(VENV)/.ready: requirements/base.txt requirements/nodeps.txt requirements/dev.txt pyproject.toml scripts/system_packages.sh
	@bash scripts/system_packages.sh
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Python packages into $(VENV) (a few minutes)"
	@$(PIP) -r requirements/dev.txt
	@$(PIP) --no-deps -r requirements/nodeps.txt
	@$(PIP) --no-deps --no-build-isolation -e . -e tests/plugin_pkg
	@touch $@

quickstart: setup ## watch a small policy get better at coding tasks (about ten minutes on two cores)
	@$(BIN)/gyre run pipelines/quickstart.jsonnet

test: setup harnesses ## everything CI runs: checks, Ray, kill and harness tests, docs, wheel
	@$(MAKE) --no-print-directory check
	@$(BIN)/python -m pytest tests -m "not gpu and (ray or harness or sglang or browser or slow)" --timeout 600
	@$(MAKE) --no-print-directory docs wheel

check: setup ## format, lint, types, import contracts, unit, property and simulation tests (under three minutes)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint unit

lint: setup
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo 2>&1 | tail -n 4
	@$(BIN)/pyright --pythonpath $(BIN)/python | tail -n 3

unit: setup
	@$(BIN)/python -m pytest tests -m "not (ray or harness or sglang or browser or gpu or slow)" -n 2

docs: setup ## build the documentation into site/
	@$(BIN)/mkdocs build --strict --quiet

wheel: setup ## build the wheel and look into it
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	@$(BIN)/python scripts/check_wheel.py dist

harnesses: $(HARNESSES)/.ready ## install Claude Code, Codex, Qwen Code and mini-swe-agent at pinned versions (1.3 GB)

$(HARNESSES)/.ready: requirements/harnesses/package.json requirements/harnesses/package-lock.json requirements/harnesses/mini-swe-agent.txt scripts/install_harnesses.sh | setup
	@bash scripts/install_harnesses.sh $(HARNESSES) $(BIN)/python
	@touch $@

warm-start: setup ## make pipelines/models/tiny from nothing (see docs)
	@$(BIN)/python scripts/warm_start.py

clean: ## remove what the targets made, runs excepted
	@rm -rf $(VENV) $(HARNESSES) site dist build
