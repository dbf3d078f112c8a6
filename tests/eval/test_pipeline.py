"""`eval/pipeline.py`: scores by hand after each stage, what runs again, checkpoints by language."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import Report
from claim2source.core.run import Result, Run
from claim2source.datasets.beir import write_beir
from claim2source.evaluation.compare import read_scored
from claim2source.evaluation.html.claims import traced_claims
from claim2source.evaluation.html.page import trace_page
from claim2source.io.trec import read_run
from claim2source.pipeline.staged import read_pipeline
from claim2source.stages.max_sim import MaxSim
from claim2source.systems.nodes import RouteNode
from claim2source.systems.read import SYSTEMS_FOLDER
from claim2source.systems.system import System
from eval.pipeline import main
from tests.llm_server import LLMServer
from tests.llm_server import verifiers as play

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
NAMES = ["first stage", "1. rerank max_sim", "2. verify select (simulated)"]
# a: rank 2, then 1. b: 1, then 2, then chosen. c: 3, which no later stage reaches.
MRR = [
    {"en": (1 / 2 + 1 / 3) / 2, "de": 1.0},
    {"en": (1 + 1 / 3) / 2, "de": 1 / 2},
    {"en": (1 + 1 / 3) / 2, "de": 1.0},
]
Start = Callable[..., LLMServer]


def written(folder: Path, tiny: Path, server: LLMServer, **other: str) -> Path:
    """A pipeline's file; `other` are settings of its stages."""
    folder.mkdir(exist_ok=True)
    path = folder / "mine.yaml"
    llm = f"{{model: m, url: '{server.url}', retries: 0}}"
    path.write_text(
        f"retrieve: {{bm25: {{k1: {other.get('k1', '1.2')}, b: 0.0}}}}\ndepth: 5\nstages:\n"
        f"  - {{rerank: max_sim, model: {tiny}, max_length: 64, depth: 2, sources: title_abstract,"
        f" mix: {other.get('mix', '0.0')}}}\n"
        f"  - {{verify: select, depth: 2, simulated: true, llm: {llm}{other.get('verify', '')}}}\n"
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

    def counted(self: MaxSim, *arguments: Any) -> Result:
        calls.append(self)
        return apply(self, *arguments)

    monkeypatch.setattr(MaxSim, "apply", counted)
    write_beir([DATA], tmp_path / "data")
    said = [f"--dataset={tmp_path / 'data'}", "--repeats=20", f"--store={tmp_path / 'store'}"]

    def run(name: str, **other: str) -> tuple[Report, list[bool], int, int]:
        """Also which stages were read from the store, MaxSim's calls and the server's requests."""
        before = len(calls), server.requests
        file = written(tmp_path, tiny_folder, server, **other)
        main([f"--config={file}", f"--out={tmp_path / name}", *said])
        report = Report.read(tmp_path / name)
        kept = [one.cost is not None and one.cost.stored for one in report.systems.values()]
        return report, kept, len(calls) - before[0], server.requests - before[1]

    report, kept, reranked, asked = run("out")
    printed = capsys.readouterr().out
    assert list(report.systems) == NAMES
    assert kept == [False] * 3 and (reranked, asked) == (1, 3)
    for place, (one, by_hand) in enumerate(zip(report.systems.values(), MRR, strict=True)):
        found = {lang: row["mrr@5"] for lang, row in one.languages.items()}
        assert found == pytest.approx(by_hand), one.name
        assert one.macro["mrr@5"] == pytest.approx(sum(by_hand.values()) / 2)
        folder = tmp_path / "out" / "runs" / str(place)
        assert Report.read(folder).systems[one.name].macro == one.macro
        assert read_run(folder / "en.trec").run.claim_ids == ("a", "c")
    assert [one.cost.tokens > 0 for one in report.systems.values() if one.cost] == [
        False, True, True
    ]  # fmt: skip
    # What a made-up verifier says is in no test and beside no published number.
    _, compared, _ = read_scored([tmp_path / "out"])
    assert list(compared) == NAMES[:2]
    tested = {(c.system, c.baseline) for family in report.tests for c in family.comparisons}
    assert tested == {(NAMES[1], NAMES[0])}
    moved = [line.split()[-8:] for line in printed.splitlines() if "(simulated)  " in line]
    assert ["2", "macro", "3", "0.7500", "1", "0", "1", "0"] in moved
    assert (
        (tmp_path / "out" / "submission_2026" / "predictions_de.tsv")
        .read_text()
        .endswith("['b1', 'b2']\n")
    )
    assert "kaffee hilft schlaf" in (tmp_path / "out" / "claims.html").read_text()

    assert run("again")[1:] == ([True] * 3, 0, 0)
    # Only what was changed and what follows is done again: other settings of the last stage,
    again = run("verify", verify=", sources: title_abstract")
    assert again[1:] == ([True, True, False], 0, 3)
    # of the second, which here gives another ranking (the answers about the same lists are kept),
    mixed, kept, reranked, _ = run("mix", mix="1.0")
    assert (kept, reranked) == ([True, False, False], 1)
    assert mixed.systems[NAMES[1]].macro == mixed.systems[NAMES[0]].macro
    # and of the first: all.
    assert run("first", k1="0.9")[1][0] is False


def models(system: System) -> dict[str, list[str | None]]:
    """The dense model of each language's candidates."""
    assert isinstance(system.first, RouteNode)
    return {
        language: [part.main_model.name if part.main_model else None for part in parts]
        for language, parts in system.first.routes.items()
    }


def test_a_first_stage_is_routed_and_takes_checkpoints(tmp_path: Path) -> None:
    file = tmp_path / "routed.yaml"
    file.write_text(
        "retrieve: {hybrid: [{bm25: {}}, {dense: A}]}\ndepth: 30\n"
        "routes: {de: {hybrid: [{bm25: {}}, {dense: B}]}}\nstages: [{rerank: max_sim, depth: 10}]\n"
    )
    routed = read_pipeline(file)
    assert (routed.name, routed.depth) == ("routed", 30)
    assert models(routed) == {"default": ["A"], "de": ["B"]}
    swapped = models(routed.on_checkpoint("C", {"fr": "D"}))
    assert swapped == {"default": ["C"], "de": ["C"], "fr": ["D"]}
    winner = read_pipeline(SYSTEMS_FOLDER / "claim2source_2026.yaml")
    assert winner.claims == "bilingual" and winner.depth == 100
    assert models(winner) == {
        "default": ["GritLM/GritLM-7B"], "de": ["checkpoints/gritlm_f_paper"]
    }  # fmt: skip
    kinds = [(label, stage.depth) for label, stage in winner.loaded_stages()]
    assert kinds == [("rerank yes_no", 100), ("verify select", 10)]
    assert models(winner.on_checkpoint("C", {"de": "B"})) == {"default": ["C"], "de": ["B"]}
    ours = read_pipeline(SYSTEMS_FOLDER / "ours.yaml").on_checkpoint("C").first.main_model
    assert ours is not None and ours.name == "C"


def test_a_list_of_first_stages_is_for_val_to_choose_from(tmp_path: Path) -> None:
    file = tmp_path / "routed.yaml"
    file.write_text(
        "retrieve: {dense: A}\nstages: [{rerank: max_sim, depth: 10}]\n"
        "routes: {de: [{dense: A}, {dense: B}, {bm25: {}}], fr: {dense: B}}\n"
    )
    system = read_pipeline(file)
    assert models(system) == {"default": ["A"], "de": ["A", "B", None], "fr": ["B"]}
    assert len(system.parts) == 3  # no second index of the same model
    with pytest.raises(ConfigError, match="none: val chooses among several for de"):
        system.on_checkpoint("C")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("retrieve: nothing", "retrieve: 'nothing' is not allowed; .*or the name of a system"),
        (
            "retrieve: {bm25: {}}\nstages: [{rerank: max_sim, dept: 3}]",
            "dept: no such key; did you mean depth",
        ),
        ("A: {retrieve: {bm25: {}}}", "none: it has no stages"),
    ],
)
def test_a_mistyped_file_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "p.yaml").write_text(text + "\n")
    with pytest.raises(UserError, match=why) as caught:
        read_pipeline(tmp_path / "p.yaml", beside=[SYSTEMS_FOLDER / "offline.yaml"])
    assert len(caught.value.lines) == 1


def test_a_first_stage_without_a_checkpoint_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "retrieve: {hybrid: [{bm25: {}}, {dense: checkpoint}]}\nstages: [{rerank: max_sim}]\n"
    )
    with pytest.raises(UserError, match="give --checkpoint"):
        main([f"--config={tmp_path / 'p.yaml'}", f"--out={tmp_path / 'out'}"])


def test_the_page_follows_every_candidate_and_escapes_it(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    sources = tuple(Source(key, f"{key} {evil}") for key in "gxyz")
    claims = (Claim("1", f"post {evil}", "en", f"also {evil}", ("g",)), Claim("2", "b", "de"))
    data = Dataset(claims, sources, Qrels({"1": {"g": 1}}), "dev")
    runs = {
        f"{evil} {i}": Run.from_lists(
            {"1": [(s, -float(n)) for n, s in enumerate(order)], "2": [("x", 1.0)]}
        )
        for i, order in enumerate(("xyg", "xgy", "gx"))
    }
    entry = traced_claims(runs, data)[0]
    assert (entry.tag, entry.ranks) == ("to rank 1", "3 2 1")
    assert [(one.title[0], one.gold, *one.ranks) for one in entry.candidates] == [
        ("g", True, "3", "2↑", "1↑"),
        ("x", False, "1", "1", "2↓"),
        ("y", False, "2", "3↓", "-↓"),
    ]
    trace_page(runs, data, tmp_path / "way.html", title=evil)
    page = (tmp_path / "way.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and page.count("&lt;script&gt;alert(1)") >= 10
    assert page.count("<script>") == 1 and "default-src 'none'" in page
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    with pytest.raises(UserError):
        trace_page(runs, data, tmp_path / "mine.html", title="x")
