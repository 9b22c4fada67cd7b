# Everything a person or the CI calls. The set-up lives in .venv; its stamp files make a second
# call reuse it, and a change of pyproject.toml or constraints.txt install again.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
NAME ?= optimizer_race

BIN := $(VENV)/bin
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help train setup setup-dev check lint test soak bench race

help: ## Show this list
	@echo 'make TARGET [ARGS="..."] [PYTHON=python3] [VENV=.venv]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

train: $(CORE) ## Train the first run (a minute on two cores with AMX); ARGS="data.max_steps=50" overrides
	$(BIN)/python scripts/train.py experiment=first_run $(ARGS)

setup: $(CORE) ## Install what training needs

setup-dev: $(DEV) ## Install what the tests need as well: the extras dev, sweeps, hub, s3

check: lint ## Before every commit: linters, types, layers and unit tests (under 2 minutes)
	$(BIN)/python -m pytest tests/unit -n 2 $(ARGS)

lint: $(DEV) ## Formatting, lint, types and layers alone
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict speedtronic scripts
	$(BIN)/lint-imports --no-cache

test: $(DEV) ## All tests that are not marked slow (under 6 minutes); what the CI runs
	$(BIN)/python -m pytest tests -n 2 $(ARGS)

soak: $(DEV) ## The tests marked slow; run before an issue is closed
	$(BIN)/python -m pytest tests -m slow $(ARGS)

bench: $(CORE) ## Figures of speed and memory, each beside its target
	$(BIN)/python scripts/bench.py $(ARGS)

race: $(CORE) ## AdamW against Muon, table and picture (12 minutes); NAME=my_race ARGS="data=text ..." for another
	$(BIN)/python scripts/train.py -m experiment=optimizer_race name=$(NAME) optimizer=adamw \
	  optimizer.lr=1e-3,2e-3,4e-3,8e-3 seed=1,2 $(ARGS)
	$(BIN)/python scripts/train.py -m experiment=optimizer_race name=$(NAME) optimizer=muon \
	  optimizer.muon_lr=0.02,0.03,0.05,0.08 seed=1,2 data.max_steps=108,132,148,240 $(ARGS)
	$(BIN)/python scripts/race.py outputs/$(NAME)

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo 'PYTHON must be 3.11, 3.12 or 3.13; try make PYTHON=python3.11' >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'Installing speedtronic into $(VENV) (minutes the first time)'
	$(PIP_INSTALL) torch==2.13.0 -e .
	@touch $@

$(DEV): $(CORE)
	@echo 'Installing the extras dev, sweeps, hub and s3 into $(VENV)'
	$(PIP_INSTALL) -e '.[dev,sweeps,hub,s3]'
	@touch $@
