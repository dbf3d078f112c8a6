"""What a run stands for at its end: an epoch, perhaps on the way back to the base."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.report import Report
from claim2source.io.store import Store
from claim2source.models import Manifest, resolve
from claim2source.pipeline.checkpoints import CheckpointConfig, evaluate_checkpoints
from claim2source.training import choose as module
from claim2source.training import finetune as program
from claim2source.training.choose import choose_checkpoint
from claim2source.training.finetune import finetune
from claim2source.training.loggers import RunLog, WandbPage
from claim2source.training.run_folder import RunFolder
from claim2source.training.splits import load_data
from tests.training.small import small_config, small_setup
from train.interpolate import InterpolateConfig, interpolate
from train.merge import MergeConfig, merge


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return small_setup(tmp_path_factory.mktemp("small"))


def score(value: float) -> dict[str, dict[str, float]]:
    return {name: {"mrr@5": value} for name in ("en", "de", "macro")}


class Shown:
    """Takes what a W&B run would."""

    def __init__(self) -> None:
        self.tables: dict[str, tuple[list[str], list[list[Any]]]] = {}
        self.images: dict[str, list[str]] = {}

    def define_steps(self, step: str) -> None:
        """Curves are looked at elsewhere."""

    def log(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            if hasattr(value, "columns"):
                self.tables[key] = value.columns, value.data

    def log_figure(self, key: str, file: Path) -> None:
        self.images[key] = [str(file)]

    def close(self) -> None:
        """Nothing was begun."""


def logged_to(shown: Shown, *arguments: Any) -> RunLog:
    """A run's logs, with `shown` among them."""
    log = RunLog(*arguments)
    log.loggers.append(WandbPage(shown))  # type: ignore[arg-type]
    return log


def test_scales_may_be_tried_when_the_run_is_over(
    setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed for them alone: no weight moves, the report and the choice are those of today."""
    monkeypatch.setattr(RunFolder, "best_epoch", lambda self: 1)
    out = tmp_path / "run"
    config = small_config(*setup, out, tuning="lora", optimisation__epochs=1)
    before = finetune(config)
    assert before.training.scales == () and not (out / "scales.png").exists()
    trained = {path: path.read_bytes() for path in (out / "checkpoints").rglob("*.safetensors")}
    logged = {path: path.read_bytes() for path in (out / "logs").rglob("*.csv")}
    shown = Shown()
    monkeypatch.setattr(program, "RunLog", partial(logged_to, shown))
    after = finetune(replace(config, resume=True, scales=[0.0, 0.5]))
    assert [trial.settings["scale"] for trial in after.training.scales] == [1.0, 0.0, 0.5]
    assert after.training.history == before.training.history
    assert all(path.read_bytes() == content for path, content in trained.items())
    # W&B is told too, though nothing was trained; the curves of the run stay as they are.
    assert [row[0] for row in shown.tables["scales"][1]] == ["0", "0.5", "1"]
    assert shown.images == {"scales_plot": [str(out / "scales.png")]}
    assert logged and all(path.read_bytes() == content for path, content in logged.items())
    assert Report.read(out) == after
    chosen = json.loads((out / "run.json").read_text())["chosen"]
    assert f"checkpoints/{chosen}" == after.training.chosen_checkpoint
    with pytest.raises(ConfigError, match=r"optimisation\.epochs"):
        finetune(small_config(*setup, out, tuning="lora", optimisation__epochs=2, resume=True))
    assert (out / "scales.png").exists()


@pytest.mark.parametrize("tuning", [pytest.param("full", marks=pytest.mark.slow), "lora"])
def test_the_best_scale_on_val_is_written_and_reported(
    tuning: str, setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Val is made to prefer 0.5: the report and the checkpoint must be those of 0.5."""
    values = iter([0.7, 0.9, 0.8])

    def scored(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(table=score(next(values)))

    monkeypatch.setattr(module, "evaluate_encoder", scored)
    monkeypatch.setattr(RunFolder, "best_epoch", lambda self: 1)
    shown = Shown()
    monkeypatch.setattr(program, "RunLog", partial(logged_to, shown))
    out = tmp_path / "run"
    report = finetune(
        replace(
            small_config(*setup, out, tuning=tuning, optimisation__epochs=2),
            scales=[0.25, 0.5, 0.75],
        )
    )
    training = report.training
    assert training.chosen_epoch == 1 and training.chosen_scale == 0.5
    assert training.chosen_checkpoint == "checkpoints/epoch-1-scale-0.5"
    assert [trial.settings["scale"] for trial in training.scales] == [1.0, 0.25, 0.5, 0.75]
    assert json.loads((out / "run.json").read_text())["chosen"] == "epoch-1-scale-0.5"
    # The curve, from the base on: a table and a picture for W&B.
    columns, rows = shown.tables["scales"]
    assert columns[0] == "scale" and set(columns[1:]) == {"en", "de", "macro"}
    at = columns.index("macro")
    assert [row[0] for row in rows] == ["0", "0.25", "0.5", "0.75", "1"]
    history = [entry.val["macro"]["mrr@5"] for entry in training.history]
    assert [row[at] for row in rows] == [history[0], 0.7, 0.9, 0.8, history[1]]
    assert shown.images == {"scales_plot": [str(out / "scales.png")]}
    assert (out / "scales.png").read_bytes().startswith(b"\x89PNG")
    folder = out / "checkpoints"
    base, half, whole = (
        resolve(folder / name).encoder for name in ("epoch-0", "epoch-1-scale-0.5", "epoch-1")
    )
    assert Manifest.read(folder / "epoch-1-scale-0.5").weights.scale == 0.5
    if tuning == "full":
        for (name, w0), w5, w1 in zip(
            base.model.named_parameters(),
            half.model.parameters(),
            whole.model.parameters(),
            strict=True,
        ):
            assert torch.allclose(w5, (w0 + w1) / 2, atol=1e-6), name
    vectors = [e.encode(["some post"], "claim")[0] for e in (base, half, whole)]
    assert abs(vectors[1] - vectors[0]).max() > 1e-4 and abs(vectors[1] - vectors[2]).max() > 1e-4
    # The report is of this checkpoint, and so is every later evaluation of the run.
    monkeypatch.undo()
    config = CheckpointConfig(str(out), tmp_path / "out", str(setup[1]), store=tmp_path / "store")
    evaluate_checkpoints(config)
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["chosen"] == "epoch-1-scale-0.5"
    assert list(written["systems"]) == ["epoch-0", "epoch-1", "epoch-1-scale-0.5", "epoch-2"]
    after = written["systems"]["epoch-1-scale-0.5"]["macro"]
    assert after == pytest.approx(report.macro)


def test_scales_are_tried_with_what_the_config_allows_the_base(
    setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = setup
    base = Path(shutil.copytree(model, tmp_path / "base"))
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    monkeypatch.setattr(RunFolder, "best_epoch", lambda self: 1)
    config = small_config(base, data, tmp_path / "run", tuning="lora", optimisation__epochs=1)
    allowed = replace(config.model, allow_bin=(str(base),), attention="eager")
    report = finetune(replace(config, model=allowed, scales=[0.5]))
    assert [trial.settings["scale"] for trial in report.training.scales] == [1.0, 0.5]
    # The same by hand, by the programs' flags.
    given = [
        f"--checkpoint={tmp_path / 'run' / 'checkpoints' / 'epoch-1'}",
        "--wandb.mode=off",
        "--scales",
        "0.5",
    ]
    opt_in = ["--model.allow_bin", str(base)]
    read = partial(read_config, InterpolateConfig, program="t", description="t")
    with pytest.raises(UserError, match="allow_bin"):
        interpolate(read([*given, "--split=dev"]))
    interpolate(read([*given, *opt_in]))
    merged = [given[0], f"--out={tmp_path / 'model'}", *opt_in]
    merge(read_config(MergeConfig, merged, program="t", description="t"))


def test_of_equal_scores_the_trained_epoch_wins(
    setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = small_config(*setup, tmp_path / "run", optimisation__epochs=1)
    finetune(plain)
    config = replace(plain, scales=[0.5, 0.9])
    run = RunFolder(tmp_path / "run")
    run.record(0, score(0.1), None)
    # The same reciprocal ranks, summed in another order.
    run.record(1, score(0.4068181818181818), 0.5)

    def scored(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(table=score(0.40681818181818186))

    monkeypatch.setattr(module, "evaluate_encoder", scored)
    chosen = choose_checkpoint(run, load_data(config), config, Store(tmp_path / "store"))
    assert (chosen.epoch, chosen.scale, chosen.folder) == (1, 1.0, run.checkpoint(1))
    run.record(2, score(0.40681818181818186), 0.4)
    assert run.best_epoch() == 1
    run.record(3, score(0.4068181819), 0.3)
    assert run.best_epoch() == 3


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
    report = finetune(replace(config, choose="best", resume=True))
    assert (report.training.chosen_epoch, report.training.choose) == (0, "best")
    assert "epoch 0 (chosen on val)" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"choose: 'first' is not allowed; allowed: best, last"):
        small_config(*setup, tmp_path / "run", choose="first")


@pytest.mark.parametrize("scale", [-0.5, float("inf"), float("nan")])
def test_scales_must_be_numbers_from_0(scale: float, setup: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="scales"):
        replace(small_config(*setup, tmp_path / "run"), scales=[scale])
