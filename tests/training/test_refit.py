"""The final refit on train and val, and what may still be chosen after it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.folders import foreign_file
from claim2source.core.report import Report
from claim2source.datasets import load
from claim2source.mining import read_mined
from claim2source.models import Manifest, ModelConfig, resolve
from claim2source.models.resolve import chosen_checkpoint
from claim2source.pipeline.checkpoints import CheckpointConfig, evaluate_checkpoints
from claim2source.pipeline.evaluate import evaluate_encoder
from claim2source.pipeline.results import RunSettings
from claim2source.pipeline.runner import SystemRunner
from claim2source.pipeline.systems import SystemConfig
from claim2source.training.choose import ValScores
from claim2source.training.export.weighted_sum import ScaledCheckpoint
from claim2source.training.finetune import finetune
from claim2source.training.splits import load_data
from claim2source.training.state import TrainingState
from eval.hybrid import main as hybrid
from tests.training.small import small_config, small_setup

# A rate at which a random model learns the small set, so that an epoch is better than step 0.
SETTINGS: dict[str, Any] = {"refit": True, "optimisation__epochs": 3, "choose": "last"}


class Killed(Exception):
    """What ends a training in a test."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Model, data and the folder of a run with a refit."""
    folder = tmp_path_factory.mktemp("refit")
    model, data = small_setup(folder)
    finetune(small_config(model, data, folder / "run", **SETTINGS))
    return model, data, folder / "run"


@pytest.mark.slow
def test_a_refit_is_the_recipe_on_train_and_val_and_is_named(
    done: tuple[Path, Path, Path],
) -> None:
    model, data, run = done
    splits = load_data(small_config(model, data, run))
    assert chosen_checkpoint(run).name == "refit-epoch-3"
    manifest = Manifest.read(run / "checkpoints" / "refit-epoch-3")
    before = Manifest.read(run / "checkpoints" / "epoch-3")
    assert (manifest.refit, before.refit, manifest.epoch) == ("epoch-3", None, 3)
    # It is trained on val too: val's scores would say nothing.
    assert manifest.scores == {} and before.scores["val"]
    whole = load(data, "train")
    pairs = {(c.id, gold) for c in whole.claims for gold in c.golds}
    rows = read_mined(run / "refit-epoch-3" / "mined.jsonl", whole)
    assert {(row.claim, row.positive) for row in rows} == pairs
    held = {claim.id for claim in splits.val.claims}
    first = read_mined(run / "mined.jsonl", whole)
    assert held and not held & {row.claim for row in first}
    report = Report.read(run)
    assert report.chosen == "refit" and list(report.systems) == ["step 0", "chosen", "refit"]
    assert report.training is not None
    assert report.training.refit == "checkpoints/refit-epoch-3"
    assert report.training.chosen_checkpoint == "checkpoints/epoch-3"
    assert report.macro == report.systems["refit"].macro
    history = json.loads((run / "refit-epoch-3" / "run.json").read_text())["history"]
    assert [entry["val"] for entry in history] == [{}, {}, {}, {}]


@pytest.mark.slow
def test_a_refit_stops_where_val_chose_at_the_same_rates(
    done: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chosen at epoch 1 of 3: one epoch, with a rate that has not yet fallen; then at half scale,
    which needs no other training."""
    from claim2source.training import finetune as module
    from claim2source.training.choose import ChosenCheckpoint, choose_checkpoint

    scale = 1.0

    def first_epoch(run: Any, *more: Any) -> ChosenCheckpoint:
        found = choose_checkpoint(run, *more)
        folder = run.checkpoint(1)
        if scale != 1:
            folder = run.scaled_checkpoint(1, scale)
            folder.mkdir(exist_ok=True)
            ScaledCheckpoint(run.checkpoint(1)).save_checkpoint(folder, scale, {})
        return replace(found, folder=folder, epoch=1, scale=scale)

    monkeypatch.setattr(module, "choose_checkpoint", first_epoch)
    model, data, _ = done
    config = small_config(model, data, tmp_path / "run", **SETTINGS)
    finetune(config)
    folder = tmp_path / "run" / "refit-epoch-1"
    state = TrainingState.load(folder / "state.pt")
    steps = len(state.losses)
    assert steps == state.steps_done == -(-48 // 8)  # all 48 pairs, once
    rates: Any = state.lightning["lr_schedulers"][0]["_last_lr"]
    assert rates[0] > 0.5 * config.optimisation.learning_rate  # of three epochs, one is done
    trained = chosen_checkpoint(tmp_path / "run")
    assert trained.name == "refit-epoch-1" and Manifest.read(trained).weights.scale == 1
    # Where it was trained it stays, but for what an earlier version moved.
    scale, before = 0.5, (folder / "state.pt").read_bytes()
    for moved in (False, True):
        if moved:
            shutil.rmtree(folder / "checkpoints/epoch-1")
            shutil.rmtree(chosen_checkpoint(tmp_path / "run"))
        finetune(small_config(model, data, tmp_path / "run", resume=True, **SETTINGS))
        target = chosen_checkpoint(tmp_path / "run")
        manifest = Manifest.read(target)
        assert target.name == "refit-epoch-1-scale-0.5" and manifest.weights.scale == 0.5
        assert manifest.refit == "epoch-1-scale-0.5" and Manifest.read(trained).refit == "epoch-1"
        assert (folder / "state.pt").read_bytes() == before
    base = resolve(str(tmp_path / "run/checkpoints/epoch-0"), "cpu").encoder.model.state_dict()
    half = resolve(str(target), "cpu").encoder.model.state_dict()
    whole = resolve(str(trained), "cpu").encoder.model.state_dict()
    for name, value in half.items():
        assert torch.allclose(value, (base[name] + whole[name]) / 2, atol=1e-6)
    # Resumed when the refit was made and not yet named: nothing is trained again.
    (tmp_path / "run" / "report.json").unlink()
    finetune(small_config(model, data, tmp_path / "run", resume=True, **SETTINGS))
    assert (folder / "state.pt").read_bytes() == before
    assert Report.read(tmp_path / "run").chosen == "refit"


@pytest.mark.slow
def test_a_stopped_refit_goes_on(
    done: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after seven of its 18 steps, it ends with the same weights."""
    from claim2source.training import state as states

    model, data, run = done
    save, count = states.TrainingState.save, 0

    def stopping(self: Any, path: Path) -> None:
        nonlocal count
        save(self, path)
        count += path.parent.name == "refit-epoch-3"
        if count == 7:
            raise Killed

    monkeypatch.setattr(states.TrainingState, "save", stopping)
    with pytest.raises(Killed):
        finetune(small_config(model, data, tmp_path / "run", **SETTINGS))
    assert count == 7
    monkeypatch.setattr(states.TrainingState, "save", save)
    finetune(small_config(model, data, tmp_path / "run", resume=True, **SETTINGS))
    name = "checkpoints/refit-epoch-3/model.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.slow
def test_a_fusion_for_a_refit_is_chosen_by_the_checkpoint_before_it(
    done: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, data, run = done
    options = [f"--dataset={data}", "--repeats=20"]
    reports = {}
    for name, checkpoint in (("refit", run), ("before", run / "checkpoints" / "epoch-3")):
        hybrid([*options, f"--checkpoint={checkpoint}", f"--out={tmp_path / name}"])
        system = Report.read(tmp_path / name).systems["hybrid"]
        reports[name] = system.choice("fusion")
    assert reports["refit"] is not None and reports["before"] is not None
    assert "epoch-3, which val chose" in reports["refit"].note
    # Chosen on val, by scores of the model that has not seen val.
    assert reports["refit"].settings == reports["before"].settings
    assert reports["refit"].score == reports["before"].score
    alone = tmp_path / "alone"
    shutil.copytree(run / "checkpoints" / "refit-epoch-3", alone)
    with pytest.raises(UserError, match="no claim of val is left"):
        hybrid([*options, f"--checkpoint={alone}", f"--out={tmp_path / 'o'}"])


@pytest.mark.slow
def test_a_route_to_a_refit_is_chosen_by_the_checkpoint_before_it(
    done: tuple[Path, Path, Path],
) -> None:
    model, data, run = done
    names = {"base": "epoch-0", "refit": "refit-epoch-3", "before": "epoch-3"}
    checkpoints = {key: str(run / "checkpoints" / name) for key, name in names.items()}
    systems = {
        name: SystemConfig(model=ModelConfig(name=path)) for name, path in checkpoints.items()
    }
    held_out = load_data(small_config(model, data, run)).val
    scores = {}
    for tuned in ("refit", "before"):
        systems["routed"] = SystemConfig(routes={"default": ["base", tuned]})
        found = SystemRunner(systems, load(str(data), "dev"), RunSettings(str(data))).run("routed")
        assert {choice.what for choice in found.choices} == {"route en", "route de"}
        for choice in found.choices:
            language = choice.what.split()[1]
            # The base too is scored on what the tuned one held out, not on all of train.
            assert choice.claims == len(held_out.in_languages([language]).claims)
            assert choice.tried[1].settings == {"system": tuned, "model": checkpoints[tuned]}
        scores[tuned] = [[trial.score for trial in choice.tried] for choice in found.choices]
    assert scores["refit"] == scores["before"]
    tried = scores["before"]
    assert any(base != tuned for base, tuned in tried)


@pytest.mark.slow
def test_a_chosen_mean_is_reported_listed_and_refitted(
    done: tuple[Path, Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Val is made to prefer it; its own scores are those of the mean of the weights."""
    from claim2source.training import choose as module

    real: Callable[..., ValScores] = module.score_on_val

    def raised(*given: Any) -> ValScores:
        found = real(*given)
        return replace(found, score=1.0, claims=dict.fromkeys(found.claims, 1.0))

    monkeypatch.setattr(module, "score_on_val", raised)
    model, data, _ = done
    out, settings = tmp_path / "run", {**SETTINGS, "optimisation__epochs": 2, "soup": True}
    report = finetune(small_config(model, data, out, **settings))
    assert report is not None and report.training is not None
    assert report.training.chosen_soup == (1, 2) and report.chosen == "refit"
    assert report.training.chosen_checkpoint == "checkpoints/soup-1-2"
    assert "mean of epochs 1+2 (chosen on val)" in capsys.readouterr().out

    def mean(folder: Path) -> dict[str, torch.Tensor]:
        one, two = (load_file(folder / f"epoch-{n}/model.safetensors") for n in (1, 2))
        return {name: (value + two[name]) / 2 for name, value in one.items()}

    checkpoints, again = out / "checkpoints", out / "refit-soup-1-2" / "checkpoints"
    for name, folder in (("soup-1-2", checkpoints), ("refit-soup-1-2", again)):
        for key, value in load_file(checkpoints / name / "model.safetensors").items():
            assert torch.allclose(value, mean(folder)[key], atol=1e-7)
    chosen, refitted = (Manifest.read(checkpoints / n) for n in ("soup-1-2", "refit-soup-1-2"))
    splits, resolved = load_data(small_config(model, data, out)), resolve(checkpoints / "soup-1-2")
    assert resolved.rendering is not None
    scored = evaluate_encoder(resolved.encoder, splits.val, resolved.rendering)
    assert chosen.scores["val"] == scored.table and len(chosen.soup) == 2
    assert (refitted.refit, refitted.scores) == ("soup-1-2", {})
    assert chosen_checkpoint(out).name == "refit-soup-1-2" and foreign_file(out) is None
    # Resumed, nothing is trained again; evaluated, it stands among the checkpoints.
    before = (out / "refit-soup-1-2" / "state.pt").read_bytes()
    finetune(small_config(model, data, out, resume=True, **settings))
    assert (out / "refit-soup-1-2" / "state.pt").read_bytes() == before
    config = CheckpointConfig(str(out), tmp_path / "o", str(data), tests=False)
    evaluate_checkpoints(config)
    names = ["epoch-0", "epoch-1", "epoch-2", "soup-1-2", "refit-soup-1-2"]
    assert list(Report.read(tmp_path / "o").systems) == names


def test_a_refit_needs_negatives_for_val(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="refit"):
        small_config(tmp_path, tmp_path, tmp_path / "o", refit=True, mined=tmp_path / "m.jsonl")
