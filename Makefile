# `make serve` is all a newcomer needs; `make help` lists the rest.

VENV ?= .venv
ARGS ?=
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 2
URL ?= http://127.0.0.1:30000

# Override with `make PYTHON=/some/python3`. The first Python of at least 3.11 is taken.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

# The package of the embedded model declares dependencies that only its own command-line use needs, one of them a
# C++ build. Pagefall reads the weights out of it and nothing else, so it is installed alone. Its version is said once,
# in pyproject.toml.
EMBEDDED = $(shell sed -n 's/^embedded = \["\(.*\)"\]$$/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help install install-test install-demo serve demo test check fmt docs clean \
	bench-load bench-engine bench-multi-turn bench-shared-prefix bench-storage-hit bench-transfers bench-control-plane

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)$$/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-20s %s\n' "$$name" "$$text"; done

serve: install ## install what serving needs and serve the embedded model on port 30000 (ARGS="--port 8000 ...")
	@exec $(VENV)/bin/pagefall serve $(ARGS)

demo: install-demo ## one document, cold and from each tier: a table, demo-out/demo.json and demo.png (ARGS="--out DIR")
	@$(VENV)/bin/pagefall demo $(ARGS)

test: install-test ## install what testing needs, then run every check
	@$(MAKE) --no-print-directory check

check: ## format, lint, types, import contracts and tests, without installing (PYTEST_ARGS="-k radix" PYTEST_WORKERS=1)
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/pytest $(if $(filter-out 0 1,$(PYTEST_WORKERS)),-n $(PYTEST_WORKERS) --dist loadfile) $(PYTEST_ARGS)

fmt: ## format and repair what can be repaired
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

docs: ## write docs/flags.md and docs/router-flags.md from the tables of flags
	$(VENV)/bin/python -m pagefall.cli.reference > docs/flags.md
	$(VENV)/bin/python -m pagefall.cli.reference router > docs/router-flags.md

bench-load: install ## put load on the server at URL (ARGS="--preset sglang-generated-shared-prefix --scale 0.1")
	$(VENV)/bin/pagefall bench load --url $(URL) $(if $(PEER_URL),--peer-url $(PEER_URL)) $(ARGS)

bench-engine: install ## time the server at URL, against the one at PEER_URL if given (ARGS="--repeats 5")
	$(VENV)/bin/pagefall bench engine --url $(URL) $(if $(PEER_URL),--peer-url $(PEER_URL)) $(ARGS)

bench-multi-turn: install ## conversations that grow, tiers on against off (ARGS="--restart --json FILE")
	$(VENV)/bin/pagefall bench multi-turn $(ARGS)

bench-shared-prefix: install ## questions under few system prompts, prefix cache on against off
	$(VENV)/bin/pagefall bench shared-prefix $(ARGS)

bench-storage-hit: install ## hits in a store against cold starts (ARGS="--backend redis --extra-config @FILE")
	$(VENV)/bin/pagefall bench storage-hit $(ARGS)

bench-transfers: install ## pages to a store and back, and how late the event loop is (ARGS="--backend s3 ...")
	$(VENV)/bin/pagefall bench transfers $(ARGS)

bench-control-plane: install ## time scheduler and prefix cache without a model
	$(VENV)/bin/pagefall bench control-plane $(ARGS)

clean: ## remove the virtual environment, caches and build outputs
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find service storage_backends tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an install runs again only when pyproject.toml has changed.
install: $(VENV)/.installed
install-test: $(VENV)/.installed-test
install-demo: $(VENV)/.installed-demo

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Pagefall needs Python 3.11 or newer and found none. Install one, or name it:" \
		"make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments." \
		"On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install -e .
	$(VENV)/bin/python -m pip install --no-deps "$(EMBEDDED)"
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(VENV)/bin/python -m pip install -e ".[test]"
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.installed
	$(VENV)/bin/python -m pip install -e ".[demo]"
	@touch $@
