"""A source with a claim's own id is the claim itself: BEIR's rule, in every ranking path."""

from __future__ import annotations

from pathlib import Path

import ir_measures
import numpy as np
import pytest
from claim2source.eval.score import main as score

from claim2source.core.records import Claim, Dataset
from claim2source.core.run import Run
from claim2source.data.grouping import golds_by_text
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.data.trec import write_trec_run
from claim2source.evaluation.evaluate import evaluate
from claim2source.mining.candidates import Candidates
from claim2source.search.bm25 import BM25, BM25Index
from claim2source.search.faiss_index import VectorIndex
from claim2source.search.fuse import FusionConfig, Hybrid
from claim2source.search.saved import Saved
from tests.data.test_beir import make

# As ArguAna: every argument is a source, and its counter-argument is the gold.
WORDS = "taxes schools rivers trains music hospitals forests prisons bridges farms".split()


def arguana(folder: Path) -> Path:
    corpus, queries, judged = [], [], []
    for word in WORDS:
        pro, con = f"{word}-pro", f"{word}-con"
        text = f"{word}, please"
        corpus += [
            {"_id": pro, "title": "", "text": text},
            {"_id": con, "title": "", "text": f"{word} and {word} cost too much"},
        ]
        queries.append({"_id": pro, "text": text})
        judged.append(f"{pro}\t{con}\t1")
    # A coincidence: this claim's gold has its id, and stays.
    corpus.append({"_id": "same", "title": "", "text": "volcanoes erupt again"})
    queries.append({"_id": "same", "text": "volcanoes erupt"})
    judged.append("same\tsame\t1")
    return make(folder, corpus, queries, {"test": judged})


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return load(arguana(tmp_path / "arguana"), "test")


def assert_without(run: Run, k: int, filled: bool = True) -> None:
    for word in WORDS:
        ranked = run.sources(f"{word}-pro")
        assert f"{word}-pro" not in ranked
        assert len(ranked) == k or not filled
    assert run.sources("same")[:1] == ["same"]


def test_loading_says_how_many_and_changes_no_hash(data: Dataset) -> None:
    assert [claim.excluded for claim in data.claims] == [*((c.id,) for c in data.claims[:-1]), ()]
    (note,) = data.notes
    assert "10 of 11 claims" in note and "'taxes-pro'" in note
    dataset = Dataset(
        tuple(Claim(c.id, c.text, golds=c.golds) for c in data.claims),
        data.sources,
        data.qrels,
        "test",
    )
    assert dataset.fingerprint == data.fingerprint
    assert load("demo", "dev").notes == ()


@pytest.mark.parametrize("k", [1, 3, 20, 100])
def test_bm25_and_dense_rank_k_others(data: Dataset, k: int) -> None:
    filled = min(k, 20)
    sparse = BM25Index(data.sources, BM25(stop_words=False))
    run = sparse.search(data.claims, k).run
    assert_without(run, filled, filled=k <= 3)
    # What is left is what stood there before, in its order and with its scores.
    free = [Claim(c.id, c.text) for c in data.claims]
    before = sparse.search(free, k + 1).run
    for claim in data.claims:
        expected = [
            pair for pair in before.scored(claim.id).items() if pair[0] not in claim.excluded
        ]
        assert list(run.scored(claim.id).items()) == expected[:k]
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(len(data.sources), 8)).astype(np.float32)
    row_of = {source.id: row for row, source in enumerate(data.sources)}
    own = vectors[[row_of[claim.id] for claim in data.claims]]
    index = VectorIndex(list(row_of), vectors)
    found = index.rank(data.claims, own, k)
    assert_without(found, filled)
    deeper = index.rank(free, own, k + 1)
    for claim in data.claims:
        listed = [s for s in deeper.sources(claim.id) if s not in claim.excluded]
        assert found.sources(claim.id) == listed[:k]


def test_a_candidate_that_is_the_claim_is_not_ranked_either(data: Dataset) -> None:
    claim = data.claims[0]
    limited = Claim(
        claim.id, claim.text, candidates=(claim.id, "taxes-con"), excluded=claim.excluded
    )
    assert BM25Index(data.sources).rank([limited], 5).sources(claim.id) == ["taxes-con"]
    vectors = np.eye(len(data.sources), dtype=np.float32)
    index = VectorIndex([source.id for source in data.sources], vectors)
    assert index.rank([limited], vectors[:1], 5).sources(claim.id) == ["taxes-con"]


def test_the_store_keeps_both_apart(data: Dataset, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    index = BM25(store=store).index(data.sources)
    free = [Claim(c.id, c.text) for c in data.claims]
    assert index.search(free, 5).run.sources("taxes-pro")[0] == "taxes-pro"
    assert_without(index.search(data.claims, 5).run, 5, filled=False)


def test_a_fusion_never_sees_it(data: Dataset) -> None:
    for missing in ("lowest", "scored"):
        hybrid = Hybrid(BM25(), BM25(stemmer=False), FusionConfig(missing=missing))  # type: ignore[arg-type]
        assert_without(hybrid.index(data.sources).search(data.claims, 5).run, 5, filled=False)


def test_other_programs_runs_are_cut_and_scored_without_it(
    data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    free = [Claim(c.id, c.text) for c in data.claims]
    run = BM25Index(data.sources).rank(free, 10)
    assert run.sources("taxes-pro")[0] == "taxes-pro"
    path = tmp_path / "theirs.trec"
    write_trec_run(run, path)
    saved = Saved({"all": path}).index(data.sources)
    assert_without(saved.search(data.claims, 5).run, 5, filled=False)
    # BEIR removes pairs of equal ids and passes the rest to trec_eval.
    pairs = {
        c: {s: x for s, x in run.scored(c).items() if s != c or c == "same"} for c in run.claim_ids
    }
    grades = {c: dict(g) for c, g in data.qrels.grades.items()}
    expected = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], grades, pairs)[
        ir_measures.nDCG @ 10
    ]
    report = evaluate(run, data, ["ndcg@10"], repeats=0)
    assert report.macro["ndcg@10"] == pytest.approx(expected)
    assert any("10 claims rank a source of their own id" in note for note in report.notes)
    qrels = tmp_path / "arguana" / "qrels" / "test.tsv"
    score(["--qrels", str(qrels), "--run", str(path), "--metrics", "ndcg@10"])
    printed = capsys.readouterr().out
    assert f"{expected:.6f}" in printed and "10 claims rank a source of their own id" in printed
    # Ours has nothing to leave out, and the same score.
    own = BM25Index(data.sources).rank(data.claims, 10)
    ours = evaluate(own, data, ["ndcg@10"], repeats=0)
    assert ours.macro == report.macro and not any("own id" in note for note in ours.notes)


def test_no_claim_is_a_negative_of_itself(data: Dataset) -> None:
    vectors = np.eye(len(data.sources), dtype=np.float32)
    row_of = {source.id: row for row, source in enumerate(data.sources)}
    own = vectors[[row_of[claim.id] for claim in data.claims]]
    for alpha in (0.0, 0.5, 1.0):
        candidates = Candidates(data.sources, vectors, alpha, 20, BM25())
        for claims, window in candidates.windows(data.claims, own):
            for claim, row in zip(claims, window.positions, strict=True):
                listed = {candidates.sources.ids[position] for position in row if position >= 0}
                assert not listed & set(claim.excluded) and listed
    assert golds_by_text(data.claims)["taxes-pro"] == {"taxes-con", "taxes-pro"}
