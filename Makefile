# Everything a newcomer needs: `make demo` and `make test` work on a fresh Debian 12 with Python 3.11; the first run installs the rest.
# The environment is .venv, the build is build/release; neither is made again while requirements.txt and packages.txt stay as they are.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
.DEFAULT_GOAL := help
PYTHON ?= python3
JOBS ?= $(shell nproc)
TORCH ?= 2.11.0
VENV := $(CURDIR)/.venv
export PATH := $(VENV)/bin:$(PATH)
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: help setup build test test-cpp test-python test-every test-torch test-trainers test-transformers test-tensorflow test-flax test-distributed test-cuda test-page test-sanitize stress conformance architectures jax-suite torch-suite fuzz golden demo bench bench-cuda gpu-kit check-losses docs sdist wheel lint format clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

# --- what the build stands on -----------------------------------------------------------------------------------------

.venv/debian.stamp: packages.txt | .venv/bin/pip
	@missing=$$(for p in $$(grep -v '^#' packages.txt); do \
	    dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then echo "installing Debian packages:" $$missing; \
	    $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; fi
	@touch $@

.venv/bin/pip:
	@# Debian keeps venv in a package of its own
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	    { $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv python3-dev; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/python.stamp: requirements.txt | .venv/bin/pip
	@# torch alone and first, so that nothing else decides which build of it comes
	.venv/bin/pip install --quiet $$(grep '^torch==' requirements.txt)
	.venv/bin/pip install --quiet -r requirements.txt
	@touch $@

# The package in place (python/trainc), with its entry points; the build below copies the compiled module there.
IN_PLACE := --quiet --no-deps --no-build-isolation --config-settings=editable.mode=inplace --config-settings=wheel.cmake=false -e .

.venv/package.stamp: pyproject.toml .venv/python.stamp .venv/debian.stamp
	.venv/bin/pip install $(IN_PLACE)
	@touch $@

setup: .venv/package.stamp  ## Debian packages and .venv

build/%/build.ninja: CMakeLists.txt CMakePresets.json .venv/package.stamp
	cmake --preset $*
	@touch $@

# --- what there is to do ----------------------------------------------------------------------------------------------

build: build/release/build.ninja  ## the library, its Python module and the C++ tests, in build/release
	cmake --build --preset release -j $(JOBS)

test: test-cpp test-python  ## all tests: C++, then Python

test-cpp: build
	ctest --preset release -j $(JOBS)

test-python: build
	pytest -n $(JOBS)

test-every: build  ## the Python tests with every case of the families of which `make test` runs a sample (more than 90 minutes on two slow cores)
	pytest -n $(JOBS) --every-case $(ARGS)

# Built beside .venv, for one version each: the newest build that the index has for it, which may bring gigabytes of CUDA.
.venv-torch-%/python.stamp: requirements.txt
	$(PYTHON) -m venv .venv-torch-$*
	.venv-torch-$*/bin/pip install --quiet torch==$*
	grep -v -e '^torch==' -e '^#' requirements.txt | .venv-torch-$*/bin/pip install --quiet -r /dev/stdin
	.venv-torch-$*/bin/pip install $(IN_PLACE)
	@touch $@

# Without the rooms that know no PyTorch.
test-torch: build .venv-torch-$(TORCH)/python.stamp  ## the Python tests with another PyTorch, in an environment of its own (TORCH=2.11.0)
	.venv-torch-$(TORCH)/bin/python -m pytest -n $(JOBS) --ignore tests/python/jax --ignore tests/python/keras $(ARGS)

# An environment beside .venv, whose packages it finds, so that torch is not installed again.
define beside_venv
.venv/bin/python -m venv $(1)
	.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    > $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth
endef

.venv-trainers/python.stamp: requirements-trainers.txt .venv/package.stamp
	$(call beside_venv,.venv-trainers)
	grep '^torch==' requirements.txt > .venv-trainers/constraints.txt
	.venv-trainers/bin/pip install --quiet -c .venv-trainers/constraints.txt -r requirements-trainers.txt
	@# PyPI's torchvision is built with CUDA: beside PyTorch's CPU build its import fails at declarations of operators (nms and the
	@# like) that no example calls. They go where that is so.
	@cd / && v=$(CURDIR)/.venv-trainers/bin/python && { $$v -c 'import torchvision' 2>/dev/null || sed -i '/^ *_meta_registrations,$$/d' \
	    $$($$v -c 'from importlib.util import find_spec; print(find_spec("torchvision").origin)'); } && $$v -c 'import torchvision'
	@touch $@

test-trainers: build .venv-trainers/python.stamp  ## the examples of Hugging Face's Trainer, accelerate, Lightning, PEFT, TRL, timm, torchvision with the real libraries
	PYTHONPATH=$(CURDIR)/python .venv-trainers/bin/python -m pytest tests/trainers tests/python/house/test_guide.py $(ARGS)

.venv-transformers-%/python.stamp: requirements-trainers.txt .venv/package.stamp
	$(call beside_venv,.venv-transformers-$*)
	.venv-transformers-$*/bin/pip install --quiet transformers==$* $$(grep '^accelerate==' requirements-trainers.txt)
	@touch $@

TRANSFORMERS ?= 4.57.1

test-transformers: build .venv-transformers-$(TRANSFORMERS)/python.stamp  ## the Trainer's examples with another transformers (TRANSFORMERS=4.57.1)
	PYTHONPATH=$(CURDIR)/python .venv-transformers-$(TRANSFORMERS)/bin/python -m pytest tests/trainers -k huggingface $(ARGS)

.venv-tensorflow-%/python.stamp: .venv/package.stamp
	$(call beside_venv,.venv-tensorflow-$*)
	.venv-tensorflow-$*/bin/pip install --quiet tensorflow-cpu==$*
	@touch $@

TENSORFLOW ?= 2.21.0

test-tensorflow: build .venv-tensorflow-$(TENSORFLOW)/python.stamp  ## trainc.function and Keras on TensorFlow, in an environment of its own (TENSORFLOW=2.21.0)
	PYTHONPATH=$(CURDIR)/python .venv-tensorflow-$(TENSORFLOW)/bin/python -m pytest tests/python/tf $(ARGS)

.venv-ray-%/python.stamp: .venv/package.stamp
	$(call beside_venv,.venv-ray-$*)
	.venv-ray-$*/bin/pip install --quiet 'ray[train]==$*'
	@touch $@

RAY ?= 2.60.0

.venv-flax/python.stamp: .venv/package.stamp
	$(call beside_venv,.venv-flax)
	.venv-flax/bin/pip install --quiet flax==0.12.8 optax==0.2.8 $$(grep '^jax==' requirements.txt)
	@touch $@

test-flax: build .venv-flax/python.stamp  ## a BERT in flax beside XLA, in an environment of its own
	PYTHONPATH=$(CURDIR)/python .venv-flax/bin/python -m pytest tests/python/jax/test_whole_steps.py -k flax $(ARGS)

test-distributed: build .venv-ray-$(RAY)/python.stamp  ## GPT-2, Llama, ResNet on two and four ranks under DDP and FSDP2; the launchers' examples, Ray Train's (RAY=2.60.0) too
	PYTHONPATH=$(CURDIR)/python TRAINC_MORE_RANKS=1 .venv-ray-$(RAY)/bin/python -m pytest tests/python/distributed $(ARGS)

test-cuda: build  ## steps of five models for a GPU, without one: each kernel's text on the host against the reference, NVRTC's table, the driver's calls
	TRAINC_ALL_GPU_STEPS=1 pytest -s tests/python/devices/test_gpu_steps.py $(ARGS)

test-page: build  ## trainc.report's pages in Chromium, which it installs; pictures of them in build/page
	@command -v chromium > /dev/null || \
	    { $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }
	TRAINC_PICTURES=$(CURDIR)/build/page pytest tests/python/base/test_report_in_chromium.py $(ARGS)

test-sanitize: build/sanitize/build.ninja  ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake --build --preset sanitize -j $(JOBS)
	ctest --preset sanitize -j $(JOBS)

stress: build build/sanitize/build.ninja  ## the cache against kills, full disks, strangers' files, damage (ARGS="--count 20000"; ARGS=--help)
	cmake --build --preset sanitize -j $(JOBS) --target test_plan
	TRAINC_STRESS=10000 build/sanitize/test_plan --gtest_filter='FileFuzz*'
	python tests/stress $(ARGS)

conformance: build  ## PyTorch's own tables of operations, modules and optimizers, compiled, against eager (ARGS="--ops add --jobs 2"; ARGS=--help)
	python tests/conformance $(ARGS)

architectures: build  ## all architectures of transformers, small, trained compiled and eagerly (ARGS="--only gpt2 --jobs 2"; ARGS=--help)
	python tests/architectures $(ARGS)

jax-suite: build  ## JAX's own tests, what they jit compiled by us (JAX=CHECKOUT of the installed version's tag, else the cases of JAX's wheel; ARGS="--jobs 2")
	python tests/jax_suite $(JAX) $(ARGS)

torch-suite: build  ## PyTorch's own tests of a compiler, with trainc in Inductor's place (PYTORCH=CHECKOUT of the installed version's tag; ARGS="--jobs 2")
	@test -n "$(PYTORCH)" || { echo "make torch-suite PYTORCH=CHECKOUT: of PyTorch's repository, at the tag v$$(.venv/bin/python -c 'import torch; print(torch.__version__.partition("+")[0])')"; exit 2; }
	python tests/torch_suite $(PYTORCH) $(ARGS)

fuzz: build  ## random programs, compiled against eager, for an hour (ARGS="--seconds 60"; ARGS=--help)
	python tests/fuzz $(or $(ARGS),--seconds 3600)

golden: build  ## rewrites the expected files in tests/cpp/golden; review the difference
	TRAINC_GOLDEN=rewrite ctest --preset release -R Golden
	git --no-pager diff --stat -- tests

demo: build  ## fine-tunes GPT-2 124M, eager and compiled, side by side (ARGS="--steps 40 --seq 256" for your own)
	python examples/finetune_gpt2.py $(ARGS)

bench: build  ## a training step of nine models: eager, Inductor, trainc (ARGS="--quick" takes 5 minutes; ARGS=--help)
	cmake --preset release -DTRAINC_BENCH=ON > build/release/bench.log
	cmake --build --preset release -j $(JOBS) --target bench_machine
	python bench/run.py $(ARGS)

bench-cuda: build  ## a training step on a GPU: eager, Inductor, trainc; says so where there is none (ARGS=--help)
	python bench/gpu.py $(ARGS)

gpu-kit: .venv/package.stamp  ## out/gpu-kit: what a machine with a GPU and without a network needs (ARGS="--python FILE")
	python kit/make.py --jobs $(JOBS) $(ARGS)

check-losses: build  ## GPT-2 124M, 4 x 256, 30 steps: losses against eager's own spread, through both doors (about half an hour)
	python bench/losses.py $(ARGS)

.venv-docs/python.stamp: requirements-docs.txt .venv/package.stamp
	$(call beside_venv,.venv-docs)
	.venv-docs/bin/pip install --quiet -r requirements-docs.txt
	@touch $@

PUBLIC := trainc trainc.base.config trainc.base.report trainc.base.memory trainc.base.messages trainc.base.errors trainc.jax trainc.trainers.huggingface

docs: build .venv-docs/python.stamp  ## the guide's pictures, from runs of now, and the reference of what is public in build/docs
	PYTHONPATH=$(CURDIR)/python .venv-docs/bin/pdoc --no-show-source -o build/docs $(PUBLIC)
	python bench/pictures.py docs/guide

sdist: .venv/package.stamp  ## dist/trainc-*.tar.gz: the sources, of which pip builds a wheel
	rm -rf dist/trainc-*.tar.gz
	python -c 'from scikit_build_core.build import build_sdist; print(build_sdist("dist"))'

# Another Python's environment has what builds the wheel, and JAX to train with: PyPI's PyTorch brings gigabytes of CUDA, but in WITH
# it may be named (WITH= trains with nothing: for 3.10 there is no such JAX). The wheel is built from the sources of `make sdist`, in build/, where ccache knows what was compiled before.
.venv-wheel-%/python.stamp: requirements.txt
	$* -m venv .venv-wheel-$*
	grep -E '^(scikit_build_core|nanobind|cmake|ninja|tqdm)==' requirements.txt | .venv-wheel-$*/bin/pip install --quiet -r /dev/stdin
	.venv-wheel-$*/bin/pip install --quiet --only-binary :all: numpy $(WITH)
	@touch $@

PYTHONS ?= here
WITH ?= jax==$(shell sed -n 's/^jax==//p' requirements.txt)
WHEELS := $(filter-out here,$(PYTHONS))

wheel: sdist $(WHEELS:%=.venv-wheel-%/python.stamp)  ## dist/trainc-*.whl of them, checked in fresh environments (PYTHONS="here python3.12" for more)
	rm -rf dist/trainc-*.whl build/wheelhouse; mkdir -p build/wheelhouse/tmp
	for name in $(PYTHONS); do \
	    python=.venv-wheel-$$name/bin/python; if [ $$name = here ]; then python=.venv/bin/python; fi; \
	    rm -f build/wheelhouse/*.whl; \
	    TMPDIR=$(CURDIR)/build/wheelhouse/tmp PATH=$$(dirname $$PWD/$$python):$$PATH \
	        $$python -m pip wheel --quiet --no-deps --no-build-isolation -w build/wheelhouse dist/trainc-*.tar.gz; \
	    auditwheel repair -w dist build/wheelhouse/trainc-*.whl; \
	    $$python tests/wheel.py "$$(ls -t dist/trainc-*.whl | head -n 1)"; \
	done

lint: .venv/package.stamp  ## ruff over the Python code, the layout of the C++ code
	ruff check python tests bench examples kit
	git ls-files '*.cpp' '*.h' | xargs clang-format --dry-run --Werror

format: .venv/package.stamp  ## lays out the C++ code (.clang-format)
	git ls-files '*.cpp' '*.h' | xargs clang-format -i

clean:  ## removes what was built; .venv stays
	rm -rf build dist python/trainc/_core*.so
