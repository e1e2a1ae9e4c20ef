# make demo   set up, then the main job: a simulated sweep, its law, a recommendation
# make test   set up, then every test
# make check  ruff and mypy
# make fuzz   60 s of fuzzing for each log reader; SECONDS=5 for less
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
SECONDS := 60
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help install demo test check fuzz clean

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

$(STAMPS)/fuzz: $(STAMPS)/test
	@echo "installing atheris (once)"
	@$(PIP) -e '.[fuzz]'
	@touch $@

install: $(STAMPS)/base

demo: install
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh demo

test: $(STAMPS)/test
	$(BIN)/python -m pytest -n auto --dist worksteal

check: $(STAMPS)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fuzz: $(STAMPS)/fuzz
	@mkdir -p .fuzz
	@for reader in $$($(BIN)/python fuzz/readers.py 2>/dev/null); do \
	  echo "fuzzing $$reader"; \
	  $(BIN)/python fuzz/readers.py $$reader -verbosity=0 -max_total_time=$(SECONDS) >.fuzz/log 2>&1 || \
	    { tail -40 .fuzz/log; exit 1; }; \
	  grep -E 'executed_units|peak_rss' .fuzz/log; \
	done

clean:
	rm -rf $(VENV) demo .fuzz .pytest_cache .mypy_cache .ruff_cache .hypothesis
