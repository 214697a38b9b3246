# Every verb does its own set-up: a virtual environment in .venv, made once and again when pyproject.toml changes.

SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PYTEST := $(PY) -m pytest
WORKERS ?= 2
# Tests start python hundreds of times: compiling the package again each time takes longer than the import.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup test test-plain test-spark test-services demo demo-cdc dist lint lint-types lint-files bench bench-hybrid soak docs test-docs java clean

help: ## print this list
	@echo "usage: make VERB    (needs Python 3.11+ and, for Spark, a JDK 17+; everything else is installed into $(VENV))"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: java $(READY) ## make the virtual environment and install every dependency
	@echo "ready: $(PY)"

test: java lint test-plain test-spark ## lint, then every test, law (push profile) and doctest

test-plain: $(READY)
	$(PYTEST) -m "not spark and not services and not long" -n $(WORKERS) --dist worksteal --durations=15 $(ARGS)

test-spark: java $(READY)
	$(PYTEST) tests -m "spark and not services and not long" -n $(WORKERS) --dist worksteal --durations=15 $(ARGS)

test-services: java $(READY) ## tests against real servers, started on loopback: PostgreSQL, Redis, Kafka
	$(PYTEST) tests/services -m "services and not long" -n 2 --dist worksteal --durations=15 $(ARGS)

demo: java $(READY) ## maintain flights LEFT JOIN planes in Spark on real data, and verify the result
	$(PY) -m examples.flights_demo $(ARGS)

demo-cdc: java $(READY) ## PostgreSQL, Debezium and Kafka into a view and a topic, compared with the source database
	$(PY) -m examples.cdc_demo $(ARGS)

lint: $(READY) ## ruff, format, mypy --strict, layers, sizes, words
	@$(MAKE) --no-print-directory -j 2 lint-types lint-files

# The types take as long as all the rest, on a core of their own.
lint-types:
	$(PY) -m mypy --strict zset_join spill

lint-files:
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports --no-cache
	$(PY) -m tools.check_source_files
	$(PY) -m tools.check_words
	$(PY) -m tools.size_limits

bench: java $(READY) ## run the benchmarks of the README and draw its chart, about half an hour; ARGS are those of benchmarks.run
	$(PY) -m benchmarks.run $(ARGS)
	$(if $(ARGS),,$(PY) -m benchmarks.nexmark | tee benchmarks/results/nexmark.txt)
	$(if $(ARGS),,$(PY) -m benchmarks.pipeline --output benchmarks/results/pipeline.txt)
	$(if $(ARGS),,$(PY) -m benchmarks.session_views --output benchmarks/results/session_views.txt)
	$(if $(ARGS),,$(PY) -m benchmarks.kept_views --output benchmarks/results/kept_views.txt)
	$(if $(ARGS),,$(PY) -m benchmarks.kept_views --directory --output benchmarks/results/kept_views_directory.txt)
	$(if $(ARGS),,$(PY) -m benchmarks.speed_figure)

bench-hybrid: $(READY) ## run the benchmarks of state that is larger than memory, forty minutes; results go to benchmarks/results
	$(PY) -m benchmarks.hybrid
	$(PY) -m benchmarks.hybrid_types
	$(PY) -m benchmarks.hybrid_routes
	$(PY) -m benchmarks.hybrid --rows 50000000 --budget 1200 --epochs 16
	$(PY) -m benchmarks.hybrid --rows 5000000 --budget 120 --epochs 16 --keys zipf

soak: java $(READY) ## the laws and the faults with their long profiles, and 30 minutes of one process: hours, not minutes
	FAULTS_PROFILE=long $(PYTEST) faults -n $(WORKERS) --timeout=0 --durations=15 $(ARGS)
	HYPOTHESIS_PROFILE=nightly $(PYTEST) property_tests -n $(WORKERS) --timeout=0 --durations=15 $(ARGS)
	HYPOTHESIS_PROFILE=nightly $(PY) -m property_tests.soak
	$(PY) -m property_tests.sql_on_spark
	$(PY) -m property_tests.sql_against_spark --queries 2000
	$(PY) -m property_tests.random_plans --events 20000000
	$(PY) -m property_tests.random_timed --events 5000000
	$(PY) -m property_tests.record_fuzz --records 5000000
	$(PY) -m property_tests.evolving_sql --changes 10000
	$(PY) -m property_tests.sql_fuzz --statements 1000000 --names 100000
	$(PY) -m faults.captured_database --long
	FAULTS_PROFILE=long $(PYTEST) tests -m "long and not services" -n $(WORKERS) --dist worksteal --timeout=0 --durations=15 $(ARGS)
	FAULTS_PROFILE=long $(PYTEST) tests/services -m long -n $(WORKERS) --timeout=0 --durations=15 $(ARGS)
	HYPOTHESIS_PROFILE=nightly $(PYTEST) $$(grep -rl --include='test_*.py' 'examples(push=' tests) --timeout=0 $(ARGS)
	$(PY) -m faults.spark_faults --long
	$(PY) -m faults.spark_lookups
	$(PY) -m faults.spark_times
	$(PY) -m faults.table_formats
	$(PY) -m faults.soak --minutes 30

dist: $(READY) ## wheel and sdist into dist, installed and used in clean environments, plain and with each extra
	$(PY) -m tools.check_dist $(ARGS)

docs: $(READY) ## build the documentation site into build/site, strictly: links, anchors and references are checked
	$(PY) -m tools.draw_rooms
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet $(ARGS)
	@echo "built: build/site/index.html"

test-docs: java $(READY) ## check the documentation: every link resolves, every code block runs
	$(PYTEST) tests/test_documentation.py $(ARGS)

java:
	@bash tools/check_java.sh

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

$(READY): pyproject.toml tools/make_venv.sh
	@bash tools/make_venv.sh $(VENV)
	@$(VENV)/bin/zset-join compile
	@$(PY) -m tools.short_lived_jvms
	@touch $@
