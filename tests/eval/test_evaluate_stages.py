"""Stages of a system by `eval/evaluate.py`: scores by hand, what runs again, verifiers, ablations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from claim2source.eval.evaluate import main

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import Report
from claim2source.core.run import Result
from claim2source.data.beir import write_beir
from claim2source.data.trec import read_run
from claim2source.evaluation.compare import read_scored
from claim2source.evaluation.reports import ReportConfig
from claim2source.evaluation.summary import WIDTH
from claim2source.evaluation.table import EvaluateConfig
from claim2source.stages.max_sim import MaxSim
from claim2source.systems.conditions import WhenConfig
from claim2source.systems.read import read_systems
from tests.llm_server import LLMServer
from tests.llm_server import verifiers as play
from tests.refusals import refused
from tests.shared_data import REPOSITORY

# BM25 (b 0) prefers a repetition to the very words; MaxSim of any model prefers these.
TEXTS = {
    "a": "masks stop flu",
    "b": "kaffee hilft schlaf",
    "c": "vitamin lowers risk",
}


def repeated(text: str) -> str:
    """Return a text with every word twice."""
    words: list[str] = []
    for word in text.split():
        words += [word, word]
    return " ".join(words)


SOURCES = [
    *(Source(f"{key}2", text) for key, text in TEXTS.items()),
    *(Source(f"{key}1", repeated(text)) for key, text in TEXTS.items()),
    Source("c3", "vitamin"),
]
CLAIMS = [
    Claim("a", TEXTS["a"], "en", golds=("a2",)),
    Claim("b", TEXTS["b"], "de", golds=("b1",)),
    Claim("c", TEXTS["c"], "en", golds=("c3",)),
]
GRADES = {claim.id: {claim.golds[0]: 1} for claim in CLAIMS}
DATA = Dataset(
    tuple(CLAIMS),
    tuple(SOURCES),
    Qrels(GRADES),
    "dev",
)
NAMES = [
    "mine.original: first stage",
    "mine.original: 1. rerank max_sim",
    "mine.original",
]
# a: rank 2, then 1. b: 1, then 2, then chosen. c: 3, which no later stage reaches.
MRR = [
    {"en": (1 / 2 + 1 / 3) / 2, "de": 1.0},
    {"en": (1 + 1 / 3) / 2, "de": 1 / 2},
    {"en": (1 + 1 / 3) / 2, "de": 1.0},
]
Start = Callable[..., LLMServer]


def write_systems(
    folder: Path,
    tiny: Path,
    server: LLMServer,
    **extra: str,
) -> Path:
    """A pipeline's file; `extra` are settings of its stages."""
    folder.mkdir(exist_ok=True)
    path = folder / "mine.yaml"
    k1 = extra.get("k1", "1.2")
    mix = extra.get("mix", "0.0")
    verify = extra.get("verify", "")
    llm = f"{{model: m, url: '{server.url}', retries: 0}}"
    path.write_text(
        f"retrieve: {{bm25: {{k1: {k1}, b: 0.0}}}}\n"
        "depth: 5\n"
        "stages:\n"
        f"  - {{rerank: max_sim, model: {tiny}, max_length: 64, depth: 2, sources: title_abstract,"
        f" mix: {mix}}}\n"
        f"  - {{verify: select, depth: 2, simulated: true, llm: {llm}{verify}}}\n"
    )
    return path


def test_every_stage_has_the_score_by_hand_and_runs_again_only_after_a_change(
    tmp_path: Path,
    tiny_folder: Path,
    llm_server: Start,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    titles = {source.id: source.title for source in SOURCES}
    gold_titles: dict[str, str] = {}
    for claim in CLAIMS:
        gold = claim.golds[0]
        gold_titles[claim.text] = titles[gold]
    verifier = play.Verifier(play.perfect(gold_titles))
    server = llm_server(verifier)
    calls = []
    apply = MaxSim.apply

    def count(self: MaxSim, *arguments: Any) -> Result:
        calls.append(self)
        return apply(self, *arguments)

    monkeypatch.setattr(MaxSim, "apply", count)
    data = tmp_path / "data"
    write_beir([DATA], data)
    words = [
        f"--dataset={data}",
        "--repeats=20",
        f"--store={tmp_path / 'store'}",
    ]

    def run(name: str, **extra: str) -> tuple[Report, list[bool], int, int]:
        """Return also the stages read from the store, MaxSim's calls and the server's requests."""
        calls_before = len(calls)
        requests_before = server.requests
        file = write_systems(tmp_path, tiny_folder, server, **extra)
        out = tmp_path / name
        main([f"--systems={file}", f"--out={out}", *words])
        report = Report.read(out)
        from_store: list[bool] = []
        for system in report.systems.values():
            is_stored = system.cost is not None and system.cost.stored
            from_store.append(is_stored)
        return (
            report,
            from_store,
            len(calls) - calls_before,
            server.requests - requests_before,
        )

    out = tmp_path / "out"
    report, stored, reranked, questions = run("out")
    printed_lines = capsys.readouterr().out.splitlines()
    widths = [len(line) for line in printed_lines if str(tmp_path) not in line]
    assert max(widths) <= WIDTH
    printed = (out / "report.md").read_text(encoding="utf-8")
    assert list(report.systems) == NAMES

    # Each stage has the label by which published rows know it.
    systems = read_systems([tmp_path / "mine.yaml"])
    mine = systems["mine"]
    labels = [
        mine.full_label(0),
        mine.full_label(1),
        mine.full_label(),
    ]
    stages = list(report.systems.values())
    assert [stage.model for stage in stages] == labels
    assert len({*labels}) == 3
    assert stored == [False] * 3
    assert reranked == 1
    assert questions == 3
    for i, (stage, by_hand) in enumerate(zip(stages, MRR, strict=True)):
        scores = {lang: row["mrr@5"] for lang, row in stage.languages.items()}
        assert scores == pytest.approx(by_hand), stage.name
        macro = sum(by_hand.values()) / 2
        assert stage.macro["mrr@5"] == pytest.approx(macro)
        assert stage.runs == f"mine.original/runs/{i}"
        english = read_run(out / stage.runs / "en.trec")
        assert english.run.claim_ids == ("a", "c")
    assert any("3 of 3 claims (100.0%)" in note for note in report.notes)

    # The folder of the row has a report of its own, with all stages.
    folder = out / "mine.original"
    own = Report.read(folder)
    assert list(own.systems) == NAMES
    assert own.macro == report.macro
    used_tokens = [stage.cost.tokens > 0 for stage in stages if stage.cost]
    assert used_tokens == [False, True, True]
    # A simulated verifier is not tested, and has no published numbers.
    config = ReportConfig(reports=[out])
    _, compared, _ = read_scored(config)
    assert list(compared) == NAMES[:2]
    tested: set[tuple[str, str]] = set()
    for family in report.tests:
        tested |= {(test.system, test.baseline) for test in family.comparisons}
    assert tested == {(NAMES[1], NAMES[0])}
    rows: list[list[str]] = []
    for line in printed.splitlines():
        if "(simulated) " in line:
            cells = line.replace("|", " ").split()
            rows.append(cells[-8:])
    assert ["2", "macro", "3", "0.7500", "1", "0", "1", "0"] in rows
    submission = folder / "submission_2026" / "predictions_de.tsv"
    predictions = submission.read_text()
    assert predictions.endswith("['b1', 'b2']\n")
    page = folder / "claims.html"
    assert "kaffee hilft schlaf" in page.read_text()

    again = run("again")
    assert again[1:] == ([True] * 3, 0, 0)
    # Only what was changed and what follows is done again: other settings of the last stage,
    rerun = run("verify", verify=", sources: title_abstract")
    assert rerun[1:] == ([True, True, False], 0, 3)
    # where no claim is in doubt, the ranking before it,
    sure = run("sure", verify=", when: {margin_below: 0.0}")
    assert sure[1:] == ([True] * 3, 0, 0)
    sure_report = sure[0]
    second = sure_report.systems[NAMES[1]]
    last = sure_report.systems[NAMES[2]]
    assert last.macro == second.macro
    assert any(": 100.0% of the claims were not in doubt" in note for note in sure_report.notes)
    # of the second, which here gives another ranking (the answers about the same lists are kept),
    mixed_report, stored, reranked, _ = run("mix", mix="1.0")
    assert stored == [True, False, False]
    assert reranked == 1
    first = mixed_report.systems[NAMES[0]]
    second = mixed_report.systems[NAMES[1]]
    assert second.macro == first.macro
    # and of the first: all.
    _, stored, _, _ = run("first", k1="0.9")
    assert stored[0] is False


def test_a_first_stage_without_a_checkpoint_asks_for_one(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "retrieve: {hybrid: [{bm25: {}}, {dense: checkpoint}]}\nstages: [{rerank: max_sim}]\n"
    )
    out = tmp_path / "out"
    with refused(UserError, "--checkpoint"):
        main([f"--systems={path}", f"--out={out}"])
    report = Report.read(out)
    (row,) = report.not_run
    assert "--checkpoint" in row.reason


def test_the_ablations_that_the_paper_lacks_are_one_file() -> None:
    """Each is another system that can be read, over the first stage and both others."""
    path = REPOSITORY / "configs" / "verify" / "sweep.yaml"
    words = ["--config", str(path), "--out", "o"]
    config = read_config(
        EvaluateConfig,
        words,
        program="t",
        description="t",
    )
    planned = {plan.system.name: plan.system for plan in config.plans()}
    variations = sum(map(len, config.vary.values()))
    assert len(planned) == 1 + variations
    assert len(planned) == 22

    stages: dict[str, list[dict[str, Any]]] = {}
    for name, system in planned.items():
        settings: list[dict[str, Any]] = []
        for planned_stage in system.stages:
            stage = asdict(planned_stage.stage)
            if planned_stage.when:
                stage["when"] = planned_stage.when
            settings.append(stage)
        stages[name] = settings

    own = stages["Kimi-K2.6"]
    first, base = own
    thinking_llm = {**base["llm"], "thinking": True}
    thinking = stages["Kimi-K2.6 stages.2.llm.thinking=true"]
    assert thinking == [first, {**base, "llm": thinking_llm}]
    deeper = stages["Kimi-K2.6 stages.1.depth=50"]
    assert deeper == [{**first, "depth": 50}, base]
    doubtful = stages["Kimi-K2.6 stages.2.when=margin_below 0.1"]
    assert doubtful[1]["when"] == WhenConfig(0.1)
    same_stages = {name for name in planned if stages[name] == own}
    assert same_stages == {
        "Kimi-K2.6",
        "Kimi-K2.6 retrieve.sources=title_abstract",
        "Kimi-K2.6 retrieve.depth=20",
        "Kimi-K2.6 retrieve.depth=50",
    }

    keys: list[tuple[list[dict[str, Any]], str, int]] = []
    for name, system in planned.items():
        key = (stages[name], repr(system.first), system.depth)
        assert key not in keys
        keys.append(key)
