# The project lives in its own environment (docs/decisions/0001): nothing is installed outside .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SITE ?= config/sites/simulation.toml

.PHONY: run test faults install lint lock bench

run: install
	$(BIN)/pkm run $(SITE) --demo

test: install
	$(BIN)/python -m pytest

# Every fault of network, PLC, terminals and instruments played to the whole system, and the table of what came of it.
faults: install
	$(BIN)/python -m pytest tests/hil/test_faults.py --table

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: install
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.loop
	$(BIN)/python -m benchmarks.broker
	$(BIN)/python -m benchmarks.tracking
	$(BIN)/python -m benchmarks.exchange
	$(BIN)/python -m benchmarks.lines

install: $(VENV)/installed

$(VENV)/installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# After a change of the dependencies in pyproject.toml.
lock:
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-emit-index-url --no-annotate \
		--no-header --output-file requirements.lock pyproject.toml
