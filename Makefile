# make demo       set up, then the main job: a simulated sweep, and how to spend a larger budget
# make demo-real  the same with a real language model, tiny and trained without a GPU: some minutes
# make test       set up, then the quick tests; they need neither PyTorch nor a GPU
# make test-all   set up, then every test but those that only make nightly runs
# make test-matrix  the quick tests on Python 3.11, 3.12 and 3.13, whichever of them uv finds or can download
# make test-kernels  the quick numerical tests again, as other processors run them
# make docs       the documentation with executed tutorials, in build/docs/site, and three example reports
# make check      ruff and mypy
# make nightly    what is too long for CI: test-matrix, test-kernels, fuzz, and small faults that the tests must notice
# make fuzz       60 s of fuzzing for each log reader (SECONDS=5 for less), damaged sweeps, signals
# make real-cpu   what training without a GPU needs; .venv then takes 3.3 GB
# make trainers   beside real-cpu: TRL, and the parsers of other trainers, for `--backend command` and its tests
# make real-gpu   what training on GPUs needs
# make test-gpu   set up, then every test that needs a GPU
# make gpu-session  on a new GPU machine: set up, checks, tests, short sweeps; the outputs go to docs/gpu
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
SECONDS := 60
# Without compiling: of 40,000 modules few are ever imported, and Python keeps those compiled. Images of containers
# often forbid it to; each of the many processes that the tests start would then compile vLLM again, 13 s.
export PYTHONDONTWRITEBYTECODE :=
PIP    := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
# Where pip's own index has no CPU build of torch.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: help install real-cpu trainers on-gpu real-gpu demo demo-real test test-all test-matrix test-gpu gpu-session test-kernels nightly docs check fuzz clean

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

$(STAMPS)/docs: $(STAMPS)/base
	@echo "installing Sphinx (once)"
	@$(PIP) -e '.[docs]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/base
	@echo "installing ruff and mypy (once)"
	@$(PIP) -e '.[dev]'
	@touch $@ $(STAMPS)/test

$(STAMPS)/fuzz: $(STAMPS)/test
	@echo "installing atheris (once)"
	@$(PIP) -e '.[fuzz]'
	@touch $@

# Pinned, and without dependencies: what pip would choose itself breaks (requirements/real-cpu.txt says why).
$(STAMPS)/real-cpu: requirements/real-cpu.txt $(STAMPS)/base
	@echo "installing vLLM, DeepSpeed and PyTorch for the CPU (once)"
	@torch=$$(grep '^torch==' $<) && \
	  { $(PIP) --no-deps $$torch 2>/dev/null || $(PIP) --no-deps --index-url $(TORCH_INDEX) $$torch; }
	@$(PIP) --no-deps -r $<
	@$(BIN)/isolaw doctor >$(STAMPS)/doctor || { cat $(STAMPS)/doctor; exit 1; }
	@touch $@

# Each in a folder of its own, on PYTHONPATH where it is wanted: they ask for other versions of what isolaw uses.
$(STAMPS)/trl $(STAMPS)/parsers: $(STAMPS)/%: requirements/%.txt $(STAMPS)/base
	@echo "installing requirements/$*.txt into $(VENV)/trainers/$* (once)"
	@rm -rf $(VENV)/trainers/$*
	@$(PIP) --no-deps --target $(VENV)/trainers/$* -r $<
	@touch $@

TRAINERS = $(STAMPS)/real-cpu $(STAMPS)/trl $(STAMPS)/parsers

$(STAMPS)/real-gpu: requirements/real-gpu.txt $(STAMPS)/base
	@echo "installing vLLM, DeepSpeed and PyTorch for GPUs (once)"
	@$(PIP) --no-deps -r $<
	@$(BIN)/isolaw doctor >$(STAMPS)/doctor || { cat $(STAMPS)/doctor; exit 1; }
	@touch $@

# Whether this machine can take the CPU set; a machine with a GPU wants another one.
CPU_SET = $(BIN)/python -c 'from isolaw.doctor import examine; m = examine(); raise SystemExit(m.has_usable_gpu or not m.takes_pinned_packages)'

install: $(STAMPS)/base

real-cpu: $(STAMPS)/base
	@$(CPU_SET) || { $(BIN)/isolaw doctor; echo "make: the CPU set is for Linux on x86-64 with AVX2, without a GPU"; exit 1; }
	@$(MAKE) --no-print-directory $(STAMPS)/real-cpu

trainers: real-cpu
	@$(MAKE) --no-print-directory $(TRAINERS)

ON_GPU = $(BIN)/python -c 'from isolaw.doctor import examine; raise SystemExit(not examine().has_usable_gpu)'

on-gpu: $(STAMPS)/base
	@$(ON_GPU) || { echo "make: no GPU: nvidia-smi lists none that CUDA_VISIBLE_DEVICES leaves; try make real-cpu"; exit 1; }

real-gpu: on-gpu
	@$(MAKE) --no-print-directory $(STAMPS)/real-gpu

demo: install
	@$(BIN)/isolaw demo demo

demo-real: real-cpu
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo-real.sh demo-real

PYTEST = -m pytest -n auto --dist worksteal
QUICK  = -m "not slow and not real"

test: $(STAMPS)/test
	$(BIN)/python $(PYTEST) $(QUICK)

# Some of it waits for other processes, so two more than there are cores go side by side. A file stays on one
# worker, which shares its fixtures: the files that take longest come first, so that none runs alone at the end.
SIDE_BY_SIDE = -m pytest -n $$(($$(nproc) + 2)) --dist loadfile --no-loadscope-reorder
LONGEST = tests/test_docs.py tests/test_golden.py

# Then the rest. The CPU set comes after what the tests need, so that its pins win.
test-all: test
	@if $(CPU_SET); then $(MAKE) --no-print-directory $(TRAINERS); \
	  else echo "the CPU set of the real backend is not for this machine (isolaw doctor); its tests are skipped without it"; fi
	$(BIN)/python $(SIDE_BY_SIDE) -m "(slow or real) and not nightly" $(LONGEST) tests isolaw

test-matrix: $(STAMPS)/base
	@$(PIP) uv
	@for python in 3.11 3.12 3.13; do \
	  echo "Python $$python"; \
	  $(BIN)/uv venv --quiet --allow-existing --python $$python build/matrix/$$python && \
	  $(BIN)/uv pip install --quiet --python build/matrix/$$python -e '.[test]' && \
	  HYPOTHESIS_PROFILE=nightly build/matrix/$$python/bin/python $(PYTEST) $(QUICK) || exit 1; \
	done

# One after the other: they share the GPUs.
test-gpu: on-gpu $(STAMPS)/test real-gpu
	$(BIN)/python -m pytest -n 0 -m gpu -v -rP

gpu-session: on-gpu $(STAMPS)/test real-gpu
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/first-gpu-session.sh docs/gpu

# What rounds differently from processor to processor is BLAS: its kernels, and how its threads share the work.
KERNELS = Haswell:2 Prescott:1 $(if $(shell grep -m1 -o avx512f /proc/cpuinfo 2>/dev/null),SkylakeX:1)
# All but the odd runs of test_degenerate, which take as long as the rest and compare no numbers.
NUMERICAL = tests/fits --ignore tests/fits/test_degenerate.py

test-kernels: $(STAMPS)/test
	@for kernel in $(KERNELS); do \
	  echo "OpenBLAS for $${kernel%:*}, threads: $${kernel#*:}"; \
	  OPENBLAS_CORETYPE=$${kernel%:*} OPENBLAS_NUM_THREADS=$${kernel#*:} \
	    $(BIN)/python -m pytest -q -n auto --dist loadgroup -m "not slow" $(NUMERICAL) || exit 1; \
	done

nightly: test-matrix test-kernels fuzz
	@mkdir -p build
	$(BIN)/python scripts/mutants.py . --results build/mutants.jsonl
	@if $(CPU_SET); then $(MAKE) --no-print-directory $(TRAINERS); fi
	$(BIN)/python -m pytest -m nightly

docs: $(STAMPS)/docs
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/pages.sh build/docs
	@echo "building the site: the tutorials run, about a minute"
	@PATH="$(CURDIR)/$(BIN):$$PATH" sphinx-build -W --keep-going -E -q -d build/docs/doctrees docs build/docs/site
	@echo "Open build/docs/site/index.html in a browser."

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
	$(BIN)/python fuzz/documents.py --cases 1000
	$(BIN)/python fuzz/store.py --cases 1000
	$(BIN)/python fuzz/signals.py --signals 50

clean:
	rm -rf $(VENV) build demo demo-real .fuzz .pytest_cache .mypy_cache .ruff_cache .hypothesis
