"""Every shipped config is one its program takes, states only what differs, and names real things."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from claim2source.config import REPOSITORY, as_plain, read_config
from claim2source.mining.program import MineConfig
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
                     ".rendering.sources", ".tuning", ".out", ".data.val_share"}  # fmt: skip
            # The paper's config says what it does where the paper is silent.
            if path.name == "gritlm_f_paper.yaml":
                named |= {".batches.order", ".batches.alpha"}
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
    assert said["batches"] == {"order": "mixed", "alpha": 1.0}
    for key in (
        "temperature", "targets", "seed", "dtype", "claims", "max_share", "last_rank", "order",
        "alpha: 1.0",
    ):  # fmt: skip
        (line, *_) = [line for line in lines if line.strip().startswith(key)]
        assert "[code]" in line or "[ours]" in line, line
    # What a reader would take for the paper's and is not, said where it is no key of its own.
    text = path.read_text(encoding="utf-8")
    assert "[code]: eager at evaluation" in text and "[code] drops an epoch's last batch" in text


def test_the_mining_command_of_the_2026_experiment_is_what_gritlm_7b_mines() -> None:
    """As the shell reads it: a file mined apart must hold what the run would mine."""
    text = (REPOSITORY / "configs" / "checkthat2026" / "README.md").read_text(encoding="utf-8")
    (command,) = (block for block in text.split("```") if "python train/mine.py" in block)
    command = command.removeprefix("bash\n").replace("python train/mine.py", "printf '%s\\0'")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    words = done.stdout.split("\0")[:-1]
    apart = read_config(MineConfig, words, program="t", description="t")
    path = REPOSITORY / "configs" / "finetune" / "gritlm_7b.yaml"
    run = read_config(FinetuneConfig, ["--config", str(path)], program="t", description="t")
    assert apart.mining == run.mining and apart.model == run.model
    assert apart.rendering == run.rendering and apart.dataset == run.data.dataset
    assert (apart.val_share, apart.val_seed) == (run.data.val_share, run.data.val_seed)


def leaves(value: Any, key: str = "") -> dict[str, Any]:
    """A nested config as dotted keys."""
    if not isinstance(value, dict) or not value:
        return {key: value}
    return {k: v for name, part in value.items() for k, v in leaves(part, f"{key}.{name}").items()}


def test_gritlm_7b_states_and_explains_every_value_that_is_not_the_papers() -> None:
    """None is silent by being a default."""
    folder = REPOSITORY / "configs" / "finetune"
    paper, ours = (
        leaves(as_plain(read_config(FinetuneConfig, ["--config", str(folder / name)],
                                    program="t", description="t")))
        for name in ("gritlm_f_paper.yaml", "gritlm_7b.yaml")
    )  # fmt: skip
    text = (folder / "gritlm_7b.yaml").read_text(encoding="utf-8")
    said, lines = leaves(yaml.safe_load(text)), text.splitlines()
    different = [key for key in ours if ours[key] != paper.get(key) and key != ".out"]
    assert {".data.val_share", ".mining.bm25.k1", ".optimisation.epochs"} <= set(different)
    for key in different:
        assert key in said, f"{key} is silent"
        explained = False
        # The reason stands beside the key, above it, or beside its group.
        for part in key.strip(".").split(".")[-2:]:
            explained |= any(
                "#" in line or lines[i - 1].lstrip().startswith("#")
                for i, line in enumerate(lines)
                if line.strip().startswith(f"{part}:")
            )
        assert explained, f"{key} has no reason"
