# `make demo` and `make test` need nothing but Python 3.11+, gcc and make: they build .venv first.
PYTHON ?= python3
BIN = .venv/bin
TORCH = $(shell grep '^torch==' constraints.txt)

.PHONY: help demo test slow flower check lint reference docs bench board attack clean

help:
	@echo "make demo   compare six methods on unequal devices, and write a report"
	@echo "make test   run the tests"
	@echo "make check  ruff, mypy and the tests: what a reviewer would run"
	@echo "make slow   the tests that take minutes"
	@echo "make flower the tests of federations over Flower, which needs a Python environment of its own"
	@echo "make docs   the documentation as a site in build/site"
	@echo "make reference   docs/settings.md, from the docstrings"
	@echo "make bench  the benchmarks"
	@echo "make attack MINUTES=30   kills, hostile replies, mutated messages, damaged folders, odd inputs"
	@echo "make board  docs/results.md and the pages behind it, from the run folders in results/"

# torch comes first and alone: asked for by a range, pip would take a build with gigabytes of CUDA.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Potluck needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: .venv/ready
	$(BIN)/potluck compare

# One process per core; tests that share runs (xdist_group) stay together.
PARALLEL = -n auto --dist loadgroup

test: .venv/ready
	$(BIN)/python -m pytest $(PARALLEL)

slow: .venv/ready
	$(BIN)/python -m pytest -m slow $(PARALLEL)

# Flower's pins and ours exclude each other, so it has an environment of its own.
.venv-flower/ready: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt -e '.[flower]' pytest hypothesis
	@touch $@

flower: .venv-flower/ready
	FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 .venv-flower/bin/python -m pytest -m "slow or not slow" tests/flower

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

reference: .venv/ready
	$(BIN)/python -m potluck.reference

# Not --quiet: it would hide warnings from --strict too.
docs: .venv/ready
	$(BIN)/python -m potluck.reference --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: .venv/ready
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/population.py
	$(BIN)/python benchmarks/measure.py
	$(BIN)/python benchmarks/rounds.py --workloads W1,W4 --systems bare,serial,pool

MINUTES ?= 10
SEED ?= 0
attack: .venv/ready
	cd tests && ../$(BIN)/python -m attack --minutes $(MINUTES) --seed $(SEED)

board: .venv/ready
	$(BIN)/python results/board.py

clean:
	rm -rf .venv .venv-flower build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
