"""`--help` has an example of every key that people need first, and programs take them."""

from __future__ import annotations

import re
import shlex

import pytest

from claim2source.cli import PROGRAMS, main
from claim2source.core.errors import UserError

# Words that a program needs, by their key.
NEEDED = {
    "abstain": {"index": "--index idx", "out": "--out out"},
    "evaluate": {"out": "--out out"},
    "find": {"index": "--index idx", "post": "post"},
    "fusion": {"views": "--views v.yaml", "system": "--system BM25", "out": "--out out"},
    "index": {"source": "demo", "out": "--out idx"},
    "merge": {"checkpoints": "--checkpoints a b", "out": "--out out"},
    "mine": {"out": "--out mined.jsonl"},
    "prepare": {"task": "checkthat2026", "input": "--input files", "output": "--output data"},
    "report": {"reports": "--reports out"},
    "rewrite": {"out": "--out styles"},
    "rumors": {"dataset": "--dataset rumours.json", "out": "--out out"},
    "score": {"qrels": "--qrels qrels.tsv", "run": "--run a.trec"},
    "serve": {"index": "--index idx"},
    "style-grid": {"out": "--out out"},
    "translate": {"dataset": "--dataset data"},
}
# A rule about two keys refuses one of them alone, and names the other.
ABOUT_TWO = (
    "none with",
    "with mixed",
    "with the task ",
    "with one checkpoint",
    "of mixed",
    "has no settings",
    "have --weights",
    "llm.temperature",
)


def explained(program: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The keys that `--help` explains, each with its example."""
    with pytest.raises(SystemExit):
        main([program, "--help"])
    text = capsys.readouterr().out.partition("\nAll options by group")[0]
    parts = re.split(r"^  --", text, flags=re.MULTILINE)[1:]
    found: dict[str, str] = {}
    for part in parts:
        key = re.match(r"[\w.]+", part)
        example = re.search(r"^      Example: (.*)$", part, re.MULTILINE)
        assert key is not None and example is not None, part
        found[key[0]] = example[1]
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_required_keys_are_among_those_that_people_need_first(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = explained(program, capsys)
    with pytest.raises(SystemExit):
        main([program, "--help=all"])
    text = capsys.readouterr().out
    for part in re.split(r"^  --", text, flags=re.MULTILINE)[1:]:
        key = re.match(r"[\w.]+", part)
        assert key is not None
        # A key of a group that may be absent is required only if the group is set.
        assert "(required)" not in part or "." in key[0] or key[0] in first, key[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_key_of_help_has_an_example_that_its_program_takes(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, example in explained(program, capsys).items():
        needed = NEEDED.get(program, {})
        words = [word for other in needed if other != key for word in shlex.split(needed[other])]
        if example.startswith("--"):
            words += shlex.split(example)
        else:
            words = [*shlex.split(example), *words]
        words.append("--print_config")
        try:
            main([program, *words])
        except SystemExit as ended:
            assert ended.code == 0
        except UserError as error:
            reason = str(error)
            is_about_two = any(words in reason for words in ABOUT_TWO)
            assert is_about_two or not reason.startswith(f"config: {key}: "), reason
        capsys.readouterr()
