"""Programs on corrupted inputs: exit code 0 or 2, no traceback, inputs unchanged, in time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from claim2source.eval import score
from hypothesis import HealthCheck, Phase, given, settings

from claim2source.core.records import Qrels
from claim2source.core.run import Run
from claim2source.metrics.metrics import Coverage, coverage
from scripts.fuzz import Config, hunt, run_one
from tests.fuzzing.cases import Case, cases
from tests.fuzzing.judge import Fuzzer
from tests.fuzzing.world import PROGRAMS

# Programs with cases that take a few hundredths of a second.
CHEAP = ("score", "report", "evaluate")
EXAMPLES = 20
ALL_EXAMPLES = 60
VALID = [(name, argv) for name, program in PROGRAMS.items() for argv in program.commands]
# The same cases every time: `scripts/fuzz.py` looks for others.
FIXED = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "phases": (Phase.generate,),
    "suppress_health_check": list(HealthCheck),
}


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    return Fuzzer(tmp_path_factory.mktemp("fuzz") / "fuzz")


def check(fuzzer: Fuzzer, case: Case) -> int | str:
    outcome = fuzzer.run(case)
    assert not outcome.wrong, f"{case.to_json()}\n{outcome.wrong}\n{outcome.errors[-3000:]}"
    return outcome.code


@pytest.mark.parametrize(
    ("examples", "names"),
    [(EXAMPLES, CHEAP), pytest.param(ALL_EXAMPLES, (), marks=pytest.mark.slow)],
)
def test_whatever_is_spoilt(fuzzer: Fuzzer, examples: int, names: Sequence[str]) -> None:
    ended: list[int | str] = []

    @settings(max_examples=examples, **FIXED)  # type: ignore[arg-type]
    @given(cases(names))
    def one(case: Case) -> None:
        ended.append(check(fuzzer, case))

    one()
    # Some inputs are accepted, and some are corrupted.
    assert min(ended.count(0), ended.count(2)) > examples / 6


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argv"), VALID)
def test_nothing_spoilt_ends_with_0(fuzzer: Fuzzer, name: str, argv: tuple[str, ...]) -> None:
    assert check(fuzzer, Case(name, argv)) == 0


def changed_input(argv: Sequence[str] | None) -> None:
    with open("a.trec", "a") as file:
        file.write("\n")


def raised(argv: Sequence[str] | None) -> None:
    raise ZeroDivisionError


def waited_for_a_pipe(argv: Sequence[str] | None) -> None:
    import os

    os.mkfifo("pipe")
    open("pipe").read()


@pytest.mark.parametrize(
    ("planted", "wrong"),
    [
        (changed_input, "changed: work/a.trec"),
        (raised, "exit 1: ZeroDivisionError"),
        (waited_for_a_pipe, "too long"),
    ],
)
def test_a_planted_defect_is_seen(
    fuzzer: Fuzzer,
    monkeypatch: pytest.MonkeyPatch,
    planted: Callable[[Sequence[str] | None], None],
    wrong: str,
) -> None:
    monkeypatch.setattr(score, "main", planted)
    quick = copy.copy(fuzzer)
    quick.limit = 0.2
    outcome = quick.run(Case("score", PROGRAMS["score"].commands[0]))
    assert any(wrong in line for line in outcome.wrong), outcome


def test_a_defect_of_one_value_is_found_and_kept(
    fuzzer: Fuzzer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def planted_coverage(run: Run, qrels: Qrels, name: str) -> Coverage:
        counts = coverage(run, qrels, name)
        if counts.missing or counts.ignored:
            raise AssertionError
        return counts

    with monkeypatch.context() as planted:
        planted.setattr(score, "coverage", planted_coverage)
        config = Config(examples=40, kept=tmp_path, program=["score"], seed=3)
        counts, (file,) = hunt(fuzzer, config)
        assert counts["score", "wrong"] >= 1 and [*tmp_path.iterdir()] == [file]
        assert run_one(fuzzer, file) == 1
    assert run_one(fuzzer, file) == 0
