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
        extra: dict[str, Any] = {
            "optimisation__epochs": 2,
            "optimisation__learning_rate": 5e-3,
        }
        out = self.folder / kind
        self[kind] = out
        config = small_config(
            self["model"],
            self["data"],
            out,
            tuning=kind,
            **extra,
        )
        finetune(config)
        return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    return Made(folder)


@pytest.fixture(params=["lora", pytest.param("full", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def epoch(runs: Runs, kind: str, number: int = 2) -> Path:
    checkpoints = runs[kind] / "checkpoints"
    return checkpoints / f"epoch-{number}"


def merge(out: Path, *words: object) -> dict[str, Any]:
    arguments = [*map(str, words), f"--out={out}"]
    main(arguments)
    report = out / "report.json"
    if not report.is_file():
        return {}
    return json.loads(report.read_text("utf-8"))


def read(folder: Path, checkpoints: Sequence[Path], *words: str) -> MergeConfig:
    argv = [
        "--checkpoints",
        *map(str, checkpoints),
        f"--out={folder / 'out'}",
        *words,
    ]
    return read_config(MergeConfig, argv, program="t", description="t")


def exported_record(folder: Path) -> dict[str, Any]:
    """Read what an export says of itself."""
    text = (folder / "claim2source.json").read_text()
    record: dict[str, Any] = json.loads(text)
    return record


def near(table: Any) -> Any:
    return {name: pytest.approx(row) for name, row in table.items()}


def hashes(*folders: Path) -> dict[Path, str]:
    found: dict[Path, str] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                found[path] = file_hash(path)
    return found


def test_of_several_scales_the_chosen_one_is_exported_and_reported(
    kind: str, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The curve and the report equal those of each scale alone; the run and its base stay."""
    before = hashes(runs[kind], runs["model"])
    point = epoch(runs, kind)
    out = tmp_path / "out"
    # Without a data set it is the manifest's.
    scales = (1, 0.5, 0, 0.5)
    report = merge(out, "--checkpoints", point, "--scales", *scales)
    output = capsys.readouterr().out
    dev = load(runs["data"], "dev")
    train = load(runs["data"], "train")
    _, val = carve_val(train, 0.2, 13)
    rendering = Manifest.read(point).rendering
    picked = report["systems"][PICKED]
    (choice,) = picked["choices"]
    curve = {}
    for trial in choice["tried"]:
        scale = trial["settings"]["scale"]
        curve[scale] = trial["scores"]
    assert list(curve) == [0.0, 0.5, 1.0]
    assert curve[0.0] != curve[1.0]
    assert choice["what"] == "scale"
    assert choice["split"] == "val"
    assert choice["claims"] == len(val.claims)

    scaled = ScaledCheckpoint(point, "cpu")
    for scale, found in curve.items():
        scaled.set(scale)
        by_hand = score_encoder(scaled.encoder, val, rendering, PLAIN)
        assert found == near(by_hand.report.table)
    ends = (
        ("scale 0", "epoch-0"),
        ("scale 1", "epoch-2"),
    )
    for name, folder in ends:
        checkpoint = runs[kind] / "checkpoints" / folder
        encoder = resolve(checkpoint, "cpu").encoder
        expected = score_encoder(encoder, dev, rendering, PLAIN).report
        by_language = report["systems"][name]["languages"]
        assert by_language == near(dict(expected.languages))

    # The export has the score reported for the chosen one.
    chosen = choice["settings"]["scale"]
    assert exported_record(out)["scale"] == chosen
    exported = resolve(out, "cpu")
    assert exported.rendering is not None
    scored = score_encoder(exported.encoder, dev, exported.rendering, PLAIN)
    found = scored.report.languages
    assert report["languages"] == near(found)
    assert picked["languages"] == near(found)
    assert hashes(runs[kind], runs["model"]) == before

    printed = f"- picked: scale {chosen:g}, on {len(val.claims)} claims of val"
    assert printed in output
    written = (out / "report.md").read_text()
    assert "| scale | en | de | macro | mrr@5 to choose by |" in written
    assert not list(tmp_path.glob(".*"))


Rule = Callable[[Any], bool]


def fake_scores(best_on: dict[str, Rule], seen: list[tuple[Any, str]]) -> Any:
    """Find every gold first where a split's rule says so of the encoder, else second."""

    def score(encoder: Any, data: Any, *_: Any, **__: Any) -> Any:
        weights = encoder.weights
        scale = weights.get("scale", 0.0)
        seen.append((scale, data.split))
        is_first = best_on[data.split](weights)
        above = [] if is_first else [("x", 2.0)]
        lists = {}
        for claim in data.claims:
            gold = claim.golds[0]
            lists[claim.id] = [*above, (gold, 1.0)]
        result = Result(Run.from_lists(lists))
        scoring = Scoring(["mrr@5"], 0)
        return score_result("system", result, data, scoring)

    return score


def test_nothing_of_the_reported_split_reaches_the_choice(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Val prefers 0.25 and dev 1: 0.25 is exported, and dev is scored only at 0, 0.25 and 1."""
    seen: list[tuple[Any, str]] = []
    rules: dict[str, Rule] = {
        "val": lambda weights: weights.get("scale") == 0.25,
        "dev": lambda weights: weights.get("scale") == 1.0,
    }
    fake = fake_scores(rules, seen)
    monkeypatch.setattr(program, "score_encoder", fake)
    scales = (0.0, 0.25, 0.5, 0.75, 1.0)
    out = tmp_path / "out"
    point = epoch(runs, "lora")
    report = merge(out, "--checkpoints", point, "--scales", *scales)
    choices = report["systems"][PICKED]["choices"]
    assert choices[0]["settings"] == {"scale": 0.25}
    on_val = [(scale, "val") for scale in scales]
    on_dev = [(scale, "dev") for scale in (0.0, 0.25, 1.0)]
    assert seen == [*on_val, *on_dev]
    english = report["languages"]["en"]
    assert english["mrr@5"] == pytest.approx(0.5)
    export = exported_record(out)
    assert export["scale"] == 0.25
    assert export["checkpoint"] == "epoch-2"


def test_several_checkpoints_are_summed_and_scored_beside_each(
    kind: str, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [
        epoch(runs, kind, 1),
        epoch(runs, kind, 2),
    ]
    out = tmp_path / "out"
    report = merge(out, "--checkpoints", *points, f"--dataset={runs['data']}")
    output = capsys.readouterr().out
    assert list(report["systems"]) == [SUM, "epoch-1", "epoch-2"]
    assert report["chosen"] == SUM
    summed = report["systems"][SUM]
    (choice,) = summed["choices"]
    names = [trial["settings"]["checkpoint"] for trial in choice["tried"]]
    assert names == [SUM, "epoch-1", "epoch-2"]
    assert choice["split"] == "val"

    text = (runs[kind] / "run.json").read_text()
    run = json.loads(text)
    trials_alone = choice["tried"][1:]
    trained_epochs = run["history"][1:]
    for trial, entry in zip(trials_alone, trained_epochs, strict=True):
        assert trial["scores"] == near(entry["val"])
    assert "- their sum: checkpoint " in output
    assert "0.5 * epoch-1 + 0.5 * epoch-2 at scale 1" in output
    manifests = [Manifest.read(point) for point in points]
    parts = [str(manifest.weights.sha256) for manifest in manifests]
    assert exported_record(out)["soup"] == parts

    # A fusion over the sum is chosen on the val that its parts held out.
    record = resolve(out, "cpu").record
    held_out = Manifest.read(points[0]).data.val_sha256
    assert record is not None
    assert record.data.val_sha256 == held_out is not None
    encoder = resolve(out, "cpu").encoder
    dev = load(runs["data"], "dev")
    scored = score_encoder(encoder, dev, record.rendering, PLAIN)
    by_language = dict(scored.report.languages)
    assert report["languages"] == near(by_language)

    # Other weights are another sum.
    second_out = tmp_path / "two"
    weights = (0.9, 0.1)
    weighed = merge(second_out, "--checkpoints", *points, "--weights", *weights)
    settings = weighed["systems"][SUM]["settings"]
    assert settings["checkpoint"] == "0.9 * epoch-1 + 0.1 * epoch-2"
    first_hash = file_hash(out / "model.safetensors")
    assert first_hash != file_hash(second_out / "model.safetensors")
    assert not list(tmp_path.glob(".*"))


def test_val_says_whether_one_alone_is_better(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [
        epoch(runs, "lora", 1),
        epoch(runs, "lora", 2),
    ]
    second = Manifest.read(points[1]).weights.sha256

    def is_second(weights: Any) -> bool:
        return second in json.dumps(dict(weights))

    def is_any(_: Any) -> bool:
        return True

    for rule, best, name in (
        ("one_se", is_second, "epoch-2"),
        ("one_se", is_any, SUM),
        ("best", is_any, SUM),
    ):
        rules: Any = {"val": best, "dev": is_any}
        fake = fake_scores(rules, [])
        monkeypatch.setattr(program, "score_encoder", fake)
        config = read(tmp_path, points, f"--rule={rule}")
        # The first one represents the sum.
        compared = compare_parts(config, points[0])
        (choice,) = compared.systems[SUM].choices
        assert choice.settings == {"checkpoint": name}
        assert compared.chosen == SUM


def table(en: float, de: float) -> dict[str, dict[str, float]]:
    macro = (en + de) / 2
    return {
        "en": {"mrr@5": en},
        "de": {"mrr@5": de},
        "macro": {"mrr@5": macro},
    }


def test_where_the_base_was_chosen_the_best_trained_epoch_is_scaled(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    checkpoints = run / "checkpoints"
    checkpoints.mkdir(parents=True)
    for name in ("epoch-0", "epoch-1", "epoch-2"):
        trained = runs["lora"] / "checkpoints" / name
        (checkpoints / name).symlink_to(trained)
    history = [
        {"epoch": 0, "val": table(0.9, 0.9)},
        {"epoch": 1, "val": table(0.6, 0.6)},
        {"epoch": 2, "val": table(0.5, 0.5)},
    ]
    record = {"chosen": "epoch-0", "history": history}
    (run / "run.json").write_text(json.dumps(record))
    out = tmp_path / "out"
    merge(out, "--checkpoints", run, "--scales", 0.5)
    export = exported_record(out)
    assert export["checkpoint"] == "epoch-1"
    assert export["scale"] == 0.5
    # The run's chosen checkpoint is the base.
    merge(tmp_path / "base", "--checkpoints", run)
    export = exported_record(tmp_path / "base")
    assert export["checkpoint"] == "epoch-0"
    assert export["weights"]["kind"] == "base"


def test_what_cannot_be_done_is_said_and_nothing_written(runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    base = str(epoch(runs, "lora", 0))
    first = str(epoch(runs, "lora", 1))
    second = str(epoch(runs, "lora", 2))
    data = f"--dataset={runs['data']}"
    several = ["--scales", "0", "1"]
    model = runs["model"]
    manifest = Manifest.read(second)
    half_weights = replace(manifest.weights, scale=0.5)
    half = replace(manifest, weights=half_weights)
    shutil.copytree(second, tmp_path / "half")
    half.write(tmp_path / "half")
    cases: list[tuple[list[str], str]] = [
        ([second, *several, data, "--split=train"], "split: "),
        ([second, *several, "--dataset=no/such"], "no/such"),
        ([base, *several, data], f"{base}: "),
        ([base, first, data], f"{base}: "),
        ([first, first, data], "checkpoints: "),
        ([str(model), *several], f"{model}/manifest.json: "),
        ([second, "--scales=[]"], "scales"),
        ([second, "--weights=1"], "weights"),
        ([first, second, "--scales=1"], "scales"),
        ([first, second, "--weights=1"], "weights"),
        ([first, second, "--weights", "1", "-1"], "weights"),
    ]
    for words, fact in cases:
        with refused(UserError, fact):
            merge(out, "--checkpoints", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["half"]

    run = runs["lora"]
    before = hashes(run)
    with refused(UserError, f"{run}: "):
        merge(run, "--checkpoints", second, "--overwrite")
    assert hashes(run) == before

    # An adapter with its own scale is exported at that scale, or at another one.
    written = []
    choices: list[tuple[list[str], float]] = [
        ([], 0.5),
        (["--scales", "0.5"], 0.5),
        (["--scales", "1"], 1.0),
    ]
    for words, scale in choices:
        merge(out, "--checkpoints", tmp_path / "half", "--overwrite", *words)
        assert exported_record(out)["scale"] == scale
        written.append(file_hash(out / "model.safetensors"))
    assert written[0] == written[1] != written[2]


def test_what_was_scaled_in_full_is_not_scaled_again(runs: Runs, tmp_path: Path) -> None:
    full = tmp_path / "full"
    half = tmp_path / "half"
    write_point(config(runs["model"]), full, "full")
    shutil.copytree(full, half)
    manifest = Manifest.read(half)
    scaled = replace(manifest.weights, scale=0.5)
    replace(manifest, weights=scaled).write(half)
    out = tmp_path / "out"
    with refused(UserError, f"{half}: ", " 0.5"):
        merge(out, "--checkpoints", half, "--scales", 0, 1)
