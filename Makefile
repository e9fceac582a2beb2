.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench docs clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stepjepa-setup
PIP := $(BIN)/python -m pip install
ARGS ?=
WORKERS ?= 2

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  Options for a command go in ARGS, as in: make demo ARGS='--seed 1'"

setup: $(STAMP) ## create .venv and install the library with its development tools

# A system Python without ensurepip cannot make a virtual environment that has pip in it, so virtualenv is
# fetched into a throw-away folder and makes it instead.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || ( \
	  rm -rf $(VENV) .venv-bootstrap && \
	  $(PYTHON) -m pip install --quiet --target .venv-bootstrap virtualenv && \
	  PYTHONPATH=.venv-bootstrap $(PYTHON) -m virtualenv --quiet $(VENV) && \
	  rm -rf .venv-bootstrap )

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev,analysis]' -c constraints.txt
	@touch $@

demo: setup ## train a small model with and without JEPA on built-in data and compare (3 minutes)
	$(BIN)/stepjepa demo --output_dir runs/demo $(ARGS)

test: setup ## run the tests
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

lint: setup ## ruff (rules and formatting) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## measure the cost of a training step against the alternatives
	$(PIP) -e '.[bench]' -c constraints.txt
	$(BIN)/python benchmarks/step_cost.py $(ARGS)

docs: setup ## build the documentation into site/
	$(PIP) -e '.[docs]' -c constraints.txt
	$(BIN)/mkdocs build --strict

clean: ## remove caches and built documentation, keep .venv and runs/
	rm -rf site dist build .pytest_cache .mypy_cache .ruff_cache .venv-bootstrap
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
