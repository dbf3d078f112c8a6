"""Neighbours: what similar claims of the run rank high rises, and a claim alone keeps its list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import claim2source as c2s
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim
from claim2source.core.run import Result, Run
from claim2source.data.beir import write_beir
from claim2source.data.known_posts import KnownPosts
from claim2source.data.store import Store
from claim2source.stages.neighbours import NEIGHBOURS, Neighbours, similarities
from claim2source.systems.heldout import SelectionData
from claim2source.systems.read import read_stage
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import apply_stage, fit_stages
from tests.refusals import refused

CLEAR = Claim("clear", "masks in schools cut outbreaks by a third", golds=("masks",))
VAGUE = Claim("vague", "masks in schools, who knew", golds=("masks",))
OTHER = Claim("other", "coffee drinkers live longer", golds=("coffee",))
# The clear claim's paper is far ahead, the vague one's papers are almost equal.
LISTS = {
    "clear": [("masks", 9.0), ("sleep", 1.0), ("coffee", 0.9), ("tea", 0.8)],
    "vague": [("sleep", 1.1), ("masks", 1.0), ("tea", 0.2), ("coffee", 0.1)],
    "other": [("tea", 1.1), ("coffee", 1.0), ("sleep", 0.2), ("masks", 0.1)],
}
RUN = Run.from_lists(LISTS)
ALL = [CLEAR, VAGUE, OTHER]


def ranked(stage: Neighbours, claims: list[Claim], run: Run = RUN) -> Mapping[str, list[str]]:
    after = stage.apply(claims, [], run).run
    return {claim.id: after.sources(claim.id) for claim in claims}


def test_a_similar_claim_s_first_paper_rises() -> None:
    after = ranked(Neighbours(), ALL)
    assert after["vague"] == ["masks", "sleep", "tea", "coffee"]
    assert after["clear"][0] == "masks"
    # No claim has words in common with this one.
    assert after["other"] == [source for source, _ in LISTS["other"]]


def test_a_claim_alone_keeps_its_ranking() -> None:
    alone = Neighbours().apply([VAGUE], [], RUN)
    scores = alone.run.scored("vague")
    assert list(scores) == [source for source, _ in LISTS["vague"]]
    # Like all others, its scores are probabilities: they compare with those of other claims.
    assert sum(scores.values()) == pytest.approx(1.0)
    assert alone.notes == {"vague": "similar claims: 0"}
    assert not list(Neighbours().apply([], [], Run.from_lists({})).run)


def test_the_weight_and_the_depth() -> None:
    before = [source for source, _ in LISTS["vague"]]
    assert ranked(Neighbours(weight=0), ALL)["vague"] == before
    assert ranked(Neighbours(weight=0.01), ALL)["vague"] == before
    assert ranked(Neighbours(depth=1), ALL)["vague"] == before
    # Only the first two are scored; the others keep their order below.
    lists = {**LISTS, "clear": LISTS["clear"][::-1]}
    lists["clear"] = [(source, 4.0 - rank) for rank, (source, _) in enumerate(lists["clear"])]
    two = ranked(Neighbours(depth=2, weight=9), ALL, Run.from_lists(lists))
    assert two["vague"] == before


def test_no_gold_is_read_and_no_paper_enters_a_list() -> None:
    swapped = [replace(claim, golds=("tea",)) for claim in ALL]
    assert ranked(Neighbours(), swapped) == ranked(Neighbours(), ALL)

    lists = {**LISTS, "vague": [("sleep", 1.1), ("tea", 0.2)]}
    after = ranked(Neighbours(weight=100), ALL, Run.from_lists(lists))
    assert after["vague"] == ["sleep", "tea"]
    pools = {claim.id: frozenset({"sleep", "masks", "tea", "coffee"}) for claim in ALL}
    pooled = Run.from_lists(LISTS, pool=pools)
    assert Neighbours().apply(ALL, [], pooled).run.pool == pools

    # A claim without a list votes for nothing, and gets none.
    lists = {**LISTS, "clear": []}
    after = ranked(Neighbours(weight=100), ALL, Run.from_lists(lists))
    assert after["clear"] == []
    assert after["vague"] == [source for source, _ in LISTS["vague"]]


def test_a_clearer_neighbour_counts_more_and_a_nearer_one_too() -> None:
    near = Claim("near", "masks in schools cut outbreaks")
    far = Claim("far", "schools open on Monday, and the weather is fine in all of the country")
    claims = [replace(VAGUE, text="masks in schools cut outbreaks, who knew"), near, far]
    for votes, first in ((("masks", "tea"), "masks"), (("tea", "masks"), "tea")):
        lists = {
            "vague": [("sleep", 1.02), ("masks", 1.0), ("tea", 1.0), ("coffee", 0.0)],
            "near": [(votes[0], 2.0), ("sleep", 0.0), (votes[1], 0.0), ("coffee", 0.0)],
            "far": [(votes[1], 2.0), ("sleep", 0.0), (votes[0], 0.0), ("coffee", 0.0)],
        }
        assert ranked(Neighbours(), claims, Run.from_lists(lists))["vague"][0] == first


def test_similarities_are_scores_of_the_posted_texts() -> None:
    copies = [replace(VAGUE, id=str(i)) for i in range(NEIGHBOURS + 9)]
    full = similarities(copies).toarray()
    assert (np.count_nonzero(full, axis=1) == NEIGHBOURS).all()
    assert not full.diagonal().any()

    # The words of its language's own stop list are not compared.
    articles = [Claim("a", "die und der", "de"), Claim("b", "die und der", "de")]
    assert not similarities(articles).toarray().any()

    few = similarities([*ALL, Claim("empty", "")]).toarray()
    assert few[0, 1] > 0 and few[1, 0] > 0
    assert not few[2].any() and not few[3].any()
    # A translation is not part of the text as posted, neither of a claim nor of a known post.
    german = Claim("de", "Kaffee", "de", translation="masks in schools cut outbreaks")
    assert not similarities([CLEAR, german]).toarray().any()
    assert not similarities([CLEAR], [german]).toarray().any()
    assert not similarities([german], [CLEAR]).toarray().any()
    # What may be ranked for a claim does not matter.
    kept = [replace(claim, candidates=("tea",), excluded=("1",)) for claim in ALL]
    assert (similarities(kept).toarray() == similarities(ALL).toarray()).all()


def known_posts(folder: Path, posts: Mapping[str, tuple[str, str]]) -> KnownPosts:
    """Write posts, id -> text and paper, as a data set."""
    papers = [{"id": paper, "title": paper, "abstract": ""} for paper, _ in LISTS["vague"]]
    rows = [{"id": post, "text": text} for post, (text, _) in posts.items()]
    pairs = [{"claim": post, "source": paper} for post, (_, paper) in posts.items()]
    write_beir(c2s.Dataset.from_frames(papers, rows, pairs, split="train"), folder, overwrite=True)
    return KnownPosts(str(folder))


def test_known_posts_vote_for_their_papers(tmp_path: Path) -> None:
    texts = {"1": ("coffee is good, drinkers say", "coffee"), "2": ("tea", "tea")}
    posts = known_posts(tmp_path / "a", texts)
    result = Neighbours(posts=posts).apply(ALL, [], RUN)
    assert result.run.sources("other") == ["coffee", "tea", "sleep", "masks"]
    assert result.notes["other"] == "similar claims: 0, known posts: 1"
    assert result.notes["vague"] == "similar claims: 1, known posts: 0"
    assert {claim for claim, _, _ in result.run} == set(LISTS)

    # A copy of a ranked claim, by its id or by its text, does not vote for its gold.
    for number, copy in enumerate([{"other": texts["1"]}, {"3": (OTHER.text, "coffee")}]):
        posts = known_posts(tmp_path / str(number), {**copy, "2": texts["2"]})
        assert ranked(Neighbours(posts=posts, weight=9), ALL)["other"][0] == "tea"

    # A paper that is not in a claim's list does not enter it.
    lists = {**LISTS, "other": [("tea", 1.0), ("sleep", 0.0)]}
    posts = known_posts(tmp_path / "b", texts)
    after = ranked(Neighbours(posts=posts, weight=9), ALL, Run.from_lists(lists))
    assert after["other"] == ["tea", "sleep"]


def test_other_known_posts_are_another_result(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    firsts: list[str] = []
    contents: set[str | None] = {Neighbours().read_content}
    for paper in ("coffee", "sleep"):
        posts = known_posts(tmp_path / "data", {"1": ("coffee is good, drinkers say", paper)})
        stage = Neighbours(posts=posts)
        contents.add(stage.read_content)
        firsts += apply_stage(stage, ALL, [], Result(RUN), store).run.sources("other", 1)
    assert firsts == ["coffee", "sleep"]
    assert len(contents) == 3

    entry = {"rerank": "neighbours", "posts": {"dataset": str(tmp_path / "data")}}
    assert read_stage(entry).stage == Neighbours(posts=KnownPosts(str(tmp_path / "data")))
    with refused(UserError, tmp_path / "data", "dev"):
        Neighbours(posts=KnownPosts(str(tmp_path / "data"), "dev")).apply(ALL, [], RUN)


WORDS = st.lists(st.sampled_from(["mask", "school", "coffee", "sleep", "tea"]), max_size=4)
SCORES = st.lists(st.floats(-5, 5, width=32), max_size=4)
GOLDS = st.lists(st.sampled_from(["s0", "s1", "s2"]), min_size=1, max_size=2, unique=True)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(WORDS, SCORES), min_size=1, max_size=5),
    st.lists(st.tuples(WORDS, GOLDS), max_size=3),
    st.floats(0, 4),
    st.integers(1, 4),
)
def test_scores_are_own_probabilities_plus_the_weighted_mean_of_the_votes(
    drawn: list[tuple[list[str], list[float]]],
    known: list[tuple[list[str], list[str]]],
    weight: float,
    depth: int,
) -> None:
    claims = [Claim(str(i), " ".join(words)) for i, (words, _) in enumerate(drawn)]
    lists: dict[str, list[tuple[str, float]]] = {}
    for i, (_, scores) in enumerate(drawn):
        ordered = sorted(scores, reverse=True)
        lists[str(i)] = [(f"s{(i + rank) % 5}", score) for rank, score in enumerate(ordered)]
    run = Run.from_lists(lists)
    posts: KnownPosts | None = None
    voters: list[Claim] = []
    if known:
        posts = KnownPosts("unread")
        # The last word keeps a post from being a copy of a claim.
        texts = [" ".join([*words, "posted"]) for words, _ in known]
        golds = [tuple(golds) for _, golds in known]
        voters = [
            Claim(f"k{i}", text, golds=own)
            for i, (text, own) in enumerate(zip(texts, golds, strict=True))
        ]
        posts.__dict__["posts"] = voters
    stage = Neighbours(weight=weight, depth=depth, posts=posts)
    after = stage.apply(claims, [], run).run

    similar = similarities(claims, voters).toarray()
    votes: list[dict[str, float]] = []
    for claim in claims:
        first = dict(list(run.scored(claim.id).items())[:depth])
        values = np.array(list(first.values()), np.float64)
        spread = values.std() if len(values) else 0
        powers = np.exp((values - values.mean()) / spread if spread > 0 else 0 * values)
        votes.append(dict(zip(first, powers / powers.sum(), strict=True)))
    for post in voters:
        votes.append({gold: 1 / len(post.golds) for gold in post.golds})
    for row, claim in enumerate(claims):
        assert sorted(after.sources(claim.id)) == sorted(run.sources(claim.id))
        shares = similar[row] ** 2 / max((similar[row] ** 2).sum(), 1e-9)
        expected: dict[str, float] = {}
        for source, probability in votes[row].items():
            voted = [vote.get(source, 0.0) for vote in votes]
            expected[source] = probability + weight * float(shares @ voted)
        scored = after.scored(claim.id)
        assert {s: scored[s] for s in expected} == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert set(after.sources(claim.id, len(expected))) == set(expected)


def test_only_the_nearest_known_posts_vote(tmp_path: Path) -> None:
    # Thirty posts that are nearer than the others, which all are of another paper.
    near = {f"n{i}": ("coffee drinkers live longer, they say", "coffee") for i in range(NEIGHBOURS)}
    far = {f"f{i}": (f"coffee is brown number{i}", "tea") for i in range(60)}
    posts = known_posts(tmp_path, {**far, **near})
    result = Neighbours(posts=posts, weight=100).apply([OTHER], [], RUN)
    assert result.notes["other"] == f"similar claims: 0, known posts: {NEIGHBOURS}"
    scores = result.run.scored("other")
    assert scores["coffee"] > 100 and scores["tea"] < 1


def test_known_posts_that_cannot_vote(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = known_posts(tmp_path / "own", {"7": (OTHER.text, "coffee")})
    with refused(UserError, "posts", tmp_path / "own"):
        Neighbours(posts=own).apply(ALL, [], RUN)
    # Their papers are in no list: the ids of a mixed data set have its name in front.
    other = known_posts(tmp_path / "other", {"7": ("coffee is good", "coffee")})
    lists = {claim: [(f"ct25/{paper}", score) for paper, score in LISTS[claim]] for claim in LISTS}
    assert not caplog.records
    Neighbours(posts=other).apply(ALL, [], Run.from_lists(lists))
    (record,) = caplog.records
    assert "neighbours.posts" in record.getMessage()


def test_an_infinite_score_is_the_highest() -> None:
    lists = {**LISTS, "vague": [("sleep", np.inf), ("masks", 1.0), ("tea", 0.2), ("coffee", 0.1)]}
    after = ranked(Neighbours(weight=0), ALL, Run.from_lists(lists))
    assert after["vague"] == ["sleep", "masks", "tea", "coffee"]


def test_it_ranks_whole_sets(tmp_path: Path) -> None:
    # The claims that `when` selects would be no set.
    with refused(ConfigError, "when"):
        read_stage({"rerank": "neighbours", "when": {"margin_below": 0.2}})
    # A report names the known posts.
    posts = known_posts(tmp_path / "data", {"1": ("coffee is good", "coffee")})
    stated = apply_stage(Neighbours(posts=posts), ALL, [], Result(RUN)).settings
    assert stated["posts"] == {"dataset": str(tmp_path / "data"), "split": "train"}


def test_a_stored_result_is_of_these_claims_together(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def apply(claims: list[Claim]) -> Result:
        return apply_stage(Neighbours(), claims, [], Result(RUN), store)

    together = apply(ALL)
    assert together.run.sources("vague")[0] == "masks"
    # The neighbour's text alone has changed: it is no neighbour now.
    changed = [replace(CLEAR, text="wolves"), VAGUE, OTHER]
    assert apply(changed).run.sources("vague")[0] == "sleep"
    assert list(apply(ALL).run) == list(together.run)


@pytest.mark.parametrize("helps", [True, False])
def test_the_weight_is_chosen_on_val(helps: bool) -> None:
    golds = ("masks", "masks", "coffee") if helps else ("masks", "sleep", "tea")
    claims = [replace(claim, golds=(gold,)) for claim, gold in zip(ALL, golds, strict=True)]
    qrels = c2s.Qrels({claim.id: {claim.golds[0]: 1} for claim in claims})
    papers = [c2s.Source(paper, paper) for paper in ("masks", "sleep", "coffee", "tea")]
    val = c2s.Dataset(tuple(claims), tuple(papers), qrels, "v")
    selection = SelectionData(val, val, "", frozenset(), 0.0)
    entry = {"rerank": "neighbours", "weight": "fit"}
    before = [("retrieve", Result(RUN))]
    stages, (choice,) = fit_stages(
        [read_stage(entry)], before, val, selection, SystemRuntime(), "best"
    )
    weight = choice.settings["weight"]
    assert (weight > 0) == helps
    assert stages[0].stage.weight == weight  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("key", "value"),
    [("depth", 0), ("depth", 2001), ("weight", -1), ("weight", "x"), ("neighbours", 5)],
)
def test_settings_are_checked(key: str, value: object) -> None:
    with refused(ConfigError, key):
        read_stage({"rerank": "neighbours", key: value})
