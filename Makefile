# `make serve` and `make test` first install what they need, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PREFIX ?= $(HOME)/.local/share/paddock

.DEFAULT_GOAL := help
.PHONY: help serve test test-all check format page docs fuzz evaluate bench lock install versions use dist sbom clean native test-native

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

serve: $(VENV)/.installed-demo  ## Serve the demo model on 127.0.0.1:8080 (ARGS="--port 9000" to change that)
	@$(BIN)/paddock serve $(ARGS)

# Three processes (six in the fast tier, whose tests often wait) that each run whole files, so that servers shared by the
# tests of a file start once. Bytecode is written even if the environment disables it, because the tests start hundreds of
# processes.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.installed-dev  ## Run the fast tests, in about 8 minutes (ARGS="-k name" for a part, ARGS="-n 0" in one process)
	@$(PYTEST) -n 6 -m "not full" $(ARGS)

# Both name the library, because a machine that has a compiled one uses it everywhere else.
test-all: $(VENV)/.installed-dev  ## Run every test with the prebuilt llama.cpp, with more random examples (about 40 minutes)
	@PADDOCK_TEST_LIBRARY=prebuilt $(PYTEST) --hypothesis-profile=full $(ARGS)

native: $(VENV)/.installed-demo  ## Compile llama.cpp for this machine, in about fifteen minutes (ARGS="--cuda" for a GPU)
	@$(BIN)/paddock build $(ARGS)

test-native: $(VENV)/.installed-dev  ## Run every test with a compiled llama.cpp, which is built if there is none
	@$(BIN)/paddock build --path >/dev/null 2>&1 || $(BIN)/paddock build
	@PADDOCK_TEST_LIBRARY=compiled $(PYTEST) --hypothesis-profile=full $(ARGS)

check: $(VENV)/.installed-dev  ## Lint, format, types, import rules, unused dependencies, documents, web page
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/deptry src
	@cd lab && ../$(BIN)/deptry src
	@$(BIN)/python tools/docs.py check
	@$(PYTHON) tools/page.py check

format: $(VENV)/.installed-dev  ## Format the code and fix lint errors
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

page:  ## Build the web page into the package (needs Node 20.19 or newer; serving does not)
	@$(PYTHON) tools/page.py build

docs: $(VENV)/.installed-dev  ## Write the reference pages that are generated from the code
	@$(BIN)/python tools/docs.py write

fuzz: $(VENV)/.installed-dev  ## Run schemathesis on every route with more examples than the tests (about ten minutes)
	@PADDOCK_FUZZ_EXAMPLES=1000 $(BIN)/python -m pytest tests/gateway/test_fuzzing.py -k generated --timeout 3600 $(ARGS)

evaluate: $(VENV)/.installed-evaluate  ## Score the demo model with lm-evaluation-harness, and compare it with llama.cpp
	@$(BIN)/python tools/evaluate.py

bench: $(VENV)/.installed-dev  ## Measure start-up time and idle memory
	@$(BIN)/python -m paddock_lab.startup

lock: $(VENV)/.installed-dev  ## Write the versions installed now to constraints.txt
	@$(BIN)/python tools/lock.py

install:  ## Install this version for production below PREFIX, beside other versions, and select it (EXTRAS=otel)
	@$(PYTHON) tools/install.py $(PREFIX) install $(EXTRAS)

versions:  ## List the versions that are installed below PREFIX
	@$(PYTHON) tools/install.py $(PREFIX) list

use:  ## Select the installed version for the next start: make use VERSION=0.1.0-…
	@$(PYTHON) tools/install.py $(PREFIX) use $(VERSION)

dist: $(VENV)/.installed-dev  ## Build the wheels and source packages of both distributions into dist/
	@$(BIN)/python tools/dist.py

sbom: $(VENV)/.installed-dev  ## Write the software bill of materials of a server to dist/ (CycloneDX)
	@$(BIN)/python tools/sbom.py

clean:  ## Remove the environment and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.installed-demo: pyproject.toml constraints.txt tools/bootstrap.py
	@$(PYTHON) tools/bootstrap.py $(VENV)
	@touch $@

# This installs what `make serve` needs too, so it sets that stamp as well.
$(VENV)/.installed-dev: pyproject.toml lab/pyproject.toml constraints.txt tools/bootstrap.py
	@$(PYTHON) tools/bootstrap.py $(VENV) all,clients,dev lab
	@touch $(VENV)/.installed-demo $@

$(VENV)/.installed-evaluate: $(VENV)/.installed-dev
	@$(PYTHON) tools/bootstrap.py $(VENV) all,clients,dev,evaluate lab
	@touch $@
