"""Rows that did not run: the remedy is that of what failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.errors import InputError, UserError
from claim2source.evaluation.rows import not_run_row
from claim2source.systems.read import read_systems

SYSTEMS = """\
A: {retrieve: {dense: org/a}, advice: get a}
B: {retrieve: {dense: org/b}, advice: get b}
R: {retrieve: {run: mine.trec}, advice: fetch it}
Both: {retrieve: {hybrid: [A, B]}}
Fused: {retrieve: {hybrid: [R, B]}}
Staged: {retrieve: B, stages: [{rerank: max_sim, model: org/c}], advice: get c}
"""


def failure(model: str | None) -> UserError:
    error = UserError("not here")
    error.model = model
    return error


@pytest.mark.parametrize(
    ("name", "error", "advice"),
    [
        ("Both", failure("org/a"), "get a"),
        ("Both", failure("org/b"), "get b"),
        ("Fused", failure("org/b"), "get b"),
        ("Fused", InputError("mine.trec", reason="no such file"), "fetch it"),
        ("Staged", failure("org/c"), "get c"),
        # A server that is down, a claim that is damaged: no model's remedy.
        ("Both", failure(None), None),
        ("Fused", InputError("claims.jsonl", 3, reason="not JSON"), None),
    ],
)
def test_the_remedy_is_that_of_what_failed(
    tmp_path: Path, name: str, error: UserError, advice: str | None
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SYSTEMS)
    row = not_run_row(read_systems([path])[name], "original", error)
    given = {"get a", "get b", "get c", "fetch it"}
    assert row.advice == advice if advice else row.advice not in given
