"""The command `claim2source` starts every program, and lists them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from claim2source.cli import PROGRAMS, main
from claim2source.core.errors import UserError
from scripts.bench import CASES
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


@pytest.mark.parametrize(
    ("program", "word"), [("find", "POST"), ("index", "SOURCE"), ("prepare", "TASK")]
)
def test_usage_names_the_words_without_a_flag(
    program: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([program, "--help"])
    usage = capsys.readouterr().out.partition("\n")[0]
    assert f" [{word}] [--config FILE" in usage


FILES = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for folder in ("train", "eval", "scripts")
    for path in (REPOSITORY / folder).glob("[a-z]*.py")
    if "if __name__" in path.read_text(encoding="utf-8")
)
# Their help imports the measured packages.
BENCHES = [pytest.param(f"scripts/bench.py {case}", marks=pytest.mark.slow) for case in CASES]
MOST = 10


def help_of(program: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    file, *case = program.split()
    package = "claim2source." if not file.startswith("scripts/") else ""
    module = import_module(package + file.removesuffix(".py").replace("/", "."))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(REPOSITORY / file), *case, *words])
        with pytest.raises(SystemExit) as ended:
            module.main()
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("program", [*FILES, *BENCHES])
def test_help_explains_ten_keys_at_most_then_names_all_by_group(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(program, capsys, "--help")
    first, has_groups, groups = text.partition("\nAll options by group")
    explained = re.findall(r"^  --([\w.]+)", first, re.MULTILINE)
    assert len(explained) <= MOST and len(explained) == len(set(explained))
    if not has_groups:
        return
    every = re.findall(r"^  --([\w.]+)", help_of(program, capsys, "--help=all"), re.MULTILINE)
    assert MOST < len(every) == len(set(every)) and set(explained) < set(every)
    found: list[str] = []
    for name in re.findall(r"^  (\w+): ", groups, re.MULTILINE):
        group = help_of(program, capsys, f"--help={name}")
        found += re.findall(r"^  --([\w.]+)", group, re.MULTILINE)
    assert sorted(found) == sorted(every)


def test_an_unknown_group_of_keys_is_one_line() -> None:
    with pytest.raises(UserError) as error:
        main(["find", "--help=translato"])
    assert "translator" in str(error.value) and len(error.value.lines) == 1
