"""Splits without judgements, or with those of some languages: every program that ranks."""

from __future__ import annotations

import ast
import csv
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from claim2source.eval import evaluate, report, style_grid
from claim2source.train import fusion

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Dataset, Qrels
from claim2source.core.report import Report
from claim2source.data.beir import write_beir
from claim2source.data.trec import read_run
from tests.llm_server import LLMServer
from tests.llm_server import verifiers as play
from tests.refusals import refused
from tests.training.small import save_small_model, say_pooling, small_splits

Start = Callable[..., LLMServer]
Main = Callable[[Sequence[str] | None], None]
Listed = dict[tuple[str, str], list[str]]
SYSTEMS = """
BM25: {{retrieve: {{bm25: {{k1: 1.2}}}}}}
Words: {{retrieve: {{bm25: {{analysis: whitespace, k1: 0.9}}}}}}
Both: {{retrieve: {{hybrid: [BM25, Words]}}}}
Chosen:
  retrieve: BM25
  stages:
    - {{verify: select, depth: 5, llm: {{model: m, url: '{url}'}}}}
"""
STAGES = """
retrieve: {{dense: {model}}}
stages:
  - {{verify: select, depth: 5, llm: {{model: m, url: '{url}'}}}}
"""


def last_shown(question: play.Question) -> int:
    return len(question.papers) - 1


class World:
    """A data set with a blind split and one whose German claims are blind; files; a server."""

    def __init__(self, folder: Path, server: LLMServer) -> None:
        train, dev = small_splits()
        blind, part = (
            [replace(c, id=f"{split}-{c.lang}-{i // 2}") for i, c in enumerate(dev.claims)]
            for split in ("test", "part")
        )
        blind = [replace(claim, golds=()) for claim in blind]
        part = [replace(c, golds=c.golds if c.lang == "en" else ()) for c in part]
        judged = Qrels({c.id: {c.golds[0]: 1} for c in part if c.golds})
        splits = [
            Dataset(tuple(blind), dev.sources, Qrels({}), "test"),
            Dataset(tuple(part), dev.sources, judged, "part"),
        ]
        self.data = folder / "data"
        write_beir([train, dev, *splits], self.data)
        # The task's index is unique within a file only.
        self.claims = {(lang, str(index)) for lang in ("en", "de") for index in range(6)}
        self.pool = {source.id for source in dev.sources}
        self.server, self.folder = server, folder
        self.model = say_pooling(save_small_model(folder / "model"))
        self.systems = folder / "systems.yaml"
        self.systems.write_text(SYSTEMS.format(url=server.url))
        self.pipeline = folder / "stages.yaml"
        self.pipeline.write_text(STAGES.format(url=server.url, model=self.model))

    def run(self, main: Main, split: str, out: str, *words: object) -> Path:
        arguments = [f"--dataset={self.data}", f"--split={split}", f"--out={self.folder / out}"]
        main([*arguments, f"--store={self.folder / 'store'}", *map(str, words)])
        return self.folder / out

    def listed(self, folder: Path) -> Listed:
        files = (folder / "submission_2026").iterdir()
        return read_listed({file.name: file.read_text() for file in files})


def read_listed(files: Mapping[str, str]) -> Listed:
    """Language and index -> sources, of the contents of a submission's files."""
    lists = {}
    for name, text in files.items():
        rows = list(csv.reader(text.splitlines(), delimiter="\t"))
        assert rows[0] == ["index", "preds"]
        lang = name.removeprefix("predictions_").removesuffix(".tsv")
        lists |= {(lang, index): ast.literal_eval(ids) for index, ids in rows[1:]}
    return lists


def zipped(file: Path) -> Listed:
    with zipfile.ZipFile(file) as packed:
        assert packed.namelist() == ["predictions_en.tsv", "predictions_de.tsv"]
        return read_listed({name: packed.read(name).decode() for name in packed.namelist()})


@pytest.fixture
def world(tmp_path: Path, llm_server: Start) -> World:
    return World(tmp_path, llm_server(play.Verifier(last_shown)))


def words_of(world: World, name: str) -> tuple[Main, list[object], list[str]]:
    """A program, its arguments, and the folders that get a run and a submission."""
    files, systems = f"--files={world.systems}", f"--systems={world.systems}"
    stages = f"--stages={world.pipeline}"
    model = [f"--checkpoint={world.model}"]
    named = world.model.name
    table: dict[str, tuple[Main, list[object], list[str]]] = {
        "stages": (evaluate.main, [systems, "--only=Chosen"], ["Chosen.original"]),
        "vary": (
            evaluate.main,
            [systems, "--only=Chosen", "--vary", "stages.1.depth=3"],
            ["Chosen.original", "Chosen stages.1.depth=3.original"],
        ),
        "checkpoint": (
            evaluate.main,
            [*model, stages, "--only", named, f"{named}+stages"],
            [f"{named}.original", f"{named}+stages.original"],
        ),
        "behind": (
            evaluate.main,
            [*model, stages, f"--only={named}+stages"],
            [f"{named}+stages.original"],
        ),
        "systems": (
            evaluate.main,
            [systems, "--only", "BM25", "Chosen", "--claims", "original", "translated"],
            [
                f"{name}.{form}"
                for name in ("BM25", "Chosen")
                for form in ("original", "translated")
            ],
        ),
        "style_grid": (
            style_grid.main,
            [
                *(f"--systems={world.systems}", "--only=BM25", "--claims=original"),
                *('--styles.claim_styles=["C1"]', '--styles.source_styles=["S0"]'),
            ],
            ["BM25.original", "styles/runs/BM25.original.S0C1"],
        ),
        "fusion": (
            fusion.main,
            [f"--views={world.folder / 'views.yaml'}", files, "--system=BM25"],
            ["."],
        ),
    }
    if name == "fusion":
        (world.folder / "views.yaml").write_text(
            "words: {score: bm25, part: all}\ntitle: {score: bm25, part: title}\n"
        )
    return table[name]


NOTHING = "No golds in test: "
# Each program on each kind of split takes two seconds or more.
QUICK = ("stages", "checkpoint", "style_grid")


def programs(*names: str) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


ALL = "stages vary checkpoint systems style_grid fusion".split()


@pytest.mark.parametrize("name", programs(*ALL))
def test_a_blind_split_is_ranked_and_said_to_be_blind(
    world: World, name: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    main, words, folders = words_of(world, name)
    out = world.run(main, "test", "out", *words)
    found = Report.read(out)
    assert found.systems and not found.scored and not found.tests and not found.not_run
    assert any(NOTHING in note for note in found.notes)
    # Said before anything was run, and with what is printed last and kept.
    assert NOTHING in caplog.records[0].getMessage()
    assert NOTHING in capsys.readouterr().out and NOTHING in (out / "report.md").read_text()
    for folder in folders:
        listed = world.listed(out / folder)
        assert set(listed) == world.claims
        assert all(set(ids) <= world.pool for ids in listed.values())
    runs = {system.runs for system in found.systems.values()}
    assert all(read_run(out / runs_path / "de.trec").run.claim_ids for runs_path in runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_languages_without_judgements_are_ranked_and_not_scored(
    world: World, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    main, words, folders = words_of(world, name)
    out = world.run(main, "part", "out", *words, "--repeats=20")
    found = Report.read(out)
    assert found.scored and not found.not_run
    for system in found.scored:
        assert list(system.languages) == ["en"]
        assert system.macro["mrr@5"] == system.languages["en"]["mrr@5"]
    assert any("No de claim of part has a gold" in note for note in found.notes)
    for folder in folders:
        assert set(world.listed(out / folder)) == world.claims


@pytest.mark.slow
def test_pages_and_comparisons_are_of_what_has_judgements(world: World) -> None:
    main, words, _ = words_of(world, "systems")
    words = [words[0], "--only", "BM25", "Words", "--claims", "original", "--repeats=20"]
    out = world.run(main, "part", "out", *words)
    report.main([f"--reports={out}", f"--html={world.folder / 'page.html'}", "--repeats=20"])
    assert "6 claims with a gold" in (world.folder / "page.html").read_text()
    arguments = [f"--reports={out}", f"--out={world.folder / 'compared'}", "--repeats=20"]
    report.main(arguments)
    assert "Words.original" in (world.folder / "compared" / "compare.md").read_text()
    blind = world.run(main, "test", "blind", *words, "--wandb=offline")
    with refused(UserError, "reports: ", "scores"):
        report.main([f"--reports={blind}", f"--html={world.folder / 'none.html'}"])
    assert list((blind / "wandb").glob("offline-run-*"))


def test_a_pipeline_behind_a_checkpoint_has_a_submission_of_its_own(world: World) -> None:
    main, words, folders = words_of(world, "checkpoint")
    out = world.run(main, "test", "out", *words)
    first, last = (world.listed(out / folder) for folder in folders)
    for claim, ids in first.items():
        # The verifier chooses the fifth.
        assert last[claim] == [ids[4], *ids[:4]]


@pytest.mark.parametrize("name", programs("stages", "behind", "fusion"))
def test_a_submission_is_the_last_stages_checked_and_zipped(world: World, name: str) -> None:
    main, words, folders = words_of(world, name)
    file = world.folder / "new" / "mine.zip"
    out = world.run(main, "test", "out", *words, f"--submit={file}")
    rows, listed = zipped(file), world.listed(out / folders[-1])
    assert set(rows) == world.claims
    for claim, ids in rows.items():
        assert len(set(ids)) == len(ids) == 5 and set(ids) <= world.pool
        # Sources that the ranking lacks are appended.
        assert ids[: len(listed[claim])] == listed[claim]
    before = file.read_bytes()
    world.run(main, "test", "again", *words, f"--submit={file}")
    assert file.read_bytes() == before


def test_one_cell_of_a_table_is_submitted(world: World) -> None:
    main, words, _ = words_of(world, "systems")
    file = f"--submit={world.folder / 'mine.zip'}"
    with refused(ConfigError, "submit: ", "--only", "--claims"):
        world.run(main, "test", "out", *words, file)
    assert not world.server.requests and not (world.folder / "out").exists()
    extra = [words[0], "--only", "Chosen", "--claims", "translated", file]
    out = world.run(main, "test", "out", *extra)
    listed = world.listed(out / "Chosen.translated")
    rows = zipped(world.folder / "mine.zip")
    assert all(ids[: len(listed[claim])] == listed[claim] for claim, ids in rows.items())
    # Rows that are read from their folder have no scores by language, but have their lists.
    world.run(main, "test", "out", *extra)
    assert zipped(world.folder / "mine.zip") == rows


@pytest.mark.parametrize(
    ("name", "extra", "facts"),
    [
        ("stages", "--submit={}/mine.tsv", ("mine.tsv", ".zip")),
        ("stages", "--submit={}/data", ("data", ".zip")),
        ("vary", "--submit={}/mine.zip", ("submit: ", "mine.zip", "--only")),
        ("stages", "--submit={}/other.zip", ("other.zip: ",)),
        ("stages", "--submit={}/systems.yaml/mine.zip", ("systems.yaml", "folder")),
    ],
)
def test_what_cannot_be_submitted_is_known_before_anything_is_paid(
    world: World, name: str, extra: str, facts: tuple[str, ...]
) -> None:
    (world.folder / "other.zip").write_bytes(b"a user's own")
    main, words, _ = words_of(world, name)
    with refused(UserError, *facts):
        world.run(main, "test", "out", *words, *extra.format(world.folder).split())
    assert not world.server.requests and not (world.folder / "out").exists()
    assert (world.folder / "other.zip").read_bytes() == b"a user's own"
