"""BM25 against rank_bm25, against a slow formula, and against plain bm25s."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import bm25s
import numpy as np
import pytest
import Stemmer
from bm25s import stopwords
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from claim2source.core.records import Claim, Source, nfkc
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.search import bm25
from claim2source.search import terms as terms_module
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25, NO_TERM, BM25Index
from claim2source.search.terms import Analysis
from claim2source.text.clean import has_unseen
from tests.refusals import refused
from tests.shared_data import shared
from tests.text.small_pipeline import write_pipeline


def sources_of(*texts: str) -> list[Source]:
    return [Source(f"s{i:03d}", abstract=text) for i, text in enumerate(texts)]


def ranked(
    texts: Sequence[Source], claim: str | Claim, k: int = 100, **settings: object
) -> dict[str, float]:
    record = Claim("c", claim) if isinstance(claim, str) else claim
    config = BM25(**settings)  # type: ignore[arg-type]
    run = BM25Index(texts, config).rank([record], k)
    return run.scored(record.id)


def okapi_of(texts: Sequence[str], claim: str, **settings: float) -> np.ndarray:
    split = [text.split() for text in texts]
    okapi = BM25Okapi(split, **settings)
    return okapi.get_scores(claim.split())


def check_near(found: dict[str, float], expected: np.ndarray) -> None:
    """Check the found scores, by the number in a source's id."""
    for source, score in found.items():
        number = int(source[1:])
        assert score == pytest.approx(expected[number], rel=2e-5, abs=2e-6)


spaced = st.text("ab \n", max_size=12)


@settings(max_examples=30, deadline=None)
@given(st.lists(spaced, min_size=1, max_size=8), spaced)
def test_spaces_split_as_the_organisers_notebook_does(texts: list[str], claim: str) -> None:
    """Line breaks part no words, and two spaces have an empty term between them."""
    split = [f" {text}".split(" ") for text in texts]
    claim_terms = claim.split(" ")
    bm25 = BM25Okapi(split, k1=1.5, b=0.75)
    expected = bm25.get_scores(claim_terms)
    # Their text is the title, a space and the abstract, whether or not there is a title.
    sources = sources_of(*texts)
    scores = ranked(sources, claim, analysis="spaces", k1=1.5, b=0.75)
    common = set()
    for i, terms in enumerate(split):
        if set(claim_terms) & set(terms):
            common.add(f"s{i:03d}")
    assert set(scores) == common
    check_near(scores, expected)


words = st.sampled_from("a b c d e f G".split())
documents = st.lists(st.lists(words, max_size=9).map(" ".join), min_size=1, max_size=9)


@settings(max_examples=30, deadline=None)
@given(
    documents.filter(lambda texts: any(texts)),
    st.lists(words, min_size=1, max_size=6).map(" ".join),
    st.sampled_from([(1.5, 0.75), (0.9, 0.3)]),
)
def test_okapi_on_any_texts(texts: list[str], claim: str, weights: tuple[float, float]) -> None:
    """A term in most texts has an idf below 0, which is lifted; repeated terms count each time."""
    k1, b = weights
    expected = okapi_of(texts, claim, k1=k1, b=b)
    sources = sources_of(*texts)
    scores = ranked(sources, claim, analysis="whitespace", k1=k1, b=b)
    # Every source with a term in common, and no other.
    terms = set(claim.split())
    common = set()
    for i, text in enumerate(texts):
        if terms & set(text.split()):
            common.add(f"s{i:03d}")
    assert set(scores) == common
    check_near(scores, expected)


def analysed(text: str, stop: set[str], language: str = "english") -> list[str]:
    stem = Stemmer.Stemmer(language).stemWord
    found = re.findall(r"\b\w\w+\b", text.lower())
    return [stem(word) for word in found if word not in stop]


def slow_bm25(texts: list[list[str]], claim: list[str], k1: float, b: float) -> list[float]:
    """Lucene's BM25, a document and a term at a time."""
    size = len(texts)
    mean = sum(map(len, texts)) / size
    scores = []
    for text in texts:
        counts = Counter(text)
        total = 0.0
        for term in claim:
            document_count = sum(term in text for text in texts)
            ratio = (size - document_count + 0.5) / (document_count + 0.5)
            idf = math.log(1 + ratio)
            norm = k1 * (1 - b + b * len(text) / mean)
            count = counts[term]
            total += idf * count / (count + norm) if count else 0.0
        scores.append(total)
    return scores


ENGLISH = set(stopwords.STOPWORDS_EN)
PAPERS = [
    Source("p1", "Masks reduce infections", "Wearing masks and distancing were studied in adults."),
    Source("p2", "Vaccination", "The vaccine and the vaccinated: infections, vaccines, 95% effect"),
    Source("p3", "A study of sleep", "Sleeping adults slept; studies of sleep in adults studied"),
    Source("p4", "", "Adults wearing glasses, infected less"),
    Source("p5", "Mask mandates"),
    Source("p6"),
]


@pytest.mark.parametrize(
    ("k1", "b"),
    [
        (1.2, 0.75),
        (0.0, 0.75),
        (2.0, 0.0),
        (0.7, 1.0),
    ],
)
@pytest.mark.parametrize("weight", [1, 3])
def test_the_terms_variant_is_the_formula(k1: float, b: float, weight: int) -> None:
    texts = []
    for paper in PAPERS:
        text = " ".join([paper.title] * weight + [paper.abstract])
        texts.append(analysed(text, ENGLISH))
    posts = [
        "wow masks! a study: masked adults were infected",
        "the vaccine, vaccines sleep",
    ]
    for text in posts:
        claim = analysed(text, ENGLISH)
        expected = slow_bm25(texts, claim, k1, b)
        scores = ranked(PAPERS, text, k1=k1, b=b, title_weight=weight)
        positive = set()
        for paper, score in zip(PAPERS, expected, strict=True):
            found = scores.get(paper.id, 0.0)
            assert found == pytest.approx(score, rel=1e-5)
            if score > 0:
                positive.add(paper.id)
        assert set(scores) == positive


def test_common_and_rare_terms_are_summed_alike() -> None:
    """Terms in more than a sixteenth of the documents are computed differently."""
    texts = [f"common rare{i} half{i % 2} few{i % 9}" for i in range(40)]
    claim = "common half1 few3 rare3 few3"
    split = [text.split() for text in texts]
    expected = slow_bm25(split, claim.split(), 1.2, 0.75)
    scores = ranked(sources_of(*texts), claim, k=40)
    assert len(scores) == 40
    for i, score in enumerate(expected):
        found = scores[f"s{i:03d}"]
        assert found == pytest.approx(score, rel=1e-5)


# Among them letters that lower otherwise at a word's end, and what only Unicode calls a space.
PIECES = "the will wills mask masks Masking nicht x 2 _ - , / \u03a3 \u0391\u03a3".split(" ")
SPACES = [" ", "  ", "\n", "\u00a0", "\u2028", "\x1c"]
pieces = st.sampled_from(PIECES + SPACES)
text_pieces = st.lists(pieces, max_size=12).map("".join)


def terms_in(terms: Any, names: dict[int, str]) -> list[list[str]]:
    """The terms of each text, by name."""
    return [[names[i] for i in ids] for ids in terms.split()]


@settings(max_examples=60, deadline=None)
@given(st.lists(text_pieces, min_size=1, max_size=6), st.lists(text_pieces, min_size=1, max_size=4))
@example(["__ a-___-mask", "____"], ["_____ masks", "__ mask"])
def test_terms_are_what_bm25s_makes_of_whole_texts(texts: list[str], claims: list[str]) -> None:
    stop = ["the", "will"]
    stemmer = Stemmer.Stemmer("english")

    def tokenized(texts: list[str], stop: list[str]) -> Any:
        return bm25s.tokenize(
            texts,
            stopwords=stop,
            stemmer=stemmer,
            return_ids=False,
            show_progress=False,
        )

    analysis = Analysis(False, stop, stemmer)
    sources = analysis.sources(texts)
    names = {number: term for term, number in analysis.vocabulary.items()}
    expected = tokenized(texts, stop)
    assert terms_in(sources, names) == expected
    assert sorted(names) == list(range(len(names)))
    assert set(names.values()) == {term for text in expected for term in text}
    of_claims = tokenized(claims, [*stop, "nicht"])
    terms_known = [[term for term in text if term in analysis.vocabulary] for text in of_claims]
    repeats = [analysis.claims(claims, ["nicht"]) for _ in range(2)]
    for terms in repeats:  # the first has left nothing behind
        assert terms_in(terms, names) == terms_known


@settings(max_examples=40)
@given(st.lists(st.one_of(st.text(), text_pieces), max_size=7))
@example(["", " ", "a", " a\u3000b\x85", "\x00 a"])
@example(["", "", "a", "a", "\u3000", "\t\x0b\x0c\r\x1c\x1d\x1e\x1fa\x1bb\x08c\x0e\x85"])
def test_whole_terms_are_what_white_space_parts(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terms_module, "_SPLIT", 2)
        analysis = Analysis(True, (), None)
        split = analysis.sources(texts)
        whole_words = analysis.claims([*texts, "nowhere-else"], ())
    names = {number: term for term, number in analysis.vocabulary.items()}
    expected = [text.split() for text in texts]
    distinct = dict.fromkeys(word for terms in expected for word in terms)
    assert terms_in(split, names) == expected
    assert list(analysis.vocabulary) == list(distinct)
    ids = split.ids.tolist()
    bounds = split.bounds.tolist()
    assert whole_words.ids.tolist() == ids
    assert whole_words.bounds.tolist() == [*bounds, len(split.ids)]


def test_half_of_a_surrogate_pair_is_no_letter() -> None:
    sources = sources_of("masks \ud83d", "tea\udc00pot")
    masks = ranked(sources, "\ud83dmasks")
    pot = ranked(sources, "pot")
    assert list(masks) == ["s000"]
    assert list(pot) == ["s001"]


# A post or a translation may contain line breaks, which do not end a part.
WAR = Claim("de", "Krieg!\n\nViele die\nman nie sah", "de", "people die\nin a war")
SERA = Claim("fr", "Les sera\nde mon son", "fr", "the sera\nof a son")


@pytest.mark.parametrize(
    ("claim", "form", "terms"),
    [
        (WAR, "bilingual", "krieg viel nie sah peopl die war"),
        (WAR, "translated", "peopl die war"),
        (WAR, "original", "krieg viel nie sah"),
        (SERA, "bilingual", "sera son"),
        (SERA, "translated", "sera son"),
        (SERA, "original", ""),
        # Posted in English: used once. No translation: the original.
        (replace(WAR, lang="en"), "bilingual", "krieg viel die man nie sah"),
        (replace(WAR, translation=None), "bilingual", "krieg viel nie sah"),
    ],
)
def test_each_part_of_a_claim_has_its_own_stop_words(claim: Claim, form: Any, terms: str) -> None:
    """`die` and `war` are German stop words, `sera` and `son` French ones."""
    sources = [Source("s", abstract="people die war sera son krieg viele man nie sah")]
    index = BM25Index(sources, BM25(claims=form))
    # In a batch: the analysis has the parts of other claims before and after.
    batch = [
        replace(SERA, id="a"),
        claim,
        replace(WAR, id="b"),
        Claim("e", "war"),
    ]
    ids = index.terms(batch).split()[1]
    names = list(index._built().analysis.vocabulary)
    found = [names[i] for i in ids]
    assert " ".join(found) == terms


DOE = [
    Source("a", "Masks", "tea", ("Jane Doe", "& Tongji Hospital"), "Lancet"),
    Source("b", "Tea"),
]
VACCINES = sources_of("the vaccine works", "vaccines", "other")
HOUSES = Claim("c", "Haus gebaut Häuser", "de")
THE = [*sources_of("masks matter"), Source("t", abstract="the the the")]


@pytest.mark.parametrize(
    ("sources", "claim", "settings", "ranking"),
    [
        (DOE, "lancet doe", {}, []),
        (DOE, "lancet", {"metadata": True}, ["a"]),
        (DOE, "doe", {"metadata": True}, ["a"]),
        (DOE, "tongji", {"metadata": True}, []),
        (DOE, "tea", {"abstracts": False}, ["b"]),
        (VACCINES, "the vaccines", {}, ["s001", "s000"]),
        (VACCINES, "the vaccines", {"stemmer": False}, ["s001"]),
        (VACCINES, "the", {"stop_words": False}, ["s000"]),
        (VACCINES, "the", {}, []),
        (sources_of("Häuser bauen", "other"), HOUSES, {"language": "de"}, ["s000"]),
        # English sources: English stop words, for a language without a list of its own too.
        (THE, Claim("c", "the masks", "de"), {}, ["s000"]),
        (THE, Claim("c", "the masks", "es"), {}, ["s000"]),
    ],
)
def test_what_each_setting_finds(
    sources: list[Source], claim: str | Claim, settings: dict[str, Any], ranking: list[str]
) -> None:
    found = ranked(sources, claim, **settings)
    assert list(found) == ranking


@pytest.mark.parametrize("k", [1, 5, 12])
def test_of_equal_scores_the_ids_decide_even_at_the_cut(k: int) -> None:
    """As in a Run: score, then id, both descending; so a deeper search only adds."""
    numbers = (3, 11, 0, 7, 5, 9, 1, 10, 2, 8, 6, 4)
    sources = [Source(f"{i:02d}", abstract="masks same") for i in numbers]
    sources.append(Source("zz", abstract="none"))
    descending = [f"{i:02d}" for i in range(11, -1, -1)]
    expected = descending[:k]
    candidates = tuple(source.id for source in sources)
    bound = Claim("b", "masks", candidates=candidates)
    run = BM25Index(sources).rank([Claim("c", "masks"), bound], k)
    assert run.sources("c") == expected
    assert run.sources("b") == expected


def test_duplicated_ids_are_refused() -> None:
    with refused(ValueError, "source id"):
        BM25Index([Source("a", "x"), Source("a", "y")])
    index = BM25Index([Source("a", "masks")])
    claim = Claim("c", "masks")
    with refused(ValueError, "claim id"):
        index.rank([claim, claim], 1)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 12),
    cells=st.integers(1, 40),
    k=st.integers(1, 14),
    analysis=st.sampled_from(["terms", "whitespace"]),
)
def test_blocks_of_claims_are_claims_searched_alone(
    seed: int, n: int, cells: int, k: int, analysis: Any
) -> None:
    draw = np.random.default_rng(seed)
    vocabulary = "aa bb cc dd ee ff".split()
    texts = [" ".join(draw.choice(vocabulary, 3)) for _ in range(n)]
    sources = sources_of(*texts)
    claims = []
    for i in range(7):
        size = draw.integers(0, n + 1)
        choice = draw.choice([source.id for source in sources], size=size)
        candidates = tuple(str(s) for s in choice) if draw.random() < 0.4 else None
        length = draw.integers(0, 4)
        text = " ".join(draw.choice([*vocabulary, "unknown"], length))
        claims.append(Claim(f"c{i}", text, candidates=candidates))
    index = BM25Index(sources, BM25(analysis=analysis))
    one_by_one = [index.rank([claim], k).scored(claim.id) for claim in claims]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25, "_CELLS", cells)
        run = index.rank(claims, k)
    in_blocks = [run.scored(claim.id) for claim in claims]
    assert in_blocks == one_by_one
    bound_ones = {}
    for claim in claims:
        if claim.candidates is not None:
            bound_ones[claim.id] = frozenset(claim.candidates)
    assert run.pool == (bound_ones or None)
    # And alone each equals the ranking of the whole pool, reduced to its candidates.
    for claim, scores in zip(claims, one_by_one, strict=True):
        unbound = replace(claim, candidates=None)
        all_scores = index.rank([unbound], n).scored(claim.id)
        allowed = all_scores if claim.candidates is None else set(claim.candidates)
        kept = [item for item in all_scores.items() if item[0] in allowed]
        assert list(scores.items()) == kept[:k]


@pytest.mark.parametrize("analysis", ["terms", "whitespace"])
def test_nothing_to_index(analysis: str) -> None:
    claims = [Claim("c", "masks")]
    for sources in ([], sources_of("", " ")):
        config = BM25(analysis=analysis)  # type: ignore[arg-type]
        run = BM25Index(sources, config).rank(claims, 5)
        assert run.claim_ids == ("c",)
        assert len(run) == 0
    index = BM25Index(sources_of("masks"))
    run = index.rank([], 5)
    assert run.claim_ids == ()


def test_claims_without_a_known_term_are_counted_failures() -> None:
    texts = {
        "ok": "masks",
        "unknown": "zzz",
        "stop": "the",
        "empty": "",
    }
    claims = [Claim(name, text) for name, text in texts.items()]
    index = BM25().index(sources_of("masks", "other"))
    result = index.search(claims, 5)
    failed = [failure.claim_id for failure in result.failures]
    assert result.run.claim_ids == ("ok", "unknown", "stop", "empty")
    assert result.failure_counts() == {NO_TERM: 3}
    assert failed == ["unknown", "stop", "empty"]
    assert result.run.rows("unknown") == slice(1, 1)
    assert result.cost.items == 4
    assert result.cost.seconds > 0
    assert result.cost.peak_memory > 0


@pytest.mark.parametrize("analysis", ["terms", "whitespace"])
def test_reweighted_is_the_index_built_anew(analysis: str) -> None:
    claims = [Claim("a", "masks adults the vaccine"), Claim("b", "sleep sleep")]
    config = BM25(analysis=analysis, k1=1.2, b=0.75, title_weight=2)  # type: ignore[arg-type]
    index = BM25Index(PAPERS, config)
    terms = index.terms(claims)
    before = list(index.rank(claims, 9))
    reweighted = index.reweighted(0.4, 0.2)
    changed = BM25(analysis=analysis, k1=0.4, b=0.2, title_weight=2)  # type: ignore[arg-type]
    fresh = BM25Index(PAPERS, changed)
    rows = list(reweighted.rank(claims, 9, terms))
    fresh_rows = list(fresh.rank(claims, 9))
    after = list(index.rank(claims, 9))
    assert rows == fresh_rows
    assert reweighted.config == fresh.config
    assert after == before
    assert before != fresh_rows


def test_cleaned_posts_keep_a_hashtags_word_and_lose_the_rest() -> None:
    sources = [
        Source("a", "quarantine"),
        Source("b", "who"),
        Source("c", "twitter com"),
    ]
    post = "#quarantine @who pic.twitter.com/x"
    cleaned = BM25(clean=True).index(sources).search(post)
    as_posted = BM25().index(sources).search(post)
    assert cleaned.sources("0") == ["a"]
    assert len(as_posted.sources("0")) == 3
    # Sources are not posts: what looks like a handle is text there.
    handle = [Source("a", "by @who"), Source("b", "nothing")]
    found = BM25(clean=True).index(handle).search("who says")
    assert found.sources("0") == ["a"]


def test_lemmas_are_the_released_scripts(tmp_path: Path) -> None:
    pipeline = write_pipeline(tmp_path / "pipeline")
    texts = ["The masks worked", "mask, works, tea", "tea time", "sleep well", "bees"]
    sources = [Source(str(i), text) for i, text in enumerate(texts)]
    index = BM25(analysis="lemmas", k1=1.5, pipeline=pipeline).index(sources)
    # As its get_claim makes them, into rank_bm25's BM25Okapi.
    lemmas = ["mask work", "mask work tea", "tea time", "sleep", "bee"]
    scores = okapi_of(lemmas, "mask tea", k1=1.5, b=0.75)
    found = index.search("#Masks, of @x tea").scored("0")
    expected = {str(i): score for i, score in enumerate(scores) if score}
    assert found == pytest.approx(expected, rel=1e-5)
    assert len(found) == 3
    # Another pipeline is another run in the store.
    store = Store(tmp_path / "store")
    for folder in (pipeline, write_pipeline(tmp_path / "other")):
        settings = BM25("lemmas", pipeline=folder)
        first = replace(settings, store=store).index(sources).search("tea")
        again = replace(settings, store=store).index(sources).search("tea")
        assert not first.stored
        assert again.stored


def test_the_analyser_of_engines_makes_the_terms_of_an_index(tmp_path: Path) -> None:
    pipeline = write_pipeline(tmp_path / "pipeline")
    sources = [Source("a", "The masks, worked", "tea"), Source("b", "who quarantine")]
    claims = [Claim("c", "#quarantine masks @who worked \U0001f637")]
    for config in (
        BM25(clean=True, abstracts=False),
        BM25("lemmas", pipeline=pipeline),
        BM25("lemmas", clean=True, pipeline=pipeline),
    ):
        index = BM25Index(sources, config)
        analyser = Analyser(config)
        names = {term for terms in analyser.sources(sources) for term in terms}
        vocabulary = list(index._built().analysis.vocabulary)
        assert names == set(vocabulary)
        mine = [term for term in analyser.claim(claims[0]) if term in names]
        numbers = index.terms(claims).ids
        assert mine == [vocabulary[number] for number in numbers]
    assert "pipeline" in Analyser(config).versions


def test_jax_is_not_started(tmp_path: Path) -> None:
    """It would take most of a GPU's memory, or fail if a training uses it."""
    folder = tmp_path / "jax"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "lax.py").write_text("def top_k(*values):\n    raise RuntimeError('no memory')\n")
    code = (
        "from claim2source.search.bm25 import BM25, get_stop_words\n"
        "assert 'the' in get_stop_words(BM25(), 'en')\n"
        "import jax.lax"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_soft_hyphens_and_characters_without_width_do_not_part_words(tmp_path: Path) -> None:
    sources = [
        Source("a", "Vac\u00adcines", "of the out\u200bbreak"),
        Source("b", "Masks", "cut"),
    ]
    claims = [Claim("0", "vac\u2060cine"), Claim("1", "\ufeffoutbreaks\u200b")]
    for config in (BM25(), BM25(clean=True)):
        run = BM25Index(sources, config).search(claims).run
        found = [run.sources(claim.id) for claim in claims]
        assert found == [["a"], ["a"]]
        with_hyphen = Analyser(config).texts(["vac\u00adcine"])
        without = Analyser(config).texts(["vaccine"])
        assert with_hyphen == without
    # As the papers and the organisers split.
    for analysis in ("whitespace", "spaces"):
        index = BM25Index(sources, BM25(analysis=analysis))
        result = index.search([Claim("0", "Vaccines")])
        assert not result.run.sources("0")


def test_runs_of_texts_without_them_keep_their_keys() -> None:
    plain = [Source("a", "Masks")]
    unseen = [Source("a", "Ma\u00adsks")]
    store = cast(Store, object())

    def key(sources: list[Source], claim: str, config: BM25) -> dict[str, object]:
        index = BM25Index(sources, config, store)
        found = index._key([Claim("0", claim)], 10)
        return cast(dict[str, object], found)

    config = BM25()
    assert "without" not in key(plain, "masks", config)
    for sources, claim in ((unseen, "masks"), (plain, "ma\u200bsks")):
        assert "without" in key(sources, claim, config)
        other = BM25(analysis="whitespace")
        assert "without" not in key(sources, claim, other)


def test_scores_of_other_texts_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared("ct25")
    dataset = load(str(folder), "dev")
    claims = [claim for claim in dataset.claims if not has_unseen(claim.text)]
    changed = {s.id for s in dataset.sources if has_unseen(f"{s.title} {s.abstract}")}
    assert len(changed) == 7
    assert len(claims) > 420
    after = BM25Index(dataset.sources).rank(claims, 10)
    monkeypatch.setattr("claim2source.search.bm25._normalise", nfkc)
    before = BM25Index(dataset.sources).rank(claims, 10)
    for claim in claims:
        old = dict(before.scored(claim.id))
        new = dict(after.scored(claim.id))
        kept = old.keys() - changed
        assert kept == new.keys() - changed
        for key in kept:
            assert new[key] == pytest.approx(old[key], rel=1e-4)


def test_a_store_is_no_setting_and_stays_with_changed_settings(tmp_path: Path) -> None:
    sources = [Source("a", "masks"), Source("b", "tea")]
    claims = [Claim("c", "masks")]
    plain = BM25(k1=1.5)
    stored = BM25(k1=1.5, store=Store(tmp_path))
    assert plain == stored
    assert repr(plain) == repr(stored)
    assert "store" not in asdict(stored)
    changed = replace(stored, b=0.5)
    without_store = replace(plain, b=0.5)
    assert not changed.index(sources).search(claims).stored
    assert changed.index(sources).search(claims).stored
    assert not without_store.index(sources).search(claims).stored
