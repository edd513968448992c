# Quarterdeck. `make` lists the targets. It needs only Python 3.11 or newer: everything else is installed into .venv,
# and nothing outside the checkout is changed.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Only variables given on make's command line count: the shell may export DATA, ARGS or PYTHON for another project.
given = $(if $(filter command,$(firstword $(origin $(1)))),$($(1)))

# With this variable set, every server and every `qd` that a test starts would compile Quarterdeck again: one second each.
unexport PYTHONDONTWRITEBYTECODE

# Older pip passes PIP_CONSTRAINT to the isolated build; newer pip reads PIP_BUILD_CONSTRAINT there.
INSTALL := -m pip install --progress-bar off -c constraints.txt
PIP_VARIABLES := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
PIP := $(PIP_VARIABLES) .venv/bin/python $(INSTALL)

BASE := .venv/.installed
TEST := .venv/.installed-test
DOCS := .venv/.installed-docs
PYTHONS := $(or $(call given,PYTHONS),python3.12 python3.13)

# No wheel contains tmux. Without it everything but panes works, and the tests of panes are skipped and reported.
TMUX_HINT := command -v tmux >/dev/null || echo 'tmux is not installed: members of fleets have no panes. \
	To install it: apt-get install tmux (Debian, Ubuntu), brew install tmux (macOS).'

.PHONY: help install up test test-pythons lint bench soak states golden sdk sql reference docs

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  DATA=DIR      (up) data directory [default: the user'"'"'s data directory]'
	@echo '  ARGS="..."    (up, test, soak, bench) arguments passed to the program'
	@echo '  PYTHON=PROG   (first time) Python to create .venv with'
	@echo '  PYTHONS="..." (test-pythons) interpreters to test with [default: python3.12 python3.13]'

install: $(BASE) ## create .venv and install Quarterdeck into it
	@$(TMUX_HINT)

# Ignores variables that other programs also use (DATABASE_URL, PORT, ...): this command is for a laptop.
up: $(BASE) ## start the server on SQLite, in the foreground
	@exec .venv/bin/qd up --only-own-variables \
		$(if $(call given,DATA),--data "$(call given,DATA)") $(call given,ARGS)

# Two workers, each file on one of them: tests mostly wait for servers, and fixtures are shared within a file. The order is
# that of tests/conftest.py, which starts the test that takes minutes first; xdist's own order would leave it for the end.
test: lint ## run lint, type and import checks, and all tests on both engines
	@$(TMUX_HINT)
	.venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(call given,ARGS)

# The tests of pure rules need no servers, so they are quick enough to repeat for each version that pyproject.toml names.
test-pythons: ## run the unit tests on other versions of Python, where they are installed
	@tested=0; for python in $(PYTHONS); do \
		"$$python" -c 'import venv, ensurepip' 2>/dev/null || { echo "$$python is not installed: skipped"; continue; }; \
		venv=".venv/pythons/$$(basename "$$python")"; \
		"$$python" -m venv "$$venv" && $(PIP_VARIABLES) "$$venv/bin/python" $(INSTALL) -e '.[test]' && \
		"$$venv/bin/python" -m pytest -n 2 -p no:cacheprovider tests/rules $(call given,ARGS) || exit 1; \
		tested=1; \
	done; [ "$$tested" = 1 ] || { echo 'No version was tested. Name interpreters: make test-pythons PYTHONS="..."' >&2; exit 1; }

lint: $(TEST) ## run the static checks only
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python tools/generate_sql_stubs.py --check
	.venv/bin/python tools/generate_reference.py --check
	.venv/bin/python tools/generate_sdk_types.py --check
	.venv/bin/python tools/generate_sync_sdk.py --check
	.venv/bin/mypy --strict
	.venv/bin/lint-imports

bench: $(TEST) ## run the benchmarks beside their controls
	.venv/bin/python -m bench $(call given,ARGS)

# Races and chaos with full counts. The attacks run for QD_SOAK_SECONDS; QD_SEED repeats an attack.
soak: $(TEST) ## run the tests with many more rounds of races and chaos
	QD_ROUNDS=100 QD_SOAK_SECONDS="$${QD_SOAK_SECONDS:-1800}" .venv/bin/python -m pytest --timeout=7200 $(call given,ARGS)

states: $(TEST) ## write docs/states/ from the transition tables
	QD_WRITE_STATES=1 .venv/bin/python -m pytest tests/test_states.py

golden: $(TEST) ## write tests/golden/, the public interface as files; read the diff
	QD_WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/test_golden.py

sdk: $(BASE) ## generate the SDK's types from tests/golden/openapi.json, and those of the blocking client
	.venv/bin/python tools/generate_sdk_types.py
	.venv/bin/python tools/generate_sync_sdk.py

sql: $(BASE) ## generate the type stubs of the SQL statements
	.venv/bin/python tools/generate_sql_stubs.py

reference: $(BASE) ## generate docs/metrics.md and docs/settings.md
	.venv/bin/python tools/generate_reference.py

docs: $(DOCS) reference ## build the documentation into build/docs; a broken link is an error
	.venv/bin/mkdocs build --strict --site-dir build/docs

# Reinstalled only when pyproject.toml or constraints.txt has changed.
$(BASE): .venv/bin/python pyproject.toml constraints.txt
	@echo 'Installing Quarterdeck into .venv'
	@$(PIP) -e '.[server]'
	@touch $@

$(TEST): .venv/bin/python pyproject.toml constraints.txt
	@echo 'Installing Quarterdeck and its test dependencies into .venv'
	@$(PIP) -e '.[test]'
	@touch $(BASE) $@

$(DOCS): .venv/bin/python pyproject.toml constraints.txt
	@echo 'Installing Quarterdeck and MkDocs into .venv'
	@$(PIP) -e '.[server,docs]'
	@touch $(BASE) $@

# Skips a Python without its venv module, which Debian packages separately.
.venv/bin/python:
	@for python in "$(call given,PYTHON)" python3.11 python3.12 python3.13 python3 python; do \
		if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Creating .venv with $$python"; \
			"$$python" -m venv --clear .venv && exit 0; \
			rm -rf .venv; exit 1; \
		fi; \
	done; \
	echo 'Quarterdeck needs Python 3.11 or newer with the venv module. None was found on PATH.' >&2; \
	echo 'Install it (Debian and Ubuntu: python3 and python3-venv), or name it: make PYTHON=PROGRAM' >&2; \
	exit 1
