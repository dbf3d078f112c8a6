"""`train/merge.py` as a user calls it: one checkpoint, scales chosen on val, several summed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from claim2source.train import merge as program
from claim2source.train.merge import PICKED, SUM, MergeConfig, compare_parts, main

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.core.files import file_hash
from claim2source.core.run import Result, Run
from claim2source.data.loading import load
from claim2source.data.split import carve_val
from claim2source.evaluation.evaluate import Scoring, score_encoder, score_result
from claim2source.models import Manifest, resolve
from claim2source.training.export.weighted_sum import ScaledCheckpoint
from claim2source.training.finetune import finetune
from tests.refusals import refused
from tests.training.points import config, write_point
from tests.training.small import small_config, small_setup

Runs = dict[str, Path]
PLAIN = Scoring(repeats=0)


class Made(dict[str, Path]):
    """The data, the model and, once it is asked for, a finished run of a kind, of two epochs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        model, data = small_setup(folder)
        super().__init__(data=data, model=model)

    def __missing__(self, kind: str) -> Path:
        extra: dict[str, Any] = {"optimisation__epochs": 2, "optimisation__learning_rate": 5e-3}
        out = self[kind] = self.folder / kind
        finetune(small_config(self["model"], self["data"], out, tuning=kind, **extra))
        return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Made(tmp_path_factory.mktemp("runs"))


@pytest.fixture(params=["lora", pytest.param("full", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def epoch(runs: Runs, kind: str, number: int = 2) -> Path:
    return runs[kind] / "checkpoints" / f"epoch-{number}"


def merge(out: Path, *words: object) -> dict[str, Any]:
    main([*map(str, words), f"--out={out}"])
    report = out / "report.json"
    return json.loads(report.read_text("utf-8")) if report.is_file() else {}


def read(folder: Path, checkpoints: Sequence[Path], *words: str) -> MergeConfig:
    argv = ["--checkpoints", *map(str, checkpoints), f"--out={folder / 'out'}", *words]
    return read_config(MergeConfig, argv, program="t", description="t")


def near(table: Any) -> Any:
    return {name: pytest.approx(row) for name, row in table.items()}


def hashes(*folders: Path) -> dict[Path, str]:
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path: file_hash(path) for path in files}


def test_of_several_scales_the_chosen_one_is_exported_and_reported(
    kind: str, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The curve and the report equal those of each scale alone; the run and its base stay."""
    before = hashes(runs[kind], runs["model"])
    point, out = epoch(runs, kind), tmp_path / "out"
    # Without a data set it is the manifest's.
    report = merge(out, "--checkpoints", point, "--scales", 1, 0.5, 0, 0.5)
    output = capsys.readouterr().out
    dev = load(runs["data"], "dev")
    val = carve_val(load(runs["data"], "train"), 0.2, 13)[1]
    rendering = Manifest.read(point).rendering
    (choice,) = report["systems"][PICKED]["choices"]
    curve = {trial["settings"]["scale"]: trial["scores"] for trial in choice["tried"]}
    assert list(curve) == [0.0, 0.5, 1.0] and curve[0.0] != curve[1.0]
    assert (choice["what"], choice["split"], choice["claims"]) == ("scale", "val", len(val.claims))
    scaled = ScaledCheckpoint(point, "cpu")
    for scale, found in curve.items():
        scaled.set(scale)
        assert found == near(score_encoder(scaled.encoder, val, rendering, PLAIN).report.table)
    for name, folder in (("scale 0", "epoch-0"), ("scale 1", "epoch-2")):
        encoder = resolve(runs[kind] / "checkpoints" / folder, "cpu").encoder
        expected = score_encoder(encoder, dev, rendering, PLAIN).report
        assert report["systems"][name]["languages"] == near(dict(expected.languages))
    # The export has the score reported for the chosen one.
    chosen = choice["settings"]["scale"]
    assert json.loads((out / "claim2source.json").read_text())["scale"] == chosen
    exported = resolve(out, "cpu")
    assert exported.rendering is not None
    found = score_encoder(exported.encoder, dev, exported.rendering, PLAIN).report.languages
    assert report["languages"] == near(found)
    assert report["systems"][PICKED]["languages"] == near(found)
    assert hashes(runs[kind], runs["model"]) == before
    assert f"- picked: scale {chosen:g}, on {len(val.claims)} claims of val" in output
    assert "| scale | en | de | macro | mrr@5 to choose by |" in (out / "report.md").read_text()
    assert not list(tmp_path.glob(".*"))


def fake_scores(best_on: dict[str, Callable[[Any], bool]], seen: list[tuple[Any, str]]) -> Any:
    """Find every gold first where a split's rule says so of the encoder, else second."""

    def score(encoder: Any, data: Any, *_: Any, **__: Any) -> Any:
        weights = encoder.weights
        seen.append((weights.get("scale", 0.0), data.split))
        first = best_on[data.split](weights)
        lists = {c.id: [*(("x", 2.0),) * (not first), (c.golds[0], 1.0)] for c in data.claims}
        return score_result("system", Result(Run.from_lists(lists)), data, Scoring(["mrr@5"], 0))

    return score


def test_nothing_of_the_reported_split_reaches_the_choice(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Val prefers 0.25 and dev 1: 0.25 is exported, and dev is scored only at 0, 0.25 and 1."""
    seen: list[tuple[Any, str]] = []
    rules = {name: lambda w, b=b: w.get("scale") == b for name, b in (("val", 0.25), ("dev", 1.0))}
    monkeypatch.setattr(program, "score_encoder", fake_scores(rules, seen))
    scales = (0.0, 0.25, 0.5, 0.75, 1.0)
    report = merge(tmp_path / "out", "--checkpoints", epoch(runs, "lora"), "--scales", *scales)
    assert report["systems"][PICKED]["choices"][0]["settings"] == {"scale": 0.25}
    on_val = [(scale, "val") for scale in scales]
    assert seen == [*on_val, *((scale, "dev") for scale in (0.0, 0.25, 1.0))]
    assert report["languages"]["en"]["mrr@5"] == pytest.approx(0.5)
    export = json.loads((tmp_path / "out" / "claim2source.json").read_text())
    assert (export["scale"], export["checkpoint"]) == (0.25, "epoch-2")


def test_several_checkpoints_are_summed_and_scored_beside_each(
    kind: str, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points, out = [epoch(runs, kind, 1), epoch(runs, kind, 2)], tmp_path / "out"
    report = merge(out, "--checkpoints", *points, f"--dataset={runs['data']}")
    output = capsys.readouterr().out
    assert list(report["systems"]) == [SUM, "epoch-1", "epoch-2"] and report["chosen"] == SUM
    (choice,) = report["systems"][SUM]["choices"]
    names = [trial["settings"]["checkpoint"] for trial in choice["tried"]]
    assert names == [SUM, "epoch-1", "epoch-2"] and choice["split"] == "val"
    history = json.loads((runs[kind] / "run.json").read_text())["history"]
    for trial, entry in zip(choice["tried"][1:], history[1:], strict=True):
        assert trial["scores"] == near(entry["val"])
    assert (
        "- their sum: checkpoint " in output
        and "0.5 * epoch-1 + 0.5 * epoch-2 at scale 1" in output
    )
    export = json.loads((out / "claim2source.json").read_text())
    assert export["soup"] == [str(Manifest.read(point).weights.sha256) for point in points]
    # A fusion over the sum is chosen on the val that its parts held out.
    record = resolve(out, "cpu").record
    held_out = Manifest.read(points[0]).data.val_sha256
    assert record is not None and record.data.val_sha256 == held_out is not None
    encoder, dev = resolve(out, "cpu").encoder, load(runs["data"], "dev")
    result = score_encoder(encoder, dev, record.rendering, PLAIN).report
    assert report["languages"] == near(dict(result.languages))
    # Other weights are another sum.
    weighed = merge(tmp_path / "two", "--checkpoints", *points, "--weights", 0.9, 0.1)
    assert weighed["systems"][SUM]["settings"]["checkpoint"] == "0.9 * epoch-1 + 0.1 * epoch-2"
    assert file_hash(out / "model.safetensors") != file_hash(tmp_path / "two/model.safetensors")
    assert not list(tmp_path.glob(".*"))


def test_val_says_whether_one_alone_is_better(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [epoch(runs, "lora", 1), epoch(runs, "lora", 2)]
    second = Manifest.read(points[1]).weights.sha256

    def is_second(weights: Any) -> bool:
        return second in json.dumps(dict(weights))

    for rule, best, name in (
        ("one_se", is_second, "epoch-2"),
        ("one_se", lambda _: True, SUM),
        ("best", lambda _: True, SUM),
    ):
        rules: Any = {"val": best, "dev": lambda _: True}
        monkeypatch.setattr(program, "score_encoder", fake_scores(rules, []))
        # The first one represents the sum.
        compared = compare_parts(read(tmp_path, points, f"--rule={rule}"), points[0])
        (choice,) = compared.systems[SUM].choices
        assert choice.settings == {"checkpoint": name} and compared.chosen == SUM


def table(en: float, de: float) -> dict[str, dict[str, float]]:
    return {"en": {"mrr@5": en}, "de": {"mrr@5": de}, "macro": {"mrr@5": (en + de) / 2}}


def test_where_the_base_was_chosen_the_best_trained_epoch_is_scaled(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("epoch-0", "epoch-1", "epoch-2"):
        (run / "checkpoints" / name).symlink_to(runs["lora"] / "checkpoints" / name)
    history = [{"epoch": n, "val": table(score, score)} for n, score in enumerate((0.9, 0.6, 0.5))]
    (run / "run.json").write_text(json.dumps({"chosen": "epoch-0", "history": history}))
    merge(tmp_path / "out", "--checkpoints", run, "--scales", 0.5)
    export = json.loads((tmp_path / "out" / "claim2source.json").read_text())
    assert (export["checkpoint"], export["scale"]) == ("epoch-1", 0.5)
    # The run's chosen checkpoint is the base.
    merge(tmp_path / "base", "--checkpoints", run)
    export = json.loads((tmp_path / "base" / "claim2source.json").read_text())
    assert (export["checkpoint"], export["weights"]["kind"]) == ("epoch-0", "base")


def test_what_cannot_be_done_is_said_and_nothing_written(runs: Runs, tmp_path: Path) -> None:
    out, points = tmp_path / "out", [str(epoch(runs, "lora", n)) for n in (0, 1, 2)]
    data, several = f"--dataset={runs['data']}", ["--scales", "0", "1"]
    half = replace(
        Manifest.read(points[2]), weights=replace(Manifest.read(points[2]).weights, scale=0.5)
    )
    shutil.copytree(points[2], tmp_path / "half")
    half.write(tmp_path / "half")
    cases: list[tuple[list[str], str]] = [
        (["--checkpoints", points[2], *several, data, "--split=train"], "split: "),
        (["--checkpoints", points[2], *several, "--dataset=no/such"], "no/such"),
        (["--checkpoints", points[0], *several, data], f"{points[0]}: "),
        (["--checkpoints", points[0], points[1], data], f"{points[0]}: "),
        (["--checkpoints", points[1], points[1], data], "checkpoints: "),
        (["--checkpoints", str(runs["model"]), *several], f"{runs['model']}/manifest.json: "),
        (["--checkpoints", points[2], "--scales=[]"], "scales"),
        (["--checkpoints", points[2], "--weights=1"], "weights"),
        (["--checkpoints", *points[1:], "--scales=1"], "scales"),
        (["--checkpoints", *points[1:], "--weights=1"], "weights"),
        (["--checkpoints", *points[1:], "--weights", "1", "-1"], "weights"),
    ]
    for words, fact in cases:
        with refused(UserError, fact):
            merge(out, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["half"]
    before = hashes(runs["lora"])
    with refused(UserError, f"{runs['lora']}: "):
        merge(runs["lora"], "--checkpoints", points[2], "--overwrite")
    assert hashes(runs["lora"]) == before
    # An adapter with its own scale is exported at that scale, or at another one.
    written = []
    for words, scale in (([], 0.5), (["--scales", "0.5"], 0.5), (["--scales", "1"], 1.0)):
        merge(out, "--checkpoints", tmp_path / "half", "--overwrite", *words)
        assert json.loads((out / "claim2source.json").read_text())["scale"] == scale
        written.append(file_hash(out / "model.safetensors"))
    assert written[0] == written[1] != written[2]


def test_what_was_scaled_in_full_is_not_scaled_again(runs: Runs, tmp_path: Path) -> None:
    write_point(config(runs["model"]), tmp_path / "full", "full")
    shutil.copytree(tmp_path / "full", tmp_path / "half")
    manifest = Manifest.read(tmp_path / "half")
    scaled = replace(manifest.weights, scale=0.5)
    replace(manifest, weights=scaled).write(tmp_path / "half")
    with refused(UserError, f"{tmp_path / 'half'}: ", " 0.5"):
        merge(tmp_path / "out", "--checkpoints", tmp_path / "half", "--scales", 0, 1)
