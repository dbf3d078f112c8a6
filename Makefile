PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test test-slow test-llm lint docs browser clean

install: $(STAMP)

# torch first and by itself: pip then takes the CPU build where one is offered. The package allows
# 2.14 too, which vllm pins.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch>=2.11,<2.14"
	$(BIN)/python -m pip install --quiet -e ".[cpu,demo,dev]"
	touch $(STAMP)

# It first prints what it will do and how long that takes. Its first step is `make install`.
demo:
	@$(PYTHON) scripts/demo.py

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not llm" -n 2 --dist loadfile

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not llm" -n 2 --dist loadfile --no-loadscope-reorder

# Each stage that calls a language model, on a real llama.cpp. If its package is not installed
# (`scripts/serve_llm.sh --local FILE.gguf` does that), this prints one line and ends.
# CLAIM2SOURCE_WEIGHTS is a folder of GGUF files.
test-llm: install
	@llama=$${LLAMA_ENVIRONMENT:-.venv-llama}; \
	if $$llama/bin/python -c "import xllamacpp" 2>/dev/null; then \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m llm; \
	else \
		echo "test-llm: no xllamacpp in $$llama; the tests of a real server are skipped"; \
	fi

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The extra is installed here only: nothing else needs it.
docs: install
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Chromium for the tests of the HTML page. Without it they are skipped, so nothing here is an error.
browser:
	@if found=$$(command -v "$${CHROMIUM:-chromium}" || command -v chromium-browser); then \
		echo "browser: $$found"; \
	elif ! command -v apt-get >/dev/null; then \
		echo "browser: no chromium, and no apt-get to install it; the tests of the page are skipped"; \
	elif [ "$$(id -u)" != 0 ]; then \
		echo "browser: no chromium; as root: apt-get install -y --no-install-recommends chromium"; \
	elif apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; then \
		echo "browser: installed chromium"; \
	else \
		echo "browser: apt-get could not install chromium; the tests of the page are skipped"; \
	fi

clean:
	rm -rf $(VENV) build dist *.egg-info
