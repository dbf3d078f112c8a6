"""Rows are run in one loop; of rows that did not run the remedy is that of what failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.errors import InputError, UserError
from claim2source.core.run import Result, Run
from claim2source.evaluation.evaluate import unscored
from claim2source.evaluation.plan import RowPlan
from claim2source.evaluation.rows import SystemRow, not_run_row, run_rows
from claim2source.systems.read import make_system, read_systems
from claim2source.systems.runtime import SystemRuntime

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


@pytest.mark.parametrize("error", [UserError("a"), MemoryError(), RuntimeError("CUDA")])
def test_rows_keep_their_order_and_one_that_fails_leaves_the_others(error: Exception) -> None:
    plans = [RowPlan(make_system(name, {"retrieve": {"bm25": {}}})) for name in "cab"]

    def run(plan: RowPlan) -> SystemRow:
        if plan.name == "a":
            raise error
        scored = unscored(plan.name, Result(Run.from_lists({"1": [("x", 1.0)]})))
        return SystemRow(plan, "original", {"first": scored, plan.name: scored})

    rows, not_run = run_rows(plans, run, SystemRuntime())
    assert [row.name for row in rows] == ["c", "b"]
    assert [(row.system, row.claims) for row in not_run] == [("a", "original")]
    with pytest.raises(type(error)):
        run_rows(plans, run, SystemRuntime(), raise_errors=True)
