"""The learning curve: which sizes are trained, which scores are its points, and one that is trained."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from claim2source.core.errors import UserError
from claim2source.core.report import Epoch, Report, TrainingReport
from scripts import ablate
from scripts import learning_curve as script
from scripts.learning_curve import Config, Curve, draw, main
from tests.training.small import arguments, small_setup


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A config that trains the small model; its data set is tmp_path/data, 60 posts."""
    model, data = small_setup(tmp_path)
    words = arguments(model, data, tmp_path / "unused", optimisation__epochs=1)
    file = tmp_path / "training.yaml"
    settings: dict[str, Any] = {}
    for word in words:
        key, value = word.removeprefix("--").split("=", 1)
        group = settings
        *groups, name = key.split(".")
        for part in groups:
            group = group.setdefault(part, {})
        group[name] = value if value == "off" else yaml.safe_load(value)
    del settings["data"]["dataset"], settings["out"]
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return file


def curve(training: Path, *sizes: int) -> Curve:
    folder = training.parent
    dataset = str(folder / "data")
    config = Config((dataset,), (training,), sizes, folder / "out")
    return Curve(config, dataset)


def test_points_are_the_chosen_epochs_and_all_pairs_are_a_size(
    training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = curve(training, 10, 20, 1000)
    scores = {10: (0.5, 0.6, 0.1), 20: (0.5, 0.7, 0.2), None: (0.5, 0.9, 0.8)}
    sizes: list[int | None] = []

    def train(_: Curve, size: int | None) -> Report:
        sizes.append(size)
        epochs = [
            Epoch(number, {"macro": {"mrr@5": score}}) for number, score in enumerate(scores[size])
        ]
        return Report("d", "dev", {}, training=TrainingReport(tuple(epochs), "best", 1, "epoch-1"))

    monkeypatch.setattr(Curve, "train", train)
    available = ours.available()
    assert 20 < available < 1000
    assert ours.points() == {0: 0.5, 10: 0.6, 20: 0.7, available: 0.9}
    assert sizes == [10, 20, None]


def test_a_finished_run_is_not_run_again_and_a_stopped_one_resumes(
    training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = curve(training, 10)
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> Any:
        commands.append(command[2:])
        return SimpleNamespace(returncode=0)

    report = Report("d", "dev", {}, training=TrainingReport((), "best", 0, "epoch-0"))
    monkeypatch.setattr(ablate.subprocess, "run", run)
    monkeypatch.setattr(script.Report, "read", lambda folder: report)
    monkeypatch.setattr(script, "resumable", lambda config: True)
    ours.train(10)
    folder = ours.settings(10).out
    report.write(folder)
    ours.train(10)
    assert commands == [[*ours.arguments(10), "--resume"]]


def test_a_failed_training_ends_the_curve(training: Path) -> None:
    ours = curve(training, 10)
    with pytest.raises(UserError, match="exit code 2"):
        Curve(Config(("none",), (training,), (10,), training.parent / "out"), "none").train(10)
    assert not ours.settings(10).out.exists()


def test_a_limit_of_the_training_is_the_largest_size(training: Path) -> None:
    limited = training.parent / "limited.yaml"
    limited.write_text("data: {limit: 12}\n", encoding="utf-8")
    ours = curve(training)
    config = Config(ours.config.datasets, (training, limited), (), ours.config.out)
    assert Curve(config, ours.dataset).available() == 12 < ours.available()


def test_data_sets_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="datasets: .* is not allowed"):
        main(["--datasets", "a/pairs.csv", "b/pairs.jsonl"])


def test_the_same_curves_give_the_same_file(tmp_path: Path) -> None:
    curves = {"a": {0: 0.4, 50: 0.5, 70: 0.6}, "b": {0: 0.3, 50: 0.2}}
    for name in ("one.svg", "two.svg"):
        draw(curves, tmp_path / name)
    one, two = (tmp_path / name for name in ("one.svg", "two.svg"))
    assert one.read_bytes() == two.read_bytes()
    # Two curves with five points, and the untrained model among the ticks.
    text = one.read_text(encoding="utf-8")
    assert text.count("<use xlink:href") >= 5
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["one.svg", "two.svg"]


@pytest.mark.slow
def test_a_curve_of_real_trainings(training: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = training.parent
    words = ["--datasets", str(folder / "data"), "--training", str(training)]
    words += ["--sizes", "16", "--out", str(folder / "out")]
    main(words)
    points = json.loads((folder / "out" / "curve.json").read_text(encoding="utf-8"))["data"]
    available = str(curve(training).available())
    assert list(points) == ["0", "16", available]
    for name, count in (("data-16", "16"), ("data-all", available)):
        report = Report.read(folder / "out" / name).training
        assert report is not None
        scores = [epoch.val["macro"]["mrr@5"] for epoch in report.history]
        assert points[count] == scores[report.chosen_epoch]
        assert points["0"] == scores[0]
        # A pair a line: what is held out as val is not counted.
        mined = (folder / "out" / name / "mined.jsonl").read_text(encoding="utf-8")
        assert len(mined.splitlines()) == int(count)
    capsys.readouterr()
    main(words)  # reads both runs
    assert "training:" not in capsys.readouterr().out
