# make demo   set up and run the main job: the quickstart notebook, for real
# make test   set up and pass the tests     make test-full  everything
# make lint   ruff, mypy, import-linter, tsc, eslint
# make lab    JupyterLab on the notebooks   make bench      benchmarks     make clean
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/stamp
CARD := jupyter_aicluster/jupyter/static/card.js
LINK := $(VENV)/share/jupyter/labextensions/jupyter-aicluster

# Every Ray process would compile its modules again if bytecode could not be written (DESIGN.md section 12).
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH
export PATH := $(CURDIR)/$(BIN):$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)

.PHONY: help setup demo test test-full test-unit test-local test-notebooks test-browser lint bench lab clean

help:
	@sed -n 's/^# //p' Makefile

setup: $(STAMP) $(CARD)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	command -v uv >/dev/null || $(BIN)/python -m pip install --quiet uv
	if test -L $(LINK); then rm $(LINK); fi # an installation must not write through it
	uv pip install --quiet --python $(BIN)/python --compile-bytecode -e '.[test,dev]'
	touch $@

# The installation above has built the front end; this builds it again when its sources change.
$(CARD): $(shell find labextension -name node_modules -prune -o -name lib -prune -o -type f -print) | $(STAMP)
	npm --prefix labextension install --silent --no-audit --no-fund
	npm --prefix labextension run --silent build
	rm -rf $(LINK)
	ln -s $(CURDIR)/jupyter_aicluster/jupyter/labextension $(LINK)
	touch $@

demo: setup
	$(BIN)/python notebooks/demo.py

# Each suite is a pytest run of its own, so that a failure names its cause; all of them run, whatever fails.
SUITES := unit local notebooks browser
test: setup
	@failed=; for suite in $(SUITES); do \
		echo "=== $$suite"; $(MAKE) --no-print-directory test-$$suite || failed="$$failed $$suite"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed suites:$$failed (make test-NAME runs one)"; exit 1; fi

test-full: test

test-unit: setup
	$(BIN)/python -m pytest tests/unit tests/contract tests/server -m 'not ray'

test-local: setup
	$(BIN)/python -m pytest tests/unit tests/contract tests/local -m ray

test-notebooks: setup
	JUPYTER_AICLUSTER_HOME=$(CURDIR)/build/home JUPYTER_AICLUSTER_GPU_KIND=simulated \
	$(BIN)/python -m pytest --nbval-lax --nbval-current-env -W default notebooks

test-browser: setup
	$(BIN)/python -m pytest tests/browser

lint: setup
	ruff format --check .
	ruff check .
	mypy
	lint-imports
	npm --prefix labextension run --silent lint

bench: setup
	$(BIN)/python -m benchmarks $(ONLY)

lab: setup
	$(BIN)/jupyter lab --ServerApp.root_dir=notebooks

clean:
	rm -rf $(VENV) build dist labextension/node_modules labextension/lib jupyter_aicluster/jupyter/static jupyter_aicluster/jupyter/labextension
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
