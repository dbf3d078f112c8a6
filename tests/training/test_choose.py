"""A run's choice at its end: an epoch, or the model before training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.report import Epoch, Report, Rule
from claim2source.data.loading import load
from claim2source.data.split import carve_val, seen_claims
from claim2source.evaluation.evaluate import METRICS, Scoring, score_encoder
from claim2source.evaluation.table import EvaluateConfig, evaluate_table
from claim2source.models import DataRecord, Manifest, resolve
from claim2source.systems.heldout import HeldOut
from claim2source.systems.seen import rebuilt_claims
from claim2source.training.choose import choose_epoch
from claim2source.training.config import DataConfig, FinetuneConfig
from claim2source.training.finetune import finetune
from claim2source.training.run_folder import RunFolder
from claim2source.training.splits import TrainingData
from tests.training.small import data_of, small_config


def score(value: float) -> dict[str, dict[str, float]]:
    return {name: {"mrr@5": value} for name in ("en", "de", "macro")}


def on_val(epoch: int, value: float, data: TrainingData) -> Epoch:
    """An epoch whose scores on val are the same for every claim."""
    claims = dict.fromkeys(data.weighing.claim_ids, value)
    scores = score(value)
    return Epoch(epoch, scores, score=value, claims=claims)


def rows_on_val(values: list[float], data: TrainingData) -> list[Epoch]:
    """An epoch for each of these scores."""
    rows = []
    for number, value in enumerate(values):
        rows.append(on_val(number, value, data))
    return rows


@pytest.fixture(scope="module")
def trained(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    folder = tmp_path_factory.mktemp("trained")
    config = small_config(*setup, folder / "run", tuning="lora")
    finetune(config)
    return config


ALIKE = [
    0.4068181818,
    0.4068181818181818,
    0.40681818181818186,
    0.3,
]


@pytest.mark.parametrize(
    ("scores", "rule", "expected"),
    [
        # Equal except for rounding: the nearest to the last epoch; with `best` the earliest.
        (ALIKE, "one_se", 2),
        (ALIKE, "best", 1),
        # All lose to the base.
        ([0.5, 0.3, 0.45, 0.4], "one_se", 0),
    ],
)
def test_of_what_val_cannot_tell_apart_the_nearest_to_the_last_epoch_is_chosen(
    scores: list[float],
    rule: Rule,
    expected: int,
    trained: FinetuneConfig,
) -> None:
    data = data_of(trained)
    config = replace(trained, rule=rule)
    run = RunFolder(trained.out, config=config)
    run.file.history = rows_on_val(scores, data)
    epoch, choice = choose_epoch(run, data.weighing)
    assert epoch == expected
    assert choice.rule == rule
    assert choice.settings == {"epoch": expected}
    tried_scores = [trial.score for trial in choice.tried]
    assert tried_scores == pytest.approx(scores)


def test_a_loss_within_a_standard_error_is_taken_but_never_below_the_base(
    trained: FinetuneConfig, tmp_path: Path
) -> None:
    data = data_of(trained)
    weighing = data.weighing
    run = RunFolder(trained.out, config=trained)
    rows = rows_on_val([0.5] * 4, data)
    # The last epoch gains at one paper and loses more at another: within a standard error.
    scores = dict(rows[3].claims)
    claims = list(scores)
    uneven = scores | {
        claims[0]: 0.9,
        claims[1]: 0.05,
    }
    rows[3] = replace(rows[3], claims=uneven, score=0.49)
    run.file.history = rows
    chosen, _ = choose_epoch(run, weighing)
    assert chosen == 2
    run.file.history = [rows[0], rows[3]]
    chosen, _ = choose_epoch(run, weighing)
    assert chosen == 0

    run.file.history = rows
    run.config = replace(trained, choose="last")
    last, choice = choose_epoch(run, weighing)
    assert last == 3
    assert choice.seen_share is None
    assert len(choice.tried) == 1

    # An epoch whose checkpoint was not kept is not chosen, except the last one.
    run.path = tmp_path
    run.config = trained
    chosen, _ = choose_epoch(run, weighing)
    assert chosen == 3


def test_both_parts_of_val_are_scored_and_chosen_by(
    setup: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mix: dict[str, Any] = {
        "data__val_seen_share": 0.2,
        "data__seen_share_expected": 0.7,
    }
    folder = tmp_path / "run"
    checkpoints = folder / "checkpoints"
    config = small_config(*setup, folder, optimisation__epochs=1, **mix)
    report = finetune(config)
    data = data_of(config)
    output = capsys.readouterr().out
    assert report is not None
    training = report.training
    assert training is not None
    train = load(setup[1], "train")
    rest, val = carve_val(train, 0.2, 13, seen_share=0.2)
    assert data.val == val
    assert data.train == rest

    rendering = config.rendering
    parts = Scoring(METRICS, 0, 0, rest.golds)
    for entry in training.history:
        encoder = resolve(checkpoints / f"epoch-{entry.epoch}").encoder
        scored = score_encoder(encoder, val, rendering, parts)
        expected = scored.report.slices
        assert entry.parts == expected
        assert all(expected.values())
        by_language = []
        for lang in ("en", "de"):
            seen = expected["seen"][lang]["mrr@5"]
            unseen = expected["unseen"][lang]["mrr@5"]
            by_language.append(0.7 * seen + 0.3 * unseen)
        mean = sum(by_language) / 2
        assert entry.score == pytest.approx(mean)
        is_said = f"to choose by {entry.score:.4f}" in output
        assert is_said or entry.epoch == 0
    lines = output.splitlines()
    (header,) = [line for line in lines if line.startswith("model ")]
    assert "seen papers" in header
    assert "unseen papers" in header

    manifest = Manifest.read(checkpoints / "epoch-1")
    first = training.history[1]
    assert manifest.scores["val, seen papers"] == first.parts["seen"]
    record = manifest.data
    assert record.val_seen_share == 0.2
    assert record.seen_share_expected == 0.7
    seen_count = len(seen_claims(rest, val))
    measured = seen_count / len(val.claims)
    assert record.val_seen_measured == measured
    assert 0 < measured < 1
    assert f"{len(val.claims)} claims" in output
    assert record.chosen_for in output
    assert f"{measured:.0%}" in record.chosen_for
    assert "70%" in record.chosen_for
    choice = training.choice
    assert choice is not None
    assert choice.seen_share == 0.7
    assert choice.rule == "one_se"
    assert "claims of seen papers count for 70 %" in output
    assert "unseen papers" in output

    # So does the evaluation of the run.
    run = str(folder)
    data_folder = str(setup[1])
    out = tmp_path / "o"
    evaluation = EvaluateConfig(
        out,
        data_folder,
        checkpoint=[run],
        tests=False,
    )
    text = evaluate_table(evaluation)
    assert text.startswith(data_folder)
    assert "val, seen papers" in (out / "report.md").read_text()
    assert Report.read(out).training == training
    # Programs that carve it again get the same claims, and report it.
    held_out = HeldOut(data_folder, "dev")
    run_manifest = resolve(folder).manifest
    selection = held_out.claims([run_manifest])
    if selection.note == "":
        assert selection.val == val


def test_a_share_of_seen_papers_is_held_out_only_where_something_is_chosen(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    config = small_config(*setup, tmp_path / "run")
    open_share = replace(config, data=DataConfig())
    val_share = open_share.data.val_share
    assert open_share.held_out_seen == val_share == 0.1
    last = replace(open_share, choose="last")
    assert last.held_out_seen == 0
    own_share = DataConfig(val_seen_share=0.3)
    with_own_share = replace(open_share, data=own_share)
    assert with_own_share.held_out_seen == 0.3


def test_val_is_drawn_at_a_declared_share_and_found_again_by_the_record(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    shares: dict[str, Any] = {
        "data__val_seen_share": "null",
        "data__seen_share_expected": 0.6,
    }
    config = small_config(*setup, tmp_path / "run", **shares)
    data = data_of(config)
    train = load(setup[1], "train")
    rest, val = carve_val(train, 0.2, 13, seen_share=0.2, mix=0.6)
    assert data.val == val
    assert data.train == rest
    selection = data.selection
    assert selection.seen_share == 0.6
    assert selection.measured_share == pytest.approx(0.6, abs=0.1)

    # A resumed run reads its config: the share stays a share of val.
    run = RunFolder(config.out, config=config)
    settings = run.config.data
    assert settings.val_seen_share is None
    assert settings.seen_share_expected == 0.6
    data_folder = str(setup[1])
    record = DataRecord(
        data_folder,
        "train",
        0.2,
        13,
        val_sha256=val.fingerprint,
        seen_share_expected=0.6,
    )
    assert rebuilt_claims(record, "demo") == rest.claims
    held_out = HeldOut(data_folder, "dev")
    assert held_out.carved(record).val == val

    larger_val = shares | {"data__val_share": 0.45}
    too_many = small_config(*setup, tmp_path / "run", **larger_val)
    with pytest.raises(ConfigError, match="seen_share_expected"):
        data_of(too_many)
