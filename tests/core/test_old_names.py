"""Names that are gone are refused with one line that says what to do now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from claim2source import cli
from claim2source.core import old_names
from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.core.old_names import OLD_KEYS, OLD_PROGRAMS


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
    assert refusal(["--group.deep", "3"]).endswith("group.deep: is gone; say --group.depth")
    assert "is gone" not in refusal(["--deep", "3"], "eval/serve.py")  # another program's
    for key in ("old.kind", "old.other.one"):  # a group that is gone as a whole
        assert refusal([f"--{key}", "3"]) == f"config: {key}: is gone; write it elsewhere"
    assert "is gone" not in refusal(["--old", "3"])
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
