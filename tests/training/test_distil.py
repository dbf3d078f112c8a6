"""From a teacher's run to a trained student: candidates, scale, incomplete runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from claim2source.train.finetune import main

from claim2source.core.errors import UserError
from claim2source.core.run import Run
from claim2source.data.loading import load
from claim2source.data.trec import write_trec_run
from claim2source.mining import read_mined
from claim2source.models import resolve
from claim2source.search.dense import Dense
from claim2source.training.teacher_scores import read_teacher
from tests.refusals import refused
from tests.training.small import data_of, small_config

Scores = Mapping[str, Mapping[str, float]]


@pytest.fixture(scope="module")
def teacher(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs by language: the gold, and six others in an order of the teacher's own."""
    folder = tmp_path_factory.mktemp("teacher") / "runs"
    folder.mkdir()
    claims = load(setup[1], "train").claims
    for lang in ("de", "en"):
        rows = {}
        for claim in (c for c in claims if c.lang == lang):
            topic = int(claim.golds[0][1:])
            rest = [f"s{(topic + step) % 24:02d}" for step in (7, 3, 11, 5, 17, 13)]
            rows[claim.id] = [(claim.golds[0], 0.9)] + [
                (source, 0.8 - 0.1 * i) for i, source in enumerate(rest)
            ]
        write_trec_run(Run.from_lists(rows), folder / f"{lang}.trec")
    return folder


def taught(scores: Path, **options: Any) -> dict[str, Any]:
    group = {
        "weight": 1.0,
        "scores": scores,
        "candidates": "true",
        "temperature": "null",
        **options,
    }
    return {f"losses__distillation__{key}": value for key, value in group.items()}


def test_a_folder_of_runs_is_read_and_brought_to_one_spread(
    setup: tuple[Path, Path], teacher: Path, tmp_path: Path
) -> None:
    data = data_of(small_config(*setup, tmp_path / "run", **taught(teacher)))
    assert data.teacher is not None and set(data.teacher.scores) == {
        c.id for c in data.train.claims
    }
    # 0.9, 0.8, .. 0.3: evenly spaced, with a standard deviation of 0.2.
    assert data.teacher.spread == pytest.approx(0.2)
    first, second, *_ = data.teacher.scores[data.train.claims[0].id].values()
    assert first - second == pytest.approx(0.5)
    # A number is applied by the loss, once.
    training_data = data_of(
        small_config(*setup, tmp_path / "run", **taught(teacher, temperature=0.1))
    )
    assert training_data.teacher is not None and training_data.teacher.spread is None
    assert max(training_data.teacher.scores[data.train.claims[0].id].values()) == pytest.approx(0.9)


def test_what_a_run_lacks_is_said(setup: tuple[Path, Path], teacher: Path, tmp_path: Path) -> None:
    train = load(setup[1], "train")
    german = read_teacher(teacher / "de.trec", train, 1.0)
    assert german.sentences() == ["the teacher scores 24 of 48 training claims"]
    (none := tmp_path / "none").mkdir()
    lines = (teacher / "de.trec").read_text()
    for file, text, facts in (
        (None, "", (none, "NAME.trec")),
        ("de.trec.gz", "", (none, "NAME.trec", "de.trec.gz")),
        ("a.trec", "nobody Q0 s00 1 1.0 teacher\n", (none, ": claim: ")),
        ("a.trec", lines, ()),
        ("b.trec", lines, (none / "b.trec", ": claim: ")),
    ):
        if file is not None:
            (none / file).write_text(text)
        with refused(UserError, *facts) if facts else nullcontext():
            read_teacher(none, train, 1.0)


def agreement(run: Run, teacher: Scores) -> float:
    """The share of the teacher's ordered pairs of candidates, golds aside, in the same order."""
    agrees = [
        run.scored(claim)[better] > run.scored(claim)[worse]
        for claim, scored in teacher.items()
        for better, worse in combinations(list(scored)[1:], 2)
    ]
    return sum(agrees) / len(agrees)


@pytest.mark.slow
def test_one_command_makes_a_student_that_agrees_with_its_teacher(
    setup: tuple[Path, Path], teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = setup
    settings = {
        "data.dataset": data,
        "data.val_share": 0.2,
        "model.name": model,
        "model.pooling": "mean",
        "model.max_length": 24,
        "mining.hard": 6,
        "mining.pool": "all",
        "optimisation.epochs": 12,
        "optimisation.batch_size": 8,
        "optimisation.negatives": 3,
        "optimisation.learning_rate": 1e-3,
        "losses.distillation.scores": teacher,
        "choose": "last",
        "keep": "best",
        "out": tmp_path / "run",
    }
    words = [f"--{key}={value}" for key, value in settings.items()]
    main(["--config", "configs/finetune/distil.yaml", *words])
    train = data_of(small_config(*setup, tmp_path / "x", **taught(teacher))).train
    output = capsys.readouterr().out
    assert (
        f"the teacher scores {len(train.claims)} of {len(train.claims)} training claims" in output
    )
    scores = read_teacher(teacher, train, 1.0).scores
    # The student sees the teacher's candidates, in its order, and nothing else.
    for row in read_mined(tmp_path / "run" / "mined.jsonl", train):
        assert [n.source for n in row.negatives] == list(scores[row.claim])[1:]
        assert {n.origin for n in row.negatives} == {"teacher"}

    def ranked(folder: Path) -> Run:
        dense = Dense(resolve(folder, "cpu")).index(train.sources)
        return dense.search(train.claims, len(train.sources)).run

    folder = tmp_path / "run" / "checkpoints"
    before, after = (agreement(ranked(folder / f"epoch-{e}"), scores) for e in (0, 12))
    assert before < 0.6 and after > before + 0.15, (before, after)
