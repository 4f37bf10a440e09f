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

.PHONY: help setup demo test lint bench budgets replay clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready  ## make .venv and install the package with its tools

$(VENV)/.ready: pyproject.toml .ci/constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable '.[dev]'
	@touch $@
