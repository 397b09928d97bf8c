# All commands of this project; `make help` lists them. Set-up is done once, by the first target that needs it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup java run plan maintain ui events replay verify-trade deploy deploy-values deploy-check test test-image test-versions test-long test-fast durations snapshot options docs bench rooms pictures wheel lint types location fmt clean

PORT ?= 3000
# Given on the command line only: they may mean something else in the environment.
DOMAIN = nyc
APPLY =
ALLOW_LARGE =
FORCE =
LEVELS =
TABLES =
STACK =
PARAMETERS =
NAME = lakehouse
AS = env
QUEUE =
EVENTS =
SPEED = 20
DAYS = 365
DIR =
PYTHON := .venv/bin/python
CLI := $(PYTHON) -m lakehouse_assets.cli

# The option for a variable that is 1, none for 0: whoever writes another value means something that is not done.
switch = $(if $(filter-out 0 1,$($(1))),$(error $(1) is $($(1)), it must be 1 or 0))$(if $(filter 1,$($(1))),$(2))

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: java ## Install what is needed: Python packages, Java, Spark's jars, the class-data archive
	@$(CLI) setup

run: setup ## Run a domain's whole pipeline through Dagster, table by table (the flights; DOMAIN= for another)
	@$(CLI) run --domain $(DOMAIN)

plan: setup ## Show what the declarations would change on the lake, before anything runs (TABLES="nyc.flights …")
	@$(CLI) plan $(TABLES)

maintain: setup ## Show which maintenance the tables need, and why (APPLY=1 to do it; LEVELS="collect", TABLES="nyc.flights …", FORCE=1)
	@$(CLI) maintain $(call switch,APPLY,--apply) $(call switch,ALLOW_LARGE,--allow-large) $(call switch,FORCE,--force) $(addprefix --level=,$(LEVELS)) $(TABLES)

ui: setup ## Serve the Dagster UI and the daemon on 127.0.0.1:3000 (PORT= to change; QUEUE=1 with a queue of its own, EVENTS=1 with Kafka and PostgreSQL)
	@exec $(if $(call switch,QUEUE,1),$(PYTHON) -m scripts.local_queue,$(if $(call switch,EVENTS,1),$(PYTHON) -m scripts.local_sources,$(CLI) ui)) --port $(PORT)

replay: setup ## Send what happened in 2013 to the sources of `make ui EVENTS=1` (SPEED=3600 times as fast, DAYS=365)
	@$(PYTHON) -m scripts.replay --speed $(if $(filter command%,$(origin SPEED)),$(SPEED),3600) --days $(DAYS)

events: setup ## Fill the drop zone, and send the arrivals to the queue of `make ui QUEUE=1` (SPEED=20 a second, DAYS=365)
	@$(PYTHON) -m scripts.events --speed $(SPEED) --days $(DAYS)

verify-trade: setup ## Load the original customs files (DIR=folder) into a lake of their own, compare with what is published
	@$(PYTHON) -m scripts.verify_trade "$(DIR)"

deploy: .venv/.synced ## Create or update a stack of deploy/stacks/, its changes shown first (STACK=lake NAME=lakehouse PARAMETERS="Parameter=value …")
	@$(PYTHON) -m scripts.deploy "$(STACK)" --name "$(NAME)" $(PARAMETERS)

deploy-values: .venv/.synced ## Print what the stacks give as variables, or write it into dagster_cloud.yaml (AS=env|cloud, NAME=)
	@$(PYTHON) -m scripts.deploy_values "$(AS)" --name "$(NAME)"

deploy-check: .venv/.synced ## Check the templates: CloudFormation's linter, our rules, the proof of the roles (Node, npm)
	$(PYTHON) -m pytest -q tests/unit/test_stack_templates.py tests/integration/test_role_policies.py

# Three processes on two cores, because tests wait a third of their time. Each file's tests run in one of them: they share
# a server or a JVM. In the order of the folders, so that the small files come last and none works alone for long.
PYTEST := scripts/in_memory $(PYTHON) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=25

test: setup ## Run what every change must pass (minutes)
	$(PYTEST) -m "not long"

test-long: setup ## Run everything else, before an issue is called resolved (an hour)
	$(PYTHON) -m tests.versions
	$(PYTEST) -m long

test-image: setup ## Run the Dockerfile's steps in a Debian root and try the image (minutes; root, mmdebstrap)
	LAKEHOUSE_TEST_IMAGE=1 $(PYTHON) -m pytest tests/integration/test_dockerfile.py

test-versions: setup ## Test the worker on the Spark and Iceberg versions of EMR, their environments built once (minutes)
	$(PYTHON) -m tests.versions
	$(PYTHON) -m pytest tests/integration/test_versions.py

test-fast: .venv/.synced ## Run the tests that need no JVM and no server and take no time, in some minutes
	scripts/in_memory $(PYTHON) -m pytest -n 2 -m fast

# What it writes is reviewed like code: a test that takes over 20 seconds must say why, see tests/durations.py.
durations: setup ## Write down how long the tests of `make test` take, on a machine that does nothing else
	$(PYTEST) -m "not long" --junitxml=.pytest_cache/durations.xml
	$(PYTHON) -m tests.durations .pytest_cache/durations.xml

snapshot: .venv/.synced ## Rewrite the texts of the whole code location and of the component's schema, to be reviewed
	UPDATE_SNAPSHOT=1 $(PYTHON) -m pytest -q tests/unit/test_definitions.py tests/unit/test_component.py

bench: setup ## Measure, side by side (two hours; NAMES="backfill runs" for some of it)
	$(PYTHON) -m bench $(NAMES)

options: .venv/.synced ## Rewrite docs/options.md, the reference of all options, from the docstrings
	$(PYTHON) -m scripts.options

docs: .venv/.synced ## Build README and docs/ as a site that needs no server: site/index.html
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

rooms: .venv/.synced ## Draw which room of the code imports which, and their sizes (CHECKOUTS="… …" for others)
	@$(PYTHON) -m scripts.rooms $(CHECKOUTS)

pictures: setup ## Remake the pictures of README and docs/ from a run of its own (minutes; needs chromium)
	$(PYTHON) -m scripts.pictures

wheel: ## Build the wheel that `pip install` takes, into dist/
	scripts/uv build --wheel

lint: .venv/.synced ## Check style, types, the borders between the rooms, the lock file, the pages and the code location
	scripts/uv lock --check
	.venv/bin/ruff check
	.venv/bin/ruff check --config lakehouse_assets/worker/ruff.toml lakehouse_assets/domains/*/steps.py lakehouse_assets/*/worker.py lakehouse_assets/extensions/*/worker.py
	.venv/bin/ruff format --check
	@$(MAKE) --no-print-directory --jobs=2 --output-sync types docs location

types: .venv/.synced
	.venv/bin/mypy

location: .venv/.synced
	.venv/bin/dagster definitions validate -w workspace.yaml --log-level warning

fmt: .venv/.synced ## Format the code and mend what the linter can
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

clean: ## Remove the environment and caches; never LAKEHOUSE_HOME
	rm -rf .venv .tools .pytest_cache .ruff_cache .mypy_cache .hypothesis dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java: .venv/.synced
	@scripts/java

# The stamp makes a second `make run` quick; uv decides what has to change. Bytecode is compiled here once, so that where
# Python may not write it, a process that imports Dagster or Spark starts a second earlier.
.venv/.synced: pyproject.toml uv.lock
	@echo "installing the Python packages (1 GB, once; takes minutes) …"
	@scripts/uv sync --locked --compile-bytecode $$([ -t 2 ] || echo --quiet)
	@touch $@
