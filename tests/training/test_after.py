"""Baselines and the page at a run's end: beside the report, and never at its cost."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.core.folders import foreign_file
from claim2source.core.report import Report
from claim2source.pipeline.checkpoints import CheckpointConfig, evaluate_checkpoints
from claim2source.training import after
from claim2source.training.config import FinetuneConfig
from claim2source.training.finetune import finetune
from tests.report_files import without_costs
from tests.training.small import arguments, small_config
from tests.wandb_runs import offline_runs

SYSTEMS = """
BM25: {retrieve: {bm25: {analysis: whitespace, k1: 1.2, b: 1.0}}}
Other: {retrieve: {bm25: {}}}
Absent: {retrieve: {dense: {name: nobody/has-this, pooling: cls, max_length: 24}}, advice: ask for it}
"""


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("systems") / "systems.yaml"
    path.write_text(SYSTEMS, encoding="utf-8")
    return path


def after_file(folder: Path, **keys: Any) -> Path:
    """Write a new file of what is scored at the end."""
    file = folder / f"after-{len(list(folder.iterdir()))}.yaml"
    file.write_text(json.dumps(keys), encoding="utf-8")  # JSON is YAML
    return file


def asked(
    setup: tuple[Path, Path],
    out: Path,
    systems: Path,
    baselines: Sequence[str] = ("BM25", "Absent"),
    models: Path | None = None,
    **more: Any,
) -> Any:
    file = after_file(
        systems.parent,
        baselines=list(baselines),
        report=True,
        files=[str(systems)],
        stages=["styles"],
        styles={"claim_styles": ["C1"], "source_styles": ["S3"]},
        claims=["original"],
        hybrid=True,
        models=None if models is None else str(models),
    )
    return small_config(*setup, out, optimisation__epochs=1, after=file, **more)


@pytest.fixture(scope="module")
def finished(
    setup: tuple[Path, Path], systems: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run with all that may be attached, and with W&B offline."""
    out = tmp_path_factory.mktemp("runs") / "run"
    more = {"wandb__mode": "offline", "wandb__project": "claims", "wandb__name": "my run"}
    finetune(asked(setup, out, systems, **more))
    return out


def pair(epoch: int) -> list[str]:
    return [f"epoch-{epoch}", f"H-epoch-{epoch}"]


def read_grid(path: Path) -> list[str]:
    """The differences to S0C0 by system, as the page shows them."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        f"{float(row['delta']):+.4f}"
        for row in rows
        if (row["claims"], row["sources"]) != ("C0", "S0")
    ]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_checkpoints_baselines_and_page_lie_beside_the_report(finished: Path) -> None:
    said, folder = read(finished / "report.json"), finished / "evaluation"
    grid = read(folder / "checkpoints" / "styles" / "grid.json")
    names = ["epoch-0", "H-epoch-0", "epoch-1", "H-epoch-1"]
    assert {name: list(cells) for name, cells in grid.items()} == dict.fromkeys(names, ["C0", "C1"])
    assert foreign_file(finished) is None
    checkpoints = read(folder / "checkpoints" / "report.json")
    # Other forms, hybrids and cells of the grid are rows like the checkpoints.
    forms = [f"{name}{form}" for i in (0, 1) for form in ("", ".original") for name in pair(i)]
    cells = [f"{name}.{cell}" for name in names for cell in ("S0C1", "S3C0", "S3C1")]
    assert list(checkpoints["systems"]) == [*forms, *cells]
    for name, row in checkpoints["systems"].items():
        assert row["cost"] and len(row["languages"]) == 2 and row["intervals"]
        assert (folder / "checkpoints" / row["runs"] / "de.trec").is_file()
        if name in cells:
            system, _, cell = name.rpartition(".")
            assert row["macro"]["mrr@5"] == grid[system][cell[2:]][cell[:2]]
    assert checkpoints["systems"]["epoch-0"]["macro"] == pytest.approx(
        said["systems"]["step 0"]["macro"]
    )
    assert checkpoints["chosen"] == f"epoch-{said['training']['chosen_epoch']}"
    baselines = read(folder / "baselines" / "report.json")
    # Only those named, in the run's own representation of claims; one cannot be had.
    assert list(baselines["systems"]) == ["BM25.original", "BM25.bilingual"]
    assert baselines["systems"]["BM25.bilingual"]["macro"]["queries"] == 12
    assert [(row["system"], row["advice"]) for row in baselines["not_run"]] == [
        ("Absent", "ask for it")
    ] * 2
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in (*forms, "BM25.bilingual"))
    assert f"{len(forms) + 2} systems" in page  # cells are a table of the page, no more systems
    grids = read_grid(folder / "checkpoints" / "styles" / "grid.csv")
    assert "<h2>Text styles</h2>" in page and grids and all(cell in page for cell in grids)
    assert "<td>ask for it</td>" in page and "rewritten by rules" in page
    assert not list(finished.rglob("*.tmp"))


@pytest.mark.slow
def test_one_training_is_one_group_of_named_runs_in_wandb(finished: Path) -> None:
    runs = {one.job: one for one in offline_runs(finished)}
    assert len(offline_runs(finished)) == len(runs) == 4
    assert {one.project for one in runs.values()} == {"claims"}
    (group,) = {one.group for one in runs.values()}
    assert group == f"my run-{runs['train'].id}"
    assert {job: one.name for job, one in runs.items()} == {
        "train": "my run",
        "checkpoint": "my run/evaluation/checkpoints",
        "baselines": "my run/evaluation/baselines",
        "report": "my run/evaluation",
    }
    # Each has what its report has, and nothing of the others.
    report = Report.read(finished / "evaluation" / "checkpoints")
    assert [row[0] for row in runs["checkpoint"].table("scores") if row[1] == "macro"] == [
        f"{name} (chosen)" if name == report.chosen else name
        for name, one in report.systems.items()
        if one.style == "S0C0"
    ]
    cells = {row[0]: row[1:] for row in runs["checkpoint"].table("styles_grid_macro")}
    assert list(cells) == ["epoch-0", "H-epoch-0", "epoch-1", "H-epoch-1"]
    gain = report.systems["epoch-1.S3C1"].macro["mrr@5"] - report.systems["epoch-1"].macro["mrr@5"]
    assert float(cells["epoch-1"][3].strip(" ^*")) == pytest.approx(gain, abs=1e-4)
    assert [row[0] for row in runs["baselines"].table("not_run")] == ["Absent"] * 2
    assert "val/macro/mrr@5" in runs["train"].summary and "scores/path" not in runs["train"].summary
    assert runs["checkpoint"].config["hybrid"] is True


@pytest.mark.slow
def test_what_is_evaluated_later_joins_the_group(
    finished: Path, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """As "next:" says, in the run's folder; elsewhere it is a run by itself."""
    for out in (finished / "evaluation" / "more", tmp_path / "more"):
        words = [f"--checkpoint={finished}", f"--dataset={setup[1]}", f"--out={out}"]
        words += ["--only=chosen", "--wandb=offline", "--no_tests"]
        config = read_config(CheckpointConfig, words, program="p", description="d")
        evaluate_checkpoints(config)
    (inside,), (apart,) = (
        offline_runs(out) for out in (finished / "evaluation" / "more", tmp_path)
    )
    (group,) = {one.group for one in offline_runs(finished)}
    assert (inside.project, inside.group) == ("claims", group)
    assert inside.name == "my run/evaluation/more"
    assert (apart.project, apart.group, apart.name) == ("claim2source", "", "more")


@pytest.mark.slow
def test_a_run_may_get_it_later(setup: tuple[Path, Path], systems: Path, tmp_path: Path) -> None:
    """In the run's language, with models of a folder, and nothing for W&B, as in the run."""
    out, models = tmp_path / "run", tmp_path / "models"
    models.mkdir()
    (models / "has-this").symlink_to(setup[0])
    more: dict[str, Any] = {"languages": "de", "wandb__mode": "off"}
    finetune(small_config(*setup, out, optimisation__epochs=1, **more))
    before = without_costs(Report.read(out))
    assert not (out / "evaluation").exists()
    names = ["Other", "Absent"]
    finetune(asked(setup, out, systems, resume=True, baselines=names, models=models, **more))
    assert without_costs(Report.read(out)) == before and not offline_runs(out)
    baselines = read(out / "evaluation" / "baselines" / "report.json")
    assert {"Other.bilingual", "Absent.bilingual"} <= baselines["systems"].keys()
    assert list(baselines["systems"]["Other.bilingual"]["languages"]) == ["de"]
    page = (out / "evaluation" / "report.html").read_text(encoding="utf-8")
    assert "Other.bilingual" in page and "6 claims with a gold" in page


@pytest.mark.parametrize("broken", ["evaluate_checkpoints", "evaluate_baselines", "html_report"])
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
    ("text", "why"),
    [
        ("stages: [p.yaml]\n", "stages: 'p.yaml'.*the file of a pipeline"),
        ("stages: [wrong.yaml]\n", "stages: 'wrong.yaml'.*'nosuch' is not allowed"),
        ("stages: [styels]\n", "stages: 'styels'.*styles, or the YAML file of a pipeline"),
        ("files: [s.yaml]\nbaselines: [BM52]\n", "baselines: 'BM52'.*BM25, Other, Absent"),
        ("baselines: [BM25]\nreprot: true\n", ":2: reprot: no such key; did you mean report?"),
        ("claims: [orignal]\n", ": claims: 'orignal' is not allowed"),
        ("- BM25\n", "must be `key: value` lines"),
        (None, "no such file"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_training(
    text: str | None,
    why: str,
    setup: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # a relative path is one from here, as all of them are
    stages = "retrieve: {dense: checkpoint}\nstages: [{rerank: nosuch}]"
    for file, content in (("wrong.yaml", stages), ("s.yaml", SYSTEMS), ("end.yaml", text)):
        if content is not None:
            Path(file).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=rf"end\.yaml.*{why}"):
        finetune(small_config(*setup, tmp_path / "run", after="end.yaml"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_pipelines_stages_are_scored_at_the_end(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """With every checkpoint of the run; its folder still holds nothing but the run's own."""
    out, file = tmp_path / "run", tmp_path / "p.yaml"
    finetune(small_config(*setup, out, optimisation__epochs=1))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small").symlink_to(setup[0])
    rerank = "{rerank: max_sim, model: org/small, max_length: 24, depth: 5}"
    file.write_text(f"retrieve: {{dense: checkpoint}}\nstages: [{rerank}]", encoding="utf-8")
    before = (out / "report.json").read_bytes()
    given = after_file(tmp_path, stages=[str(file)], models=str(tmp_path / "models"))
    finetune(small_config(*setup, out, optimisation__epochs=1, resume=True, after=given))
    assert (out / "report.json").read_bytes() == before and foreign_file(out) is None
    found = read(out / "evaluation" / "checkpoints" / "report.json")["systems"]
    stages = ("p: first stage", "p: 1. rerank max_sim")
    assert list(found) == [
        name for i in (0, 1) for name in (f"epoch-{i}", *(f"epoch-{i}+{one}" for one in stages))
    ]
    # The first stage is the checkpoint itself.
    assert found["epoch-1+p: first stage"]["macro"] == found["epoch-1"]["macro"]


def test_the_old_keys_of_a_config_are_refused_unless_they_ask_for_nothing(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    file, words = tmp_path / "old.yaml", arguments(*setup, tmp_path / "run")

    def read_old(text: str) -> Any:
        file.write_text(text, encoding="utf-8")
        return read_config(
            FinetuneConfig,
            [f"--config={file}", *words],
            program="train/finetune.py",
            description="",
        )

    assert read_old("after: {baselines: [], report: false}\n").after is None
    assert read_old("after: end.yaml\n").after == Path("end.yaml")
    for text in ("after: {report: true}\n", "after: {report: false, stages: [styles]}\n"):
        with pytest.raises(UserError, match="old.yaml:1: after: is gone; .*--after FILE"):
            read_old(text)
    with pytest.raises(UserError, match=r"after\.report: is gone; .*--after FILE"):
        words.append("--after.report")
        read_old("")
