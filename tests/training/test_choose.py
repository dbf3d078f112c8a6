"""What a run stands for at its end: an epoch, perhaps on the way back to the base."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from claim2source.core.errors import ConfigError
from claim2source.core.folders import foreign_file
from claim2source.core.report import Report
from claim2source.datasets import carve_val, load
from claim2source.io.store import Store
from claim2source.models import Manifest, resolve
from claim2source.pipeline.evaluate import evaluate_encoder
from claim2source.pipeline.table import EvaluateConfig, evaluate_table
from claim2source.systems.heldout import HeldOut
from claim2source.training import choose as module
from claim2source.training.choose import (
    ChosenCheckpoint,
    Point,
    ValScores,
    choose_checkpoint,
    choose_point,
)
from claim2source.training.config import DataConfig, FinetuneConfig
from claim2source.training.data import TrainingData, load_data
from claim2source.training.distributed import World
from claim2source.training.finetune import finetune
from claim2source.training.report import run_tables
from claim2source.training.run_folder import RunFolder
from tests.training.small import small_config
from tests.wandb_runs import offline_runs


def score(value: float) -> dict[str, dict[str, float]]:
    return {name: {"mrr@5": value} for name in ("en", "de", "macro")}


def on_val(value: float, data: TrainingData) -> ValScores:
    """Scores on val that are the same for every claim."""
    claims = dict.fromkeys(data.weighing.claim_ids, value)
    return ValScores(score(value), {}, value, claims)


@pytest.mark.slow
@pytest.mark.parametrize(("tuning", "rate"), [("full", 3e-3), ("lora", 1e-2)])
def test_scales_may_be_tried_when_the_run_is_over(
    tuning: str, rate: float, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Resumed for them alone, at a rate that went too far: no weight moves, half of it is better.

    The report and the choice are those of the half, and so is every later evaluation of the run.
    """
    out = tmp_path / "run"
    more: dict[str, Any] = {"tuning": tuning, "optimisation__learning_rate": rate}
    config = small_config(*setup, out, optimisation__epochs=1, wandb__mode="offline", **more)
    before = finetune(config)
    assert before.training.scales == () and not (out / "scales.png").exists()
    logged = {path: path.read_bytes() for path in (out / "logs").rglob("*.csv")}
    trained = {path: path.read_bytes() for path in (out / "checkpoints").rglob("*.safetensors")}
    after = finetune(replace(config, resume=True, scales=[0.0, 0.5], rule="best"))
    training, name = after.training, "epoch-1-scale-0.5"
    assert [trial.settings["scale"] for trial in training.scales] == [1.0, 0.0, 0.5]
    assert training.history == before.training.history
    assert all(path.read_bytes() == content for path, content in (trained | logged).items())
    assert (training.chosen_scale, training.chosen_checkpoint) == (0.5, f"checkpoints/{name}")
    assert json.loads((out / "run.json").read_text())["chosen"] == name
    assert Manifest.read(out / "checkpoints" / name).weights.scale == 0.5
    # W&B is told too, though nothing was trained.
    rows = offline_runs(out)[-1].table("scales")
    assert [row[0] for row in rows] == ["0", "0.5", "1"]
    assert (out / "scales.png").read_bytes().startswith(b"\x89PNG")
    assert Report.read(out) == after
    evaluate_table(EvaluateConfig(tmp_path / "out", str(setup[1]), checkpoint=[str(out)]))
    written = Report.read(tmp_path / "out")
    assert written.chosen == name and list(written.systems) == [
        f"{one}.bilingual" for one in ("epoch-0", "epoch-1", name)
    ]
    assert written.systems[f"{name}.bilingual"].macro == pytest.approx(after.macro)
    with pytest.raises(ConfigError, match=r"optimisation\.epochs"):
        finetune(small_config(*setup, out, optimisation__epochs=2, resume=True, **more))


def test_scales_are_tried_with_what_the_config_allows_the_base(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = setup
    base = Path(shutil.copytree(model, tmp_path / "base"))
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    config = small_config(base, data, tmp_path / "run", tuning="lora", optimisation__epochs=1)
    allowed = replace(config.model, allow_bin=(str(base),), attention="eager")
    report = finetune(replace(config, model=allowed, scales=[0.5]))
    assert [trial.settings["scale"] for trial in report.training.scales] == [1.0, 0.5]


@pytest.fixture(scope="module")
def trained(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    """A finished run of three epochs."""
    config = small_config(*setup, tmp_path_factory.mktemp("trained") / "run", tuning="lora")
    finetune(config)
    return config


def chosen_of(
    config: FinetuneConfig,
    epochs: list[float],
    scales: dict[float, float],
    monkeypatch: pytest.MonkeyPatch,
    means: Sequence[float] = (),
    **more: Any,
) -> ChosenCheckpoint:
    """What is chosen where epochs, scales and means score so on val, by every claim alike."""
    config = replace(config, scales=list(scales) or None, **more)
    data, values = load_data(config), iter([*scales.values(), *means])
    monkeypatch.setattr(module, "score_on_val", lambda *_: on_val(next(values), data))
    run = RunFolder(config.out)
    run.history = [on_val(value, data).epoch(number, None) for number, value in enumerate(epochs)]
    return choose_checkpoint(run, data, config, Store(config.out / "store"), World())


def test_a_scale_is_chosen_where_the_trained_model_loses_to_its_base(
    trained: FinetuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.1.0 stopped at step 0 there. The scales are those of the best trained epoch."""
    losing = [0.5, 0.3, 0.45, 0.4]
    chosen = chosen_of(trained, losing, {0.25: 0.55, 0.5: 0.7}, monkeypatch)
    assert (chosen.epoch, chosen.scale, chosen.scaled_epoch) == (2, 0.5, 2)
    assert chosen.folder.name == "epoch-2-scale-0.5"
    manifest = Manifest.read(chosen.folder)
    assert (manifest.epoch, manifest.weights.scale) == (2, 0.5)
    assert manifest.scores["val"]["macro"]["mrr@5"] == 0.7
    assert [trial.settings["scale"] for trial in chosen.tried] == [1.0, 0.25, 0.5]
    # Where all lose, it is the base.
    chosen = chosen_of(trained, losing, {0.25: 0.45, 0.5: 0.4}, monkeypatch)
    assert (chosen.epoch, chosen.folder.name) == (0, "epoch-0")


def test_of_what_val_cannot_tell_apart_the_nearest_to_the_last_epoch_is_chosen(
    trained: FinetuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `best` the earliest; never a model below the base."""
    nearly = [0.4068181818, 0.4068181818181818, 0.40681818181818186, 0.3]
    for rule, expected in (("one_se", 2), ("best", 1)):
        chosen = chosen_of(trained, nearly, {0.5: 0.4068181818}, monkeypatch, rule=rule)
        assert (chosen.epoch, chosen.scale, chosen.choice.rule) == (expected, 1.0, rule)
    data = load_data(trained)
    run = RunFolder(trained.out)
    rows = [on_val(value, data).epoch(number, None) for number, value in enumerate([0.5] * 4)]
    # The last epoch gains at one paper and loses more at another: within a standard error.
    claims = list(rows[3].claims)
    uneven = dict(rows[3].claims) | {claims[0]: 0.9, claims[1]: 0.05}
    rows[3] = replace(rows[3], claims=uneven, score=0.49)
    run.history = rows
    assert choose_point(run, data, trained)[0] == Point(2)
    run.history = [rows[0], rows[3]]
    assert choose_point(run, data, trained)[0] == Point(0)
    last, choice = choose_point(run, data, replace(trained, choose="last"))
    assert last == Point(3) and choice.seen_share is None


def test_both_parts_of_val_are_scored_and_chosen_by(
    setup: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mix: dict[str, Any] = {"data__val_seen_share": 0.2, "data__seen_share_expected": 0.7}
    config = small_config(*setup, tmp_path / "run", optimisation__epochs=1, **mix)
    report, data = finetune(config), load_data(config)
    said = capsys.readouterr().out
    assert report is not None and report.training is not None
    rest, val = carve_val(load(setup[1], "train"), 0.2, 13, seen_share=0.2)
    assert (data.val, data.train) == (val, rest)
    rendering = config.rendering
    for entry in report.training.history:
        encoder = resolve(tmp_path / "run" / "checkpoints" / f"epoch-{entry.epoch}").encoder
        parts = evaluate_encoder(encoder, val, rendering, seen_golds=rest.golds).systems
        expected = parts["system"].slices
        assert entry.parts == expected and all(expected.values())
        by_language = [
            0.7 * expected["seen"][lang]["mrr@5"] + 0.3 * expected["unseen"][lang]["mrr@5"]
            for lang in ("en", "de")
        ]
        assert entry.score == pytest.approx(sum(by_language) / 2)
        assert f"to choose by {entry.score:.4f}" in said or entry.epoch == 0
    tables = run_tables(report)
    assert {"val, seen papers", "val, unseen papers"} <= tables.keys()
    manifest = Manifest.read(tmp_path / "run" / "checkpoints" / "epoch-1")
    assert manifest.scores["val, seen papers"] == report.training.history[1].parts["seen"]
    assert (manifest.data.val_seen_share, manifest.data.seen_share_expected) == (0.2, 0.7)
    choice = report.training.choice
    assert choice is not None and (choice.seen_share, choice.rule) == (0.7, "one_se")
    assert "for 70 % claims of seen papers" in said and "unseen papers" in said
    # So does the evaluation of the run.
    run, data = str(tmp_path / "run"), str(setup[1])
    text = evaluate_table(EvaluateConfig(tmp_path / "o", data, checkpoint=[run], tests=False))
    assert "val, seen papers" in text and Report.read(tmp_path / "o").training == report.training
    # Programs that carve it again get the same claims, and say so.
    found = HeldOut(str(setup[1]), "dev").claims([resolve(tmp_path / "run").manifest])
    if found.note == "":
        assert found.val == val


def test_a_share_of_seen_papers_is_held_out_only_where_something_is_chosen(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    open_share = replace(small_config(*setup, tmp_path / "run"), data=DataConfig())
    assert open_share.held_out_seen == open_share.data.val_share == 0.1
    assert replace(open_share, choose="last").held_out_seen == 0
    assert replace(open_share, choose="last", scales=[0.5]).held_out_seen == 0.1
    assert replace(open_share, data=DataConfig(val_seen_share=0.3)).held_out_seen == 0.3


def test_a_mean_of_epochs_is_chosen_where_it_is_best_and_only_there(
    trained: FinetuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each next epoch of val's order joins the mean where it is not worse for it."""
    epochs = [0.5, 0.6, 0.7, 0.65]
    checkpoints = trained.out / "checkpoints"
    hashes = {n: Manifest.read(checkpoints / f"epoch-{n}").weights.sha256 for n in (1, 2, 3)}

    def tried(scores: list[float], before: list[float] = epochs, **more: Any) -> ChosenCheckpoint:
        found = chosen_of(trained, before, {}, monkeypatch, means=scores, soup=True, **more)
        assert not list(checkpoints.glob(".*")) and foreign_file(trained.out) is None
        return found

    def means_of(found: ChosenCheckpoint) -> list[str]:
        named = [trial.settings.get("mean of epochs") for trial in found.choice.tried]
        return [name for name in named if name]

    best = tried([0.8, 0.75])
    assert (best.soup, best.folder.name, best.epoch, best.scale) == ((2, 3), "soup-2-3", 3, 1.0)
    assert means_of(best) == ["2+3", "1+2+3"]
    assert [trial.score for trial in best.choice.tried] == [*epochs, 0.8, 0.75]
    assert best.tried == ()
    manifest = Manifest.read(best.folder)
    assert manifest.soup == (hashes[2], hashes[3]) and best.choice.settings == {
        "mean of epochs": "2+3"
    }
    assert manifest.scores["val"]["macro"]["mrr@5"] == 0.8
    assert [path.name for path in checkpoints.glob("soup-*")] == ["soup-2-3"]
    assert resolve(best.folder).encoder.weights is not None
    shutil.rmtree(best.folder)
    # The second epoch of the order made it worse: the third is tried without it.
    worse = tried([0.6, 0.69])
    assert means_of(worse) == ["2+3", "1+2"]
    assert (worse.folder.name, worse.soup) == ("epoch-2", ())
    assert tried([0.6, 0.7]).folder.name == "epoch-2"  # no gain: nearer to a trained epoch
    assert tried([0.45, 0.4], [0.5, 0.3, 0.45, 0.4]).folder.name == "epoch-0"
    assert tried([0.9, 0.9]).soup == (2, 3)  # of equal ones the nearer to the last
    assert tried([0.9, 0.95], choose="last").soup == (1, 2, 3)
    # An epoch whose checkpoint was not kept is in no mean.
    shutil.move(checkpoints / "epoch-3", trained.out.parent / "gone")
    try:
        assert tried([0.8]).soup == (1, 2)
    finally:
        shutil.move(trained.out.parent / "gone", checkpoints / "epoch-3")


@pytest.mark.slow
def test_the_last_epoch_may_be_asked_for(
    setup: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the published run has it, though val likes the model before training best."""
    rate: dict[str, Any] = {"optimisation__learning_rate": 1e-12}
    config = small_config(*setup, tmp_path / "run", optimisation__epochs=2, choose="last", **rate)
    report = finetune(config)
    history = report.training.history
    assert history[0].val == history[2].val
    assert (report.training.chosen_epoch, report.training.choose) == (2, "last")
    assert "epoch 2 (the last)" in capsys.readouterr().out
    assert resolve(tmp_path / "run").manifest.epoch == 2  # type: ignore[union-attr]
    # It changes no step: a finished run may be asked for the other.
    report = finetune(replace(config, choose="best", rule="best", resume=True))
    assert (report.training.chosen_epoch, report.training.choose) == (0, "best")
    assert "epoch 0 (chosen on val)" in capsys.readouterr().out
    assert report.systems["step 0"].table == report.systems["chosen"].table
