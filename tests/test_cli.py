"""The command `claim2source`: it starts every program, and says which there are."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from claim2source.cli import PROGRAMS, main
from claim2source.core.errors import UserError
from eval.score import main as score
from tests.shared_data import REPOSITORY


def test_every_program_is_a_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    files = {*REPOSITORY.glob("train/[a-z]*.py"), *REPOSITORY.glob("eval/[a-z]*.py")}
    modules = {f"{file.parent.name}.{file.stem}" for file in files} | {
        "datasets.prepare",
        "pipeline.translate",
        "pipeline.rewrite",
    }
    assert {module for module, _ in PROGRAMS.values()} == modules
    for name, (module, _) in PROGRAMS.items():
        assert name == module.rpartition(".")[2].replace("_", "-")
        assert callable(import_module(f"claim2source.{module}").main)
    with pytest.raises(SystemExit) as ended:
        main(["tune_bm25", "--help"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("usage: ")
    for words in ([], ["-h"], ["--help"]):
        main(words)
        said = capsys.readouterr().out
        assert all(f"\n  {name} " in said and what in said for name, (_, what) in PROGRAMS.items())


def test_it_runs_the_program_with_the_words_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.tsv").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    (tmp_path / "r.trec").write_text("q1 Q0 d1 1 2.0 r\nq2 Q0 d1 1 2.0 r\n")
    words = ["--qrels", str(tmp_path / "q.tsv"), "--run", str(tmp_path / "r.trec"), "--json"]
    score(words)
    expected = capsys.readouterr().out
    main(["score", *words])
    assert capsys.readouterr().out == expected and '"mrr@5": 0.5' in expected
    with pytest.raises(UserError, match="no such file"):
        main(["report", "--reports", str(tmp_path / "none")])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("scor", "did you mean score? "), ("fine-tune", "did you mean finetune? "), ("xyz", "")],
)
def test_a_mistyped_subcommand_suggests_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(UserError) as caught:
        main([typed, "--help"])
    assert str(caught.value).startswith(f"{typed}: no such subcommand; {meant}there are: prepare, ")
