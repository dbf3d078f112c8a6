"""Every shipped config is valid, sets only what differs from defaults, and names real things."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from claim2source.train.mine import MineConfig

from claim2source.core.config import as_plain, read_config
from claim2source.core.files import file_hash
from claim2source.systems.read import read_systems
from claim2source.training.config import FinetuneConfig
from claim2source.training.reranker_config import RerankerConfig
from tests.shared_data import REPOSITORY

KINDS: dict[str, type[Any]] = {"finetune": FinetuneConfig, "reranker": RerankerConfig}
FINETUNE = REPOSITORY / "configs" / "finetune"
PAPER = FINETUNE / "gritlm_f_paper.yaml"
README_2026 = REPOSITORY / "configs" / "checkthat2026" / "README.md"
# Read by their own tests.
ELSEWHERE = (
    *("systems", "evaluate", "translate", "rewrite", "style_grid", "verify", "news", "rumors"),
    "fusion",
    "posts",
)
FILES = sorted(
    path for path in (REPOSITORY / "configs").rglob("*.yaml") if path.parent.name not in ELSEWHERE
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_config_is_read(path: Path) -> None:
    kind = KINDS[path.parent.name]
    read = read_config(kind, ["--config", str(path)], program="t", description="t")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert as_plain(read)["out"] == values["out"]


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "reranker"])
def test_a_rerankers_first_stage_is_a_system_that_ships(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    read = read_config(RerankerConfig, ["--config", str(path)], program="t", description="t")
    assert read.first.system in read_systems(read.first.files or None)


def leaves(value: Any, key: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {key: value}
    return {k: v for name, part in value.items() for k, v in leaves(part, f"{key}.{name}").items()}


@cache
def resolved(path: Path) -> dict[str, Any]:
    """All settings of a finetune config, explicit or by default."""
    read = read_config(FinetuneConfig, ["--config", str(path)], program="t", description="t")
    return {key.removeprefix("."): value for key, value in leaves(as_plain(read)).items()}


# Section 3.6 of the 2026 paper's specification (table 6), and nothing else.
PRINTED = {
    "model.name": "GritLM/GritLM-7B",
    "model.max_length": 256,
    "tuning": "lora",
    "lora.r": 16,
    "lora.alpha": 64,
    "lora.dropout": 0.1,
    "mining.hard": 6,
    "mining.random": 2,
    "optimisation.epochs": 3,
    "optimisation.learning_rate": 2e-4,
    "optimisation.batch_size": 8,
    "optimisation.accumulation": 4,
    "optimisation.warmup_ratio": 0.05,
    "optimisation.weight_decay": 0.01,
    "optimisation.negatives": 8,
}


def test_gritlm_f_is_what_the_paper_prints() -> None:
    config = resolved(PAPER)
    assert {key: config[key] for key in PRINTED} == PRINTED
    assert config["optimisation.negatives"] == config["mining.hard"] + config["mining.random"]
    # Neutral, although the paper's file does not set them: defaults that must not change.
    neutral = {"data.limit": None, "data.repeat": 1, "data.val_seen_share": None}
    neutral |= {"losses": [{"info_nce": {"weight": 1.0}}], "teacher": None, "rule": "one_se"}
    # It uses the trainer of transformers.
    neutral |= {"optimisation.warmup_from_zero": True, "optimisation.warmup_rounding": "up"}
    assert {key: config[key] for key in neutral} == neutral


def test_gritlm_f_stays_as_it_prints_byte_for_byte() -> None:
    """Published settings do not change with later findings: a key keeps its schedule."""
    assert file_hash(PAPER) == "5d8a73fef661c51f69a0cb47869d656d228ead5140ac708a5631af6579fba19f"


def load_program(path: str) -> Any:
    """Import a program as a module without running it; the package's programs by their own name."""
    folder, _, program = path.removesuffix(".py").rpartition("/")
    if folder in ("train", "eval"):
        return importlib.import_module(f"claim2source.{folder}.{program}")
    name = f"{Path(path).stem}_of_test_configs"
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their own module.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def parsed(kind: type[Any], words: Sequence[str]) -> Any:
    return read_config(kind, words, program="t", description="t")


def read_prepare(words: Sequence[str]) -> Any:
    return load_program("scripts/prepare.py").read_options(words)


# Each prints its words as passed by the shell; other programs do nothing.
STUBS = """
python() { printf '%s\\0' "$@"; printf '\\036'; }
accelerate() { shift; python "$@"; }
pip() { :; }; hf() { :; }; cat() { :; }; bash() { :; }
"""


def commands(shell: str, folder: Path) -> list[tuple[str, list[str]]]:
    """List (program, its words) for our commands in lines of shell, as parsed by bash.

    Nothing is run, and PATH is empty, so that an unknown command fails.
    """
    (folder / "out").mkdir(exist_ok=True)  # the target of redirections
    process = subprocess.run(
        ["/bin/bash", "-euc", STUBS + shell],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PATH": ""},
    )
    assert process.returncode == 0, process.stderr
    entries = [entry.split("\0")[:-1] for entry in process.stdout.split("\036")[:-1]]
    return [(program, words) for program, *words in entries]


def blocks(kind: str) -> list[str]:
    text = README_2026.read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_mining_command_of_the_2026_experiment_is_what_gritlm_7b_mines(tmp_path: Path) -> None:
    """As parsed by the shell: a separately mined file must equal what the run would mine."""
    (block,) = (block for block in blocks("bash") if "python train/mine.py" in block)
    ((_, words),) = commands(block, tmp_path)
    mine_config = parsed(MineConfig, words)
    run = parsed(FinetuneConfig, ["--config", str(FINETUNE / "gritlm_7b.yaml")])
    assert mine_config.mining == run.mining and mine_config.model == run.model
    assert mine_config.rendering == run.rendering and mine_config.dataset == run.data.dataset
    assert (mine_config.val_share, mine_config.val_seed) == (run.data.val_share, run.data.val_seed)
