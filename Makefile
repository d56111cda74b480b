# Everything a contributor needs. Each target does its own set-up: a fresh clone needs Python >= 3.11 and a package index.
#   make demo    train the tic-tac-toe agent, live view, report at the end; make setup-demo only installs what it needs
#   make test    the default test suite          make test-slow   the rest, about an hour; renews its record
#   make test-slow-oldest                   those of the rest whose turn it is in CI, 25 minutes
#   make test-browser                       the web page, the report and the site's search in Debian's chromium, 2 minutes
#   make setup-vllm, test-vllm              vLLM, in an environment of its own, under the engine contract
#   make setup-peers, test-peers            TRL, in an environment of its own: losses and advantages compared
#   make setup-trl-vllm                     TRL with vLLM as its sampler, in one environment (4 GB), for earl bench e2e
#   make setup-envs, test-envs              OpenEnv and verifiers, in environments of their own, as EARL's environments
#   make setup-ray                          Ray, in an environment of its own, for earl up --on ray
#   make setup-vllm-gpu                     vLLM for CUDA cards and EARL, in one environment
#   make setup-oldest-torch                 the oldest torch that EARL takes, in an environment of its own (5 GB), for a slow test
#   make gpu-kit                            what a machine with a GPU and no network needs to run earl bench gpu
#   make setup-queue                        Ray and TransferQueue, in an environment of their own, for earl bench dispatch
#   make check   every static check              make proto       regenerate earl/v1 from proto/
#   make lock    requirements.lock again, after a change of pyproject.toml
#   make docs    the documentation as a site, into site/
#   make pictures                           the documentation's pictures from real runs, about ten minutes, with chromium

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.demo
# TRL, which `earl bench e2e` and tests/peers compare EARL with.
TRL := .venv-trl
TRL_STAMP := $(TRL)/.installed
# TRL and vLLM's CPU build in one environment, for the sampler of `earl bench e2e` that neither has alone.
TRL_VLLM := .venv-trl-vllm
TRL_VLLM_STAMP := $(TRL_VLLM)/.installed
# Ray and TransferQueue, which `earl bench dispatch` sets beside the data plane.
QUEUE := .venv-queue
QUEUE_STAMP := $(QUEUE)/.installed
# What environments of other packages stand on, where its pins clash with EARL's or are too many.
VERIFIERS := .venv-verifiers
VERIFIERS_STAMP := $(VERIFIERS)/.installed
OPENENV := .venv-openenv
OPENENV_STAMP := $(OPENENV)/.installed
# Ray, for `earl up --on ray`.
RAY := .venv-ray
RAY_STAMP := $(RAY)/.installed
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed
VLLM_TESTS := tests/contract/test_engine.py tests/contract/test_engine_life.py tests/contract/test_engine_vllm.py \
	tests/contract/test_engine_drafts.py \
	tests/integration/test_stack_vllm.py tests/integration/test_served_vllm.py \
	tests/contract/test_switch.py::test_turns_go_on_through_two_switches
VLLM_GPU := .venv-vllm-gpu
VLLM_GPU_STAMP := $(VLLM_GPU)/.installed
SGLANG := .venv-sglang
SGLANG_STAMP := $(SGLANG)/.installed
# The oldest torch that pyproject.toml allows: tests/integration/test_oldest_torch.py runs tests there.
OLDEST_TORCH := .venv-oldest-torch
OLDEST_TORCH_STAMP := $(OLDEST_TORCH)/.installed
SEED ?= 0
# Processes that share the default test suite.
TEST_WORKERS ?= 2

.PHONY: setup setup-peers setup-trl-vllm setup-demo setup-queue setup-ray setup-envs setup-vllm setup-vllm-gpu setup-sglang setup-oldest-torch gpu-kit demo test test-slow test-slow-oldest test-browser test-peers test-envs test-vllm test-sglang check lock proto docs pictures clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock tools/model.lock tools/install.py
	@$(PYTHON) tools/install.py $(VENV)
	@touch $(DEMO_STAMP) $(STAMP)

# What the demo needs is a part of it.
$(DEMO_STAMP): pyproject.toml requirements.lock tools/install.py
	@$(PYTHON) tools/install.py --extras demo $(VENV)
	@touch $(DEMO_STAMP)

setup-peers: $(TRL_STAMP)

$(TRL_STAMP): pyproject.toml requirements.lock tools/install.py tools/install_peers.py
	@$(PYTHON) tools/install_peers.py trl $(TRL)
	@touch $(TRL_STAMP)

setup-trl-vllm: $(TRL_VLLM_STAMP)

$(TRL_VLLM_STAMP): pyproject.toml requirements.lock tools/install.py tools/install_peers.py tools/install_vllm.py
	@$(PYTHON) tools/install_peers.py trl-vllm $(TRL_VLLM)
	@touch $(TRL_VLLM_STAMP)

setup-queue: $(QUEUE_STAMP)

$(QUEUE_STAMP): pyproject.toml requirements.lock tools/install.py tools/install_peers.py
	@$(PYTHON) tools/install_peers.py queue $(QUEUE)
	@touch $(QUEUE_STAMP)

setup-ray: $(RAY_STAMP)

$(RAY_STAMP): pyproject.toml tools/install.py tools/install_envs.py
	@$(PYTHON) tools/install_envs.py ray $(RAY)
	@touch $(RAY_STAMP)

setup-envs: $(VERIFIERS_STAMP) $(OPENENV_STAMP)

$(VERIFIERS_STAMP): pyproject.toml tools/install.py tools/install_envs.py
	@$(PYTHON) tools/install_envs.py verifiers $(VERIFIERS)
	@touch $(VERIFIERS_STAMP)

$(OPENENV_STAMP): tools/install.py tools/install_envs.py
	@$(PYTHON) tools/install_envs.py openenv $(OPENENV)
	@touch $(OPENENV_STAMP)

setup-vllm: $(VLLM_STAMP)

$(VLLM_STAMP): pyproject.toml requirements.lock tools/install.py tools/install_vllm.py
	@$(PYTHON) tools/install_vllm.py $(VLLM)
	@touch $(VLLM_STAMP)

# One environment for machines with CUDA cards: rollout.engine = "vllm" needs no rollout.engine_python there.
setup-vllm-gpu: $(VLLM_GPU_STAMP)

$(VLLM_GPU_STAMP): pyproject.toml requirements.lock tools/install.py tools/install_vllm.py
	@$(PYTHON) tools/install_vllm.py --gpu $(VLLM_GPU)
	@touch $(VLLM_GPU_STAMP)

gpu-kit: $(STAMP)
	@$(BIN)/python tools/gpu_kit.py

# SGLang on a CPU, for tests of its adapter: neither supported by SGLang nor part of CI.
setup-sglang: $(SGLANG_STAMP)

$(SGLANG_STAMP): pyproject.toml requirements.lock tools/install.py tools/install_sglang.py
	@$(PYTHON) tools/install_sglang.py $(SGLANG)
	@touch $(SGLANG_STAMP)

setup-oldest-torch: $(OLDEST_TORCH_STAMP)

$(OLDEST_TORCH_STAMP): pyproject.toml requirements.lock tools/install.py tools/install_oldest_torch.py
	@$(PYTHON) tools/install_oldest_torch.py $(OLDEST_TORCH)
	@touch $(OLDEST_TORCH_STAMP)

setup-demo: $(DEMO_STAMP)

demo: $(DEMO_STAMP)
	@$(BIN)/earl demo --seed $(SEED)

test: $(STAMP)
	@$(BIN)/python -m pytest -m "not slow" -n $(TEST_WORKERS) --dist worksteal --durations=15

test-slow: $(STAMP)
	@$(BIN)/python tools/slow_tests.py run

test-slow-oldest: $(STAMP)
	@$(BIN)/python tools/slow_tests.py run --turn --no-record

# Where chromium is, nothing else may be missing: a test that is skipped fails.
test-browser: $(STAMP)
	@if command -v chromium >/dev/null; \
	then EARL_TEST_NEEDS=required $(BIN)/python -m pytest tests/browser; \
	else echo "test-browser: chromium is not on PATH (Debian's package chromium): no test ran in a browser"; \
	fi

test-peers: $(STAMP) $(TRL_STAMP)
	@$(BIN)/python -m pytest tests/peers

test-envs: $(STAMP) $(VERIFIERS_STAMP) $(OPENENV_STAMP)
	@EARL_TEST_NEEDS=required $(BIN)/python -m pytest tests/envs

test-vllm: $(STAMP) $(VLLM_STAMP)
	@EARL_TEST_ENGINES=vllm $(BIN)/python -m pytest --timeout 600 $(VLLM_TESTS)

test-sglang: $(STAMP) $(SGLANG_STAMP)
	@EARL_TEST_ENGINES=sglang $(BIN)/python -m pytest --timeout 600 tests/contract/test_engine.py tests/contract/test_engine_life.py

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	cd proto && ../$(BIN)/buf lint
	$(BIN)/python tools/check_proto.py
	$(BIN)/python tools/check_source.py
	$(BIN)/python tools/check_sentences.py
	$(BIN)/python tools/check_commits.py
	$(BIN)/python tools/slow_tests.py check
	$(BIN)/python tools/check_keys.py
	$(BIN)/python -m tools.lock check
	$(BIN)/python tools/figures.py
	$(BIN)/python tools/picture_record.py
	$(BIN)/python tools/check_typescript.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock: $(STAMP)
	@$(BIN)/python -m tools.lock

proto: $(STAMP)
	@$(BIN)/python tools/check_proto.py --write

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: $(STAMP)
	@$(BIN)/python tools/pictures.py

clean:
	rm -rf $(VENV) $(TRL) $(TRL_VLLM) $(QUEUE) $(VERIFIERS) $(OPENENV) $(RAY) $(VLLM) $(VLLM_GPU) $(SGLANG) examples/env_typescript/node_modules .pytest_cache .ruff_cache .import_linter_cache .hypothesis site
