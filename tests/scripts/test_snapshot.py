"""A comparison of snapshots reports changes, not mere moves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from scripts import snapshot
from tests.shared_data import REPOSITORY

CASE = "pipeline"
RUN = "q1 Q0 a 1 0.9 tag\nq1 Q0 b 2 0.5 tag\nq2 Q0 b 1 0.7 tag\n"
REPORT: dict[str, Any] = {
    "systems": {
        "learned": {
            "claims": "bilingual",
            "languages": {"en": {"mrr@5": 0.75, "queries": 2}},
            "macro": {"mrr@5": 0.75},
            "stages": [{"name": "verify", "failures": {"no reply": 1}, "cost": {"seconds": 3}}],
            "choices": [{"what": "bm25", "settings": {"k1": 1.2}, "score": 0.5}],
            "runs": "runs/learned",
        }
    },
    "paired_tests": [
        {
            "family": "stages",
            "average": "macro",
            "comparisons": [{"system": "learned", "baseline": "BM25", "p": 0.03}],
        }
    ],
}
ANSWER: dict[str, Any] = {
    "asked": {"post": "Otters carry it", "papers": "Paper 1\nOtters"},
    "reply": "1",
}
FIND = {"post": "1", "papers": [{"rank": 1, "id": "a", "score": 0.5, "present": 0.9}]}


def edit_text(old: str, new: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return edit


def write_weights(folder: Path, value: float) -> None:
    weights = np.full((2, 3), value, np.float32)
    save_file({"w": weights}, folder / "work" / CASE / "model.safetensors")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal snapshots of one case."""
    before = tmp_path / "before"
    folder, case = before / "work" / CASE, before / CASE
    (folder / "runs" / "learned").mkdir(parents=True)
    case.mkdir()
    (folder / "report.json").write_text(json.dumps(REPORT))
    (folder / "runs" / "learned" / "en.trec").write_text(RUN)
    (folder / "submission.tsv").write_text("index\tpreds\n1\t['a']\n")
    (folder / "mined.jsonl").write_text('{"claim": "q1", "negatives": ["b"], "scores": [0.5]}\n')
    (folder / "fusion.json").write_text('{"views": [{"name": "bm25", "weight": 0.25}]}')
    write_weights(before, 1.0)
    snapshot.copy_results(folder, case)
    (case / "stdout").write_text(json.dumps(FIND) + "\n")
    (case / "answers.jsonl").write_text(json.dumps(ANSWER) + "\n")
    (case / "exit_code").write_text("0\n")
    shutil.copytree(before, tmp_path / "after")
    return before, tmp_path / "after"


def relisted(after: Path, value: float) -> None:
    write_weights(after, value)
    listing = after / CASE / "listing.json"
    listing.write_text(
        listing.read_text().replace(json.loads(listing.read_text())["model.safetensors"], "other")
    )


RUNS = "files/runs/learned/en.trec"
CHANGED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "ranking": (RUNS, edit_text("q1 Q0 a 1 0.9 tag\nq1 Q0 b", "q1 Q0 b 1 0.9 tag\nq1 Q0 a"), "[['a', 0.9], ['b', 0.5]] -> [['b', 0.9], ['a', 0.5]]"),
    "missing run": (RUNS, Path.unlink, "-> absent"),
    "score": ("files/report.json", edit_text("0.75", "0.7499"), "0.75 -> 0.7499"),
    "failures": ("files/report.json", edit_text('"no reply": 1', '"no reply": 2'), "1 -> 2"),
    "missing report": ("files/report.json", Path.unlink, "-> absent"),
    "submission": ("files/submission.tsv", edit_text("['a']", "['b']"), "row 1: 1\t['a'] -> 1"),
    "mined row": ("files/mined.jsonl", edit_text('"b"', '"c"'), "row 0: {"),
    "fusion's weight": ("files/fusion.json", edit_text("0.25", "0.26"), "weight: 0.25 -> 0.26"),
    "answer": ("answers.jsonl", edit_text('"reply": "1"', '"reply": "2"'), "-> absent"),
    "found paper": ("stdout", edit_text('"id": "a"', '"id": "b"'), "a -> b"),
    "exit code": ("exit_code", lambda path: path.write_text("2\n"), "exit code: 0 -> 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_what_changed_is_reported(
    case: str, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert snapshot.compare(*folders) == 0 and ": equal" in capsys.readouterr().out
    file, change, phrase = CHANGED[case]
    change(folders[1] / CASE / file)
    assert snapshot.compare(*folders) == 1
    printed = capsys.readouterr().out
    assert phrase in printed and ": equal" not in printed
    # From the other side as well, where a file is there that was not: that is no difference.
    assert snapshot.compare(folders[1], folders[0]) == (0 if case == "missing run" else 1)


@pytest.mark.parametrize("printed", ["", "translate: 100 of 100\n", "[INFO] done\n"])
def test_a_case_may_print_text_or_nothing(printed: str, folders: tuple[Path, Path]) -> None:
    for folder in folders:
        (folder / CASE / "stdout").write_text(printed)
    assert snapshot.compare(*folders) == 0
    (folders[1] / CASE / "exit_code").write_text("2\n")
    assert snapshot.compare(*folders) == 1


def test_weights_are_compared_by_value(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    relisted(folders[1], 1.0 + 1e-7)
    assert snapshot.compare(*folders) == 0
    write_weights(folders[1], 1.0001)
    assert snapshot.compare(*folders) == 1 and "weights / model" in capsys.readouterr().out
    # Where the weights themselves were deleted, hashes decide.
    shutil.rmtree(folders[1] / "work")
    assert snapshot.compare(*folders) == 1


def test_every_case_has_a_program_here() -> None:
    folders = {"r": REPOSITORY, "own": snapshot.OWN, "data": "/data", "out": "/out"}
    # A word of a folder's name would never be read.
    assert not folders.keys() & snapshot.TABLE["words"].keys()
    words = {**snapshot.TABLE["words"], **folders, "llm": "", "threads": 1}
    for name, command in snapshot.CASES.items():
        filled = snapshot.fill(command, words)
        assert (REPOSITORY / filled.split()[0]).is_file() and "$" not in filled, name
