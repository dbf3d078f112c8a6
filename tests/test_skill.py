"""SKILL.md names programs, flags and files that exist, and the values that programs give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from claim2source.cli import PROGRAMS, main
from claim2source.find.finder import Verdict
from tests.shared_data import REPOSITORY

SKILL = (REPOSITORY / "SKILL.md").read_text(encoding="utf-8")
# What every program takes though its help lists no key of this name.
GENERAL = {"help", "print_config", "config"}
# Name of a skill: at most 64 letters; description: at most 1,024.
NAME, DESCRIPTION = 64, 1024


def keys_in_help(program: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit) as ended:
        main([program, "--help=all"])
    assert ended.value.code == 0
    lines = re.findall(r"^  (--.*)$", capsys.readouterr().out, re.MULTILINE)
    return {key for line in lines for key in re.findall(r"--([\w.]+)", line)}


def test_its_head_names_and_describes_it() -> None:
    _, head, body = SKILL.split("---\n", 2)
    about = yaml.safe_load(head)
    assert set(about) == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]+", about["name"]) and len(about["name"]) <= NAME
    assert len(about["description"]) <= DESCRIPTION
    steps = re.findall(r"^## (\w+): ", body, re.MULTILINE)
    assert steps == ["Prepare", "Train", "Evaluate", "Find"]
    assert body.count("\nGuard rails:\n") == len(steps)


def test_every_program_and_flag_of_a_section_is_in_its_programs_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    every: set[str] = set(GENERAL)
    first, *sections = re.split(r"^## ", SKILL, flags=re.MULTILINE)
    for section in sections:
        heading = section.partition("\n")[0]
        programs = re.findall(r"`([\w-]+)`", heading)
        assert programs and set(programs) <= set(PROGRAMS)
        started = re.findall(r"^claim2source (\S+)", section, re.MULTILINE)
        assert set(started) == set(programs)
        known = set(GENERAL)
        for program in programs:
            keys = keys_in_help(program, capsys)
            known |= keys
            for line in re.findall(rf"\b{program} (--.*?)(?:`|$)", section, re.MULTILINE):
                assert set(flags(line)) <= keys | GENERAL, line
        assert set(flags(section)) <= known
        every |= known
    assert set(flags(first)) <= every


def flags(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--([\w.]+)", text)


def test_every_file_of_the_repository_that_it_names_is_there() -> None:
    for name in re.findall(r"(?:configs|scripts|docs)/[\w/.-]+\w", SKILL):
        assert (REPOSITORY / name).exists(), name


def test_verdicts_are_those_of_an_answer() -> None:
    verdicts = re.findall(r"^\| `([a-z ]+)` \| [^|]+ \|$", SKILL, re.MULTILINE)
    assert [name for name in verdicts if name != "verdict"] == list(get_args(Verdict))


def test_the_readme_leads_to_it() -> None:
    assert "(SKILL.md)" in Path(REPOSITORY / "README.md").read_text(encoding="utf-8")
