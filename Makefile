# make demo   set up, then the main job: a simulated sweep, its law, a recommendation
# make test   set up, then every test
# make check  ruff and mypy
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help install demo test check clean

help:
	@sed -n 's/^# make/make/p' Makefile

$(STAMPS)/base: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "isolaw needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing isolaw into $(VENV) (once)"
	@$(PIP) -e .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/test: $(STAMPS)/base
	@echo "installing what the tests need (once)"
	@$(PIP) -e '.[test]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/base
	@echo "installing ruff and mypy (once)"
	@$(PIP) -e '.[dev]'
	@touch $@ $(STAMPS)/test

install: $(STAMPS)/base

demo: install
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh demo

test: $(STAMPS)/test
	$(BIN)/python -m pytest -n auto --dist worksteal

check: $(STAMPS)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
