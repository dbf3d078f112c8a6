"""Scales of real small runs: each as if loaded alone, one picked on val, the base never touched."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.core.files import file_hash
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Result, Run
from claim2source.datasets import carve_val, load
from claim2source.io.store import Store
from claim2source.models import Manifest, resolve
from claim2source.pipeline.checkpoints import CheckpointConfig, evaluate_checkpoints
from claim2source.pipeline.evaluate import Scoring, evaluate_encoder, score_result
from claim2source.pipeline.selection import SelectionData
from claim2source.training.curve import Picked, draw
from claim2source.training.export.scaling import ScaledCheckpoint
from claim2source.training.finetune import finetune
from tests.training.small import small_config, small_setup
from train import interpolate as program
from train.interpolate import InterpolateConfig, interpolate
from train.merge import MergeConfig, merge

TEXTS = ["wow study on coffee", "krass, Studie zu tea", "Effect of salt on health"]
Runs = dict[str, Path]


class Made(dict[str, Path]):
    """The data, the model and, once it is asked for, a finished run of a kind, of two epochs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        model, data = small_setup(folder)
        super().__init__(data=data, model=model)

    def __missing__(self, kind: str) -> Path:
        more: dict[str, Any] = {"optimisation__epochs": 2, "optimisation__learning_rate": 5e-3}
        out = self[kind] = self.folder / kind
        finetune(small_config(self["model"], self["data"], out, tuning=kind, **more))
        return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Made(tmp_path_factory.mktemp("runs"))


@pytest.fixture(params=["lora", pytest.param("full", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def point(runs: Runs, kind: str) -> Path:
    return runs[kind] / "checkpoints" / "epoch-2"


def asked(runs: Runs, kind: str, out: Path, *more: str) -> InterpolateConfig:
    arguments = [
        f"--checkpoint={point(runs, kind)}",
        f"--dataset={runs['data']}",
        f"--out={out}",
        "--wandb.mode=off",
        *more,
    ]
    return read_config(InterpolateConfig, arguments, program="t", description="t")


def near(found: dict[str, Any]) -> Any:
    """A table of the same values, whatever their last digits."""
    return {name: pytest.approx(row) for name, row in found.items()}


def val_of(runs: Runs) -> Any:
    return carve_val(load(runs["data"], "train"), 0.2, 13)[1]


def curve_of(report: dict[str, Any]) -> dict[float, Any]:
    """The scores on val by scale."""
    (choice,) = report["choices"]
    return {trial["settings"]["scale"]: trial["scores"] for trial in choice["tried"]}


def report_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return found


def alone(runs: Runs, kind: str, scale: float, folder: Path) -> Any:
    """The encoder of one scale, made from the checkpoint's files without any scaling in place."""
    from safetensors.torch import load_file

    if kind == "lora":
        folder.mkdir()
        for file in point(runs, kind).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        manifest = Manifest.read(folder)
        replace(manifest, weights=replace(manifest.weights, scale=scale)).write(folder)
        return resolve(folder, "cpu").encoder
    encoder = resolve(point(runs, kind), "cpu").encoder
    plain, tuned = (load_file(f / "model.safetensors") for f in (runs["model"], point(runs, kind)))
    for name, value in encoder.model.named_parameters():
        value.data = plain[name] + scale * (tuned[name] - plain[name])
    return encoder


def test_every_scale_is_computed_afresh_in_any_order(kind: str, runs: Runs, tmp_path: Path) -> None:
    scaled = ScaledCheckpoint(point(runs, kind), "cpu")
    expected = {
        scale: alone(runs, kind, scale, tmp_path / str(scale)).encode(TEXTS, "claim")[0]
        for scale in (0.0, 0.25, 0.5, 1.0)
    }
    assert np.abs(expected[0.25] - expected[0.5]).max() > 1e-3
    base, _ = resolve(runs[kind] / "checkpoints" / "epoch-0", "cpu").encoder.encode(TEXTS, "claim")
    tuned, _ = resolve(point(runs, kind), "cpu").encoder.encode(TEXTS, "claim")
    assert np.abs(expected[0.0] - base).max() < 1e-6
    assert np.abs(expected[1.0] - tuned).max() < 1e-6
    for scale in (0.5, 0.25, 0.5, 0.0, 1.0, 0.25, 1.0, 0.0):
        scaled.set(scale)
        found, _ = scaled.encoder.encode(TEXTS, "claim")
        assert np.abs(found - expected[scale]).max() < 1e-6, scale


def test_the_curve_and_the_report_are_what_each_scale_gives_alone(
    kind: str, runs: Runs, tmp_path: Path
) -> None:
    before = file_hash(runs["model"] / "model.safetensors")
    trained = (runs[kind] / "report.json").read_text()
    text = interpolate(asked(runs, kind, tmp_path / "out", "--scales", "1", "0.5", "0", "0.5"))
    report, val, dev = report_of(tmp_path / "out"), val_of(runs), load(runs["data"], "dev")
    curve = curve_of(report)
    rendering = Manifest.read(point(runs, kind)).rendering
    assert list(curve) == [0.0, 0.5, 1.0]
    for scale, found in curve.items():
        encoder = alone(runs, kind, scale, tmp_path / f"alone-{scale}")
        assert found == near(evaluate_encoder(encoder, val, rendering).table)
    history = json.loads((runs[kind] / "run.json").read_text())["history"]
    assert curve[0.0] == near(history[0]["val"])
    assert curve[1.0] == near(history[2]["val"])
    assert curve[0.0] != curve[1.0]
    written = json.loads((tmp_path / "out" / "interpolation.json").read_text())
    assert {at["scale"]: at["val"] for at in written} == curve
    for name, folder in (("step 0", "epoch-0"), ("scale 1", "epoch-2")):
        resolved = resolve(runs[kind] / "checkpoints" / folder, "cpu")
        expected = evaluate_encoder(resolved.encoder, dev, rendering)
        assert report["systems"][name]["languages"] == near(dict(expected.languages))
        assert report["systems"][name]["macro"] == pytest.approx(expected.macro)
    (choice,) = report["choices"]
    assert (choice["split"], choice["claims"], choice["note"]) == ("val", len(val.claims), "")
    assert (runs[kind] / "report.json").read_text() == trained
    assert file_hash(runs["model"] / "model.safetensors") == before
    assert "picked (" in text and "Picked on val (one" in text
    assert (
        "| scale | en | de | macro | to choose by |" in (tmp_path / "out" / "report.md").read_text()
    )
    assert (tmp_path / "out" / "interpolation.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("by", "scales"),
    [
        ("one", {"en": 0.5, "de": 0.5}),
        pytest.param("one", {"en": 0.0, "de": 0.0}, marks=pytest.mark.slow),
        pytest.param("one", {"en": 1.0, "de": 1.0}, marks=pytest.mark.slow),
        ("per_language", {"en": 0.25, "de": 1.0}),
    ],
)
def test_what_is_written_scores_what_was_reported(
    by: str,
    scales: dict[str, float],
    kind: str,
    runs: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = program.pick

    def picked(*given: Any) -> Any:
        choice = real(*given)[1]
        names = {lang: f"scale-{scale:g}" for lang, scale in scales.items()}
        settings = {**choice.settings, "scales": scales, "checkpoints": names}
        return Picked(scales, scales["en"]), replace(choice, settings=settings)

    monkeypatch.setattr(program, "pick", picked)
    out = tmp_path / "out"
    more = ("--scales", *map(str, sorted({*scales.values(), 0.75})))
    interpolate(asked(runs, kind, out, f"--pick={by}", *more))
    report = report_of(out)
    written = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert written == sorted({f"scale-{scale:g}" for scale in scales.values()})
    for lang, scale in scales.items():
        folder = out / report["choices"][0]["settings"]["checkpoints"][lang]
        arguments = [
            f"--checkpoint={folder}",
            f"--dataset={runs['data']}",
            f"--out={tmp_path / lang}",
        ]
        evaluate_checkpoints(read_config(CheckpointConfig, arguments, program="t", description="t"))
        found = report_of(tmp_path / lang)
        assert found["languages"][lang] == pytest.approx(report["languages"][lang])
        weights = Manifest.read(folder).weights
        assert weights.kind == ("base" if scale == 0 else kind)
        assert scale == 0 or weights.scale == scale
        # Between the ends full weights become a file of their own; all else is in the store.
        between = kind == "full" and scale not in (0.0, 1.0)
        (system,) = found["systems"].values()
        assert between or system["cost"]["stored"] or system["cost"]["tokens"] == 0
        assert Manifest.read(folder).scores == {"val": curve_of(report)[scale]}
    assert report["macro"]["mrr@5"] == pytest.approx(
        sum(report["languages"][lang]["mrr@5"] for lang in ("en", "de")) / 2
    )


def test_the_model_is_loaded_once(
    kind: str, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the base once, where every weight was trained."""
    module: Any = sys.modules["claim2source.models.load"]  # the name itself is the function
    real, loads = module.load, []
    monkeypatch.setattr(module, "load", lambda *a: (loads.append(a[0]), real(*a))[1])
    interpolate(asked(runs, kind, tmp_path / "out"))
    assert len(loads) == (1 if kind == "lora" else 2)


def test_scales_have_keys_of_their_own_and_the_ends_are_shared(
    kind: str, runs: Runs, tmp_path: Path
) -> None:
    scaled, store, val = ScaledCheckpoint(point(runs, kind), "cpu"), Store(tmp_path), val_of(runs)
    keys, stored = [], []
    for scale in (0.0, 0.25, 0.5, 1.0, 0.5, 0, 1):
        scaled.set(scale)
        keys.append(json.dumps(scaled.encoder.key(), sort_keys=True))
        found = evaluate_encoder(scaled.encoder, val, scaled.manifest.rendering, store=store)
        (system,) = found.systems.values()
        assert system.cost is not None
        stored.append(system.cost.stored)
    assert len(set(keys[:4])) == 4 and keys[4:] == [keys[2], keys[0], keys[3]]
    assert stored == [False] * 4 + [True] * 3
    ends = [resolve(runs[kind] / "checkpoints" / f"epoch-{n}", "cpu").encoder for n in (0, 2)]
    for encoder, key in zip(ends, (keys[0], keys[3]), strict=True):
        assert json.dumps(encoder.key(), sort_keys=True) == key


def test_full_weights_in_between_are_named_by_both_ends(runs: Runs) -> None:
    scaled = ScaledCheckpoint(point(runs, "full"), "cpu")
    half = scaled.identity(0.5)
    manifest = scaled.manifest
    assert half["base"] == manifest.base.sha256 and half["tuned"] == manifest.weights.sha256
    assert half["scale"] == 0.5


def test_nothing_of_the_reported_split_reaches_the_pick(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Val says 0.25 and dev says 1: 0.25 is picked, and dev is scored at 0, 1 and that alone."""
    seen: list[tuple[str, float, frozenset[str]]] = []

    def evaluate(encoder: Any, data: Any, *_: Any, **__: Any) -> Any:
        scale = encoder.weights.get("scale", 0.0)
        seen.append((data.split, scale, frozenset(claim.id for claim in data.claims)))
        best = scale == (0.25 if data.split == "val" else 1.0)
        lists = {c.id: [*(("x", 2.0),) * (not best), (c.golds[0], 1.0)] for c in data.claims}
        result = Result(Run.from_lists(lists))
        return score_result("system", result, data, Scoring(["mrr@5"], 0))

    monkeypatch.setattr(program, "score_encoder", evaluate)
    interpolate(asked(runs, "lora", tmp_path / "out"))
    report = report_of(tmp_path / "out")
    assert report["choices"][0]["settings"]["scales"] == {"en": 0.25, "de": 0.25}
    assert [(split, scale) for split, scale, _ in seen] == [
        *(("val", scale) for scale in (0.0, 0.25, 0.5, 0.75, 1.0)),
        *(("dev", scale) for scale in (0.0, 0.25, 1.0)),
    ]
    held_out = frozenset(claim.id for claim in val_of(runs).claims)
    assert {claims for split, _, claims in seen if split == "val"} == {held_out}
    assert report["languages"]["en"]["mrr@5"] == pytest.approx(0.5)


def table(en: float, de: float) -> dict[str, dict[str, float]]:
    return {"en": {"mrr@5": en}, "de": {"mrr@5": de}, "macro": {"mrr@5": (en + de) / 2}}


LANGS, ORDER = ("en", "de"), range(3)


def pick(cells: dict[float, tuple[int, int]], by: Any, rule: Any = "best") -> Picked:
    """Pick where so many of three English and three German claims are found, at each scale."""
    claims = [
        Claim(f"{lang}{i}", "t", lang, golds=(f"{lang}{i}",)) for lang in LANGS for i in ORDER
    ]
    qrels = Qrels({claim.id: {claim.id: 1} for claim in claims})
    data = Dataset(tuple(claims), tuple(Source(claim.id) for claim in claims), qrels, "val")
    found = {
        scale: {
            f"{lang}{i}": [(f"{lang}{i}", 1.0)] * (i < hits[k])
            for k, lang in enumerate(LANGS)
            for i in ORDER
        }
        for scale, hits in cells.items()
    }
    runs = {scale: Run.from_lists(lists) for scale, lists in found.items()}
    tables = {scale: table(en / 3, de / 3) for scale, (en, de) in cells.items()}
    return program.pick(runs, tables, by, SelectionData(data, data), rule)[0]


def test_picking_by_hand() -> None:
    curve = {0.0: (3, 0), 0.5: (2, 2), 1.0: (0, 3)}
    assert pick(curve, "one") == Picked({"en": 0.5, "de": 0.5}, 0.5)
    assert pick(curve, "per_language") == Picked({"en": 0.0, "de": 1.0}, 0.5)
    assert pick(curve, "per_language").of("fr") == 0.5
    assert pick(curve, "per_language").distinct == [0.0, 1.0]


def test_the_scale_nearest_to_1_that_val_cannot_tell_from_the_best_is_picked() -> None:
    """But none below the base; by `best` of equal ones the smallest, whatever the order."""
    curve = {1.0: (1, 1), 0.75: (2, 2), 0.5: (2, 2), 0.0: (2, 1)}
    assert pick(curve, "one").default == 0.5
    assert pick(curve, "one", "one_se").default == 0.75
    del curve[0.0]
    assert pick({**curve, 1.0: (2, 1)}, "one", "one_se").default == 1.0


@given(
    st.dictionaries(
        st.integers(0, 8).map(lambda i: i / 8),
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
        min_size=1,
    )
)
@settings(max_examples=30, deadline=None)
def test_picking_against_a_slow_reference(curve: dict[float, tuple[int, int]]) -> None:
    for row, best in (
        ("en", max(e for e, _ in curve.values())),
        ("de", max(d for _, d in curve.values())),
    ):
        winners = [s for s, cell in curve.items() if cell["en de".split().index(row)] == best]
        assert pick(curve, "per_language").of(row) == min(winners)
    top = max(sum(cell) for cell in curve.values())
    smallest = min(scale for scale, cell in curve.items() if sum(cell) == top)
    assert pick(curve, "one") == Picked({"en": smallest, "de": smallest}, smallest)


def test_a_table_takes_every_language_at_its_own_scale() -> None:
    by_scale: dict[float, Any] = {
        s: {
            lang: {"mrr@5": s + add, "queries": 2.0}
            for lang, add in (("en", 0.0), ("de", 0.1), ("fr", 0.2), ("macro", 9.0))
        }
        for s in (0.0, 0.5, 1.0)
    }
    found = Picked({"en": 0.0, "de": 1.0}, 0.5).table(by_scale)
    rows = {lang: row["mrr@5"] for lang, row in found.items()}
    assert rows == pytest.approx({"en": 0.0, "de": 1.1, "fr": 0.7, "macro": 0.6})
    assert found["macro"]["queries"] == 6


def test_the_plot_has_a_line_a_language_and_marks_what_was_picked() -> None:
    curve = {0.0: table(0.9, 0.1), 0.5: table(0.7, 0.7), 1.0: table(0.2, 0.8)}
    axes = draw(curve, Picked({"en": 0.0, "de": 1.0}, 0.5), "title").axes[0]
    legend = axes.get_legend()
    assert legend is not None
    drawn = [line for line in axes.get_lines() if len(line.get_xdata()) > 1]
    names = [text.get_text() for text in legend.get_texts()]
    lines = dict(zip(names, drawn, strict=True))
    assert list(lines["en"].get_xdata()) == [0.0, 0.5, 1.0]
    assert list(lines["en"].get_ydata()) == [0.9, 0.7, 0.2]
    marks = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.get_lines()
        if len(line.get_xdata()) == 1
    ]
    assert marks == [(0.0, 0.9), (1.0, 0.8), (0.5, 0.7)]


def test_what_cannot_be_done_is_said_and_nothing_written(runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cases = [
        (("--split=train",), "not reported on"),
        ((f"--checkpoint={runs['lora'] / 'checkpoints' / 'epoch-0'}",), "nothing to scale"),
        ((f"--checkpoint={runs['model']}",), "not a checkpoint of ours"),
    ]
    for more, said in cases:
        with pytest.raises(UserError, match=said):
            interpolate(asked(runs, "lora", out, *more))
    for scales in (["-1"], ["nan"]):
        with pytest.raises(UserError, match="scales"):
            asked(runs, "lora", out, "--scales", *scales)
    assert not out.exists()


def test_a_run_is_never_written_into(runs: Runs, tmp_path: Path) -> None:
    before = (runs["lora"] / "report.json").read_text()
    with pytest.raises(UserError, match="not an interpolation"):
        interpolate(asked(runs, "lora", runs["lora"], "--overwrite"))
    assert (runs["lora"] / "report.json").read_text() == before
    out = tmp_path / "out"
    interpolate(asked(runs, "lora", out, "--scales", "1"))
    with pytest.raises(UserError, match="--overwrite"):
        interpolate(asked(runs, "lora", out, "--scales", "0"))
    interpolate(asked(runs, "lora", out, "--scales", "0", "--overwrite"))
    assert [path.name for path in out.iterdir() if path.is_dir()] == ["scale-0"]


@pytest.mark.slow
def test_an_export_scores_what_its_checkpoint_scores(kind: str, runs: Runs, tmp_path: Path) -> None:
    """By its folder alone: the rendering, which is no default, is beside the weights."""
    merge(MergeConfig(str(point(runs, kind)), tmp_path / "model", 0.5))
    arguments = [
        f"--checkpoint={tmp_path / 'model'}",
        f"--dataset={runs['data']}",
        f"--out={tmp_path / 'out'}",
    ]
    evaluate_checkpoints(read_config(CheckpointConfig, arguments, program="t", description="t"))
    encoder = alone(runs, kind, 0.5, tmp_path / "alone")
    rendering = Manifest.read(point(runs, kind)).rendering
    expected = evaluate_encoder(encoder, load(runs["data"], "dev"), rendering)
    found = report_of(tmp_path / "out")
    (system,) = found["systems"].values()
    assert system["claims"] == rendering.claims == "bilingual"
    assert found["languages"] == near(dict(expected.languages))


def test_a_runs_folder_stands_for_its_chosen_epoch(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for epoch in ("epoch-1", "epoch-2"):
        (run / "checkpoints" / epoch).symlink_to(runs["lora"] / "checkpoints" / epoch)
    (run / "run.json").write_text(json.dumps({"chosen": "epoch-1", "history": []}))
    more = (f"--checkpoint={run}", "--scales", "1")
    interpolate(asked(runs, "lora", tmp_path / "out", *more))
    report = report_of(tmp_path / "out")
    assert report["systems"]["scale 1"]["settings"]["checkpoint"].endswith("epoch-1")
    history = json.loads((runs["lora"] / "run.json").read_text())["history"]
    assert curve_of(report)[1.0]["macro"] == pytest.approx(history[1]["val"]["macro"])


def test_an_interpolation_is_not_interpolated_again(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled = ScaledCheckpoint(point(runs, "full"), "cpu")
    scaled.save_checkpoint(tmp_path / "half", 0.5, {})
    with pytest.raises(UserError, match=r"interpolation at 0\.5"):
        interpolate(asked(runs, "full", tmp_path / "out", f"--checkpoint={tmp_path / 'half'}"))


def test_where_the_base_was_chosen_the_best_trained_epoch_is_interpolated(
    runs: Runs, tmp_path: Path
) -> None:
    """Version 0.1.0 said that there is nothing to scale."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for epoch in ("epoch-0", "epoch-1", "epoch-2"):
        (run / "checkpoints" / epoch).symlink_to(runs["lora"] / "checkpoints" / epoch)
    history = [
        {"epoch": epoch, "val": table(score, score)} for epoch, score in enumerate((0.9, 0.6, 0.5))
    ]
    (run / "run.json").write_text(json.dumps({"chosen": "epoch-0", "history": history}))
    interpolate(asked(runs, "lora", tmp_path / "out", f"--checkpoint={run}", "--scales", "1"))
    found = report_of(tmp_path / "out")["systems"]["scale 1"]["settings"]["checkpoint"]
    assert found.endswith("epoch-1")
    named = f"--checkpoint={run / 'checkpoints' / 'epoch-2'}"
    interpolate(asked(runs, "lora", tmp_path / "told", named, "--scales", "1"))
    found = report_of(tmp_path / "told")["systems"]["scale 1"]["settings"]["checkpoint"]
    assert found.endswith("epoch-2")
