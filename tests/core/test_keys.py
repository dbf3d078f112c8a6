"""Mistyped keys, empty names, short help, shipped configs, and locales."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.evaluation.table import EvaluateConfig
from claim2source.systems.read import read_systems
from claim2source.training.config import FinetuneConfig
from tests.shared_data import REPOSITORY


def refused(kind: type, *words: str) -> str:
    with pytest.raises(UserError) as error:
        read_config(kind, words, program="train/finetune.py", description="d")
    (line,) = error.value.lines
    return line


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("--lr 1", "did you mean optimisation.learning_rate or mining.last_rank? "),
        ("--lora.rank 4", "did you mean lora.r? "),
    ],
)
def test_a_mistyped_flag_suggests_the_nearest_key(typed: str, hint: str) -> None:
    key, *words = typed.split()
    message = refused(FinetuneConfig, key, *words)
    assert message.startswith(f"config: {key[2:]}: no such key; {hint}allowed: ")


def test_a_dotted_key_in_a_file_is_shown_as_nested(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("tuning: full\noptimisation.epochs: 2\n", encoding="utf-8")
    message = refused(FinetuneConfig, "--config", str(file))
    nested = "in a file write optimisation: {epochs: ..}; "
    assert message.startswith(f"{file}:2: optimisation.epochs: no such key; {nested}allowed: ")


@pytest.mark.parametrize(
    ("kind", "words", "key"),
    [
        (FinetuneConfig, ["--model.name", ""], "model.name"),
        (FinetuneConfig, ["--out="], "out"),
        (EvaluateConfig, ["--out", "o", "--systems", "a.yaml", ""], "systems"),
    ],
)
def test_an_empty_name_is_not_the_current_folder(kind: type, words: list[str], key: str) -> None:
    assert refused(kind, *words).startswith(f"config: {key}: ")
    empty = ["--model.template.claim", "", "--model.template.source="]
    assert read_config(FinetuneConfig, empty, program="p", description="d").model.template


def test_configs_that_ship_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--config", "configs/finetune/demo.yaml"]
    config = read_config(FinetuneConfig, words, program="train/finetune.py", description="d")
    assert config.out == Path("checkpoints/demo")
    assert "demo.yaml" in caplog.text
    assert "BM25" in " ".join(read_systems([Path("configs/systems/offline.yaml")]))
    # The user's own file comes first, and other folders are not searched.
    own = tmp_path / "configs" / "finetune" / "demo.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("out: mine\n")
    config = read_config(FinetuneConfig, words, program="train/finetune.py", description="d")
    assert config.out == Path("mine")


WORST = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_configs_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("mined: Čapek/größe.jsonl\n", encoding="utf-8")
    code = """
import locale
from dataclasses import dataclass
from claim2source.core.config import read_config
@dataclass
class Own:
    mined: str
print(locale.getpreferredencoding(False))
own = read_config(Own, ["--config=own.yaml"], program="t", description="t")
print(ascii(own.mined))
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **WORST, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    encoding, *paths = process.stdout.splitlines()
    assert encoding.lower() != "utf-8" and paths == [ascii("Čapek/größe.jsonl")], process.stderr
