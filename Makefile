# The project lives in its own environment (docs/decisions/0001): nothing is installed outside .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SITE ?= config/sites/simulation.toml

.PHONY: run demo test faults install lint lock bench docs wheels deploy-test

run: install
	$(BIN)/pkm run $(SITE)

# The same with a built-in operator: ready, moves, sines until Ctrl-C.
demo: install
	$(BIN)/pkm run $(SITE) --demo

# What runs in real time has the computer for itself.
test: install
	$(BIN)/python -m pytest -n 2 -m "not real_time"
	$(BIN)/python -m pytest -m real_time

# Every fault of network, PLC, terminals and instruments played to the whole system, and the table of what came of it.
faults: install
	$(BIN)/python -m pytest tests/hil/test_faults.py --table

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

# The site in build/docs, with an error for every link that leads nowhere; what the code knows better is made first.
docs: install
	$(BIN)/python docs/generate.py
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs build/docs
	@echo "open build/docs/index.html"

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

# Everything that deploy/install/install.sh needs on a computer without network, for the Python that runs this.
wheels: install
	rm -rf build/lib build/wheels
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --constraint requirements.lock \
		--wheel-dir build/wheels .$(WHEELS_EXTRAS)

# Install, start, upgrade, roll back and remove in an empty Debian with systemd; as root, with debootstrap and nspawn.
deploy-test: wheels
	$(BIN)/python -m pytest tests/deploy/installation.py

# After a change of the dependencies in pyproject.toml.
lock:
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-emit-index-url --no-annotate \
		--no-header --output-file requirements.lock pyproject.toml
