"""The command `claim2source`: it starts every program, and says which there are."""

from __future__ import annotations

from importlib import import_module

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
