"""The shipped demo set keeps its promises: its splits, its texts, its families."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from claim2source.data.folders import DEMO
from claim2source.data.loading import load

LANGS = ("en", "de", "fr")
SPLITS = ("train", "dev", "test")
# Frequent words in one of the three languages that do not exist in the others.
FREQUENT = {
    "en": set("the and of with who was were than that not you your they have it's".split()),
    "de": set("der und nicht mit ist bei auf den das ein eine wie auch nur dem bringt".split()),
    "fr": set("le les des pas plus chez est dans une qui sur et la du fait moins aux".split()),
}

Row = dict[str, Any]


def rows(name: str) -> list[Row]:
    text = (DEMO / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def papers() -> list[Row]:
    return rows("corpus.jsonl")


@pytest.fixture(scope="module")
def posts() -> list[Row]:
    return rows("queries.jsonl")


def test_papers_of_dev_are_new_and_half_of_those_of_test() -> None:
    train = load("demo", "train")
    dev = load("demo", "dev")
    test = load("demo", "test")
    assert not train.golds & dev.golds
    for lang in LANGS:
        golds: list[str] = []
        for claim in test.claims:
            if claim.lang == lang:
                assert len(claim.golds) == 1
                golds.append(claim.golds[0])
        known = sum(gold in train.golds for gold in golds)
        assert 2 * known == len(golds)


def test_every_claim_is_in_one_split_and_the_first_of_train_cover_all_papers() -> None:
    data = {split: load("demo", split) for split in SPLITS}
    ids: Counter[str] = Counter()
    for data_set in data.values():
        ids.update(claim.id for claim in data_set.claims)
    assert set(ids.values()) == {1}
    assert len(ids) == len(rows("queries.jsonl"))

    train = data["train"]
    count = 2 * len(train.golds)
    first = train.claims[:count]
    golds: set[str] = set()
    for claim in first:
        golds.update(claim.golds)
    assert golds == train.golds
    languages = Counter(claim.lang for claim in first)
    counts = languages.values()
    assert max(counts) - min(counts) <= 1


def test_no_text_is_there_twice_and_no_post_repeats_a_title(
    papers: list[Row],
    posts: list[Row],
) -> None:
    titles = {paper["_id"]: paper["title"] for paper in papers}
    abstracts = [paper["text"] for paper in papers]
    post_texts = [post["text"] for post in posts]
    for texts in (titles.values(), abstracts, post_texts):
        counts = Counter(texts)
        assert not [text for text, count in counts.items() if count > 1]

    for split in SPLITS:
        data_set = load("demo", split)
        for claim in data_set.claims:
            gold = claim.golds[0]
            title = " ".join(lower_words(titles[gold]))
            for text in (claim.text, claim.translation or ""):
                repeated = [run for run in runs_of_six(text) if run in title]
                assert not repeated, (claim.id, title)


def lower_words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall(r"\w+", text.lower())


def runs_of_six(text: str) -> list[str]:
    """Return every six words that follow each other."""
    words = lower_words(text)
    starts = range(len(words) - 5)
    return [" ".join(words[i : i + 6]) for i in starts]


def test_posts_are_written_in_their_language(posts: list[Row]) -> None:
    wrong = []
    for post in posts:
        metadata = post["metadata"]
        lang = metadata["lang"]
        text = post["text"]
        words = Counter(re.findall(r"[\w']+", text.lower()))
        word_counts: dict[str, int] = {}
        for name in LANGS:
            frequent = FREQUENT[name]
            word_counts[name] = sum(words[word] for word in frequent)
        if word_counts[lang] < max(word_counts.values()):
            wrong.append((lang, text))

        translation = metadata.get("translation")
        is_untranslated = translation is None
        is_english = lang == "en"
        assert is_untranslated == is_english
        assert translation != text
    assert len(wrong) <= 0.005 * len(posts), wrong


def test_every_paper_has_siblings(papers: list[Row]) -> None:
    metadata = [paper["metadata"] for paper in papers]
    families = Counter(one["family"] for one in metadata)
    sizes = families.values()
    assert min(sizes) >= 2
    assert max(sizes) >= 6
    for one in metadata:
        assert one["authors"]
        assert one["date"]
