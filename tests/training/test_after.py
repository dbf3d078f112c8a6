"""The evaluation at a run's end: it never harms the report; the next commands."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from claim2source.train.merge import MergeConfig

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.core.folders import foreign_file
from claim2source.core.report import Report
from claim2source.data.trec import read_run
from claim2source.evaluation.table import EvaluateConfig, evaluate_table
from claim2source.models import ModelConfig
from claim2source.training import after
from claim2source.training.after import next_steps
from claim2source.training.config import DataConfig, FinetuneConfig
from claim2source.training.finetune import finetune
from tests.llm_server import LLMServer
from tests.llm_server import verifiers as play
from tests.processes import run as launched
from tests.refusals import refused
from tests.report_files import without_costs
from tests.train.test_finetune import TWO
from tests.training.small import arguments, small_config
from tests.wandb_runs import offline_runs

Start = Callable[..., LLMServer]
SYSTEMS = """
BM25: {retrieve: {bm25: {analysis: whitespace, k1: 1.2, b: 1.0}}}
Absent: {retrieve: {dense: {name: nobody/has-this, pooling: cls, max_length: 24}}, advice: ask for it}
H: {retrieve: {hybrid: [BM25, {dense: checkpoint}]}}
"""
STAGES = """
retrieve: {{dense: elsewhere}}
depth: 10
stages:
  - {{rerank: max_sim, model: org/small, max_length: 24, depth: 5}}
  - {{verify: select, depth: 3, llm: {{model: m, url: '{url}'}}}}
"""
EPOCHS = ("epoch-0", "epoch-1")


def after_file(folder: Path, model: Path, server: LLMServer, **extra: Any) -> Path:
    """Write a new file for the evaluation at the end, and all files that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models").mkdir(exist_ok=True)
    if not (folder / "models" / "small").exists():
        (folder / "models" / "small").symlink_to(model)
    (folder / "systems.yaml").write_text(SYSTEMS, encoding="utf-8")
    (folder / "p.yaml").write_text(STAGES.format(url=server.url), encoding="utf-8")
    keys: dict[str, Any] = {
        "systems": [str(folder / "systems.yaml")],
        "stages": str(folder / "p.yaml"),
        "styles": {"claim_styles": ["C1"], "source_styles": ["S3"]},
        "claims": ["original"],
        "models": str(folder / "models"),
        "repeats": 50,
        **extra,
    }
    file = folder / f"after-{len(list(folder.iterdir()))}.yaml"
    file.write_text(json.dumps(keys), encoding="utf-8")  # JSON is YAML
    return file


def second(question: play.Question) -> int:
    return 1


def checked(run: Path) -> Report:
    """Check that every system, stage and cell is a row of each checkpoint, by language."""
    own, report = Report.read(run), Report.read(run / "evaluation")
    assert foreign_file(run) is None and not list(run.rglob("*.tmp"))
    forms = ("original", "bilingual")
    ends = ["", "+p: first stage", "+p: 1. rerank max_sim", "+p", "+H"]
    names = [(e, f, end) for e in EPOCHS for end in ends for f in forms]
    rows = {f"{e}{end.split(':')[0]}.{f}" + end[len(end.split(":")[0]) :] for e, f, end in names}
    rows |= {f"BM25.{form}" for form in forms}
    grids = [
        f"{name}.{f}" for name in ("BM25", *EPOCHS, *(f"{e}+H" for e in EPOCHS)) for f in forms
    ]
    cells = {f"{name}.{cell}" for name in grids for cell in ("S0C1", "S3C0", "S3C1")}
    assert set(report.systems) == rows | cells
    for row in report.systems.values():
        assert row.cost is not None and list(row.languages) == ["en", "de"]
        assert (run / "evaluation" / row.runs / "de.trec").is_file()
    whole = report.systems
    assert whole["epoch-0.bilingual"].macro == pytest.approx(own.systems["step 0"].macro)
    assert own.training is not None and report.training == own.training
    assert report.chosen == f"epoch-{own.training.chosen_epoch}"
    # The first stage is the checkpoint itself; a stand-in server runs the second.
    for epoch in EPOCHS:
        first = whole[f"{epoch}+p.bilingual: first stage"]
        assert first.macro["mrr@5"] == whole[f"{epoch}.bilingual"].macro["mrr@5"]
        before, last = (
            read_run(run / "evaluation" / f"{epoch}+p.bilingual" / "runs" / part / "de.trec").run
            for part in "12"
        )
        for claim in before.claim_ids:
            ranked = before.sources(claim)
            assert last.sources(claim, 3) == [ranked[1], ranked[0], ranked[2]]
    tests = {(t.family, c.system, c.baseline) for t in report.tests for c in t.comparisons}
    assert ("Every epoch against step 0, p", "epoch-1+p.bilingual", "epoch-0+p.bilingual") in tests
    assert ("Dense systems against BM25", "epoch-1.original", "BM25.original") in tests
    absent = [(row.system, row.advice) for row in report.not_run]
    assert set(absent) == {("Absent", "ask for it")}
    page = (run / "evaluation" / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("epoch-1+H.original", "BM25.bilingual", "epoch-1+p"))
    assert "<h2>Text styles</h2>" in page and ">ask for it</td>" in page
    styled = [row for name, row in report.systems.items() if name.rpartition(".")[2][:1] == "S"]
    assert styled and all(f"{row.macro['mrr@5']:.4f}" in page for row in styled)
    return report


@pytest.fixture(scope="module")
def finished(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all that may follow it, and with W&B offline."""
    folder = tmp_path_factory.mktemp("runs")
    with LLMServer(play.Verifier(second)) as server:
        extra = {"wandb__mode": "offline", "wandb__project": "claims", "wandb__name": "my run"}
        file = after_file(folder / "files", setup[0], server)
        config = small_config(*setup, folder / "run", optimisation__epochs=1, after=file, **extra)
        finetune(config)
        assert server.requests
    return folder / "run"


@pytest.mark.slow
def test_systems_stages_and_styles_are_rows_of_every_checkpoint(finished: Path) -> None:
    checked(finished)


@pytest.mark.slow
def test_so_they_are_after_a_training_in_two_processes(
    setup: tuple[Path, Path], llm_server: Start, tmp_path: Path
) -> None:
    server = llm_server(play.Verifier(second))
    file = after_file(tmp_path / "files", setup[0], server)
    words = arguments(*setup, tmp_path / "run", optimisation__epochs=1, after=file)
    store = {"CLAIM2SOURCE_STORE": str(tmp_path / "store")}
    proc = launched([*TWO, *words], tmp_path, **store)
    assert proc.returncode == 0, proc.stderr[-3000:]
    checked(tmp_path / "run")
    # One process sends the requests and reports the result, once.
    assert set(server.asked.values()) == {1}
    assert proc.stdout.count("\nall tables: ") == 1
    page = (tmp_path / "run" / "evaluation" / "report.md").read_text(encoding="utf-8")
    assert page.count("Every epoch against step 0, p") == 3  # on average, by language


@pytest.mark.slow
def test_one_training_is_one_group_of_named_runs_in_wandb(finished: Path) -> None:
    runs = {run.job: run for run in offline_runs(finished)}
    assert len(offline_runs(finished)) == len(runs) == 3
    assert {run.project for run in runs.values()} == {"claims"}
    (group,) = {run.group for run in runs.values()}
    assert group == f"my run-{runs['train'].id}"
    assert {job: run.name for job, run in runs.items()} == {
        "train": "my run",
        "evaluate": "my run/evaluation",
        "report": "my run/evaluation",
    }
    # Each has what its report has, and nothing of the others.
    report = Report.read(finished / "evaluation")
    rows = [row[:2] for row in runs["evaluate"].table("scores")]
    assert [f"{report.chosen} (chosen)", "bilingual"] in rows and ["epoch-1+p", "original"] in rows
    cells = {row[0]: row[1:] for row in runs["evaluate"].table("styles_grid_macro")}
    gain = (
        report.systems["epoch-1.bilingual.S3C1"].macro["mrr@5"]
        - report.systems["epoch-1.bilingual"].macro["mrr@5"]
    )
    assert float(cells["epoch-1.bilingual"][3].strip(" ^*")) == pytest.approx(gain, abs=1e-4)
    assert [row[0] for row in runs["evaluate"].table("not_run")] == ["Absent"] * 2
    assert {"val/macro/mrr@5", "history/path"} <= runs["train"].summary.keys()
    assert "not_run/path" not in runs["train"].summary
    assert "history/path" not in runs["evaluate"].summary


@pytest.mark.slow
def test_what_is_evaluated_later_joins_the_group(
    finished: Path, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """As in "next:", in the run's folder; elsewhere it is a separate run."""
    for out in (finished / "evaluation" / "more", tmp_path / "more"):
        words = [f"--checkpoint={finished}", f"--dataset={setup[1]}", f"--out={out}"]
        words += ["--only=chosen", "--wandb=offline", "--no_tests"]
        evaluate_table(read_config(EvaluateConfig, words, program="p", description="d"))
    (inner,), (outer,) = (offline_runs(out) for out in (finished / "evaluation" / "more", tmp_path))
    (group,) = {run.group for run in offline_runs(finished)}
    assert (inner.project, inner.group) == ("claims", group)
    assert inner.name == "my run/evaluation/more"
    assert (outer.project, outer.group, outer.name) == ("claim2source", "", "more")


@pytest.mark.slow
def test_a_run_may_get_it_later(
    setup: tuple[Path, Path], llm_server: Start, tmp_path: Path
) -> None:
    """In the run's language, with models of a folder, and nothing for W&B, as in the run."""
    out = tmp_path / "run"
    extra: dict[str, Any] = {"languages": "de", "wandb__mode": "off", "optimisation__epochs": 1}
    finetune(small_config(*setup, out, **extra))
    before = without_costs(Report.read(out))
    assert not (out / "evaluation").exists()
    server = llm_server(play.Verifier(second))
    models = tmp_path / "files" / "models"
    file = after_file(tmp_path / "files", setup[0], server, styles=None, claims=[])
    (models / "has-this").symlink_to(setup[0])
    finetune(small_config(*setup, out, **extra, resume=True, after=file))
    assert without_costs(Report.read(out)) == before and not offline_runs(out)
    systems = Report.read(out / "evaluation").systems
    assert {"BM25.bilingual", "Absent.bilingual", "epoch-1+p.bilingual"} <= systems.keys()
    assert list(systems["BM25.bilingual"].languages) == ["de"]
    page = (out / "evaluation" / "report.html").read_text(encoding="utf-8")
    assert "BM25.bilingual" in page and "6 claims with a gold" in page


@pytest.mark.parametrize("broken", ["evaluate_table", "html_report"])
@pytest.mark.slow
def test_what_fails_is_said_and_the_run_is_finished(
    broken: str,
    setup: tuple[Path, Path],
    finished: Path,
    llm_server: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise RuntimeError("no room\non the disk")

    monkeypatch.setattr(after, broken, fail)
    page = finished / "evaluation" / "report.html"
    page.unlink(missing_ok=True)
    server = llm_server(play.Verifier(second))
    file = after_file(tmp_path, setup[0], server, stages=None, styles=None)
    config = small_config(*setup, finished, optimisation__epochs=1, after=file, resume=True)
    with caplog.at_level(logging.WARNING):
        report = finetune(config)
    assert report.training == Report.read(finished).training
    (own,) = [r.getMessage() for r in caplog.records if r.name == after.__name__]
    assert "no room on the disk" in own and not page.exists()


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("stages: p.yaml\n", "p.yaml: "),
        ("stages: wrong.yaml\n", "wrong.yaml:2: wrong: |'nosuch'"),
        ("stages: bare.yaml\n", "checkpoint: |dense"),
        ("systems: [s.yaml]\nonly: [BM52]\n", "end.yaml: only: 'BM52'|BM25, Absent"),
        ("systems: [s.yaml]\nrepaets: 3\n", "end.yaml:2: repaets: |did you mean repeats"),
        ("split: test\n", "end.yaml: split: "),
        ("claims: [orignal]\n", "end.yaml:1: claims: 'orignal'"),
        ("styles: {texts: nowhere}\n", "nowhere"),
        ("- BM25\n", "end.yaml|`key: value`"),
        (None, "end.yaml: "),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_training(
    text: str | None,
    facts: str,
    setup: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # a relative path is one from here, as all of them are
    wrong = "retrieve: {dense: checkpoint}\nstages: [{rerank: nosuch}]"
    unnamed = "retrieve: {bm25: {}}\nstages: [{rerank: max_sim}]"
    files = (("wrong.yaml", wrong), ("bare.yaml", unnamed), ("s.yaml", SYSTEMS), ("end.yaml", text))
    for file, content in files:
        if content is not None:
            Path(file).write_text(content, encoding="utf-8")
    config = small_config(*setup, tmp_path / "run", after="end.yaml")
    with refused(UserError, *facts.split("|")) as error:
        finetune(config)
    assert len(error.value.lines) == 1 and not (tmp_path / "run").exists()


CONFIG = FinetuneConfig(
    data=DataConfig(dataset="my data", report_split="test", lenient=True),
    model=ModelConfig(name="org/own", attention="eager", allow_remote_code=("org/own", "org/two")),
    out=Path("runs/it's mine"),
    store=Path("a store"),
    device="cpu",
    languages=["en", "no"],
)


MERGE = re.compile(r" (claim2source merge|\S+merge\.py) --checkpoints ")


def commands(config: FinetuneConfig, trained: bool) -> list[list[str]]:
    text = next_steps(config, config.out / "checkpoints" / "epoch-1", trained)
    _, checkpoint, following, *lines = text.split("\n")
    assert checkpoint == f"chosen checkpoint: {config.out}/checkpoints/epoch-1"
    assert following == "next:" and len(lines) == 2
    return [shlex.split(line) for line in lines]


def test_they_are_quoted_and_repeat_what_evaluation_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/claim2source", "finetune"])
    (*start, _, _), (*_, second) = (words[:4] for words in commands(CONFIG, True))
    assert start == ["claim2source", "evaluate"] and second == "runs/it's mine"
    evaluate, export = (words[2:] for words in commands(CONFIG, True))
    read = read_config(EvaluateConfig, evaluate, program="p", description="d")
    assert (read.checkpoint, read.dataset, read.split) == (["runs/it's mine"], "my data", "test")
    assert (read.store, read.device, read.languages) == (CONFIG.store, "cpu", ["en", "no"])
    assert read.lenient and read.model.attention == "eager"
    assert read.model.allow_remote_code == ("org/own", "org/two")
    # Beside the run's own report, not over it.
    assert read.out == CONFIG.out / "evaluation"
    merged = read_config(MergeConfig, export, program="p", description="d")
    assert (merged.checkpoints, merged.out) == (read.checkpoint, Path("runs/it's mine-merged"))
    assert merged.model.allow_remote_code == ("org/own", "org/two")


def test_what_the_runs_end_has_done_is_named_and_not_suggested() -> None:
    folder, checkpoint = CONFIG.out / "evaluation", CONFIG.out / "checkpoints" / "epoch-1"
    text = next_steps(CONFIG, checkpoint, True, evaluated=True)
    assert "evaluate" not in text.partition("next:")[2] and MERGE.search(text)
    assert str(folder) in text and str(folder / "report.html") in text
    # Nothing is left to do if nothing was trained.
    assert "next:" not in next_steps(CONFIG, checkpoint, False, evaluated=True)
    assert not MERGE.search(next_steps(CONFIG, checkpoint, False))
