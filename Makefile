# make demo       a fleet of two simulated MI300X nodes on this machine, deployed, served and measured
# make demo-down  removes everything that make demo made
# make test       lint, types, unit tests, lab tests
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# A Python that is 3.11 or later and can make virtual environments; 3.11 first, which the lab's images have too. The
# system's before one that pyenv built: distributions optimise theirs by profile, and it takes a quarter less time.
PYTHON ?= $(shell for p in /usr/bin/python3.11 python3.11 /usr/bin/python3 python3 python3.12 python3.13; do \
    $$p -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2> /dev/null && { echo $$p; break; }; done)
# Some container images set it for all; here thousands of processes would compile the same files again and again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
UNIT_LOG := $(VENV)/unit-tests.log
LAB := $(BIN)/python -m lab
PLAYBOOK := $(BIN)/ansible-playbook -i inventory/lab

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | column -t -s $$'\t'

# The lock files name all that is needed: nothing to resolve.
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps
$(VENV)/.installed: requirements.lock
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later with venv is here: apt-get install python3-venv (or" \
	    "python3.11-venv), or name one: make PYTHON=..."; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(PIP_INSTALL) -r requirements.lock
	touch $@

$(VENV)/.installed-dev: requirements-dev.lock $(VENV)/.installed
	$(PIP_INSTALL) -r requirements-dev.lock
	touch $@

.PHONY: venv venv-dev
venv: $(VENV)/.installed ## the control node's virtual environment, from requirements.lock
venv-dev: $(VENV)/.installed-dev

COMPILE := $(BIN)/pip-compile --quiet --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-options --no-header

.PHONY: lock router-lock lm-eval-lock quantize-lock
lock: venv-dev ## write the two lock files from pyproject.toml
	$(COMPILE) --upgrade --output-file requirements.lock pyproject.toml
	$(COMPILE) --upgrade --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml

ROUTER_LOCK := roles/load_balancer/files/router-requirements.txt
router-lock: ## write the lock file of vllm-router (ROUTER=version; needs uv)
	@set -e; file=$(ROUTER_LOCK); version=$$(sed -n 's/^vllm-router==\([^ ]*\).*/\1/p' $$file); \
	    { head -1 $$file; echo "vllm-router==$(or $(ROUTER),$$version)" | uv pip compile - --quiet --no-header --upgrade \
	    --universal --python-version 3.9 --generate-hashes --no-build; } > $$file.new; mv $$file.new $$file

LM_EVAL_LOCK := roles/accuracy/files/lm-eval-requirements.txt
lm-eval-lock: ## write the lock file of lm-eval (LM_EVAL=version; needs uv)
	@set -e; file=$(LM_EVAL_LOCK); version=$$(sed -n 's/^lm-eval==\([^ ]*\).*/\1/p' $$file); \
	    { head -1 $$file; echo "lm-eval[api]==$(or $(LM_EVAL),$$version)" | uv pip compile - --quiet --no-header --upgrade \
	    --universal --python-version 3.10 --generate-hashes; } > $$file.new; mv $$file.new $$file

QUANTIZE := catalog/quantization
quantize-lock: ## write the lock files of AMD Quark and llm-compressor, without PyTorch (needs uv)
	@set -e; scratch=$$(mktemp -d); echo 'torch; python_version < "3"' > $$scratch/without; \
	    for name in quark llm-compressor; do file=$(QUANTIZE)/$$name-requirements.txt; \
	    { head -1 $$file; uv pip compile $(QUANTIZE)/$$name.in --quiet --no-header --no-annotate --upgrade --universal \
	    --override $$scratch/without --python-version 3.11 --generate-hashes; } > $$file.new; mv $$file.new $$file; done

# ---- demo ------------------------------------------------------------------------------------------------------------
.PHONY: demo demo-down lab-up lab-down
demo: venv ## the main job, end to end, on a lab of two nodes
	lab/demo.sh

demo-down: ## stop the demo and remove all of it
	if [ -x $(BIN)/python ]; then $(LAB) purge; fi

lab-up: venv ## only the lab (LAB_NODES=2)
	$(LAB) up

lab-down: ## stop the lab's containers; images and weights stay
	$(LAB) down

# ---- tests -----------------------------------------------------------------------------------------------------------
.PHONY: test packages transfers lint types unit coverage labs lab-test deep parsers engines shapes quantizers payload generate docs bench mutants edits nightly
test: packages venv ## lint, types, unit tests, sanity, lab tests; what it leaves to make nightly is marked deep
	@# The labs come up meanwhile. Lab tests wait more than they compute, and some unit tests, too: three at a time.
	@$(MAKE) labs & labs=$$!; \
	    $(MAKE) venv-dev || { wait $$labs; exit 1; }; \
	    { nice $(MAKE) --jobs=2 --output-sync --keep-going lint types; lint=$$?; \
	      nice $(MAKE) --jobs=2 --output-sync --keep-going unit sanity UNIT_ARGS="-n 3 --dist worksteal --timeout=1500" \
	          SANITY_ARGS="$(SANITY_LESS)" > $(UNIT_LOG) 2>&1; exit $$((lint | $$?)); } & rest=$$!; \
	    wait $$labs && $(MAKE) lab-test; lab=$$?; \
	    wait $$rest; rest=$$?; cat $(UNIT_LOG); exit $$((lab | rest))

# Before the lab, which may install Docker: two at a time, apt-get does not do.
packages: ## what unit tests hold configurations against, where it is missing: haproxy, keepalived
	@missing=; for p in haproxy keepalived; do \
	    PATH="$$PATH:/usr/sbin" command -v $$p > /dev/null || missing="$$missing $$p"; done; \
	test -z "$$missing" || { export DEBIAN_FRONTEND=noninteractive; \
	    apt-get -qq update && apt-get -qq -y --no-install-recommends install $$missing; }

lint: venv-dev ## every check of .pre-commit-config.yaml
	PRE_COMMIT_HOME=$(CURDIR)/.cache/pre-commit PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pre-commit run --all-files

types: venv-dev ## mypy --strict of what runs on nodes and decides
	$(BIN)/mypy -p ansible_collections.instinct.fleet.plugins
	$(BIN)/mypy -p lab

unit: packages venv-dev ## fast tests, no Docker
	@# Rewriting assertions takes a third of a minute of each worker: only what fails is run again with it, to be explained.
	$(BIN)/pytest tests/unit -q -n auto --assert=plain $(UNIT_ARGS) || { \
	    $(BIN)/pytest tests/unit -q -n auto $(UNIT_ARGS) --last-failed --last-failed-no-failures=none; exit 1; }

coverage: packages venv-dev ## what unit tests run of each file, their subprocesses included (TESTS=tests/unit)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(or $(TESTS),tests/unit) -q -n auto; result=$$?; \
	    $(BIN)/coverage combine --quiet; $(BIN)/coverage report; exit $$result

# Each worker has a lab of its own; a file's tests stay together. Lab tests wait for most of their time: two cores carry two.
LABS := 2
LAB_PYTEST := $(BIN)/pytest tests/lab -v -n $(LABS) --dist loadfile --no-loadscope-reorder --durations=40

labs: venv
	for number in $$(seq $(LABS)); do LAB_NUMBER=$$number $(LAB) up || exit 1; done

lab-test: venv-dev ## tests on the lab, two labs side by side (starts them)
	$(LAB_PYTEST)

deep: packages transfers venv-dev ## the rest of the unit and lab tests
	$(BIN)/pytest tests/unit -q -n auto -m deep; unit=$$?; $(LAB_PYTEST) -m deep; exit $$((unit | $$?))

# The lab's vLLM without the lab: its libraries serve the older releases, of which only the Python is fetched.
PARSERS := .cache/parsers
$(PARSERS)/.installed: lab/vllm-requirements.lock
	test -x $(PARSERS)/venv/bin/pip || $(PYTHON) -m venv --clear $(PARSERS)/venv
	$(PARSERS)/venv/bin/pip install --quiet --disable-pip-version-check --no-deps $(LAB_PIP_ARGS) -r lab/vllm-requirements.lock
	touch $@

parsers: venv-dev $(PARSERS)/.installed ## whatever is rendered, before the parsers of eight vLLM releases (fetches them)
	$(BIN)/python -m tests.oracles.real_parsers --python $(PARSERS)/venv/bin/python --wheels $(PARSERS)

engines: venv-dev $(PARSERS)/.installed ## deployments, before the engine configuration of eight vLLM releases (fetches them)
	$(BIN)/python -m tests.oracles.real_engines --python $(PARSERS)/venv/bin/python --wheels $(PARSERS) \
	    --report $(PARSERS)/disagreements.txt $(ENGINES_ARGS)

shapes: venv-dev $(PARSERS)/.installed ## random shapes of each architecture of vLLM, before its own model code (SEED=1)
	$(BIN)/python -m tests.oracles.held_out --python $(PARSERS)/venv/bin/python --seed $(or $(SEED),$(shell date +%F)) \
	    $(SHAPES_ARGS)

QUANTIZERS := .cache/quantizers
$(QUANTIZERS)/.installed: catalog/quantization/quark-requirements.txt lab/vllm-requirements.lock
	test -x $(QUANTIZERS)/venv/bin/pip || $(PYTHON) -m venv --clear $(QUANTIZERS)/venv
	@# PyTorch comes from the image in a container, here from the lab's list.
	$(QUANTIZERS)/venv/bin/pip install --quiet --disable-pip-version-check --no-deps $(LAB_PIP_ARGS) \
	    $$(grep -iE '^(torch|jinja2|markupsafe|networkx|setuptools)==' lab/vllm-requirements.lock)
	$(QUANTIZERS)/venv/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	    -r catalog/quantization/quark-requirements.txt
	touch $@

quantizers: venv-dev $(QUANTIZERS)/.installed $(PARSERS)/.installed ## the lab's model by the real AMD Quark, and vLLM's loader
	$(BIN)/python -m tests.oracles.real_quantizers --python $(QUANTIZERS)/venv/bin/python --vllm $(PARSERS)/venv/bin/python

payload: venv-dev ## what Ansible sends to a node for each module, and whether it is too much (MODULE=vllm_server)
	$(BIN)/python -m tests.payload $(MODULE)

generate: venv-dev ## write plugins/modules/node_state.py and the schemas of plan.json and summary.json
	$(BIN)/python -m tests.generate

docs: venv-dev ## write docs/commands.md, docs/variables.md and the generated part of docs/architecture.md
	$(BIN)/python -m tests.commands_table > docs/commands.md
	$(BIN)/python -m tests.variables_table > docs/variables.md
	$(BIN)/python -m tests.architecture

bench: venv-dev transfers ## what a run costs, as a ratio to ansible -m ping; what a transfer to many hosts takes
	$(BIN)/python -m tests.bench; runs=$$?; $(BIN)/python -m tests.fanout.bench; exit $$((runs | $$?))

transfers: ## what transfers between hosts need on a machine that measures or tests them
	@/usr/bin/python3 -c "import libtorrent" 2> /dev/null || { export DEBIAN_FRONTEND=noninteractive; \
	    apt-get -qq update && apt-get -qq -y --no-install-recommends install python3-libtorrent iproute2; }

# The modules whose decisions cost most when they are wrong. Each day has another sample.
MODULES := measuring.statistics.shift measuring.canary.verdict common.redact planning.pins.lockfile \
    planning.endpoint.backends planning.endpoint.balancer_actions endpoint.converge planning.endpoint.plan \
    planning.endpoint.servers \
    planning.generations.revisions partition.modes partition.transaction planning.placement.layout \
    planning.changes.actions planning.resolving.registry programs.supervisor.group programs.supervisor.main \
    planning.rollout.batch_work planning.rollout.batches planning.rollout.capacity planning.rollout.host_rollout \
    planning.rollout.plan planning.rollout.preconditions planning.rollout_run.proof planning.rollout.steps \
    planning.rollout.trials serving.converge planning.simulation.model planning.simulation.rules \
    planning.simulation.simulate knowledge.sizing.fit knowledge.sizing.kv_cache knowledge.shapes.weights weights.download
mutants: packages venv-dev ## which small faults the unit tests miss (MODULES="knowledge.sizing.fit" SEED=1 COUNT=15 JOBS=2)
	$(BIN)/python -m tests.mutants $(MODULES) --seed $(or $(SEED),$(shell date +%F)) --count $(or $(COUNT),15) \
	    --jobs $(or $(JOBS),2) --at-least 92

# Each example is a fleet and five edits, one after the other; or a fleet, and a plan of it.
edits: venv-dev ## random edits of random fleets, planned and simulated, and random plans (EDIT_EXAMPLES=4000)
	EDIT_EXAMPLES=$(or $(EDIT_EXAMPLES),4000) HISTORIES=$(or $(HISTORIES),200) PLAN_EXAMPLES=$(or $(PLAN_EXAMPLES),20) \
	    $(BIN)/pytest -q --timeout=7200 -m "deep or not deep" tests/unit/simulation/test_random_edits.py \
	    tests/unit/simulation/test_hold_histories.py tests/unit/plan/test_plan_properties.py

# What runs at night, and how long each may take; all run, whatever fails.
NIGHTLY := 60m:test 240m:deep 20m:sanity 90m:edits 60m:bench 40m:parsers 60m:engines 40m:shapes 40m:quantizers 90m:mutants 20m:demo
nightly: ## make test, and all that is too long for it: deep, all of sanity, edits, bench, parsers, engines, shapes, quantizers, mutants, the demo
	@failed=; for job in $(NIGHTLY); do \
	    timeout --kill-after=1m $${job%%:*} $(MAKE) $${job##*:} || failed="$$failed $${job##*:}"; \
	done; test -z "$$failed" || { echo "nightly: failed or over its time:$$failed"; exit 1; }

# ---- the collection --------------------------------------------------------------------------------------------------
.PHONY: collection sanity changelog release
VERSION = $(shell sed -n 's/^version: //p' galaxy.yml)
COLLECTION := .cache/collection
INSTALLED := $(COLLECTION)/ansible_collections/instinct/fleet

collection: venv-dev ## build the collection, and install it in .cache/collection
	rm -rf $(COLLECTION)
	$(BIN)/ansible-galaxy collection build --output-path $(COLLECTION)
	@# The path of its own, as this checkout counts as installed otherwise.
	ANSIBLE_COLLECTIONS_PATH=$(COLLECTION) $(BIN)/ansible-galaxy collection install --offline \
	    $(COLLECTION)/instinct-fleet-$(VERSION).tar.gz
	@# A repository of its own, as ansible-test would otherwise ask this one, which ignores the folder.
	test -f $(INSTALLED)/MANIFEST.json && git init --quiet $(INSTALLED)

# In the collection as its users get it. Versions of Python for nodes that are not installed here are left out; make test
# leaves out pylint and the import of each file (half of its time; tests import them), and what make lint checks already.
SANITY_LESS := $(foreach test,pylint import pep8 yamllint,--skip-test $(test))
sanity: collection ## Ansible's own checks: ansible-test sanity, in the installed collection
	$(BIN)/python -m tests.ansible_test .cache/ansible-test $(INSTALLED) sanity --color no $(SANITY_ARGS)

changelog: venv-dev ## turn changelogs/fragments into the entry of this version in CHANGELOG.md
	$(BIN)/antsibull-changelog release --update-existing --reload-plugins

# What is tagged is what is committed: nothing else may lie about, and the version is written in one way everywhere.
release: ## build and check the collection of a clean tree, and tag it with its version
	@test -z "$$(git status --porcelain)" || { git status --short; \
	    echo "make release: commit these files, or take them away."; exit 1; }
	@grep -q '^version = "$(VERSION)"$$' pyproject.toml || { \
	    echo "make release: pyproject.toml has another version than galaxy.yml, $(VERSION)."; exit 1; }
	@grep -q '^  $(VERSION):$$' changelogs/changelog.yaml && test -z "$$(ls changelogs/fragments)" || { \
	    echo "make release: the changelog does not have all of $(VERSION). Run make changelog, and commit."; exit 1; }
	@! git rev-parse --quiet --verify refs/tags/$(VERSION) > /dev/null || { \
	    echo "make release: $(VERSION) is tagged already."; exit 1; }
	$(MAKE) sanity
	git tag --annotate --message "instinct-fleet $(VERSION)" $(VERSION)
