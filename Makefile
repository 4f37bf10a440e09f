# Every target sets up what it needs from a bare clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Where torch comes from; e.g. make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

# Without an NVIDIA GPU, torch is held to a version whose CPU build pip can find, so that no CUDA packages follow.
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU')
ifeq ($(filter-out 0,$(HAS_GPU)),)
CONSTRAINTS := --constraint .ci/constraints-cpu.txt
endif

.PHONY: help setup demo test lint test-slow bench budgets replay clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready  ## make .venv and install the package with its tools

$(VENV)/.ready: pyproject.toml .ci/constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

demo: setup  ## tune a real kernel for three shapes; the second time it decides from the store
	@$(BIN)/python -m kernel_suite.demo

test: lint  ## everything CI runs: lint, types, layers, tests
	$(BIN)/python -m pytest --benchmark-disable

lint: setup
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test-slow: setup  ## the tests that take minutes: every kernel of the suite through its front door
	$(BIN)/python -m pytest --benchmark-disable -m slow

bench: setup  ## speed: forecasting, the cached call, the store
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only --benchmark-columns=min,median,rounds

budgets: setup  ## what a budget of 4, 8, 16, 32 loses against an exhaustive run, on the recorded GEMM
	@$(BIN)/forecast-autotune replay tests/traces/*.jsonl.gz --budget 4 --budget 8 --budget 16 --budget 32 --seeds 20

TRACES ?= ../shared/traces/*.json.gz
replay: setup  ## tune against recorded spaces: make replay TRACES='FILES'
	@$(BIN)/forecast-autotune replay $(TRACES) --budget 10 --budget 1% --budget 10% --seeds 10

clean:  ## remove the virtual environments and what tools left
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .benchmarks
