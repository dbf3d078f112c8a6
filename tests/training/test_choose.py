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
    return Epoch(epoch, score(value), score=value, claims=claims)


@pytest.fixture(scope="module")
def trained(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    config = small_config(*setup, tmp_path_factory.mktemp("trained") / "run", tuning="lora")
    finetune(config)
    return config


@pytest.mark.parametrize(
    ("scores", "rule", "expected"),
    [
        # Equal except for rounding: the nearest to the last epoch; with `best` the earliest.
        ([0.4068181818, 0.4068181818181818, 0.40681818181818186, 0.3], "one_se", 2),
        ([0.4068181818, 0.4068181818181818, 0.40681818181818186, 0.3], "best", 1),
        # All lose to the base.
        ([0.5, 0.3, 0.45, 0.4], "one_se", 0),
    ],
)
def test_of_what_val_cannot_tell_apart_the_nearest_to_the_last_epoch_is_chosen(
    scores: list[float], rule: Rule, expected: int, trained: FinetuneConfig
) -> None:
    data, run = data_of(trained), RunFolder(trained.out, config=replace(trained, rule=rule))
    run.file.history = [on_val(number, value, data) for number, value in enumerate(scores)]
    epoch, choice = choose_epoch(run, data.weighing)
    assert (epoch, choice.rule, choice.settings) == (expected, rule, {"epoch": expected})
    assert [trial.score for trial in choice.tried] == pytest.approx(scores)


def test_a_loss_within_a_standard_error_is_taken_but_never_below_the_base(
    trained: FinetuneConfig, tmp_path: Path
) -> None:
    data, run = data_of(trained), RunFolder(trained.out, config=trained)
    rows = [on_val(number, value, data) for number, value in enumerate([0.5] * 4)]
    # The last epoch gains at one paper and loses more at another: within a standard error.
    claims = list(rows[3].claims)
    uneven = dict(rows[3].claims) | {claims[0]: 0.9, claims[1]: 0.05}
    rows[3] = replace(rows[3], claims=uneven, score=0.49)
    run.file.history = rows
    assert choose_epoch(run, data.weighing)[0] == 2
    run.file.history = [rows[0], rows[3]]
    assert choose_epoch(run, data.weighing)[0] == 0
    run.file.history = rows
    run.config = replace(trained, choose="last")
    last, choice = choose_epoch(run, data.weighing)
    assert last == 3 and choice.seen_share is None and len(choice.tried) == 1
    # An epoch whose checkpoint was not kept is not chosen, except the last one.
    run.path, run.config = tmp_path, trained
    assert choose_epoch(run, data.weighing)[0] == 3


def test_both_parts_of_val_are_scored_and_chosen_by(
    setup: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mix: dict[str, Any] = {"data__val_seen_share": 0.2, "data__seen_share_expected": 0.7}
    config = small_config(*setup, tmp_path / "run", optimisation__epochs=1, **mix)
    report, data = finetune(config), data_of(config)
    output = capsys.readouterr().out
    assert report is not None and report.training is not None
    rest, val = carve_val(load(setup[1], "train"), 0.2, 13, seen_share=0.2)
    assert (data.val, data.train) == (val, rest)
    rendering, parts = config.rendering, Scoring(METRICS, 0, 0, rest.golds)
    for entry in report.training.history:
        encoder = resolve(tmp_path / "run" / "checkpoints" / f"epoch-{entry.epoch}").encoder
        expected = score_encoder(encoder, val, rendering, parts).report.slices
        assert entry.parts == expected and all(expected.values())
        by_language = [
            0.7 * expected["seen"][lang]["mrr@5"] + 0.3 * expected["unseen"][lang]["mrr@5"]
            for lang in ("en", "de")
        ]
        assert entry.score == pytest.approx(sum(by_language) / 2)
        assert f"to choose by {entry.score:.4f}" in output or entry.epoch == 0
    (header,) = [line for line in output.splitlines() if line.startswith("model ")]
    assert "seen papers" in header and "unseen papers" in header
    manifest = Manifest.read(tmp_path / "run" / "checkpoints" / "epoch-1")
    assert manifest.scores["val, seen papers"] == report.training.history[1].parts["seen"]
    assert (manifest.data.val_seen_share, manifest.data.seen_share_expected) == (0.2, 0.7)
    measured = len(seen_claims(rest, val)) / len(val.claims)
    assert manifest.data.val_seen_measured == measured and 0 < measured < 1
    assert f"{len(val.claims)} claims" in output and manifest.data.chosen_for in output
    assert f"{measured:.0%}" in manifest.data.chosen_for and "70%" in manifest.data.chosen_for
    choice = report.training.choice
    assert choice is not None and (choice.seen_share, choice.rule) == (0.7, "one_se")
    assert "claims of seen papers count for 70 %" in output and "unseen papers" in output
    # So does the evaluation of the run.
    run, data = str(tmp_path / "run"), str(setup[1])
    text = evaluate_table(EvaluateConfig(tmp_path / "o", data, checkpoint=[run], tests=False))
    assert (
        text.startswith(data) and "val, seen papers" in (tmp_path / "o" / "report.md").read_text()
    )
    assert Report.read(tmp_path / "o").training == report.training
    # Programs that carve it again get the same claims, and report it.
    selection = HeldOut(str(setup[1]), "dev").claims([resolve(tmp_path / "run").manifest])
    if selection.note == "":
        assert selection.val == val


def test_a_share_of_seen_papers_is_held_out_only_where_something_is_chosen(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    open_share = replace(small_config(*setup, tmp_path / "run"), data=DataConfig())
    assert open_share.held_out_seen == open_share.data.val_share == 0.1
    assert replace(open_share, choose="last").held_out_seen == 0
    assert replace(open_share, data=DataConfig(val_seen_share=0.3)).held_out_seen == 0.3


def test_val_is_drawn_at_a_declared_share_and_found_again_by_the_record(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    shares: dict[str, Any] = {"data__val_seen_share": "null", "data__seen_share_expected": 0.6}
    config = small_config(*setup, tmp_path / "run", **shares)
    data, train = data_of(config), load(setup[1], "train")
    rest, val = carve_val(train, 0.2, 13, seen_share=0.2, mix=0.6)
    assert (data.val, data.train) == (val, rest)
    assert data.selection.seen_share == 0.6
    assert data.selection.measured_share == pytest.approx(0.6, abs=0.1)
    # A resumed run reads its config: the share stays a share of val.
    settings = RunFolder(config.out, config=config).config.data
    assert (settings.val_seen_share, settings.seen_share_expected) == (None, 0.6)
    record = DataRecord(
        str(setup[1]), "train", 0.2, 13, val_sha256=val.fingerprint, seen_share_expected=0.6
    )
    assert rebuilt_claims(record, "demo") == rest.claims
    assert HeldOut(str(setup[1]), "dev").carved(record).val == val
    too_many = small_config(*setup, tmp_path / "run", **(shares | {"data__val_share": 0.45}))
    with pytest.raises(ConfigError, match="seen_share_expected"):
        data_of(too_many)
