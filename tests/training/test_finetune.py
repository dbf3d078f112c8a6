"""Whole runs on a small real model: what is written, what is chosen, exact resumption."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError, Stopped, UserError
from claim2source.core.files import file_hash
from claim2source.core.lock import LOCK_FILE
from claim2source.core.report import Choice, Report
from claim2source.core.run import Run
from claim2source.data.loading import load
from claim2source.data.split import carve_val
from claim2source.data.store import Store
from claim2source.data.trec import write_trec_run
from claim2source.models import Manifest, resolve
from claim2source.training import finetune as program
from claim2source.training import on_val as evaluate
from claim2source.training.config import FinetuneConfig
from claim2source.training.finetune import finetune
from claim2source.training.resume import TrainingState
from claim2source.training.run_folder import RunFolder
from tests.refusals import refused
from tests.report_files import without_costs
from tests.shared_data import REPOSITORY
from tests.training.small import (
    logged_steps,
    losses_of,
    power_cut,
    same_weights,
    save_small_model,
    say_pooling,
    small_config,
)

OUR_LOSS = "[{info_nce: {}}]"
OWN_LOSSES = (
    "[{info_nce: {}}, {tests.training.own_losses.Uniformity: {weight: 0.1}}, "
    "{tests.training.own_losses.NearBase: {weight: 0.2}}]"
)


@pytest.fixture(scope="module")
def finished(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One uninterrupted run with accumulation, shared by the tests that only read."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    extra = {"optimisation__accumulation": 2, "optimisation__warmup_ratio": 0.3}
    finetune(small_config(*setup, out, **extra))
    return out


def test_what_a_run_leaves(finished: Path) -> None:
    report = Report.read(finished)
    assert report.split == "dev"
    before, after = report.systems["step 0"], report.systems["chosen"]
    training = report.training
    assert training is not None
    assert set(before.table) == set(after.table) == {"en", "de", "macro"}
    assert before.macro["mrr@5"] == pytest.approx(
        (before.languages["en"]["mrr@5"] + before.languages["de"]["mrr@5"]) / 2
    )
    assert [entry.epoch for entry in training.history] == [0, 1, 2, 3]
    scores = [entry.val["macro"]["mrr@5"] for entry in training.history]
    assert scores[training.chosen_epoch] >= scores[0]
    choice = training.choice
    assert choice is not None and choice.best["epoch"] >= scores.index(max(scores))
    assert (choice.best_score, choice.seen_share) == (pytest.approx(max(scores)), None)
    run = json.loads((finished / "run.json").read_text())
    assert run["chosen"] == f"epoch-{training.chosen_epoch}"
    names = sorted(path.name for path in (finished / "checkpoints").iterdir())
    assert names == ["epoch-0", "epoch-1", "epoch-2", "epoch-3"]
    assert (finished / "config.yaml").is_file() and (finished / "mined.jsonl").is_file()
    assert not list(finished.rglob("*.tmp"))
    manifest = Manifest.read(finished / "checkpoints" / "epoch-2")
    assert manifest.weights.kind == "full" and manifest.epoch == 2
    assert manifest.data.val_seed == 13 and manifest.data.mined_sha256
    assert manifest.scores["val"] == training.history[2].val
    assert {"torch", "transformers", "python"} <= set(manifest.versions)
    assert manifest.config["optimisation"]["epochs"] == 3


@pytest.mark.slow
def test_texts_are_cut_in_training_only(setup: tuple[Path, Path], tmp_path: Path) -> None:
    extra = {"optimisation__epochs": 1, "optimisation__dropout": 0}
    scores, losses = {}, {}
    for name, limit in (("whole", {}), ("cut", {"optimisation__max_length": 9})):
        finetune(small_config(*setup, tmp_path / name, **extra, **limit))
        manifest = Manifest.read(tmp_path / name / "checkpoints" / "epoch-1")
        assert manifest.encoder.max_length == 24
        losses[name] = losses_of(tmp_path / name)
        scores[name] = [epoch.val for epoch in Report.read(tmp_path / name).training.history]
    # Step 0 and mining use whole texts; training does not.
    assert scores["whole"][0] == scores["cut"][0]
    mined = [(tmp_path / name / "mined.jsonl").read_bytes() for name in losses]
    assert mined[0] == mined[1]
    assert losses["whole"][0] != pytest.approx(losses["cut"][0], rel=1e-3)
    with refused(ConfigError, "optimisation.max_length: 25 ", "model.max_length (24)"):
        finetune(small_config(*setup, tmp_path / "long", optimisation__max_length=25))
    prefix = {"model__template__source": "one two three four five six seven ", **extra}
    with refused(ConfigError, "optimisation.max_length: 8 ", "source"):
        finetune(small_config(*setup, tmp_path / "long", optimisation__max_length=8, **prefix))
    assert not (tmp_path / "long").exists()


@pytest.mark.slow
def test_step_0_is_read_as_far_as_the_base_can_be_and_epochs_as_the_recipe_says(
    setup: tuple[Path, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = save_small_model(tmp_path / "model")
    # 29 sources have 30 tokens, 5 have 32 and 2 have 34, special ones included.
    before, after, course = {}, {}, {}
    # The model has 64 positions, whatever its files declare.
    for declared, length, cut, first in (
        *((40, 20, 36, 40), (40, 31, 7, 40), (40, 34, 0, 34)),
        *((512, 20, 36, 64), (20, 20, 0, 20)),
    ):
        say_pooling(model, declared)
        run, options = (declared, length), {"optimisation__epochs": 1, "choose": "last"}
        folder = tmp_path / f"{declared}-{length}"
        finetune(small_config(model, setup[1], folder, model__max_length=length, **options))
        pattern = rf"(\d+) of 36 sources are cut at {length} .* model takes {first}"
        assert re.findall(pattern, caplog.text) == ([str(cut)] if cut else [])
        assert "sources are cut" in caplog.text or not cut
        caplog.clear()
        manifests = [Manifest.read(folder / "checkpoints" / n) for n in ("epoch-0", "epoch-1")]
        assert [manifest.encoder.max_length for manifest in manifests] == [first, length]
        report = Report.read(folder)
        lengths = [report.systems[name].settings["max_length"] for name in ("step 0", "chosen")]
        assert lengths == [first, length]
        note = f"Step 0 uses {first} tokens, "
        assert (note in " ".join(capsys.readouterr().out.split())) == (first != length)
        history = report.training.history
        before[run], after[run] = history[0].val, history[1].val
        course[run] = (folder / "mined.jsonl").read_bytes(), losses_of(folder)
    # Whatever the recipe cuts, step 0 has the scores of whole texts; the rest of the run has not.
    assert before[40, 20] == before[40, 31] == before[40, 34] == before[512, 20] != before[20, 20]
    assert course[40, 20] == course[512, 20] == course[20, 20] != course[40, 34]
    assert after[40, 20] == after[20, 20] != after[40, 34]


def rate(step: int, warmup: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to 0, written out from the paper's words."""
    if step < warmup:
        return 1e-3 * (step + 1) / (warmup + 1)
    return 1e-3 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def test_csv_has_a_line_a_step_and_a_curve_from_before_training(finished: Path) -> None:
    rows = logged_steps(finished)
    assert [int(row["step"]) for row in rows] == list(range(1, len(losses_of(finished)) + 1))
    for row in rows:
        assert float(row["claims_per_second"]) >= 0 and float(row["peak_memory_mib"]) >= 0
        real, padded = (float(row[f"{kind}_tokens_per_second"]) for kind in ("real", "padded"))
        assert 0 <= real <= padded + 1e-6
    steps, warmup = len(rows), round(0.3 * len(rows))
    assert warmup >= 2 and steps - warmup >= 6
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates == pytest.approx([rate(k, warmup, steps) for k in range(steps)], abs=1e-9)
    scored = logged_steps(finished, "val/macro/mrr@5")
    history = json.loads((finished / "run.json").read_text())["history"]
    assert [float(row["epoch"]) for row in scored] == [0, 1, 2, 3]
    assert scored[0]["step"] == "0" and int(scored[1]["step"]) > 0
    for row, entry in zip(scored, history, strict=True):
        for lang in ("en", "de", "macro"):
            assert float(row[f"val/{lang}/mrr@5"]) == pytest.approx(entry["val"][lang]["mrr@5"])


@pytest.mark.slow
def test_a_batch_is_overfitted(
    setup: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    extra: dict[str, Any] = {
        "data__limit": 6,
        "data__repeat": 25,
        "optimisation__batch_size": 6,
        "optimisation__epochs": 1,
        "optimisation__negatives": 0,
        "optimisation__dropout": 0.0,
        "optimisation__learning_rate": 1e-2,
    }
    finetune(small_config(*setup, tmp_path / "run", **extra))
    losses = losses_of(tmp_path / "run")
    assert len(losses) == 25 and losses[-1] < losses[0] / 10, losses
    output = capsys.readouterr().out
    assert re.search(r"\b6 pairs, 25 \D*25 batches .*\b25 optimizer steps", output)
    assert re.search(r"data\.limit: .*\b6 claims", output)
    assert f"epoch 1: loss {losses[0]:.4g} to {losses[-1]:.4g}, val MRR@5" in output
    # A warning about the small val includes its interval.
    numbers = r"mrr@5 is (\S+) with a 95 % interval from (\S+) to (\S+), (\S+) wide"
    (numbers_found,) = re.findall(rf"data\.val_share.*{numbers}", caplog.text)
    score, low, high, width = map(float, numbers_found)
    assert low <= score <= high and width == pytest.approx(high - low, abs=2e-4) and width > 0.05


@pytest.mark.slow
def test_the_debug_config_overfits_one_batch_of_the_demo(tmp_path: Path) -> None:
    config = read_config(
        FinetuneConfig,
        ["--config", str(REPOSITORY / "configs" / "finetune" / "debug.yaml")],
        program="t",
        description="t",
    )
    started = time.perf_counter()
    finetune(replace(config, out=tmp_path / "run", store=tmp_path / "store"))
    # Under a minute on two idle cores.
    assert time.perf_counter() - started < 600
    losses = losses_of(tmp_path / "run")
    assert len(losses) == 20 and losses[-1] < losses[0] / 10


@pytest.mark.usefixtures("_sigint")
@pytest.mark.parametrize(
    ("tuning", "batches", "accumulation", "end", "losses"),
    [
        ("lora", 2, 2, "SIGTERM", OWN_LOSSES),
        pytest.param("lora", 3, 1, "power", OWN_LOSSES, marks=pytest.mark.slow),
        pytest.param("full", 3, 1, "power", OUR_LOSS, marks=pytest.mark.slow),
        pytest.param("full", 2, 1, "SIGINT", OWN_LOSSES, marks=pytest.mark.slow),
        pytest.param("lora", 3, 1, "power", OUR_LOSS, marks=pytest.mark.slow),
    ],
)
def test_resuming_gives_the_same_losses_and_weights(
    tuning: str,
    batches: int,
    accumulation: int,
    end: str,
    losses: str,
    setup: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    """After a power cut in a save, and after a signal: the step is finished, then saved.

    Without `save_every` an epoch is saved at its last step, and again when it is scored. Losses of
    one's own may draw random numbers.
    """
    interval = 1 if end == "power" else 0
    extra: dict[str, Any] = {
        "tuning": tuning,
        # The state is written while training continues: on a busy machine the epoch may end first.
        "optimisation__epochs": 3,
        "lora__r": 4,
        "optimisation__accumulation": accumulation,
        "optimisation__save_every": interval,
        "losses": losses,
    }
    finetune(small_config(*setup, tmp_path / "whole", **extra))
    saves: list[int] = []

    def ends(state: TrainingState) -> bool:
        saves.append(state.steps_done)
        if len(saves) == batches and end != "power":
            os.kill(os.getpid(), signal.Signals[end])
        return len(saves) == batches and end == "power"

    stopped = nullcontext() if end == "power" else pytest.raises(Stopped)
    with power_cut(ends, expected=end == "power"), stopped as raised:
        finetune(small_config(*setup, tmp_path / "cut", **extra))
    if raised is not None:
        assert raised.value.signal == signal.Signals[end]
        assert str(raised.value) == f"stopped at step {saves[-1]}; continue with --resume"
        # Written while the next step is taken, or the one after it.
        assert saves[-1] > saves[-2], "no later step was saved"
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not (tmp_path / "cut" / "report.json").exists()
    assert not (tmp_path / "cut" / LOCK_FILE).exists()
    # The RNG state must come from the saved state, not from this process.
    torch.manual_seed(999)
    finetune(small_config(*setup, tmp_path / "cut", resume=True, **extra))
    expected, resumed = losses_of(tmp_path / "whole"), losses_of(tmp_path / "cut")
    assert len(expected) > saves[-1]
    assert expected == resumed
    same_weights(tmp_path / "whole", tmp_path / "cut")
    history = [json.loads((tmp_path / n / "run.json").read_text()) for n in ("whole", "cut")]
    assert history[0] == history[1]


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_signal_while_an_epoch_is_scored_loses_no_step(
    epoch: int, setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved only at the ends of epochs, with dropout; the state holds what was mined in between."""
    extra: dict[str, Any] = {
        "optimisation__epochs": 2,
        "optimisation__save_every": 0,
        "optimisation__remine_every": 1,
    }
    finetune(small_config(*setup, tmp_path / "whole", **extra))
    real, calls = evaluate.score_encoder, []

    def evaluate_then_stop(*arguments: Any, **settings: Any) -> Any:
        calls.append(1)
        if len(calls) == 1 + epoch:  # the first is of the model before training
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **settings)

    monkeypatch.setattr(evaluate, "score_encoder", evaluate_then_stop)
    with refused(Stopped, "step", "--resume"):
        finetune(small_config(*setup, tmp_path / "cut", **extra))
    state = TrainingState.load(tmp_path / "cut" / "state.pt")
    steps = len(losses_of(tmp_path / "whole"))
    assert state.epoch_open and state.steps_done == epoch * steps // 2
    (tmp_path / "cut" / "mined-epoch-1.jsonl").unlink(missing_ok=True)
    finetune(small_config(*setup, tmp_path / "cut", resume=True, **extra))
    mined = [(tmp_path / name / "mined-epoch-1.jsonl").read_text() for name in ("whole", "cut")]
    assert mined[0] == mined[1]
    assert losses_of(tmp_path / "whole") == losses_of(tmp_path / "cut")
    expected, resumed = (without_costs(Report.read(tmp_path / name)) for name in ("whole", "cut"))
    assert expected == resumed


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_finished_run_keeps_no_states_and_chooses_again(
    tuning: str, setup: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a resume nothing is trained, logged or mined; another choice is reported.

    Val likes the model before training best, and the last epoch may be asked for all the same.
    """
    model, data = (Path(shutil.copytree(old, tmp_path / old.name)) for old in setup)
    out, extra = tmp_path / "run", {"tuning": tuning, "optimisation__epochs": 2, "rule": "best"}
    extra["optimisation__learning_rate"] = 1e-12
    finetune(small_config(model, data, out, **extra))
    assert "step 0 (chosen)  " in capsys.readouterr().out
    assert not list(out.glob("*state*"))
    texts = [path for path in out.rglob("*") if path.suffix in (".safetensors", ".csv", ".jsonl")]
    before = {path: path.read_bytes() for path in texts}
    report = Report.read(out)
    assert report.training is not None and report.training.chosen_epoch == 0
    assert report.systems["step 0"].table == report.systems["chosen"].table
    resumed = finetune(small_config(model, data, out, resume=True, choose="last", **extra))
    output = capsys.readouterr().out
    assert f"{out}: the run is finished" in output and "epoch 2 (the last)  " in output
    assert resumed is not None and resumed.training is not None
    assert resumed.training.chosen_epoch == 2 and resumed.training.choose == "last"
    assert resumed.training.history == report.training.history
    assert json.loads((out / "run.json").read_text())["chosen"] == "epoch-2"
    finetune(small_config(model, data, out, resume=True, **extra))
    assert without_costs(Report.read(out)) == without_costs(report)
    assert {path: path.read_bytes() for path in out.rglob("*") if path in before} == before
    with refused(ConfigError, "optimisation.epochs: 3 ", "2, "):
        finetune(small_config(model, data, out, resume=True, **extra | {"optimisation__epochs": 3}))
    queries = data / "queries.jsonl"
    queries.write_text(queries.read_text(encoding="utf-8").replace("wow", "hm"), encoding="utf-8")
    with pytest.raises(UserError, match=r"\b(training|val) data\b.*--overwrite"):
        finetune(small_config(model, data, out, resume=True, **extra))


@pytest.fixture
def _sigint() -> Iterator[None]:
    """Tests that run in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_sigint")
def test_a_signal_before_anything_is_scored_leaves_a_folder_to_use_again(
    setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Report:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    monkeypatch.setattr(evaluate, "score_encoder", interrupted)
    for number in range(2):
        with pytest.raises(Stopped) as raised:
            finetune(small_config(*setup, tmp_path / "run", optimisation__epochs=1 + number))
        assert raised.value.signal == signal.SIGINT and "--resume" not in str(raised.value)


@pytest.mark.slow
def test_nothing_is_dropped_before_what_makes_it_final_is_saved(
    setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill between the two an epoch is repeated; on a GPU it may get another score."""
    saved: list[int] = []
    prune, out = RunFolder.prune, tmp_path / "run"

    def remember(run: RunFolder, epoch: int) -> None:
        saved.append(TrainingState.load(run.state).batches_done)
        prune(run, epoch)

    monkeypatch.setattr(RunFolder, "prune", remember)
    report = finetune(small_config(*setup, out, optimisation__epochs=4, keep="best"))
    steps = len(losses_of(out)) // 4
    assert saved == [steps, 2 * steps, 3 * steps, 4 * steps]
    # The chosen and the best epoch are kept, the first and the last.
    scores = [entry.val["macro"]["mrr@5"] for entry in report.training.history]
    best = scores.index(max(scores[1:]), 1)
    required = {f"epoch-{epoch}" for epoch in (0, report.training.chosen_epoch, best, 4)}
    assert {path.name for path in (out / "checkpoints").iterdir()} == required
    assert len(required) < 5


@pytest.mark.parametrize(
    "change", ["base model", "val data", "training data", "teacher's run", "negatives"]
)
def test_a_run_is_not_resumed_on_something_else(
    change: str, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Changed inputs outside the run's folder are refused."""
    model, data = (Path(shutil.copytree(old, tmp_path / old.name)) for old in setup)
    train, val = carve_val(load(str(data), "train"), 0.2)
    teacher = tmp_path / "teacher.trec"
    write_trec_run(Run.from_lists({c.id: [(c.golds[0], 1.0)] for c in train.claims}), teacher)
    extra: dict[str, Any] = {
        "tuning": "lora",
        "optimisation__epochs": 1,
        "losses__distillation__weight": 0.5,
        "losses__distillation__scores": teacher,
    }
    with power_cut():
        finetune(small_config(model, data, tmp_path / "run", **extra))
    before = (tmp_path / "run" / "state.pt").read_bytes()
    if change == "base model":
        weights = load_file(model / "model.safetensors")
        weights["embeddings.word_embeddings.weight"][99] += 1
        save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    elif change == "teacher's run":
        write_trec_run(Run.from_lists({c.id: [(c.golds[0], 2.0)] for c in train.claims}), teacher)
    elif change == "negatives":
        mined = tmp_path / "run" / "mined.jsonl"
        mined.write_text(mined.read_text().partition("\n")[2])
    else:
        changed = (val if change == "val data" else train).claims[0]
        file = data / "queries.jsonl"
        old, new = (
            json.dumps(text, ensure_ascii=False)[1:-1]
            for text in (changed.text, f"{changed.text} and more")
        )
        text = file.read_text(encoding="utf-8")
        assert text.count(f'"{old}"') == 1
        file.write_text(text.replace(f'"{old}"', f'"{new}"'), encoding="utf-8")
    fact = "mined.jsonl" if change == "negatives" else f"the {change} "
    with refused(UserError, fact):
        finetune(small_config(model, data, tmp_path / "run", resume=True, **extra))
    assert (tmp_path / "run" / "state.pt").read_bytes() == before


@pytest.mark.slow
def test_lora_leaves_the_base_alone_and_loads_as_it_was(
    setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    real = program.choose

    def remember(*arguments: Any) -> tuple[int, Choice]:
        encoder = arguments[0].base.encoder
        encoder.model.eval()
        seen["vectors"], _ = encoder.encode(["some post"], "claim")
        seen["base"] = {
            name: weight.clone()
            for name, weight in encoder.model.state_dict().items()
            if "lora" not in name
        }
        return real(*arguments)

    monkeypatch.setattr(program, "choose", remember)
    before = file_hash(setup[0] / "model.safetensors")
    out = tmp_path / "run"
    finetune(small_config(*setup, out, tuning="lora", optimisation__epochs=2))
    assert file_hash(setup[0] / "model.safetensors") == before
    base = resolve(out / "checkpoints" / "epoch-0").encoder.model.state_dict()
    for name, weight in seen["base"].items():
        key = name.removeprefix("base_model.model.").replace(".base_layer", "")
        assert torch.equal(weight, base[key]), name
    folder = out / "checkpoints" / "epoch-2"
    loaded, _ = resolve(folder).encoder.encode(["some post"], "claim")
    assert loaded == pytest.approx(seen["vectors"], abs=1e-6)
    untrained, _ = resolve(out / "checkpoints" / "epoch-0").encoder.encode(["some post"], "claim")
    assert abs(loaded - untrained).max() > 1e-3
    assert not list(folder.glob("*.bin"))


@pytest.mark.parametrize("tuning", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_vectors_of_an_epoch_do_not_depend_on_the_precision_of_its_steps(
    tuning: str, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Epochs are scored within a step, in its mixed precision; what is stored must not be."""
    extra: dict[str, Any] = {"optimisation__precision": "bf16", "optimisation__epochs": 1}
    config = small_config(*setup, tmp_path / "run", tuning=tuning, **extra)
    config = replace(config, store=tmp_path / "store")
    finetune(config)
    encoder = resolve(tmp_path / "run" / "checkpoints" / "epoch-1").encoder
    texts = config.rendering.source_texts(load(str(setup[1]), "train").sources)
    vectors, cost = encoder.encode(texts, "source", store=Store(tmp_path / "store"))
    fresh, _ = encoder.encode(texts, "source")
    assert cost.reused == len(texts)
    assert abs(vectors - fresh).max() < 1e-6


@pytest.mark.slow
def test_dropout_is_on_while_training(setup: tuple[Path, Path], tmp_path: Path) -> None:
    common: dict[str, Any] = {"optimisation__epochs": 1, "optimisation__save_every": 0}
    finetune(small_config(*setup, tmp_path / "with", **common))
    finetune(small_config(*setup, tmp_path / "without", optimisation__dropout=0.0, **common))
    assert losses_of(tmp_path / "with") != losses_of(tmp_path / "without")
