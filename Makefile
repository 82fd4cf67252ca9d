# `make story` sets up and shows it working; `make check` sets up and runs everything CI runs.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

story: $(READY)
	$(BIN)/localspec run --max-tokens 200 "Tell me a story about a fox."

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist worksteal

overhead: $(READY)
	$(BIN)/python -m tools.overhead

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet --upgrade pip
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable ".[bench,dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: story check overhead format clean
