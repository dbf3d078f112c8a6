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
TEXTS = {"a": "masks stop flu", "b": "kaffee hilft schlaf", "c": "vitamin lowers risk"}
SOURCES = [
    *(Source(f"{key}2", text) for key, text in TEXTS.items()),
    *(
        Source(f"{key}1", " ".join(w for w in text.split() for _ in "12"))
        for key, text in TEXTS.items()
    ),
    Source("c3", "vitamin"),
]
GOLDS = {"a": "a2", "b": "b1", "c": "c3"}
CLAIMS = [
    Claim(key, text, "de" if key == "b" else "en", golds=(GOLDS[key],))
    for key, text in TEXTS.items()
]
DATA = Dataset(tuple(CLAIMS), tuple(SOURCES), Qrels({c.id: {c.golds[0]: 1} for c in CLAIMS}), "dev")
NAMES = ["mine.original: first stage", "mine.original: 1. rerank max_sim", "mine.original"]
# a: rank 2, then 1. b: 1, then 2, then chosen. c: 3, which no later stage reaches.
MRR = [
    {"en": (1 / 2 + 1 / 3) / 2, "de": 1.0},
    {"en": (1 + 1 / 3) / 2, "de": 1 / 2},
    {"en": (1 + 1 / 3) / 2, "de": 1.0},
]
Start = Callable[..., LLMServer]


def write_systems(folder: Path, tiny: Path, server: LLMServer, **extra: str) -> Path:
    """A pipeline's file; `extra` are settings of its stages."""
    folder.mkdir(exist_ok=True)
    path = folder / "mine.yaml"
    llm = f"{{model: m, url: '{server.url}', retries: 0}}"
    path.write_text(
        f"retrieve: {{bm25: {{k1: {extra.get('k1', '1.2')}, b: 0.0}}}}\ndepth: 5\nstages:\n"
        f"  - {{rerank: max_sim, model: {tiny}, max_length: 64, depth: 2, sources: title_abstract,"
        f" mix: {extra.get('mix', '0.0')}}}\n"
        f"  - {{verify: select, depth: 2, simulated: true, llm: {llm}{extra.get('verify', '')}}}\n"
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
    server = llm_server(play.Verifier(play.perfect({c.text: titles[c.golds[0]] for c in CLAIMS})))
    calls = []
    apply = MaxSim.apply

    def count(self: MaxSim, *arguments: Any) -> Result:
        calls.append(self)
        return apply(self, *arguments)

    monkeypatch.setattr(MaxSim, "apply", count)
    write_beir([DATA], tmp_path / "data")
    words = [f"--dataset={tmp_path / 'data'}", "--repeats=20", f"--store={tmp_path / 'store'}"]

    def run(name: str, **extra: str) -> tuple[Report, list[bool], int, int]:
        """Return also the stages read from the store, MaxSim's calls and the server's requests."""
        before = len(calls), server.requests
        file = write_systems(tmp_path, tiny_folder, server, **extra)
        main([f"--systems={file}", f"--out={tmp_path / name}", *words])
        report = Report.read(tmp_path / name)
        from_store = [
            system.cost is not None and system.cost.stored for system in report.systems.values()
        ]
        return report, from_store, len(calls) - before[0], server.requests - before[1]

    report, stored, reranked, questions = run("out")
    output = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, output)) <= WIDTH
    printed = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert list(report.systems) == NAMES
    # Each stage has the label by which published rows know it.
    mine = read_systems([tmp_path / "mine.yaml"])["mine"]
    labels = [mine.full_label(0), mine.full_label(1), mine.full_label()]
    assert [row.model for row in report.systems.values()] == labels and len({*labels}) == 3
    assert stored == [False] * 3 and (reranked, questions) == (1, 3)
    for i, (stage, by_hand) in enumerate(zip(report.systems.values(), MRR, strict=True)):
        scores = {lang: row["mrr@5"] for lang, row in stage.languages.items()}
        assert scores == pytest.approx(by_hand), stage.name
        assert stage.macro["mrr@5"] == pytest.approx(sum(by_hand.values()) / 2)
        assert stage.runs == f"mine.original/runs/{i}"
        assert read_run(tmp_path / "out" / stage.runs / "en.trec").run.claim_ids == ("a", "c")
    assert any("3 of 3 claims (100.0%)" in note for note in report.notes)
    # The folder of the row has a report of its own, with all stages.
    own = Report.read(tmp_path / "out" / "mine.original")
    assert list(own.systems) == NAMES and own.macro == report.macro
    assert [system.cost.tokens > 0 for system in report.systems.values() if system.cost] == [
        False, True, True
    ]  # fmt: skip
    # A simulated verifier is not tested, and has no published numbers.
    _, compared, _ = read_scored(ReportConfig(reports=[tmp_path / "out"]))
    assert list(compared) == NAMES[:2]
    tested = {(c.system, c.baseline) for family in report.tests for c in family.comparisons}
    assert tested == {(NAMES[1], NAMES[0])}
    folder = tmp_path / "out" / "mine.original"
    rows = [
        line.replace("|", " ").split()[-8:]
        for line in printed.splitlines()
        if "(simulated) " in line
    ]
    assert ["2", "macro", "3", "0.7500", "1", "0", "1", "0"] in rows
    assert (
        (folder / "submission_2026" / "predictions_de.tsv").read_text().endswith("['b1', 'b2']\n")
    )
    assert "kaffee hilft schlaf" in (folder / "claims.html").read_text()

    assert run("again")[1:] == ([True] * 3, 0, 0)
    # Only what was changed and what follows is done again: other settings of the last stage,
    rerun = run("verify", verify=", sources: title_abstract")
    assert rerun[1:] == ([True, True, False], 0, 3)
    # where no claim is in doubt, the ranking before it,
    sure = run("sure", verify=", when: {margin_below: 0.0}")
    assert sure[1:] == ([True] * 3, 0, 0)
    assert sure[0].systems[NAMES[2]].macro == sure[0].systems[NAMES[1]].macro
    assert any(": 100.0% of the claims were not in doubt" in note for note in sure[0].notes)
    # of the second, which here gives another ranking (the answers about the same lists are kept),
    mixed_report, stored, reranked, _ = run("mix", mix="1.0")
    assert (stored, reranked) == ([True, False, False], 1)
    assert mixed_report.systems[NAMES[1]].macro == mixed_report.systems[NAMES[0]].macro
    # and of the first: all.
    assert run("first", k1="0.9")[1][0] is False


def test_a_first_stage_without_a_checkpoint_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "retrieve: {hybrid: [{bm25: {}}, {dense: checkpoint}]}\nstages: [{rerank: max_sim}]\n"
    )
    with refused(UserError, "--checkpoint"):
        main([f"--systems={tmp_path / 'p.yaml'}", f"--out={tmp_path / 'out'}"])
    (row,) = Report.read(tmp_path / "out").not_run
    assert "--checkpoint" in row.reason


def test_the_ablations_that_the_paper_lacks_are_one_file() -> None:
    """Each is another system that can be read, over the first stage and both others."""
    path = REPOSITORY / "configs" / "verify" / "sweep.yaml"
    words = ["--config", str(path), "--out", "o"]
    config = read_config(EvaluateConfig, words, program="t", description="t")
    planned = {plan.system.name: plan.system for plan in config.plans()}
    assert len(planned) == 1 + sum(map(len, config.vary.values())) == 22
    stages = {
        name: [{**asdict(s.stage), **({"when": s.when} if s.when else {})} for s in system.stages]
        for name, system in planned.items()
    }
    first, base = stages["Kimi-K2.6"]
    assert stages["Kimi-K2.6 stages.2.llm.thinking=true"] == [
        first,
        {**base, "llm": {**base["llm"], "thinking": True}},
    ]
    assert stages["Kimi-K2.6 stages.1.depth=50"] == [{**first, "depth": 50}, base]
    when = stages["Kimi-K2.6 stages.2.when=margin_below 0.1"][1]["when"]
    assert when == WhenConfig(0.1)
    of_first = {name for name in planned if stages[name] == stages["Kimi-K2.6"]}
    changed = {"retrieve.sources=title_abstract", "retrieve.depth=20", "retrieve.depth=50"}
    assert of_first == {"Kimi-K2.6", *(f"Kimi-K2.6 {setting}" for setting in changed)}
    keys = [(stages[name], repr(system.first), system.depth) for name, system in planned.items()]
    assert all(identity not in keys[:i] for i, identity in enumerate(keys))
