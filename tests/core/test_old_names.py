"""Names that are gone are refused with one line that says what to do now."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from claim2source import cli
from claim2source.core import old_names
from claim2source.core.config import as_plain, read_config
from claim2source.core.errors import UserError
from claim2source.core.old_names import ALWAYS, OLD_KEYS, OLD_PROGRAMS
from claim2source.training.config import FinetuneConfig, RunConfig
from claim2source.training.reranker.config import RerankerConfig
from claim2source.training.run_folder import refuse_changes

_FREE = "after.styles"  # holds with any value


@dataclass(frozen=True)
class Group:
    depth: int = 1


@dataclass(frozen=True)
class Config:
    depth: int = 1
    group: Group = Group()


def refusal(words: list[str], program: str = "eval/find.py") -> str:
    with pytest.raises(UserError) as caught:
        read_config(Config, words, program=program, description="")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_key_that_is_gone_is_refused_as_a_flag_and_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        ("eval/find.py", "deep"): "say --depth",
        ("eval/find.py", "group.deep"): "say --group.depth",
        ("", "no_more"): "nothing does it now",
        ("eval/find.py", "old."): "write it elsewhere",
    }
    monkeypatch.setattr(old_names, "OLD_KEYS", rows)
    for words in (["--deep", "3"], ["--deep=3"], ["--depth", "2", "--deep"]):
        assert refusal(words) == "config: deep: is gone; say --depth"
    assert "is gone" not in refusal(["--deep", "3"], "eval/serve.py")  # another program's
    for key in ("old", "old.kind", "old.other.one"):  # a group that is gone as a whole
        assert refusal([f"--{key}", "3"]) == f"config: {key}: is gone; write it elsewhere"
    assert refusal(["--no_more"], "eval/serve.py").endswith("nothing does it now")
    file = tmp_path / "a.yaml"
    for text, line, said in (
        ("depth: 2\ndeep: 3\n", 2, "deep: is gone; say --depth"),
        ("group:\n  deep: 3\n", 2, "group.deep: is gone; say --group.depth"),
        ("old:\n  kind: 3\n", 1, "old: is gone; write it elsewhere"),
    ):
        file.write_text(text)
        assert refusal(["--config", str(file)]) == f"{file}:{line}: {said}"
    assert read_config(Config, ["--depth", "2"], program="eval/find.py", description="").depth == 2


@pytest.mark.parametrize("program", sorted({program for program, _ in [*OLD_KEYS, *ALWAYS]}))
def test_the_programs_refuse_every_key_of_the_tables(program: str, tmp_path: Path) -> None:
    module = next(
        (
            module
            for module, _ in cli.PROGRAMS.values()
            if f"{module.replace('.', '/')}.py" == program
        ),
        "train.finetune",
    )
    main = importlib.import_module(module).main
    file = tmp_path / "old.yaml"
    for key in {key for owner, key in [*OLD_KEYS, *ALWAYS] if owner == program} - {_FREE}:
        name = f"{key}other" if key.endswith(".") else key
        content: object = "zzz"
        for part in reversed(name.split(".")):
            content = {part: content}
        if program in ("eval/pipeline.py", "eval/news.py"):
            content = {"pipeline": "p.yaml", **cast(dict[str, object], content)}
        file.write_text(yaml.safe_dump(content))
        for words in ([f"--{name}", "zzz"], [f"--{name}"], ["--config", str(file)]):
            with pytest.raises(UserError, match=": is gone; ") as caught:
                main([*words, "--print_config"])
            assert len(caught.value.lines) == 1


@pytest.mark.parametrize(
    ("config", "gone", "used"),
    [
        (
            FinetuneConfig(),
            {"after": {"stages": [], "styles": {"texts": None, "llm": {"model": ""}}}},
            {"after": {"stages": ["styles"]}},
        ),
        (
            RerankerConfig(),
            {"model": {"prefixes": {"claim": "", "pool_prefix": True}}},
            {"model": {"prefixes": {"claim": "query: "}}},
        ),
    ],
)
def test_the_config_of_an_older_run_is_read_and_goes_on_unless_it_used_what_is_gone(
    config: RunConfig, gone: dict[str, Any], used: dict[str, Any], tmp_path: Path
) -> None:
    file, program = tmp_path / "config.yaml", old_names._FINETUNE
    if isinstance(config, RerankerConfig):
        program = old_names._RERANKER
    for more, fits in ((gone, True), (used, False)):
        plain = as_plain(config)
        for group, keys in more.items():
            plain[group] = {**(plain[group] or {}), **keys}
        file.write_text(yaml.safe_dump(plain))
        words = ["--config", str(file)]
        if fits:
            refuse_changes(file, config)
            assert read_config(type(config), words, program=program, description="") == config
        else:
            with pytest.raises(UserError, match="is gone"):
                read_config(type(config), words, program=program, description="")


def test_a_program_that_is_gone_is_refused_and_no_living_one_is() -> None:
    for name, now in OLD_PROGRAMS.items():
        for written in (name, name.replace("-", "_")):
            with pytest.raises(UserError) as caught:
                cli.main([written, "a", "--b"])
            assert str(caught.value).endswith(f": is gone; {now}") and "\n" not in now
    assert {"snapshot", "restore", "migrate"} <= OLD_PROGRAMS.keys()
    assert OLD_PROGRAMS.keys().isdisjoint(cli.PROGRAMS)
    programs = {f"{module.replace('.', '/')}.py" for module, _ in cli.PROGRAMS.values()}
    assert {program for program, _ in OLD_KEYS} <= {"", *programs}
    with pytest.raises(UserError, match="no such subcommand"):
        cli.main(["snapshots"])
