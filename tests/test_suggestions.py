"""Every program suggests what a mistyped subcommand, key, group of keys or value may be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from claim2source.cli import PROGRAMS, main
from claim2source.core.errors import ConfigError, UserError, did_you_mean_value
from claim2source.data.loading import load

# A key of one of several values, and a mistyped value of it.
VALUES = [
    ("finetune", "tuning", "lroa", "lora"),
    ("finetune", "rendering.claims", "orignal", "original"),
    ("finetune-reranker", "model.kind", "cross_encodr", "cross_encoder"),
    ("mine", "mining.pool", "trian-golds", "train-golds"),
    ("evaluate", "claims", "bilingul", "bilingual"),
    ("evaluate", "only", "MiniLN", "MiniLM"),
    ("evaluate", "device", "cuad", "cuda"),
    ("index", "format", "opnalex", "openalex"),
    ("score", "ranked_by", "rerankr", "reranker"),
]


def help_of(program: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main([program, "--help=all"])
    return capsys.readouterr().out


def mistyped(word: str) -> str:
    """Swap the last two letters, as a hurried hand does."""
    return word[:-2] + word[-1] + word[-2]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_mistyped_subcommand_suggests(program: str) -> None:
    with pytest.raises(UserError) as error:
        main([mistyped(program)])
    assert f"did you mean {program}?" in str(error.value) and len(error.value.lines) == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_mistyped_key_suggests(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The longest keys: of short ones, such as `k`, a mistyped letter leaves nothing."""
    keys = sorted(re.findall(r"^  --([\w.]+)", help_of(program, capsys), re.MULTILINE), key=len)
    for key in keys[-3:]:
        with pytest.raises(UserError) as error:
            main([program, f"--{mistyped(key)}", "1"])
        (line,) = error.value.lines
        assert mistyped(key) in line and "did you mean " in line, line
        suggested = line.partition("did you mean ")[2].partition("?")[0]
        assert key.endswith(tuple(suggested.split(" or "))), line


@pytest.mark.parametrize(("program", "key", "value", "near"), VALUES)
def test_a_mistyped_value_suggests(
    program: str, key: str, value: str, near: str, tmp_path: Path
) -> None:
    words = [f"--{key}", value]
    if program in ("index", "evaluate"):
        words += ["--out", str(tmp_path / "out")]
    if program == "index":
        words.insert(0, "demo")
    with pytest.raises(UserError) as error:
        main([program, *words])
    (line,) = error.value.lines
    assert value in line and f"did you mean {near}?" in line


def test_mistyped_names_of_data_sets_splits_and_configs_suggest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "climate").mkdir()
    (tmp_path / "climate" / "corpus.jsonl").write_text("")
    for name, split, near in (
        ("demoo", "dev", "demo"),
        ("climat", "dev", "climate"),
        ("demo", "tets", "test"),
    ):
        with pytest.raises(UserError) as error:
            load(name, split)
        assert f"did you mean {near}?" in str(error.value)
    for words, near in (
        (["finetune", "--config", "configs/finetune/miniml.yaml"], "minilm"),
        (["find", "a post", "--lang", "en", "--index", "climaet"], "climate"),
    ):
        with pytest.raises(UserError) as error:
            main(words)
        assert f"did you mean {near}?" in str(error.value)


def test_a_wrong_metric_of_a_report_names_its_own_key(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        main(["report", "--reports", str(tmp_path), "--metric", "mmr@5"])
    assert "config: metric: 'mmr@5' " in str(error.value)


@pytest.mark.parametrize(
    ("value", "allowed", "near"),
    [
        ("cuad", "cpu, cuda or null", "did you mean cuda? "),
        ("tets", "splits that have a file; there are: train, test", "did you mean test? "),
        ("nothing like it", "cpu, cuda or null", ""),
        ("whole", "a whole number, 1 to 10", ""),
        ("x" * 10_000, "cpu, cuda", ""),
        (7, "cpu, cuda", ""),
        ("", "cpu, cuda", ""),
    ],
)
def test_a_value_is_compared_with_values_and_not_with_descriptions(
    value: object, allowed: str, near: str
) -> None:
    assert did_you_mean_value(value, allowed) == near
    assert near in str(ConfigError("key", value, allowed))
