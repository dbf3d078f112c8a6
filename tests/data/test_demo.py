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
    return [json.loads(line) for line in (DEMO / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def papers() -> list[Row]:
    return rows("corpus.jsonl")


@pytest.fixture(scope="module")
def posts() -> list[Row]:
    return rows("queries.jsonl")


def test_papers_of_dev_are_new_and_half_of_those_of_test() -> None:
    train, dev, test = (load("demo", split) for split in SPLITS)
    assert not train.golds & dev.golds
    for lang in LANGS:
        golds = [claim.golds for claim in test.claims if claim.lang == lang]
        assert all(len(gold) == 1 for gold in golds)
        assert 2 * sum(gold[0] in train.golds for gold in golds) == len(golds)


def test_every_claim_is_in_one_split_and_the_first_of_train_cover_all_papers() -> None:
    data = {split: load("demo", split) for split in SPLITS}
    ids = Counter(claim.id for data_set in data.values() for claim in data_set.claims)
    assert set(ids.values()) == {1} and len(ids) == len(rows("queries.jsonl"))
    train = data["train"]
    first = train.claims[: 2 * len(train.golds)]
    assert {gold for claim in first for gold in claim.golds} == train.golds
    counts = Counter(claim.lang for claim in first)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_no_text_is_there_twice_and_no_post_repeats_a_title(
    papers: list[Row], posts: list[Row]
) -> None:
    titles = {paper["_id"]: paper["title"] for paper in papers}
    for texts in (titles.values(), [paper["text"] for paper in papers], [p["text"] for p in posts]):
        assert not [text for text, count in Counter(texts).items() if count > 1]
    for split in SPLITS:
        for claim in load("demo", split).claims:
            title = " ".join(re.findall(r"\w+", titles[claim.golds[0]].lower()))
            for text in (claim.text, claim.translation or ""):
                words = re.findall(r"\w+", text.lower())
                runs = (" ".join(words[i : i + 6]) for i in range(len(words) - 5))
                assert not [run for run in runs if run in title], (claim.id, title)


def test_posts_are_written_in_their_language(posts: list[Row]) -> None:
    wrong = []
    for post in posts:
        lang, text = post["metadata"]["lang"], post["text"]
        words = Counter(re.findall(r"[\w']+", text.lower()))
        word_counts = {name: sum(words[word] for word in FREQUENT[name]) for name in LANGS}
        if word_counts[lang] < max(word_counts.values()):
            wrong.append((lang, text))
        translation = post["metadata"].get("translation")
        assert (translation is None) == (lang == "en") and translation != text
    assert len(wrong) <= 0.005 * len(posts), wrong


def test_every_paper_has_siblings(papers: list[Row]) -> None:
    families = Counter(paper["metadata"]["family"] for paper in papers)
    assert min(families.values()) >= 2 and max(families.values()) >= 6
    assert all(paper["metadata"]["authors"] and paper["metadata"]["date"] for paper in papers)
