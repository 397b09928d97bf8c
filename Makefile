# Everything a person does here, by name; `make help` lists it. Set-up happens by itself, once.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup java run ui test test-image test-versions test-fast bench rooms pictures lint fmt clean

PORT ?= 3000
PYTHON := .venv/bin/python
CLI := $(PYTHON) -m lakehouse_assets.cli

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: java ## Install what is needed: Python packages, Java, Spark's jars, the class-data archive
	@$(CLI) setup

run: setup ## Run the whole pipeline through Dagster, table by table
	@$(CLI) run

ui: setup ## Serve the Dagster UI and the daemon on 127.0.0.1:3000 (PORT= to change)
	@exec $(CLI) ui --port $(PORT)

# Two at once, a file's tests in one process: most of a test is waiting, and a file's tests share a server or a JVM.
# In the order of the folders: the small ones come last and leave neither process alone for long.
test: setup ## Run all tests
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-image: setup ## Run the Dockerfile's steps in a Debian root and try the image (minutes; root, mmdebstrap)
	LAKEHOUSE_TEST_IMAGE=1 $(PYTHON) -m pytest tests/integration/test_dockerfile.py

test-versions: setup ## Test the worker on the Spark and Iceberg versions of EMR, their environments built once (minutes)
	$(PYTHON) -m tests.versions
	$(PYTHON) -m pytest tests/integration/test_versions.py

test-fast: .venv/.synced ## Run the tests that need no JVM and no server, in seconds
	$(PYTHON) -m pytest -m "not spark and not server and not browser"

bench: setup ## Measure, side by side (some minutes; NAMES="backfill runs" for some of it)
	$(PYTHON) -m bench $(NAMES)

rooms: .venv/.synced ## Draw which room of the code imports which, and their sizes (CHECKOUTS="… …" for others)
	@$(PYTHON) -m scripts.rooms $(CHECKOUTS)

pictures: setup ## Remake the pictures of README and docs/ from a run of its own (minutes; needs chromium)
	$(PYTHON) -m scripts.pictures

lint: .venv/.synced ## Check style, the border between the rooms, the lock file and the code location
	scripts/uv lock --check
	.venv/bin/ruff check
	.venv/bin/ruff check --config lakehouse_assets/worker/ruff.toml lakehouse_assets/domains/*/steps.py
	.venv/bin/ruff format --check
	.venv/bin/dagster definitions validate -w workspace.yaml --log-level warning

fmt: .venv/.synced ## Format the code and mend what the linter can
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

clean: ## Remove the environment and caches; never LAKEHOUSE_HOME
	rm -rf .venv .tools .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java: .venv/.synced
	@scripts/java

# The stamp makes a second `make run` quick; uv itself decides what has to change. Compiled once here, a process that
# imports Dagster or Spark starts a second earlier wherever Python itself may not write its bytecode.
.venv/.synced: pyproject.toml uv.lock
	@echo "installing the Python packages (1 GB, once; minutes without a word) …"
	@scripts/uv sync --locked --quiet --compile-bytecode
	@touch $@
