# One entry point for every routine task. `make` alone lists them.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# The model hub is never asked for by the embedded profile; telemetry and update checks stay off.
export HF_HUB_OFFLINE ?= 1
export NO_ALBUMENTATIONS_UPDATE := 1
export DAGSTER_DISABLE_TELEMETRY := 1
# glibc returns large blocks to the kernel after every step otherwise: a third of the CPU time went to page faults.
export MALLOC_MMAP_MAX_ := 0
export MALLOC_TRIM_THRESHOLD_ := 100000000000
export MALLOC_TOP_PAD_ := 268435456

.DEFAULT_GOAL := help
.PHONY: help install demo test check format ui train-embedded bench bench-downstream screenshots clean

help: ## List the tasks
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-18s\033[0m %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "need $(PYTHON) on the PATH (or make PYTHON=/path/to/python3.11)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(VENV)/.installed ## Set up the virtual environment with the exact versions of constraints.txt

demo: install ## Run the whole chain on the embedded pool and write the report
	$(BIN)/curate demo

test: install ## Run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: install ## Lint, format check and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install ## Format the code and sort the imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ui: install ## Open the Dagster UI on http://127.0.0.1:3000 (same graph, schedules, sensors)
	$(BIN)/curate ui

train-embedded: install ## Rebuild the shipped models from scratch (about an hour on two cores)
	$(BIN)/python -m curation_assets.embedded --out curation_assets/embedded/weights

bench: install ## Held-out quality of the embedded models
	$(BIN)/python benchmarks/quality.py

bench-downstream: install ## ICC-filtered against random, several seeds (tens of minutes)
	$(BIN)/python benchmarks/downstream_seeds.py

screenshots: install ## Redraw the pictures of the README (needs chromium on the PATH)
	$(BIN)/python docs/make_pictures.py

clean: ## Remove everything the pipeline wrote (declarations of pools stay)
	rm -rf data/work data/dagster data/catalog.duckdb data/reports
