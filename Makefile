# `make` alone prints what there is. Everything runs in .venv; nothing is installed outside this folder.
PYTHON ?= python3
SEEDS ?= 100
# Fresh ones each time; a failure names its seed, and FIRST_SEED=S SEEDS=1 runs it again.
FIRST_SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input --quiet
# Folders appear in the tree one by one; the checkers refuse a missing one.
CHECKED := $(wildcard minka minkad minkactl pyspark_minka tests benchmarks demo examples tools/*.py)

# Compiled once, not again by each daemon that a test starts.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install protos protos-check api lint format test test-compiled unit demo demo-spark soak bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  PYTHON=python3.12 picks the interpreter that .venv is made from (3.11 or newer; only when it is made)."

install: $(VENV)/.installed $(VENV)/.spark ## Make .venv: the pinned packages, and minka itself in place (fast when up to date)

$(PY):
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON); install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: minka needs Python 3.11 or newer and $(PYTHON) is $$($(PYTHON) -V); try make install PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) can't make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# PIP_USE_PEP517: pip older than 23.1 would otherwise run setup.py itself.
$(VENV)/.demo-data $(VENV)/.spark: export PIP_USE_PEP517 := 1
# --no-deps: the files list the whole closure, and `pip check` says so if they don't.
$(VENV)/.packages: requirements.txt requirements-dev.txt | $(PY)
	$(PIP) install --no-deps --requirement requirements-dev.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.packages pyproject.toml client/pyproject.toml
	$(PIP) install --no-deps --no-build-isolation --editable ./client --editable .
	$(PIP) check
	@touch $@

# Apart from the rest: it is 900 MB, and `make demo` needs nothing of it.
$(VENV)/.spark: requirements-spark.txt $(VENV)/.installed
	$(PIP) install --no-deps --no-build-isolation --requirement requirements-spark.txt
	$(PIP) check
	@touch $@

$(VENV)/.demo-data: requirements-demo.txt $(VENV)/.installed
	rm -rf $(VENV)/demo-data
	$(PIP) install --no-deps --no-build-isolation --target $(VENV)/demo-data --requirement requirements-demo.txt
	@touch $@

protos: install ## Generate minka/v1/*_pb2* from protos/ (commit the result)
	tools/protos.sh write

api: install ## Generate docs/api.md from the library (commit the result)
	$(PY) tools/api_page.py

protos-check: install ## Fail if the generated code isn't what protos/ says
	tools/protos.sh check

lint: install protos-check ## Check style, types, layers and generated code
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy --num-workers=auto $(CHECKED)
	$(VENV)/bin/lint-imports --no-logo

format: install ## Format the code and fix what can be fixed by itself
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

test: lint ## Install, lint, and run every test, real daemons and Spark included (ten minutes on two cores)
	$(PY) -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder

# What is compiled is a part of the data port, so its tests are run.
test-compiled: install ## Compile what setup.py names in a copy of the tree, and run its tests there (needs a C compiler)
	tools/compiled.sh
	cd build/compiled && PYTHONPATH=$$PWD MINKA_COMPILED=1 ../../$(PY) -m pytest --numprocesses=auto --dist=loadfile \
	  tests/unit/test_compiled.py tests/unit/data_port tests/integration/replication/test_redis_clients.py \
	  tests/cluster/test_redis.py

unit: install ## Run the tests that need no daemon (a minute)
	$(PY) -m pytest --numprocesses=auto --dist=loadfile tests/unit

demo: $(VENV)/.demo-data ## A cluster: 336,776 flights, a node that joins, partitions that move, duties that survive a kill; with proof
	PYTHONPATH=$(VENV)/demo-data $(PY) demo/run.py

demo-spark: install $(VENV)/.demo-data ## The data pipeline on Spark: the flights are split, loaded, verified, exported, reported on (Java not needed)
	PYTHONPATH=$(VENV)/demo-data $(PY) demo/spark.py

soak: FIRST := $(FIRST_SEED)
soak: install ## Run the long tests, and the seeded ones with SEEDS fresh seeds each (default 100)
	@echo "again with the same seeds: make soak FIRST_SEED=$(FIRST) SEEDS=$(SEEDS)"
	$(PY) -m pytest -m "soak or seeds" --seeds=$(SEEDS) --first-seed=$(FIRST)

bench: install $(VENV)/.demo-data ## Measure Minka beside its peers (etcd, Redis where installed)
	$(PY) -m benchmarks

clean: ## Remove .venv, caches and build leftovers
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
