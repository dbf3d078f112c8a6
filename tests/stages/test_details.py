"""Re-ranking by details: siblings change places by what a post names, and nothing else does."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import claim2source as c2s
from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.data.store import Store
from claim2source.stages import details
from claim2source.stages.details import Details, rank_by_details, read_claim, score_details
from claim2source.systems.read import read_stage, read_staged
from claim2source.systems.stages import apply_stage
from tests.refusals import refused

SIBLINGS = [
    Source("pupils", "Masks in primary schools", "A rate ratio of 3.7 in 312 Belgian schools."),
    Source("homes", "Masks in nursing homes", "In Swiss homes 37% fewer outbreaks, ratio 1.6."),
    Source("women", "Masks and women", "Of 318 women a third had outbreaks: 1,234 in 2020."),
    Source("none", "Masks", "They cut outbreaks."),
    Source("far", "Other", "3.7 times 37%"),
]
BEFORE = ["none", "women", "homes", "pupils"]
# Near siblings: their scores are almost one.
RUN = Run.from_lists({"0": list(zip([*BEFORE, "far"], [1.0, 0.99, 0.98, 0.97, 0.0], strict=True))})


@pytest.mark.parametrize(
    ("lang", "text", "gold"),
    [
        ("de", "Masken: 3,7-mal weniger Ausbrüche", "pupils"),
        ("en", "masks cut outbreaks 3.7x", "pupils"),
        ("fr", "Belges masqués, moins de foyers", "pupils"),
        ("fr", "trente-sept pour cent de moins", "homes"),
        ("de", "Masken in Schweizer Heimen", "homes"),
        ("en", "a third of them fell ill", "women"),
        ("de", "1.234 Ausbrüche", "women"),
        ("en", "masks: 36.8% fewer", "none"),
    ],
)
def test_a_sibling_with_the_post_s_detail_comes_first(lang: str, text: str, gold: str) -> None:
    by_id = {source.id: source for source in SIBLINGS}
    assert rank_by_details([Claim("0", text, lang)], by_id, RUN).sources("0")[0] == gold


def test_a_paper_s_exact_value_is_what_a_post_rounds() -> None:
    exact = [Source("a", "", "It fell by 36.8%."), Source("b", "", "It fell by 36.2%.")]
    own = read_claim(Claim("0", "It fell by 37 %"))
    scores = score_details(own, exact)
    assert scores[0] > 0 == scores[1]
    own = read_claim(Claim("0", "3,7-mal so oft, 73 % weniger", "de"))
    ratios = [Source("a", "", "A rate ratio of 0.27."), Source("b", "", "a ratio of 0.37")]
    assert score_details(own, ratios)[0] > 0 == score_details(own, ratios)[1]
    own = read_claim(Claim("0", "dreimal so oft", "de"))
    assert score_details(own, [Source("a", "", "A ratio of 2.96."), Source("b", "", "ratio 3.7")])[
        0
    ]
    # What is rounded is the paper's value, not the post's.
    own = read_claim(Claim("0", "It fell by 36.8 %"))
    assert not score_details(own, [Source("a", "", "It fell by 37%.")]).any()


def test_what_few_papers_share_counts_more_and_what_all_share_nothing() -> None:
    papers = [
        Source(str(i), "", "of 95 men" + " 5.8%" * (i < 3) + " 41%" * (i == 9)) for i in range(10)
    ]
    rare = score_details(read_claim(Claim("0", "41 %")), papers)
    common = score_details(read_claim(Claim("0", "5.8 %")), papers)
    assert rare[9] > common[0] > 0
    assert not score_details(read_claim(Claim("0", "95 men")), papers).any()


@settings(max_examples=40, deadline=None)
@given(
    st.text("abcdefg äé.,!?", max_size=60),
    st.integers(1, 5),
    st.lists(st.floats(0, 100, width=32), min_size=5, max_size=5, unique=True),
)
def test_a_post_without_details_keeps_its_scores(
    text: str, depth: int, scores: list[float]
) -> None:
    ids = [*BEFORE, "far"]
    run = Run.from_lists({"0": list(zip(ids, sorted(scores, reverse=True), strict=True))})
    by_id = {source.id: source for source in SIBLINGS}
    claim = Claim("0", text, "de")
    if not any(read_claim(claim)):
        assert rank_by_details([claim], by_id, run, depth).scored("0") == run.scored("0")


@settings(max_examples=40, deadline=None)
@given(st.permutations(BEFORE), st.integers(1, 5), st.sampled_from(["3.7x", "37 %", "Schweiz"]))
def test_what_is_beyond_the_depth_stays(order: list[str], depth: int, text: str) -> None:
    before = [*order, "far"]
    run = Run.from_lists({"0": [(key, 5.0 - rank) for rank, key in enumerate(before)]})
    by_id = {source.id: source for source in SIBLINGS}
    after = rank_by_details([Claim("0", text, "de")], by_id, run, depth).sources("0")
    assert sorted(after[:depth]) == sorted(before[:depth])
    assert after[depth:] == before[depth:]


def test_a_translation_is_read_for_languages_that_are_not() -> None:
    translation = "in Switzerland thirty-seven percent"
    spanish = read_claim(Claim("0", "en Suiza treinta y siete por ciento", "es", translation))
    assert spanish.places == {"ch"} and (37.0, "percent") in spanish.quantities
    german = read_claim(Claim("0", "Masken helfen", "de", translation))
    assert not any(german)


def test_the_stage_stands_in_a_systems_file(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("retrieve: {bm25: {}}\nstages:\n  - {rerank: details, depth: 3}\n")
    (stage,) = read_staged(file).stages
    assert stage.stage == Details(depth=3)
    claim = Claim("0", "masks cut outbreaks 3.7x")
    before = Result(RUN)
    store = Store(tmp_path / "store")
    result = apply_stage(Details(), [claim], SIBLINGS, before, store)
    assert result.sources("0")[0] == "pupils" and not result.stored
    assert apply_stage(Details(), [claim], SIBLINGS, before, store).stored
    with refused(ConfigError, "depth"):
        read_stage({"rerank": "details", "depth": 0})


def test_a_paper_is_read_once_and_a_post_costs_little() -> None:
    data = c2s.load("demo", "dev")
    claims = data.claims[:10]
    run = c2s.BM25().index(data.sources).search(claims).run
    by_id = {source.id: source for source in data.sources}
    details._source_quantities.cache_clear()
    details._source_subjects.cache_clear()

    def seconds() -> float:
        start = time.process_time()
        rank_by_details(claims, by_id, run)
        return time.process_time() - start

    first = seconds()
    again = min(seconds() for _ in range(3))
    assert again < first / 2
    misses = details._source_quantities.cache_info().misses
    assert 0 < misses <= len(data.sources)


def test_numbers_lead_to_the_papers_of_the_demo_s_posts() -> None:
    data = c2s.load("demo", "train")
    claims = data.claims[:100]
    run = c2s.BM25().index(data.sources).search(claims).run
    by_id = {source.id: source for source in data.sources}
    after = rank_by_details(claims, by_id, run)

    def first_share(run: Run) -> float:
        return float(np.mean([run.sources(c.id, 1) == list(c.golds) for c in claims]))

    assert first_share(after) > first_share(run) + 0.01
