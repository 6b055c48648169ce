# make demo    forecast an example iteration and print it beside its measurement
# make test    the test-suite
# make check   lint, format, types, doctests
# make coverage   lines that no test runs
# make bench   the benchmarks
# make bench-counts   instructions of six tasks against the last release; 20 % more fails
# make slow    long fuzzing, long fits, fronts against lowtime, notebooks, mutations of model/: about 75 minutes on two cores;
#              its parts are slow-fuzz, slow-long, slow-fronts, slow-notebooks, slow-mutations
# make regenerate   fit the shipped descriptions of the H200 to the shipped rows and recordings again
# make forecasts   accept what forecasts are now (after a change that should move them, such as make regenerate)
# make pictures   draw the README's picture again
# make figures   run what the tables of errors quote, and write them into the README and the pages
# make docs      build the pages into build/site
# make zeus-environment   an environment with Zeus, which the tests of exports let read what we write
# make hta-environment    an environment with Holistic Trace Analysis, which a test lets read our traces
# make torch   PyTorch for the tests of microbenchmarks, which run them on a CPU and skip without it
# make wheel-test   build the wheel, install it into an empty environment, import everything from it
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUN_STAMP := $(VENV)/.stamp-run
DEV_STAMP := $(VENV)/.stamp-dev
WHEEL_VENV := .venv-wheel
PYTEST_ARGS ?=
BENCH_ARGS ?=
# A file's tests share what they prepare; files start in the order of tests/conftest.py.
ON_TWO_CORES := -n 2 --dist loadfile --no-loadscope-reorder
DATA ?= ../shared/data
# Tests start Python dozens of times: where nothing keeps bytecode, each start compiles everything again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check coverage slow bench bench-counts regenerate forecasts figures docs pictures zeus-environment hta-environment
.PHONY: torch wheel-test clean slow-fuzz slow-long slow-fronts slow-notebooks slow-mutations

demo: $(RUN_STAMP)
	$(BIN)/python examples/demo.py

test: $(DEV_STAMP)
	$(BIN)/python -m pytest $(ON_TWO_CORES) -p no:benchmark -q -m "not long" $(PYTEST_ARGS)

check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy -p joulecast
	$(BIN)/python -m pytest -q -p no:benchmark --doctest-modules --pyargs joulecast
	$(BIN)/python -m pytest -q -p no:benchmark --doctest-glob='*.md' README.md $(wildcard docs)

bench: $(DEV_STAMP)
	$(BIN)/python -m pytest benchmarks -p no:xdist -q -s $(PYTEST_ARGS)

bench-counts: $(DEV_STAMP)
	$(BIN)/python benchmarks/counts.py $(BENCH_ARGS)

coverage: $(DEV_STAMP)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest $(ON_TWO_CORES) -p no:benchmark -q -m "not long" $(PYTEST_ARGS)
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report --fail-under=95

# What fails does not keep the others from being seen: each part runs, and the last line tells which failed.
SLOW_PARTS := slow-fuzz slow-long slow-fronts slow-notebooks slow-mutations
slow: $(DEV_STAMP)
	@failed=; for part in $(SLOW_PARTS); do echo "== $$part"; $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; done; \
	  if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi; echo "all parts of make slow hold"

slow-fuzz: $(DEV_STAMP)
	$(BIN)/python -m pytest -n 2 -p no:benchmark -q --hypothesis-profile=long tests/laws/test_fuzz.py tests/laws/test_fuzz_rows.py

slow-long: $(DEV_STAMP)
	$(BIN)/python -m pytest -n 2 -p no:benchmark -q -m long --durations=0 --durations-min=1

slow-mutations: $(DEV_STAMP)
	$(BIN)/python benchmarks/mutations.py --count 230 --seed 7

slow-fronts: $(DEV_STAMP)
	@if [ -d $(DATA)/perseus_sosp24 ]; then $(BIN)/python benchmarks/compare_lowtime.py $(DATA)/perseus_sosp24; \
	  else echo "no measured profiles in $(DATA)/perseus_sosp24: fronts are not compared with lowtime's"; fi

slow-notebooks: $(DEV_STAMP)
	$(PIP) install -q -e '.[notebooks]'
	@for notebook in $(wildcard examples/*.ipynb); do \
	  $(BIN)/python -m jupyter nbconvert --to notebook --execute --stdout $$notebook > /dev/null || exit 1; \
	  echo "$$notebook runs"; done

regenerate: $(DEV_STAMP)
	$(BIN)/joulecast calibrate --out model/catalogue_data/gpus/h200-sxm-rows.toml
	$(BIN)/joulecast calibrate --replay calibrate/recorded/h200_sxm_live --name h200-sxm-live \
	  --out model/catalogue_data/gpus/h200-sxm-live.toml
	$(BIN)/joulecast calibrate --replay calibrate/recorded/h200_sxm_live --rows calibrate/recorded/h200_sxm \
	  --name h200-sxm --out model/catalogue_data/gpus/h200-sxm.toml

forecasts: export PYTHONPATH = tests/support
forecasts: $(DEV_STAMP)
	$(BIN)/python tests/model/test_forecasts_stand.py
	$(BIN)/python tests/model/test_conditions_stand.py
	$(BIN)/python tests/model/test_derivation.py
	$(BIN)/python tests/model/test_launches_stand.py
	$(BIN)/python tests/model/test_memory_stands.py
	$(BIN)/python tests/model/test_tile_estimates.py
	$(BIN)/python tests/model/test_work_stands.py

pictures: $(DEV_STAMP)
	mkdir -p docs/pictures
	$(BIN)/joulecast plot timeline examples/llama-3.1-8b-4xh200.toml --out docs/pictures/timeline.png

# What needs measurements of others keeps its figures where DATA does not name their folder.
figures: $(DEV_STAMP)
	$(BIN)/python docs/make_figures.py $(DATA)

# Not -q: it would drop the warnings that fail the pages.
docs: $(DEV_STAMP)
	$(PIP) install -q -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

torch: $(DEV_STAMP)
	$(PIP) install -q torch==2.13.0

zeus-environment:
	$(PYTHON) -m venv .venv-zeus
	.venv-zeus/bin/python -m pip --disable-pip-version-check install -q zeus==0.16.0 lowtime==0.3.0 aiofiles jsonschema

hta-environment:
	$(PYTHON) -m venv .venv-hta
	.venv-hta/bin/python -m pip --disable-pip-version-check install -q --no-deps HolisticTraceAnalysis==0.5.0
	.venv-hta/bin/python -m pip --disable-pip-version-check install -q numpy pandas networkx plotly psutil pydot pyyaml

wheel-test: $(DEV_STAMP)
	rm -rf build dist $(WHEEL_VENV)
	$(PIP) wheel -q --no-deps --wheel-dir dist .
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip --disable-pip-version-check install -q dist/joulecast-*.whl
	$(WHEEL_VENV)/bin/python -I tests/support/import_everything.py
	$(WHEEL_VENV)/bin/joulecast gpus > /dev/null
	rm -rf build $(WHEEL_VENV)

clean:
	rm -rf build dist *.egg-info $(VENV) $(WHEEL_VENV) .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache

$(RUN_STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Joulecast needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -e .
	@touch $@

$(DEV_STAMP): $(RUN_STAMP)
	$(PIP) install -q -e '.[dev]'
	@touch $@
