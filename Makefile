# `make demo`: set-up and the main job. `make test`: set-up and the whole suite. Both work on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# RUNTIME names the MIGraphX for everything that a target runs; SECOND_RUNTIME another one beside the usual one.
ifdef RUNTIME
export ONNX_BRIDGE_RUNTIME := $(if $(filter module system private,$(RUNTIME)),$(RUNTIME),$(abspath $(RUNTIME)))
endif
ifdef SECOND_RUNTIME
export ONNX_BRIDGE_SECOND_RUNTIME := $(abspath $(SECOND_RUNTIME))
endif
# Python compiles what is imported, and keeps it: pip would compile everything, and child processes again and again.
unexport PYTHONDONTWRITEBYTECODE
# What a way into MIGraphX may change, and then what a MIGraphX may: conversion, parity, a part of the zoo and of the suite.
ON_EACH_WAY := tests/migraphx/test_worker.py tests/verdicts tests/conversion/test_numbers.py
ON_EACH_RUNTIME := $(ON_EACH_WAY) tests/conversion/test_convert.py tests/conversion/test_traps.py tests/conversion/test_proof.py \
	tests/parity/test_check_layers.py tests/torch/test_zoo.py \
	$(foreach part,0 3,"tests/conformance/test_conformance.py::test_a_part[$(part)]")

RELU := <ir_version: 8, opset_import: [\"\": 17]> g (float[2] x) => (float[2] y) { a = Identity (x) y = Relu (a) }

.PHONY: help setup demo interop test test-second-runtime rules test-fast browser quark suite docs keywords package lint format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up, then clean, convert and check two networks exported from PyTorch"
	@echo "make test    set up, then run every test"
	@echo "make test-second-runtime SECOND_RUNTIME=FOLDER  the tests that concern MIGraphX, by both ways into that one"
	@echo "make test-fast  the tests that need no MIGraphX, PyTorch or browser, within a minute"
	@echo "make suite NAME=zoo  one of the long suites; ARGS='--only resnet' selects cases, ARGS=--help lists options:"
	@echo "     accuracy       train, quantize and convert two small networks, and count what they get right"
	@echo "     assignment     compare the search of quantize --min with an exhaustive one"
	@echo "     chaos          convert 200 models, 20 of them broken, while processes are killed"
	@echo "     conformance    run the ONNX standard's own backend tests, beside stock MIGraphX"
	@echo "     decoders       let small language models generate, and compare each token with ONNX Runtime"
	@echo "     differential   take thousands of generated models through every pass, and compare each with ONNX Runtime"
	@echo "     faults         plant faults in eight models, and let bisect name them"
	@echo "     fuzz           make 10,000 calls with hostile and broken input, each in a limited process"
	@echo "     gpu            compile all of these for a GPU that is not there, and compute its machine code on the CPU"
	@echo "     provider       open all of these in ONNX Runtime with its MIGraphX provider, converted or as they are"
	@echo "     quantized      convert more than 120 quantized models, and compare each with ONNX Runtime"
	@echo "     realsize       run more than 30 networks whole at real size, and compare each with ONNX Runtime"
	@echo "     rehearsal      run the passes of the gpu target on all of these without a GPU, and list those at fault"
	@echo "     third-party    convert more than 100 models that other exporters make, or that packages bring along"
	@echo "     third-party-newest  the same and more, by the newest versions of the exporters, whatever these are today"
	@echo "     ties           plant ties, chaos and low precision in forty models, and let check tell them from faults"
	@echo "     witness-study  compare the verdicts by witnesses with those at real size"
	@echo "     zoo            take many small PyTorch networks to MIGraphX, and compare each with PyTorch"
	@echo "make rules   how often each rule of legalization was applied in the suite conformance (RUNTIME=PATH names MIGraphX)"
	@echo "make docs    build the documentation into build/site, strictly"
	@echo "make keywords  write the keywords of the API's functions from the requests"
	@echo "make package  build the wheel and the sdist into dist/, check them, and try the wheel in a fresh environment"
	@echo "make interop  run the guides' examples of Olive and MLflow, the action, the hook of pre-commit, uvx and pipx"
	@echo "make lint    ruff, mypy and import-linter"
	@echo "make format  let ruff rewrite the layout"
	@echo "make bench   measure this project beside its peers, with a bound for each figure (15 GB of disk)"
	@echo "make clean   remove the virtual environment and everything that was made"

setup: $(INSTALLED)
	@$(BIN)/onnx-bridge runtime status >/dev/null 2>&1 && \
		$(BIN)/onnx-bridge runtime list --json | grep -q '"compiles_kernels": true' || \
		$(BIN)/onnx-bridge runtime install --gpu-compiler
	@$(BIN)/python -c 'from onnx_bridge.provider.environment import find; find()' 2>/dev/null || \
		$(BIN)/onnx-bridge runtime install --onnxruntime

demo: setup
	@$(BIN)/python -m fixtures.demo

browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || { \
		echo "The tests look at reports in Chromium; on Debian: apt install chromium" >&2; exit 2; }

# Quark compiles its operators when it is first used; once here, and not in several tests at a time.
quark: setup
	@$(BIN)/python -c 'from onnx_bridge.quantization.quark import load; load("quark.onnx"); load("quark.torch")'
	@$(BIN)/python -c 'import sys; from onnx_bridge.reference.quark.library import library; sys.exit(library() is None)' || { \
		echo "Quark's operators for ONNX Runtime cannot be compiled" >&2; exit 2; }

test-fast: $(INSTALLED)
	$(BIN)/python -m pytest --fast -n 2 --dist worksteal -q tests/passes tests/core tests/model tests/samples

test: setup browser quark
	$(BIN)/python -m pytest -n 2 --dist worksteal

# A folder with the official module and the C library: one run through each.
test-second-runtime: setup
	ONNX_BRIDGE_RUNTIME=$(ONNX_BRIDGE_SECOND_RUNTIME) $(BIN)/python -m pytest -n 2 --dist worksteal $(ON_EACH_RUNTIME)
	ONNX_BRIDGE_RUNTIME=$(ONNX_BRIDGE_SECOND_RUNTIME)/libmigraphx_c.so.3 $(BIN)/python -m pytest -n 2 --dist worksteal $(ON_EACH_WAY)

# The exporters have an environment of their own: what they require contradicts what the project is tested with.
# SECOND_RUNTIME names a MIGraphX of 2.16 or later, for networks of realsize that are mostly matrix products.
suite: setup $(if $(filter accuracy gpu provider quantized rehearsal,$(NAME)),quark) $(if $(filter provider third-party,$(NAME)),.venv-third-party/.installed)
	@$(BIN)/python -m fixtures.suites $(NAME) $(ARGS)

rules: setup
	@$(BIN)/python -m fixtures.suites.conformance.rules

.venv-third-party/.installed: fixtures/suites/third_party/exporters/requirements.txt fixtures/suites/third_party/exporters/constraints.txt
	@echo "Setting up .venv-third-party (once, some minutes) …"
	@test -d .venv-third-party || $(PYTHON) -m venv .venv-third-party
	@.venv-third-party/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
		-c fixtures/suites/third_party/exporters/constraints.txt -r $<
	@touch $@

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

keywords: $(INSTALLED)
	@$(BIN)/python -m docs.generator.keywords
	@$(BIN)/ruff format --quiet onnx_bridge/requests/keywords.pyi

# The hook imports the code whose reference it writes; no command is run.
docs: $(INSTALLED)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

package: $(INSTALLED)
	rm -rf dist build/package
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m check_wheel_contents dist/*.whl
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/package
	build/package/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	build/package/bin/python -c "from onnx import parser, save; save(parser.parse_model('$(RELU)'), 'build/package/relu.onnx')"
	cd build/package && bin/onnx-bridge --version && bin/onnx-bridge clean relu.onnx -o clean.onnx && bin/onnx-bridge docs install >/dev/null

# Olive, MLflow, pre-commit, the action, uvx and pipx, each in an environment that is thrown away; the network is needed.
interop: setup
	$(BIN)/python -m fixtures.interop

bench: setup
	@test -d .venv-bench || $(PYTHON) -m venv .venv-bench
	@.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@.venv-bench/bin/python -m benchmarks $(ARGS)

clean:
	rm -rf .venv .venv-bench .venv-third-party bench-models demo-output build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "Python's venv module is missing; on Debian: apt install python3-venv" >&2; exit 2; }
	@command -v g++ >/dev/null || { echo "A C++ compiler is missing; on Debian: apt install g++" >&2; exit 2; }
	@echo "Setting up .venv (once, some minutes) …"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps -c constraints.txt amd-quark
	@touch $@
