PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test test-slow lint docs clean

install: $(STAMP)

# torch first and by itself: pip then takes the CPU build where one is offered. The package allows
# 2.14 too, which vllm pins.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch>=2.11,<2.14"
	$(BIN)/python -m pip install --quiet -e ".[cpu,demo,dev]"
	touch $(STAMP)

demo: install
	$(BIN)/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no \
		--dynamo_backend no train/finetune.py --config configs/finetune/demo.yaml --overwrite
	$(BIN)/python eval/checkpoint.py --checkpoint checkpoints/demo --dataset demo --split test \
		--no_tests --out checkpoints/demo/evaluation

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

test-slow: install
	$(BIN)/python -m pytest -m slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The extra is installed here only: nothing else needs it.
docs: install
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) build dist *.egg-info
