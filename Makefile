# The two commands are `make serve` and `make test`; `make help` lists the others.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

HOST ?= 127.0.0.1
PORT ?= 8080
MODEL ?= smollm2:135m
PYTHON ?=
TESTS ?=

BIN := .venv/bin
# One process more than two cores: tests also wait.
TOGETHER := --numprocesses 3 --dist loadscope --no-loadscope-reorder
export PYTHON

.PHONY: help setup serve test test-all check format lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' Makefile

setup: ## make .venv with the pinned packages and the jaxfold command
	@scripts/setup.sh

serve: setup ## chat with a real model at http://HOST:PORT (MODEL, HOST and PORT can be given)
	@$(BIN)/jaxfold pull $(MODEL)
	@exec $(BIN)/jaxfold serve $(MODEL) --host $(HOST) --port $(PORT)

test: setup ## run the tests but the heaviest, or those named by TESTS="tests/cli -k help"
	@$(BIN)/python -m pytest $(if $(TESTS),$(TESTS),$(TOGETHER) -m 'not heavy')

test-all: setup ## run every test
	@$(BIN)/python -m pytest $(TOGETHER)

check: setup ## lint, format, types, import rules, licences
	@scripts/check.sh

format: setup ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: setup ## pin the newest packages that pyproject.toml allows into requirements/dev.lock
	@scripts/lock.sh --upgrade

clean: ## remove .venv and every cache of the tools
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
