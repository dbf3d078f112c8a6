"""Mistyped keys, empty names, short help, shipped configs and the words of how one started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.core.program import command_of
from claim2source.pipeline.table import EvaluateConfig
from claim2source.systems.read import read_systems
from claim2source.training.config import FinetuneConfig
from tests.shared_data import REPOSITORY
from train.finetune import COMMON, main


def refused(kind: type, *words: str) -> str:
    with pytest.raises(UserError) as caught:
        read_config(kind, words, program="train/finetune.py", description="d")
    (line,) = caught.value.lines
    return line


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--lr 1", "did you mean optimisation.learning_rate or mining.last_rank? "),
        ("--lora.rank 4", "did you mean lora.r? "),
    ],
)
def test_a_mistyped_flag_suggests_the_nearest_key(typed: str, meant: str) -> None:
    key, *words = typed.split()
    said = refused(FinetuneConfig, key, *words)
    assert said.startswith(f"config: {key[2:]}: no such key; {meant}allowed: ")


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


def test_finetune_help_is_ten_keys_and_help_all_is_every_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for word in ("--help", "-h", "--help=all"):
        with pytest.raises(SystemExit) as ended:
            main([word])
        assert ended.value.code == 0
    both = capsys.readouterr().out
    short, again, full = both.split("usage:")[1:]
    assert short == again and "--mining.max_share" in full and "--help=all explains" in short
    shown = [line.split()[0].strip(",") for line in short.splitlines() if line.startswith("  --")]
    assert shown == [f"--{key}" for key in COMMON] and "(default: 5e-05)" in short
    assert all(f"--{key}" in full for key in COMMON)


def test_configs_that_ship_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--config", "configs/finetune/demo.yaml"]
    found = read_config(FinetuneConfig, words, program="train/finetune.py", description="d")
    assert found.out == Path("checkpoints/demo")
    assert "demo.yaml is not here: the one that ships with claim2source is read" in caplog.text
    assert "BM25" in " ".join(read_systems([Path("configs/systems/offline.yaml")]))
    # One's own comes first, and other folders are not searched.
    own = tmp_path / "configs" / "finetune" / "demo.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("out: mine\n")
    found = read_config(FinetuneConfig, words, program="train/finetune.py", description="d")
    assert found.out == Path("mine")


@pytest.mark.parametrize(
    ("started", "command", "beside"),
    [
        ("{root}/train/finetune.py", "python {root}/eval/score.py", True),
        ("/usr/bin/claim2source", "claim2source score", True),
        ("/usr/bin/pytest", "python eval/score.py", True),
        ("my code/train/finetune.py", "python 'my code/eval/score.py'", False),
    ],
)
def test_programs_are_named_as_the_process_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: str, command: str, beside: bool
) -> None:
    (tmp_path / "my code").mkdir()
    (tmp_path / "my code" / "eval").symlink_to(REPOSITORY / "eval")
    monkeypatch.chdir(REPOSITORY if beside else tmp_path)
    monkeypatch.setattr(sys, "argv", [started.format(root=REPOSITORY)])
    assert command_of("eval/score.py") == command.format(root=REPOSITORY)


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
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **WORST, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    encoding, *said = done.stdout.splitlines()
    assert encoding.lower() != "utf-8" and said == [ascii("Čapek/größe.jsonl")], done.stderr
