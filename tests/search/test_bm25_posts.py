"""Known posts in BM25: each is indexed with its paper, and never helps itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run
from claim2source.data.beir import write_beir
from claim2source.data.known_posts import KnownPosts
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.search.bm25 import BM25, BM25Index
from claim2source.search.manifest import check_bm25
from claim2source.stages.similarities import Scorer, ViewConfig
from tests.refusals import refused

PAPERS = [
    Source("masks", "Masks", "a trial in schools"),
    Source("sleep", "Sleep", "a study of memory"),
    Source("coffee", "Coffee", "a cohort study"),
    Source("none", "Nothing", "a study without posts"),
]
POSTS = [
    Claim("m1", "pupils with face coverings fall ill less", golds=("masks",)),
    Claim("m2", "outbreaks are rarer among covered pupils", golds=("masks",)),
    Claim("s1", "short nights make you forgetful", golds=("sleep",)),
    Claim("s2", "five hours in bed, forgetful next day @anna", golds=("sleep",)),
    Claim("c1", "espresso drinkers live longer", golds=("coffee",)),
    Claim("c2", "kaffee hält jung", "de", "espresso keeps you young", ("coffee", "sleep")),
]
NEW = Claim("new", "do pupils with espresso forget covered outbreaks?")


def write(posts: Sequence[Claim], folder: Path) -> None:
    golds = Qrels({post.id: dict.fromkeys(post.golds, 1) for post in posts})
    write_beir(Dataset(tuple(posts), tuple(PAPERS), golds, "train"), folder)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> KnownPosts:
    folder = tmp_path_factory.mktemp("known") / "data"
    write(POSTS, folder)
    return KnownPosts(str(folder))


Scores = dict[str, dict[str, float]]


def scored(run: Run, claims: Sequence[Claim]) -> Scores:
    return {claim.id: dict(run.scored(claim.id)) for claim in claims}


def ranked(config: BM25, *claims: Claim) -> Scores:
    run = BM25Index(PAPERS, config).search(claims, 10).run
    return scored(run, claims)


def expanded(texts: dict[str, Sequence[str]]) -> list[Source]:
    """Append texts to the papers by hand."""
    sources: list[Source] = []
    for paper in PAPERS:
        abstract = " ".join([paper.abstract, *texts.get(paper.id, ())])
        sources.append(replace(paper, abstract=abstract))
    return sources


def by_hand(
    config: BM25,
    without: Sequence[str],
    *claims: Claim,
) -> Scores:
    """Rank papers whose abstracts end with the original texts of their posts."""
    texts: dict[str, list[str]] = {}
    for post in POSTS:
        for gold in post.golds:
            if post.id not in without:
                texts.setdefault(gold, []).append(post.text)
    plain = replace(config, posts=None)
    run = BM25Index(expanded(texts), plain).search(claims, 10).run
    return scored(run, claims)


@pytest.mark.parametrize(
    "config",
    [
        BM25(),
        BM25(k1=0.6, b=0.3, title_weight=3),
        BM25(stemmer=False, stop_words=False),
        BM25("whitespace"),
    ],
)
def test_posts_are_text_of_their_papers(known: KnownPosts, config: BM25) -> None:
    with_posts = replace(config, posts=known)
    assert ranked(with_posts, NEW) == by_hand(config, (), NEW)
    assert ranked(with_posts, NEW) != ranked(config, NEW)


def test_a_claim_never_helps_itself(known: KnownPosts) -> None:
    config = BM25(posts=known)
    first = replace(POSTS[0], golds=())
    assert ranked(config, first) == by_hand(config, ["m1"], first)
    # A copy has another id, an edited post another text.
    copy = replace(first, id="copy", text=first.text.upper() + " ")
    assert ranked(config, copy) == by_hand(config, ["m1"], copy)
    edited = replace(first, text=first.text + " today")
    assert ranked(config, edited) == by_hand(config, ["m1"], edited)
    # Claims that are ranked together do not help each other, as no other stage has them do.
    together = ranked(config, first, POSTS[2], NEW)
    assert together == by_hand(config, ["m1", "s1"], first, POSTS[2], NEW)
    # The same index afterwards knows all posts again, and others without them.
    index = BM25Index(PAPERS, config)
    for claims, without in (([first], ["m1"]), ([NEW], []), ([POSTS[2]], ["s1"])):
        run = index.search(claims, 10).run
        assert scored(run, claims) == by_hand(config, without, *claims)
        other = replace(config, k1=0.4, b=0.1)
        run = index.reweighted(0.4, 0.1).search(claims, 10).run
        assert scored(run, claims) == by_hand(other, without, *claims)


def test_nothing_is_chosen_on_posts_that_are_indexed(known: KnownPosts) -> None:
    """BM25 is chosen on claims of train as if none of them were known."""
    train = load(known.dataset, "train")
    grid = (("k1", (0.3, 1.2, 3.0)), ("b", (0.0, 1.0)))
    plain, without = BM25().fit(train, grid, "best")
    chosen, choice = BM25(posts=known).fit(train, grid, "best")
    assert replace(chosen, posts=None) == plain
    assert choice.tried == without.tried


def test_posts_have_the_form_of_claims(known: KnownPosts) -> None:
    young = Claim("young", "young")
    german = Claim("jung", "jung", "de")
    tag = Claim("tag", "@anna")
    original = BM25(posts=known)
    translated = BM25(posts=known, claims="translated")
    assert not ranked(original, young)["young"]
    assert set(ranked(translated, young)["young"]) == {"coffee", "sleep"}
    assert set(ranked(original, german)["jung"]) == {"coffee", "sleep"}
    assert not ranked(translated, german)["jung"]
    assert ranked(original, tag)["tag"].keys() == {"sleep"}
    cleaned = BM25Index(PAPERS, BM25(posts=known, clean=True))
    named = Claim("named", "anna")
    assert not cleaned.search([named]).run.sources("named")


def test_stored_runs_depend_on_the_posts(known: KnownPosts, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")

    def search(config: BM25) -> Scores:
        run = replace(config, store=store).index(PAPERS).search([NEW]).run
        return scored(run, [NEW])

    plain = search(BM25())
    assert search(BM25(posts=known)) != plain
    assert search(BM25()) == plain
    one = tmp_path / "one"
    write(POSTS[:1], one)
    fewer = search(BM25(posts=KnownPosts(str(one))))
    assert fewer != search(BM25(posts=known))
    # The folder's name is not one of the things that they depend on.
    before = sorted(path for path in store.root.rglob("*") if path.is_file())
    moved = tmp_path / "moved"
    one.rename(moved)
    assert search(BM25(posts=KnownPosts(str(moved)))) == fewer
    assert sorted(path for path in store.root.rglob("*") if path.is_file()) == before


def test_posts_with_other_ids_are_another_stored_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    claim = Claim("m1", "covered pupils")
    found: list[Scores] = []
    for name in ("m1", "z1"):
        folder = tmp_path / name
        write([replace(POSTS[0], id=name), *POSTS[1:]], folder)
        config = BM25(posts=KnownPosts(str(folder)), store=store)
        run = config.index(PAPERS).search([claim]).run
        found.append(scored(run, [claim]))
    assert found[0] != found[1]


def test_posts_on_other_papers_change_nothing(
    known: KnownPosts, caplog: pytest.LogCaptureFixture
) -> None:
    others = [replace(paper, id=f"other-{paper.id}") for paper in PAPERS]
    run = BM25(posts=known).index(others).search([NEW]).run
    without = BM25().index(others).search([NEW]).run
    assert scored(run, [NEW]) == scored(without, [NEW])
    (warning,) = caplog.messages
    assert "bm25.posts" in warning


def view_scores(
    known: KnownPosts | None,
    claims: Sequence[Claim],
    hidden: Sequence[Claim] = (),
    pool: Sequence[Source] = PAPERS,
) -> list[list[float]]:
    view = ViewConfig(bm25=BM25(posts=known), claims="original")
    candidates = [[paper.id for paper in PAPERS]] * len(claims)
    scores = Scorer(pool).scores(view, claims, candidates, hidden=hidden)
    return [values.tolist() for values in scores]


def test_in_a_view_known_posts_keep_the_others_of_their_paper(known: KnownPosts) -> None:
    """Each of these six posts is in a fold of its own."""

    def expected(claim: Claim, *without: str) -> list[float]:
        texts: dict[str, list[str]] = {}
        for post in POSTS:
            for gold in post.golds:
                if post.id not in without:
                    texts.setdefault(gold, []).append(post.text)
        (values,) = view_scores(None, [claim], pool=expanded(texts))
        return values

    claims = [NEW, *POSTS]
    found = view_scores(known, claims)
    assert found[0] == expected(NEW)
    for post, values in zip(POSTS, found[1:], strict=True):
        assert values == expected(post, post.id)
    # The order of the claims changes nothing.
    assert view_scores(known, claims[::-1]) == found[::-1]
    # Hidden claims help none.
    (values,) = view_scores(known, [POSTS[0]], hidden=[POSTS[1]])
    assert values == expected(POSTS[0], "m1", "m2")
    (values,) = view_scores(known, [NEW], hidden=POSTS)
    assert values == view_scores(None, [NEW])[0]


def test_a_copy_of_a_claim_does_not_tell_its_paper(tmp_path: Path) -> None:
    """The copies are not in the fold of the post."""
    posts = [
        Claim(f"p{number}", f"alpha{number} beta{number}", golds=("none",)) for number in range(25)
    ]
    copies = [replace(posts[3], id="copy"), replace(posts[7], id="other", golds=("masks",))]
    folder = tmp_path / "data"
    write([*posts, *copies], folder)
    known = KnownPosts(str(folder))
    for number in (3, 7):
        claim = Claim("new", f"ALPHA{number} beta{number} ")
        (values,) = view_scores(known, [claim])
        assert not any(values)
        # One word of it is no known post: it finds the papers of the post and of its copy.
        word = replace(claim, text=f"alpha{number}")
        (values,) = view_scores(known, [word])
        assert values[3] > 0
        assert (values[0] > 0) == (number == 7)


def test_folds_of_many_posts(tmp_path: Path) -> None:
    """A claim is scored without the first fold of the posts that equal it, if it is not hidden."""
    posts = [Claim(f"p{number}", f"alpha{number} pupils", golds=("none",)) for number in range(25)]
    folder = tmp_path / "data"
    write(posts, folder)
    known = KnownPosts(str(folder))

    def expected(claim: Claim, without: Sequence[int]) -> list[float]:
        texts = [post.text for number, post in enumerate(posts) if number not in without]
        (values,) = view_scores(None, [claim], pool=expanded({"none": texts}))
        return values

    both = replace(posts[3], text=posts[14].text)
    (values,) = view_scores(known, [both])
    assert values == expected(both, [3, 13, 23, 14])
    (values,) = view_scores(known, [posts[3]])
    assert values == expected(posts[3], [3, 13, 23])
    (values,) = view_scores(known, [posts[3]], hidden=posts[3:5])
    assert values == expected(posts[3], [3, 4])


def test_a_scorer_keeps_no_posts_that_were_hidden_once(known: KnownPosts) -> None:
    scorer = Scorer(PAPERS)
    view = ViewConfig(bm25=BM25(posts=known), claims="original")
    candidates = [[paper.id for paper in PAPERS]]
    found: list[list[float]] = []
    for hidden in ([], POSTS, [], POSTS[:1], POSTS):
        (values,) = scorer.scores(view, [NEW], candidates, hidden=hidden)
        found.append(values.tolist())
    assert found[0] == found[2]
    assert found[1] == found[4]
    assert len({tuple(values) for values in found}) == 3


@pytest.mark.parametrize(
    "settings",
    [{"terms": "bigrams"}, {"terms": "characters"}, {"part": "title"}, {"score": "year"}],
)
def test_views_of_other_terms_or_of_one_part_refuse_known_posts(
    settings: dict[str, str], known: KnownPosts
) -> None:
    with refused(ConfigError) as error:
        ViewConfig(bm25=BM25(posts=known), **settings)  # type: ignore[arg-type]
    assert isinstance(error.value, ConfigError)
    assert error.value.key == "bm25.posts"


def test_an_index_refuses_known_posts(known: KnownPosts) -> None:
    with refused(ConfigError) as error:
        check_bm25(BM25(k1=1.2, b=0.75, posts=known))
    assert isinstance(error.value, ConfigError)
    assert error.value.key == "bm25.posts"
