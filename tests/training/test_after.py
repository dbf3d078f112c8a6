"""Baselines and the page at a run's end: beside the report, and never at its cost."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.folders import foreign_file
from claim2source.core.report import Report
from claim2source.io.wandb import Tracker
from claim2source.training import after
from claim2source.training.finetune import finetune
from claim2source.training.loggers import RunLog, WandbPage
from claim2source.training.run_folder import RunFolder
from tests.report_files import without_costs
from tests.training.small import small_config, small_setup

SYSTEMS = """
BM25: {bm25: {analysis: whitespace, k1: 1.2, b: 1.0}}
Other: {bm25: {}}
Absent: {model: {name: nobody/has-this, pooling: cls, max_length: 24}, advice: ask for it}
"""


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return small_setup(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("systems") / "systems.yaml"
    path.write_text(SYSTEMS, encoding="utf-8")
    return path


def asked(setup: tuple[Path, Path], out: Path, systems: Path, **more: Any) -> Any:
    baselines = more.pop("baselines", '["BM25", "Absent"]')
    return small_config(
        *setup,
        out,
        optimisation__epochs=1,
        after__baselines=baselines,
        after__report="true",
        after__files=f'["{systems}"]',
        after__stages='["styles"]',
        after__styles__claim_styles='["C1"]',
        after__styles__source_styles='["S3"]',
        **more,
    )


@pytest.fixture(scope="module")
def finished(
    setup: tuple[Path, Path], systems: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    finetune(asked(setup, out, systems))
    return out


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_checkpoints_baselines_and_page_lie_beside_the_report(finished: Path) -> None:
    said, folder = read(finished / "report.json"), finished / "evaluation"
    grid = read(folder / "checkpoints" / "styles" / "grid.json")
    assert {name: list(cells) for name, cells in grid.items()} == {
        "epoch-0": ["C0", "C1"],
        "epoch-1": ["C0", "C1"],
    }
    assert foreign_file(finished) is None
    checkpoints = read(folder / "checkpoints" / "report.json")
    assert list(checkpoints["systems"]) == ["epoch-0", "epoch-1"]
    assert checkpoints["systems"]["epoch-0"]["macro"] == pytest.approx(
        said["systems"]["step 0"]["macro"]
    )
    assert checkpoints["chosen"] == f"epoch-{said['training']['chosen_epoch']}"
    baselines = read(folder / "baselines" / "report.json")
    # Only those named, in the run's own representation of claims; one cannot be had.
    assert list(baselines["systems"]) == ["BM25.bilingual"]
    assert baselines["systems"]["BM25.bilingual"]["macro"]["queries"] == 12
    assert [(row["system"], row["advice"]) for row in baselines["not_run"]] == [
        ("Absent", "ask for it")
    ]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("epoch-0", "epoch-1", "BM25.bilingual"))
    assert not list(finished.rglob("*.tmp"))


def test_the_runs_wandb_mode_is_that_of_all_that_follows(
    setup: tuple[Path, Path], systems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str] = []
    for name in ("evaluate_checkpoints", "evaluate_baselines"):
        monkeypatch.setattr(after, name, lambda config: modes.append(config.wandb) or "done")
    monkeypatch.setattr(after, "html_report", lambda *_, wandb, **__: modes.append(wandb) or "done")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for mode in ("off", "auto", "online"):
        config = asked(setup, tmp_path, systems, wandb__mode=mode)
        after.evaluate_after(config, RunFolder(tmp_path))
    assert modes == ["off"] * 3 + ["offline"] * 3 + ["online"] * 3


@pytest.mark.slow
def test_the_runs_report_is_what_it_is_without(
    finished: Path, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    plain = tmp_path / "run"
    finetune(small_config(*setup, plain, optimisation__epochs=1))
    assert not (plain / "evaluation").exists()
    assert without_costs(Report.read(plain)) == without_costs(Report.read(finished))


@pytest.mark.slow
def test_a_run_may_get_it_later(
    finished: Path, setup: tuple[Path, Path], systems: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    finetune(small_config(*setup, out, optimisation__epochs=1))
    before = (out / "report.json").read_bytes()
    finetune(asked(setup, out, systems, resume=True, baselines='["Other"]'))
    assert (out / "report.json").read_bytes() == before
    assert "Other.bilingual" in (out / "evaluation" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "broken",
    [
        "evaluate_checkpoints",
        "evaluate_baselines",
        "html_report",
    ],
)
@pytest.mark.slow
def test_what_fails_is_said_and_the_run_is_finished(
    broken: str,
    setup: tuple[Path, Path],
    systems: Path,
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise RuntimeError("no room\non the disk")

    monkeypatch.setattr(after, broken, fail)
    (finished / "evaluation" / "report.html").unlink(missing_ok=True)
    with caplog.at_level(logging.WARNING):
        report = finetune(asked(setup, finished, systems, resume=True))
    again = read(finished / "report.json")["training"]
    assert report.training.chosen_epoch == again["chosen_epoch"]
    (said,) = [r.getMessage() for r in caplog.records if r.name == after.__name__]
    assert "no room on the disk" in said
    page = finished / "evaluation" / "report.html"
    if broken == "html_report":
        assert not page.exists()
    else:
        shown = page.read_text(encoding="utf-8")
        assert ("epoch-1" in shown) is (broken != "evaluate_checkpoints")
        assert ("BM25.bilingual" in shown) is (broken != "evaluate_baselines")


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("p.yaml", None, "the file of a pipeline"),
        ("p.yaml", "stages: [{retrieve: dense}, {rerank: nosuch}]", "'nosuch' is not allowed"),
        ("styels", None, "styles, or the YAML file of a pipeline"),
    ],
)
def test_a_bad_pipeline_is_refused_before_training(
    file: str,
    text: str | None,
    why: str,
    setup: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # a relative path is one from here, as all of them are
    if text is not None:
        Path(file).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"after\.stages: '{file}'.*{why}"):
        finetune(small_config(*setup, tmp_path / "run", after__stages=f'["{file}"]'))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_pipelines_stages_are_scored_at_the_end(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """With every checkpoint of the run; its folder still holds nothing but the run's own."""
    out, file = tmp_path / "run", tmp_path / "p.yaml"
    finetune(small_config(*setup, out, optimisation__epochs=1))
    rerank = f"{{rerank: max_sim, model: {setup[0]}, max_length: 24, depth: 5}}"
    file.write_text(f"stages: [{{retrieve: dense}}, {rerank}]", encoding="utf-8")
    before = (out / "report.json").read_bytes()
    finetune(
        small_config(*setup, out, optimisation__epochs=1, resume=True, after__stages=f'["{file}"]')
    )
    assert (out / "report.json").read_bytes() == before and foreign_file(out) is None
    found = read(out / "evaluation" / "checkpoints" / "report.json")["systems"]
    stages = ("p: first stage", "p: 1. rerank max_sim")
    assert list(found) == [
        name for i in (0, 1) for name in (f"epoch-{i}", *(f"epoch-{i}+{one}" for one in stages))
    ]
    # The first stage is the checkpoint itself.
    assert found["epoch-1+p: first stage"]["macro"] == found["epoch-1"]["macro"]


def test_a_misspelt_baseline_is_refused_before_training(
    setup: tuple[Path, Path], systems: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"'BM52'.*BM25, Other, Absent"):
        finetune(asked(setup, tmp_path / "run", systems, baselines='["BM52"]'))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_languages_of_the_run_are_those_of_the_page(
    setup: tuple[Path, Path], systems: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    config = asked(setup, out, systems, baselines='["BM25"]', languages="de")
    finetune(config)
    baselines = read(out / "evaluation" / "baselines" / "report.json")
    assert list(baselines["systems"]["BM25.bilingual"]["languages"]) == ["de"]
    page = (out / "evaluation" / "report.html").read_text(encoding="utf-8")
    assert "6 claims with a gold" in page


def test_the_runs_own_page_at_wandb_is_closed_first() -> None:
    """Else what is logged afterwards would go into it."""
    done: list[str] = []

    class Csv:
        def finalize(self, status: str) -> None:
            done.append(f"csv {status}")

    class Page(Tracker):
        def __init__(self) -> None: ...

        def define_steps(self, step: str) -> None: ...

        def close(self) -> None:
            done.append("finish")

    log = RunLog.__new__(RunLog)
    log.loggers = [Csv(), WandbPage(Page())]
    log.close()
    assert done == ["csv success", "finish"]


def test_the_folder_of_models_is_that_of_checkpoints_and_baselines(
    setup: tuple[Path, Path], systems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Path | None] = []
    for name in ("evaluate_checkpoints", "evaluate_baselines"):
        monkeypatch.setattr(after, name, lambda config: found.append(config.models) or "done")
    monkeypatch.setattr(after, "html_report", lambda *_, **__: "done")
    config = asked(setup, tmp_path, systems, after__models=tmp_path)
    after.evaluate_after(config, RunFolder(tmp_path))
    assert found == [tmp_path, tmp_path]
