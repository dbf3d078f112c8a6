"""The command `claim2source`: it starts every program, and says which there are."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from claim2source.cli import PROGRAMS, main
from tests.shared_data import REPOSITORY


def test_every_program_is_a_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    files = {*REPOSITORY.glob("train/[a-z]*.py"), *REPOSITORY.glob("eval/[a-z]*.py")}
    modules = {f"{file.parent.name}.{file.stem}" for file in files} | {"data.prepare"}
    assert {module for module, _ in PROGRAMS.values()} == modules
    for name, (module, _) in PROGRAMS.items():
        assert name == module.rpartition(".")[2].replace("_", "-")
        assert callable(import_module(f"claim2source.{module}").main)
    with pytest.raises(SystemExit) as ended:
        main(["style_grid", "--help"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("usage: ")
    for words in ([], ["-h"], ["--help"]):
        main(words)
        output = capsys.readouterr().out
        assert all(
            f"\n  {name} " in output and text in output for name, (_, text) in PROGRAMS.items()
        )


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["-m", "claim2source", "mine"], "python -m claim2source mine"),
        (["-m", "claim2source.train"], "python -m claim2source finetune"),
        ([str(REPOSITORY / "train" / "mine.py")], f"python {REPOSITORY / 'train' / 'mine.py'}"),
    ],
)
def test_a_program_names_itself_as_it_was_started(
    words: list[str], command: str, tmp_path: Path
) -> None:
    process = subprocess.run(
        [sys.executable, *words, "--help"], cwd=tmp_path, capture_output=True, text=True
    )
    assert process.stdout.startswith(f"usage: {command} [--config FILE"), process.stderr
