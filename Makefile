# `make serve` runs a cluster on this machine, `make test` runs every check. Python 3.10 to 3.13.
PYTHON ?= python3
VENV := .venv
ARGS ?=

BIN := $(VENV)/bin
SERVE_STAMP := $(VENV)/.installed-serve
TEST_STAMP := $(VENV)/.installed-test

.PHONY: serve test harness clean help
.DEFAULT_GOAL := help

help:
	@echo 'make serve             serve the demo model on 127.0.0.1:8000 until Ctrl-C'
	@echo 'make serve ARGS="..."  the same with flags of `pdserve up`, such as --decode 2'
	@echo 'make test              format, lint, types, import floors, tests'
	@echo 'make harness           run lm-eval and GuideLLM against the endpoint'
	@echo 'make clean             remove the virtual environment'
	@echo 'PYTHON=python3.12      the Python that makes the virtual environment'

serve: $(SERVE_STAMP)
	@$(BIN)/pdserve up $(ARGS)

test: $(TEST_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

harness: $(TEST_STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[harness]'
	$(BIN)/python -m pytest -m harness

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo 'pdserve needs Python 3.10 to 3.13: make PYTHON=python3.12 ...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps make an install happen once, and again only after pyproject.toml has changed.
$(SERVE_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable .
	@touch $@

$(TEST_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable '.[dev]'
	@touch $@ $(SERVE_STAMP)
