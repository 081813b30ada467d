# `make online`, `make offline` and `make test` need Python 3.11.5+ or 3.12, a network, nothing else.
# (labmaze, a dependency of dm_control, has no wheels for newer versions of Python.)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= [plots,video,test,dev,docs]
# For example: make online ARGS="--env=pendulum --size=small --num_steps=20000"
ARGS ?=
# A finished short run; the same with a larger --num_steps continues it.
FIRST_RUN := --env=cartpole_swingup --size=small --num_steps=10000 --workdir=runs/cartpole_swingup
# Datasets of the pendulum, made in a minute, and a run on one of them.
COLLECT := --env=gym:Pendulum-v1 --size=small --workdir=runs/collect_pendulum --exist_ok
OFFLINE := --dataset=Pendulum-v1/medium-expert-v0 --size=small --num_steps=20000 \
  --eval_every=2000 --checkpoint_every=10000 --workdir=runs/offline_pendulum
# Processes that share the tests, a file each.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

.PHONY: online offline test test-all check lint types docs docs-build clean

online: $(VENV)/ready
	$(BIN)/python -m experiments.online $(or $(ARGS),$(FIRST_RUN))

# A finished offline run on data of its own, or any other with ARGS.
offline: $(VENV)/ready
	$(if $(ARGS),,$(BIN)/python -m experiments.collect $(COLLECT))
	$(BIN)/python -m experiments.offline $(or $(ARGS),$(OFFLINE))

# What a developer runs all day: without the tests marked `slow`.
test: $(VENV)/ready
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(VENV)/ready
	$(PYTEST) --durations=25 $(ARGS)

check: lint types docs-build test-all

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
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11, 5) <= sys.version_info < (3, 13))' \
	  || { echo "qusac_jax needs Python 3.11.5 or later, or 3.12; name one with PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.$(EXTRAS)'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
