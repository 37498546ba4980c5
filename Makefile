# make demo   set up, run the main job on the embedded dataset, say where its results are
# make test   set up, then every test that needs no network and no GPU
# make check  lint and types
# make flower set up an environment with Flower, then the tests of deployment with real processes (half an hour)

PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/ready

.PHONY: demo test check flower format clean

demo: $(READY)
	$(BIN)/python -m equipoise.demo

test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not slow and not gpu and not flower" $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Flower asks for other versions of some of our dependencies than constraints.txt: an environment of its own.
flower: .venv-flower/ready
	.venv-flower/bin/python -m pytest -m flower tests/e2e/test_flower*.py $(ARGS)

.venv-flower/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	.venv-flower/bin/pip install --quiet --disable-pip-version-check --editable '.[flower]' pytest pytest-timeout hypothesis
	@touch $@

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch goes in first and by itself: its exact version decides which build is taken.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .venv-flower .pytest_cache .mypy_cache .ruff_cache .hypothesis dist runs
