# Quarterdeck. `make` alone lists the targets. Python 3.11 or newer is all that must be there already:
# everything else goes into .venv beside this file, and nothing outside the checkout is touched.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Only what stands on make's own command line counts. A shell may hold DATA, ARGS or PYTHON for another project, and make
# would otherwise take those for its own.
given = $(if $(filter command,$(firstword $(origin $(1)))),$($(1)))

# Where this is set, Python compiles Quarterdeck anew for every server that a test starts and for every `qd`: a second each.
unexport PYTHONDONTWRITEBYTECODE

# Both spellings: older pip hands PIP_CONSTRAINT on to the isolated build, newer pip wants to be told separately.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	.venv/bin/python -m pip install --quiet -c constraints.txt

BASE := .venv/.installed
TEST := .venv/.installed-test

# Panes are tmux's, and no wheel brings it. Everything else works without; its tests are skipped then, and counted.
TMUX_HINT := command -v tmux >/dev/null || echo 'tmux is not installed, so members of fleets have no panes. \
	It is a package: apt-get install tmux (Debian, Ubuntu), brew install tmux (macOS).'

.PHONY: help install up test lint bench soak states golden sdk

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  DATA=DIR      (up) keep the data there instead of in the user'"'"'s data directory'
	@echo '  ARGS="..."    (up, test, soak, bench) more arguments for the program behind the target'
	@echo '  PYTHON=PROG   (the first time) the Python to build .venv with'

install: $(BASE) ## make .venv and install Quarterdeck into it
	@$(TMUX_HINT)

# The variables that other programs also use (DATABASE_URL, PORT, ...) are ignored here: this is the laptop's command.
up: $(BASE) ## start the server on SQLite, in the foreground
	@exec .venv/bin/qd up --only-own-variables \
		$(if $(call given,DATA),--data "$(call given,DATA)") $(call given,ARGS)

# Two at a time, a file by one of them: half of what a test does is waiting for a server, and a file's fixtures are shared.
# In the order of tests/conftest.py: by itself xdist begins with the files of most tests, and would keep for the end the one
# test that takes minutes, for the other of the two to wait for.
test: lint ## lint, types, import contracts, and every test on both engines
	@$(TMUX_HINT)
	.venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(call given,ARGS)

lint: $(TEST) ## the checks that run nothing
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --strict
	.venv/bin/lint-imports

bench: $(TEST) ## measure against the controls, side by side
	.venv/bin/python -m bench $(call given,ARGS)

# Races and chaos at full counts. A test may then take as long as its rounds do; the attack on the whole plane goes on for
# QD_SOAK_SECONDS, and QD_SEED gives the same attack again.
soak: $(TEST) ## the tests again, with many more rounds of races and chaos
	QD_ROUNDS=100 QD_SOAK_SECONDS="$${QD_SOAK_SECONDS:-1800}" .venv/bin/python -m pytest --timeout=7200 $(call given,ARGS)

states: $(TEST) ## draw docs/states/ again from the code
	QD_WRITE_STATES=1 .venv/bin/python -m pytest tests/test_states.py

golden: $(TEST) ## write tests/golden/ again: the public interface as files; read the diff
	QD_WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/test_golden.py

sdk: $(BASE) ## write the SDK's client without a loop again from the one with a loop
	.venv/bin/python tools/generate_sync_sdk.py

# Installed again only when what is to be installed has changed.
$(BASE): .venv/bin/python pyproject.toml constraints.txt
	@echo 'Installing Quarterdeck into .venv'
	@$(PIP) -e .
	@touch $@

$(TEST): .venv/bin/python pyproject.toml constraints.txt
	@echo 'Installing Quarterdeck and what its tests need into .venv'
	@$(PIP) -e '.[test]'
	@touch $(BASE) $@

# A Python that has lost its venv module (Debian packs it separately) is passed over like one that is too old.
.venv/bin/python:
	@for python in "$(call given,PYTHON)" python3.11 python3.12 python3.13 python3 python; do \
		if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Making .venv with $$python"; \
			"$$python" -m venv --clear .venv && exit 0; \
			rm -rf .venv; exit 1; \
		fi; \
	done; \
	echo 'Quarterdeck needs Python 3.11 or newer with its venv module, and none was found on PATH.' >&2; \
	echo 'Install one (on Debian and Ubuntu: python3 and python3-venv), or name one: make PYTHON=PROGRAM' >&2; \
	exit 1
