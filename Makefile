# Two commands are enough on a fresh machine: `make demo` and `make test`. Each makes .venv itself, from the lock.
# `make help` lists all.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 6
CLIENTS ?= .cache/clients
SERVERS ?= .cache/servers
HOSTS ?= .cache/hosts
INSTALLERS ?= .cache/installers
RELEASE ?= .cache/release
EXAMPLES ?= 10000
ROUNDS ?= 60
TIMES ?= 50
SEED ?=
N ?=

# The many interpreters of the tests use their caches, even if the environment says otherwise.
export PYTHONDONTWRITEBYTECODE =

# A lock is whole, so nothing is resolved: pip 23 takes the newest `coverage[toml]` beside a pinned `coverage`, and refuses it.
LOCKED := --quiet --disable-pip-version-check --require-hashes --no-deps

.PHONY: help docs demo lint typecheck check test test-fast mutants test-whole test-races test-clients test-clients-whole test-hosts test-browser test-nodes soak-nodes bench-nodes test-install nightly \
	picture fuzz soak soak-continue soak-flows bench format lock release release-check clean

help:  ## what can be made
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.installed  ## a parent hands a review of the last commit to a subagent
	@$(BIN)/subagent demo

test: $(VENV)/.installed-dev  ## the test suite, in parallel; of long campaigns a sample
	@$(BIN)/python -m tests.helpers.bubblewrap
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not soak and not install and not npm"

test-fast: $(VENV)/.installed-dev  ## the tests that start no process
	$(BIN)/pytest -n 4 -m "not process and not npm and not install"

mutants: $(VENV)/.installed-dev  ## put 100 small faults into copies of the package: do the tests find them?
	$(BIN)/python -m tests.mutants

test-whole: $(VENV)/.installed-dev $(SERVERS)/.installed  ## the test suite with all of its campaigns
	SUBAGENT_TESTS_WHOLE=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal --timeout 1800

test-races: $(VENV)/.installed-dev  ## the tests of races, TIMES times, beside two busy loops a core
	$(BIN)/python -m tests.busy --times $(TIMES) -n $(WORKERS) --dist worksteal -m race

test-clients: $(VENV)/.installed-dev $(CLIENTS)/.installed $(SERVERS)/.installed  ## what npm has: real clients as parents, MCP servers that others wrote
	CLIENTS=$(CLIENTS) $(BIN)/pytest -n $(WORKERS) --timeout 300 tests/clients
	$(BIN)/pytest -n 2 --timeout 300 -m npm

test-clients-whole: export SUBAGENT_TESTS_WHOLE = 1
test-clients-whole: test-clients

test-hosts: $(VENV)/.installed-dev $(INSTALLERS)/.installed  ## hosts of PyPI and npm as parents; HOST=NAME is one of them
	$(BIN)/python -m tests.hosts.install $(HOSTS) $(abspath $(INSTALLERS))/bin/uv $(HOST)
	HOSTS=$(HOSTS) $(BIN)/pytest -n 2 --timeout 600 tests/hosts $(if $(HOST),-k "[$(HOST)]")

test-browser: $(VENV)/.installed-browser  ## the page in Debian's Chromium (`apt-get install chromium`); PICTURES=1 takes the pictures of docs/
	$(BIN)/pytest -n 0 --timeout 300 tests/browser

nightly: test-whole-with-coverage test-races fuzz soak test-clients-whole test-install  ## everything that takes long; coverage in .cache/coverage

test-whole-with-coverage: $(VENV)/.installed-dev $(SERVERS)/.installed
	SUBAGENT_TESTS_WHOLE=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal --timeout 1800 -m "not install and not fuzz" \
		--cov --cov-report term:skip-covered --cov-report html:.cache/coverage

lint: $(VENV)/.installed-dev  ## format and lint, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

typecheck: $(VENV)/.installed-dev  ## strict types, of package, tests and benchmarks
	$(BIN)/mypy

check: lint typecheck  ## lint, types, floors, documents
	$(BIN)/pytest tests/test_layers.py tests/test_readme_diagram.py tests/test_documents.py tests/test_surface.py

test-install: $(VENV)/.installed-dev $(INSTALLERS)/.installed  ## the wheel by pip, pipx and uv on each Python that is there
	INSTALLERS=$(abspath $(INSTALLERS)) $(BIN)/pytest -n 2 --timeout 1200 tests/test_installed.py

picture: $(VENV)/.installed-dev  ## draw docs/demo.svg anew
	$(BIN)/python -m tests.picture

test-nodes: $(VENV)/.installed-dev  ## runs on a Slurm of three nodes, and on hosts of ssh, as an ordinary user (`apt-get install slurmctld slurmd slurm-client munge openssh-server`)
	tests/nodes/as_user.sh $(abspath $(BIN))/python -m pytest -n 2 --dist loadfile -p no:cacheprovider --timeout 600 tests/nodes

soak-nodes: ROUNDS = 7
soak-nodes: $(VENV)/.installed-dev  ## kill nodes, slurmctld and file servers among N runs at once, as root in namespaces, ROUNDS times, by turns or FAULT alone (`apt-get install bindfs fuse3`, too)
	unshare --mount --pid --fork --kill-child --mount-proc -- \
		$(BIN)/python -m tests.nodes.soak --rounds $(ROUNDS) $(if $(N),--runs $(N)) $(if $(SEED),--seed $(SEED)) $(addprefix --fault ,$(FAULT))

bench-nodes: $(VENV)/.installed-dev  ## how quick starts, questions and the queue are on that Slurm; N=200 runs in the queue
	tests/nodes/as_user.sh $(abspath $(BIN))/python -m benchmarks.nodes $(N)

fuzz: $(VENV)/.installed-dev  ## 10,000 random and mutated agent files, meta files, tool calls and schemas; REAL_TOOLS=FILE adds real schemas
	SUBAGENT_TESTS_WHOLE=1 FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/pytest --timeout 7200 -n $(WORKERS) -m fuzz

soak: $(VENV)/.installed-dev  ## kill -9 at random moments, ROUNDS times with the dice of SEED, upgrade amid, end trees of 31 runs, cut the power, and judge
	$(BIN)/python -m tests.soak --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

soak-continue: $(VENV)/.installed-dev  ## kill runs at ROUNDS random moments, and carry each on to its end
	$(BIN)/python -m tests.soak.carry --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

soak-flows: $(VENV)/.installed-dev  ## kill the processes of fan-outs of 100 calls at ROUNDS random moments, and continue each to its end
	unshare --pid --fork --kill-child --mount-proc $(BIN)/python -m tests.extensions.flows.kills --kills $(ROUNDS) $(if $(SEED),--seed $(SEED))

bench: $(VENV)/.installed  ## everything that is measured, into benchmarks/RESULTS.md; N=20 is a quick look
	$(BIN)/python -m benchmarks $(N)

docs: $(VENV)/.installed-dev  ## write the documents that are made from the code (docs/cli.md, the diagram) and the schemas anew
	$(BIN)/python -m tests.helpers.generated
	@mkdir -p .cache  # a schema that cannot be made leaves the old file
	for kind in agent cpe eval; do $(BIN)/subagent schema $$kind > .cache/schema && mv .cache/schema docs/schemas/$$kind.schema.json || exit 1; done

format: $(VENV)/.installed-dev  ## put the code into its form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(VENV)/.installed-dev  ## resolve the dependencies of pyproject.toml anew
	$(BIN)/pip install $(LOCKED) -r requirements-tools.lock
	$(BIN)/pip-compile --quiet $(COMPILE) --build-deps-for editable --output-file requirements.lock pyproject.toml
	$(BIN)/pip-compile --quiet $(COMPILE) --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml
	$(BIN)/pip-compile --quiet $(COMPILE) --extra browser --constraint requirements-dev.lock --output-file requirements-browser.lock pyproject.toml
	@printf 'build\ntwine\nsetuptools>=77\n' | $(BIN)/pip-compile --quiet $(COMPILE) --output-file requirements-release.lock -
	@echo pip-tools | $(BIN)/pip-compile --quiet $(COMPILE) --constraint requirements.lock --output-file requirements-tools.lock -

COMPILE := --upgrade --generate-hashes --allow-unsafe --no-build-isolation --strip-extras --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

release: $(VENV)/.made  ## VERSION=1.2.3 [REPOSITORY=owner/name]: build and check it in a copy, then commit and tag it here; pushes nothing
	@$(BIN)/python -m tests.release "$(VERSION)" $(REPOSITORY)

release-check: $(VENV)/.installed-dev $(INSTALLERS)/.installed $(RELEASE)/.installed  ## build dist/, check what is in it, install it on three Pythons
	rm -rf dist build *.egg-info
	$(RELEASE)/bin/python -m build --no-isolation --outdir dist .
	$(RELEASE)/bin/twine check --strict dist/*
	$(BIN)/python -m tests.release content dist
	WHEEL=$$(echo dist/*.whl) INSTALLERS=$(abspath $(INSTALLERS)) $(BIN)/pytest -n 2 --timeout 1200 tests/test_installed.py

clean:  ## remove the environment and the caches
	rm -rf $(VENV) $(CLIENTS) $(HOSTS) $(SERVERS) $(INSTALLERS) $(RELEASE) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made requirements.lock pyproject.toml
	@echo "Installing into $(VENV), which may take a minute ..." >&2
	$(BIN)/pip install $(LOCKED) -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.lock
	$(BIN)/pip install $(LOCKED) -r requirements-dev.lock
	@touch $@

$(VENV)/.installed-browser: $(VENV)/.installed-dev requirements-browser.lock
	$(BIN)/pip install $(LOCKED) -r requirements-browser.lock
	@touch $@

$(CLIENTS)/.installed: tests/clients/package.json tests/clients/package-lock.json
	@command -v npm >/dev/null || { echo "make test-clients: npm is missing; install it with Node.js" >&2; exit 1; }
	mkdir -p $(CLIENTS)
	cp tests/clients/package.json tests/clients/package-lock.json $(CLIENTS)
	@# `npm ci` refuses a lock without each optional package, and a registry may lack those of other systems
	cd $(CLIENTS) && npm install --no-save --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(SERVERS)/.installed: tests/reference_servers/package.json tests/reference_servers/package-lock.json
	@command -v npm >/dev/null || { echo "make test-clients: npm is missing; install it with Node.js 20 or later" >&2; exit 1; }
	mkdir -p $(SERVERS)
	cp tests/reference_servers/package.json tests/reference_servers/package-lock.json $(SERVERS)
	cd $(SERVERS) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(INSTALLERS)/.installed: requirements-installers.lock
	$(PYTHON) -m venv $(INSTALLERS)
	$(INSTALLERS)/bin/pip install $(LOCKED) -r requirements-installers.lock
	@touch $@

$(RELEASE)/.installed: requirements-release.lock
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install $(LOCKED) -r requirements-release.lock
	@touch $@
