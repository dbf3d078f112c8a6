"""Finished rows are run again if what they read besides the data set has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from claim2source.eval.evaluate import main as evaluate

from claim2source.core.records import Claim
from claim2source.core.report import Report
from claim2source.data.known_posts import KnownPosts
from claim2source.search.bm25 import BM25
from claim2source.stages.learned import LearnedFusion, LearnedView
from claim2source.stages.similarities import ViewConfig
from tests.search.test_bm25_posts import POSTS, write
from tests.stages.test_learned import FITTED

ROWS = {
    "bm25": "retrieve: {bm25: {posts: {dataset: KNOWN}}}",
    "stage": "retrieve: {bm25: {}}, stages: [{rerank: posts, dataset: KNOWN, weight: 9}]",
    "votes": "retrieve: {bm25: {}}, stages: "
    "[{rerank: neighbours, posts: {dataset: KNOWN}, weight: 9}]",
    "view": "retrieve: {bm25: {}}, stages: [{rerank: learned, file: FUSION}]",
}


@pytest.mark.parametrize("kind", ROWS)
def test_a_finished_row_is_run_again_if_the_posts_have_changed(kind: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    claim = Claim("q", "espresso drinkers, a study of memory", golds=("coffee",))
    write([claim], data)
    known = tmp_path / "known"
    write(POSTS[:2], known)
    view = ViewConfig(bm25=BM25(posts=KnownPosts(str(known))))
    fusion = tmp_path / "fusion.json"
    LearnedFusion((LearnedView("words", view, "", 1.0, 1.0),), FITTED).write(fusion)
    row = ROWS[kind].replace("KNOWN", str(known)).replace("FUSION", str(fusion))
    systems = tmp_path / "systems.yaml"
    systems.write_text(f"A: {{{row}}}\n")
    words = ["--systems", str(systems), "--dataset", str(data), "--split", "train"]
    for posts in (POSTS[:2], POSTS):
        shutil.rmtree(known)
        write(posts, known)
        evaluate([*words, "--out", str(tmp_path / "out"), "--store", str(tmp_path / "store")])
        report = Report.read(tmp_path / "out")
        (*_, last) = report.systems.values()
        assert (last.macro["mrr@5"] == 1.0) == (posts == POSTS)


def test_a_finished_row_is_run_again_if_its_fusion_has_changed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write([Claim("q", "coffee", golds=("masks",))], data)
    fusion = tmp_path / "fusion.json"
    systems = tmp_path / "systems.yaml"
    systems.write_text(
        f"A: {{retrieve: {{bm25: {{}}}}, stages: [{{rerank: learned, file: {fusion}}}]}}\n"
    )
    words = ["--systems", str(systems), "--dataset", str(data), "--split", "train"]
    notes: list[str] = []
    for weight in (1.0, 2.0):
        LearnedFusion((LearnedView("words", ViewConfig(), "", weight, 1.0),), FITTED).write(fusion)
        evaluate([*words, "--out", str(tmp_path / "out"), "--store", str(tmp_path / "store")])
        (file,) = (tmp_path / "out").glob("A*/runs/1/en.trec")
        notes.append(file.read_text())
    assert notes[0] != notes[1]
