# `make online` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= [plots,video,test,dev,docs]
# For example: make online ARGS="--env=pendulum --num_steps=20000"
ARGS ?=

.PHONY: online test check lint types docs docs-build clean

online: $(VENV)/ready
	$(BIN)/python -m experiments.online $(ARGS)

test: $(VENV)/ready
	$(BIN)/python -m pytest $(ARGS)

check: lint types docs-build test

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/pyright

docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

docs-build: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The environment is rebuilt when what it is made from changes.
$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "qusac_jax needs Python 3.11 or newer; name one with PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.$(EXTRAS)'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
