# Everything a contributor needs. Each target does its own set-up: a fresh clone needs Python >= 3.11 and a package index.
#   make demo    train the tic-tac-toe agent, live view, report at the end
#   make test    the default test suite          make test-slow   the rest, minutes
#   make check   every static check              make proto       regenerate earl/v1 from proto/

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEED ?= 0

.PHONY: setup demo test test-slow check proto clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml tools/install.py
	@$(PYTHON) tools/install.py $(VENV)
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/earl demo --seed $(SEED)

test: $(STAMP)
	@$(BIN)/python -m pytest -m "not slow"

test-slow: $(STAMP)
	@$(BIN)/python -m pytest -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	cd proto && ../$(BIN)/buf lint
	$(BIN)/python tools/check_proto.py
	$(BIN)/python tools/check_source.py
	$(BIN)/python tools/check_keys.py

proto: $(STAMP)
	@$(BIN)/python tools/check_proto.py --write

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis
