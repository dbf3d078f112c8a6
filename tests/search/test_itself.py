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


def source_record(name: str, text: str) -> dict[str, str]:
    """Write a source without a title."""
    return {
        "_id": name,
        "title": "",
        "text": text,
    }


def arguana(folder: Path) -> Path:
    corpus = []
    queries = []
    judged = []
    for word in WORDS:
        pro = f"{word}-pro"
        con = f"{word}-con"
        text = f"{word}, please"
        counter = f"{word} and {word} cost too much"
        corpus.append(source_record(pro, text))
        corpus.append(source_record(con, counter))
        queries.append({"_id": pro, "text": text})
        judged.append(f"{pro}\t{con}\t1")
    # A coincidence: this claim's gold has its id, and stays.
    corpus.append(source_record("same", "volcanoes erupt again"))
    queries.append({"_id": "same", "text": "volcanoes erupt"})
    judged.append("same\tsame\t1")
    return make(folder, corpus, queries, {"test": judged})


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    folder = arguana(tmp_path / "arguana")
    return load(folder, "test")


def without_exclusions(data: Dataset) -> list[Claim]:
    """Give the claims as they are without the rule."""
    return [Claim(claim.id, claim.text) for claim in data.claims]


def assert_without(
    run: Run,
    k: int,
    filled: bool = True,
) -> None:
    for word in WORDS:
        itself = f"{word}-pro"
        ranked = run.sources(itself)
        assert itself not in ranked
        assert len(ranked) == k or not filled
    first = run.sources("same")[:1]
    assert first == ["same"]


def test_loading_says_how_many_and_changes_no_hash(data: Dataset) -> None:
    excluded = [claim.excluded for claim in data.claims]
    own_ids = [(claim.id,) for claim in data.claims[:-1]]
    assert excluded == [*own_ids, ()]
    (note,) = data.notes
    assert "10 of 11 claims" in note
    assert "'taxes-pro'" in note

    claims = []
    for claim in data.claims:
        claims.append(Claim(claim.id, claim.text, golds=claim.golds))
    dataset = Dataset(
        tuple(claims),
        data.sources,
        data.qrels,
        "test",
    )
    assert dataset.fingerprint == data.fingerprint
    demo = load("demo", "dev")
    assert demo.notes == ()


@pytest.mark.parametrize("k", [1, 3, 20, 100])
def test_bm25_and_dense_rank_k_others(data: Dataset, k: int) -> None:
    filled = min(k, 20)
    config = BM25(stop_words=False)
    sparse = BM25Index(data.sources, config)
    run = sparse.search(data.claims, k).run
    assert_without(run, filled, filled=k <= 3)

    # What is left is what stood there before, in its order and with its scores.
    free = without_exclusions(data)
    before = sparse.search(free, k + 1).run
    for claim in data.claims:
        pairs = before.scored(claim.id).items()
        expected = [pair for pair in pairs if pair[0] not in claim.excluded]
        scored = run.scored(claim.id)
        assert list(scored.items()) == expected[:k]

    draw = np.random.default_rng(0)
    shape = (len(data.sources), 8)
    vectors = draw.normal(size=shape).astype(np.float32)
    row_of = {source.id: row for row, source in enumerate(data.sources)}
    rows = [row_of[claim.id] for claim in data.claims]
    own = vectors[rows]
    index = VectorIndex(list(row_of), vectors)
    found = index.rank(data.claims, own, k)
    assert_without(found, filled)
    deeper = index.rank(free, own, k + 1)
    for claim in data.claims:
        ranked = deeper.sources(claim.id)
        listed = [source for source in ranked if source not in claim.excluded]
        assert found.sources(claim.id) == listed[:k]


def test_a_candidate_that_is_the_claim_is_not_ranked_either(data: Dataset) -> None:
    claim = data.claims[0]
    limited = Claim(
        claim.id,
        claim.text,
        candidates=(claim.id, "taxes-con"),
        excluded=claim.excluded,
    )
    sparse = BM25Index(data.sources)
    by_words = sparse.rank([limited], 5)
    assert by_words.sources(claim.id) == ["taxes-con"]

    vectors = np.eye(len(data.sources), dtype=np.float32)
    ids = [source.id for source in data.sources]
    index = VectorIndex(ids, vectors)
    by_vector = index.rank([limited], vectors[:1], 5)
    assert by_vector.sources(claim.id) == ["taxes-con"]


def test_the_store_keeps_both_apart(data: Dataset, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    index = BM25(store=store).index(data.sources)
    free = without_exclusions(data)
    with_itself = index.search(free, 5).run
    assert with_itself.sources("taxes-pro")[0] == "taxes-pro"
    run = index.search(data.claims, 5).run
    assert_without(run, 5, filled=False)


def test_a_fusion_never_sees_it(data: Dataset) -> None:
    for missing in ("lowest", "scored"):
        config = FusionConfig(missing=missing)  # type: ignore[arg-type]
        hybrid = Hybrid(BM25(), BM25(stemmer=False), config)
        index = hybrid.index(data.sources)
        run = index.search(data.claims, 5).run
        assert_without(run, 5, filled=False)


def test_other_programs_runs_are_cut_and_scored_without_it(
    data: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    free = without_exclusions(data)
    run = BM25Index(data.sources).rank(free, 10)
    assert run.sources("taxes-pro")[0] == "taxes-pro"
    path = tmp_path / "theirs.trec"
    write_trec_run(run, path)
    saved = Saved({"all": path}).index(data.sources)
    cut = saved.search(data.claims, 5).run
    assert_without(cut, 5, filled=False)

    # BEIR removes pairs of equal ids and passes the rest to trec_eval.
    pairs: dict[str, dict[str, float]] = {}
    for claim in run.claim_ids:
        kept = {}
        scored = run.scored(claim)
        for source, points in scored.items():
            if source != claim or claim == "same":
                kept[source] = points
        pairs[claim] = kept
    grades = {claim: dict(golds) for claim, golds in data.qrels.grades.items()}
    ndcg = ir_measures.nDCG @ 10
    aggregate = ir_measures.calc_aggregate([ndcg], grades, pairs)
    expected = aggregate[ndcg]
    report = evaluate(run, data, ["ndcg@10"], repeats=0)
    assert report.macro["ndcg@10"] == pytest.approx(expected)
    own_id = "10 claims rank a source of their own id"
    assert any(own_id in note for note in report.notes)

    qrels = tmp_path / "arguana" / "qrels" / "test.tsv"
    arguments = [
        "--qrels",
        str(qrels),
        "--run",
        str(path),
        "--metrics",
        "ndcg@10",
    ]
    score(arguments)
    printed = capsys.readouterr().out
    assert f"{expected:.6f}" in printed
    assert own_id in printed

    # Ours has nothing to leave out, and the same score.
    own = BM25Index(data.sources).rank(data.claims, 10)
    ours = evaluate(own, data, ["ndcg@10"], repeats=0)
    assert ours.macro == report.macro
    assert not any("own id" in note for note in ours.notes)


def test_no_claim_is_a_negative_of_itself(data: Dataset) -> None:
    vectors = np.eye(len(data.sources), dtype=np.float32)
    row_of = {source.id: row for row, source in enumerate(data.sources)}
    rows = [row_of[claim.id] for claim in data.claims]
    own = vectors[rows]
    for alpha in (0.0, 0.5, 1.0):
        candidates = Candidates(
            data.sources,
            vectors,
            alpha,
            20,
            BM25(),
        )
        ids = candidates.sources.ids
        for claims, window in candidates.windows(data.claims, own):
            for claim, row in zip(claims, window.positions, strict=True):
                listed = {ids[position] for position in row if position >= 0}
                assert not listed & set(claim.excluded)
                assert listed
    same_text = golds_by_text(data.claims)
    assert same_text["taxes-pro"] == {"taxes-con", "taxes-pro"}
