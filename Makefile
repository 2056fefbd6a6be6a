# One entry point for every routine task. `make` alone lists them.
# The first of these that runs (a name on the PATH may be a shim of a version that is not installed).
PYTHON ?= $(shell for v in 3.11 3.12 3.13; do python$$v -c '' 2>/dev/null && { echo python$$v; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
# uv from the PATH, else the one that `make install` puts into the virtual environment.
UV := $(or $(shell command -v uv),$(BIN)/uv)
# The embedded profile needs no model hub; telemetry and update checks stay off.
export HF_HUB_OFFLINE ?= 1
export NO_ALBUMENTATIONS_UPDATE := 1
export DAGSTER_DISABLE_TELEMETRY := 1
# glibc returns large blocks to the kernel after every step otherwise: a third of the CPU time went to page faults.
export MALLOC_MMAP_MAX_ := 0
export MALLOC_TRIM_THRESHOLD_ := 100000000000
export MALLOC_TOP_PAD_ := 268435456

# cpu: torch's build without CUDA, from PyTorch's own index (uv knows it), of which the lock has no hashes; chosen once
# per environment.
TORCH ?= $(shell cat $(VENV)/.torch 2>/dev/null)
CPU_PACKAGES = $(shell sed -nE 's/^((torch|torchvision)==[^ ]+).*/\1/p' requirements.lock)
# What that build replaces, and what only the other one needs.
CPU_LOCK = awk '/^[a-z0-9]/ { keep = $$0 !~ /^(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==/ } keep' requirements.lock

# What only the second of two locks has.
DEV_LOCK = awk '/^[a-z0-9]/ { split($$0, pin, "=="); keep = !(pin[1] in first) } NR == FNR { first[pin[1]]; keep = 0 } keep'
PIP = env -u PYTHONDONTWRITEBYTECODE $(UV) pip install --quiet --python $(BIN)/python --compile-bytecode

.DEFAULT_GOAL := help
.PHONY: help install install-dev lock demo test test-all test-wheel torture mutants check format ui train-embedded bench bench-downstream bench-performance docs audit screenshots clean

help: ## List the tasks
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-18s\033[0m %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || test -x $(BIN)/python || \
		{ echo "need Python 3.11, 3.12 or 3.13 on the PATH (or make PYTHON=/path/to/python)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x "$(UV)" || $(BIN)/python -m pip install --quiet uv
	test -z "$(TORCH)" || test "$(TORCH)" = cpu || { echo "TORCH may be cpu, or nothing for torch's default build; got $(TORCH)"; exit 1; }
ifeq ($(TORCH),cpu)
	$(CPU_LOCK) > $(VENV)/requirements.cpu.lock
	$(PIP) --no-deps --require-hashes -r $(VENV)/requirements.cpu.lock
	$(PIP) --no-deps --torch-backend cpu $(CPU_PACKAGES)
else
	@test -e /proc/driver/nvidia || command -v nvidia-smi >/dev/null || test "$$(uname)" != Linux || \
		echo "no NVIDIA driver here: make install TORCH=cpu leaves out 5 of 8 GB (stop with Ctrl+C and run that instead)"
	$(PIP) --require-hashes -r requirements.lock
endif
	@echo "$(TORCH)" > $(VENV)/.torch
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $@

$(VENV)/.developers: $(VENV)/.installed requirements-dev.lock
	$(PIP) --no-deps --require-hashes -r requirements-dev.lock
	touch $@

install: $(VENV)/.installed ## Set up what a run needs, the exact versions of requirements.lock (TORCH=cpu: without CUDA)
	@test "$(TORCH)" = "$$(cat $(VENV)/.torch 2>/dev/null)" || \
		{ echo "$(VENV) holds torch's other build: rm -rf $(VENV), then make install again"; exit 1; }

install-dev: install $(VENV)/.developers ## Add requirements-dev.lock: all extras, and what tests need

COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate
lock: $(VENV)/.installed ## Bring both locks in line with pyproject.toml (UPGRADE=--upgrade: newest versions)
	cat requirements.lock requirements-dev.lock > $(VENV)/all.lock
	$(COMPILE) --extra dev --generate-hashes $(UPGRADE) --output-file $(VENV)/all.lock pyproject.toml
	$(COMPILE) --generate-hashes --constraint $(VENV)/all.lock --output-file requirements.lock pyproject.toml
	$(DEV_LOCK) requirements.lock $(VENV)/all.lock > requirements-dev.lock

demo: install ## Run the whole chain on the embedded pool and write the report
	$(BIN)/curate demo

# A file is one process's, so that what its tests share is made once; the dearest files come first (tests/conftest.py).
# Without bytecode each of the programs that tests start would compile the package again.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations=30
PROCESSES := 2
test-all: PROCESSES := 3 # some tests wait for other programs

test: install-dev ## Run the quick tests
	$(PYTEST) -m "not slow and not infra"

test-all: install-dev ## Run every test, those marked slow (seconds to minutes) or infra (other programs) too, as CI does
	$(PYTEST)

test-wheel: install-dev ## Build the wheel, install it elsewhere, run pools from an empty folder
	$(BIN)/python tests/packaging/wheel_smoke.py --uv $(abspath $(UV))

torture: install-dev ## Kill, damage and fill up what can be; write the table of docs/operator/reliability.md (under an hour; SEED=7: those tries again)
	$(BIN)/python -m tests.torture $(if $(SEED),--seed $(SEED)) --into docs/operator/reliability.md

mutants: install-dev ## Put faults into a copy of the code; tests must fail for each (a quarter of an hour)
	$(BIN)/python -m tests.mutants

check: install-dev ## Lint, format check, types and which room imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: install-dev ## Format the code and sort the imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ui: install ## Open the Dagster UI on http://127.0.0.1:3000 (same graph, sensors)
	$(BIN)/curate ui

train-embedded: install-dev ## Rebuild the shipped models from scratch (about an hour on two cores)
	$(BIN)/python -m lab --out curation_assets/embedded/weights

bench: install-dev ## Held-out quality of the embedded models
	$(BIN)/python benchmarks/quality.py

bench-downstream: install-dev ## What subsets are worth to models trained on them (an hour)
	$(BIN)/python benchmarks/training_sets.py

bench-performance: install-dev ## Speed of student, selection, teachers and signals against plain loops (SHARED=DIR of data; half an hour)
	$(BIN)/python benchmarks/performance.py --shared $(SHARED) --into benchmarks/results/performance.md
	$(BIN)/python -m benchmarks.generation --shared $(SHARED) --into benchmarks/results/performance.md
	$(BIN)/python -m benchmarks.text_signals --shared $(SHARED) --into benchmarks/results/performance.md
	$(BIN)/python -m benchmarks.image_signals $(SHARED)/data/photos $(if $(PEERS),--peers $(PEERS)) --into benchmarks/results/performance.md

docs: install-dev ## Write the pages of docs/ that are made from the code
	$(BIN)/python docs/contributor/make_options.py
	$(BIN)/curate methods --into docs/user/methods.md
	$(BIN)/python docs/contributor/make_architecture.py
	$(BIN)/python docs/contributor/make_licences.py
	$(BIN)/python docs/contributor/make_format.py
	$(BIN)/python -m benchmarks.papers --coverage --into docs/user/papers.md

audit: install-dev ## Ask an index of vulnerabilities about every locked version (SECURITY.md)
	$(UV) tool run pip-audit --strict --disable-pip --require-hashes -r requirements.lock -r requirements-dev.lock

screenshots: install-dev ## Redraw the pictures of the README (needs chromium on the PATH)
	$(BIN)/python docs/contributor/make_pictures.py

clean: ## Remove everything the pipeline wrote (declarations of pools stay)
	rm -rf data/work data/dagster data/catalog.duckdb data/reports data/robots_txt
