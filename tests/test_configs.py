"""Every shipped config is one its program takes, states only what differs, and names real things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from claim2source.config import REPOSITORY, as_plain, read_config
from claim2source.training.config import FinetuneConfig

KINDS: dict[str, type] = {"finetune": FinetuneConfig}
# Baselines are lists of systems, not a program's settings: tests/evaluation/test_baseline_systems.py
FILES = sorted(
    path for path in (REPOSITORY / "configs").rglob("*.yaml") if path.parent.name != "baselines"
)


def test_there_are_configs_and_each_has_a_program() -> None:
    assert {"demo.yaml", "ct25_minilm.yaml"} <= {path.name for path in FILES}
    assert {path.parent.name for path in FILES} <= set(KINDS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_config_is_read_and_states_only_what_differs(path: Path) -> None:
    kind = KINDS[path.parent.name]
    read = read_config(kind, ["--config", str(path)], program="t", description="t")
    defaults = as_plain(read_config(kind, [], program="t", description="t"))

    def same(said: Any, default: Any, key: str) -> None:
        if isinstance(said, dict):
            for name, value in said.items():
                # Keys of a free mapping (languages) have no default.
                same(value, default.get(name) if default == {} else default[name], f"{key}.{name}")
        else:
            # A few keys are named though they equal the default, since the file is the manual.
            named = {".data.dataset", ".model.name", ".wandb.mode", ".rendering.claims",
                     ".rendering.sources", ".tuning", ".out"}  # fmt: skip
            optimisation = key.startswith((".optimisation", ".mining", ".lora", ".data.report"))
            assert said != default or key in named or optimisation, f"{path.name} repeats {key}"

    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    same(said, defaults, "")
    assert as_plain(read)["out"] == said["out"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_misspelt_key_is_refused(path: Path, tmp_path: Path) -> None:
    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    said["optimisation"]["learning_rat"] = 1.0
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(said), encoding="utf-8")
    with pytest.raises(Exception, match="learning_rat"):
        read_config(KINDS[path.parent.name], ["--config", str(wrong)], program="t", description="t")


def test_gritlm_f_is_what_the_paper_prints() -> None:
    path = REPOSITORY / "configs" / "finetune" / "gritlm_f_paper.yaml"
    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    optimisation, lora, mining = said["optimisation"], said["lora"], said["mining"]
    assert (lora["r"], lora["alpha"], lora["dropout"]) == (16, 64, 0.1)
    printed = {
        "epochs": 3, "learning_rate": 2e-4, "batch_size": 8, "accumulation": 4,
        "warmup_ratio": 0.05, "weight_decay": 0.01, "negatives": 8,
    }  # fmt: skip
    assert printed.items() <= optimisation.items()
    assert (mining["hard"], mining["random"]) == (6, 2)
    assert (said["tuning"], said["model"]["max_length"]) == ("lora", 256)
    # Every other value is marked as not the paper's.
    lines = path.read_text(encoding="utf-8").splitlines()
    for key in ("temperature", "targets", "seed", "dtype", "claims", "max_share", "last_rank"):
        (line, *_) = [line for line in lines if line.strip().startswith(f"{key}:")]
        assert "[code]" in line or "[ours]" in line, line
