"""Pairs of the papers alone: what is a claim is in no text of its own paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from claim2source.core.records import Source
from claim2source.datasets import DEMO, load
from claim2source.datasets.pool_pairs import PoolPairs, pool_pairs
from train.pairs import main

BEFORE, AFTER = "We asked two hundred adults about their sleep.", "They slept 7.5 hours a night."


def paper(name: str, title: str, *sentences: str) -> Source:
    return Source(name, title, " ".join(sentences), ("Jane Doe",), "Nature")


def found(made: PoolPairs) -> dict[str, str]:
    claims = [*made.train.claims, *made.dev.claims]
    assert len({claim.id for claim in claims}) == len(claims)
    return {claim.id: claim.text for claim in claims}


def many(*papers: Source) -> list[Source]:
    """The papers, and others that fill train and dev."""
    others = [
        paper(
            f"x{i}", f"Title of paper {i}", f"Coffee {i} was drunk cold.", f"Tea {i} was not drunk."
        )
        for i in range(40)
    ]
    return [*papers, *others]


def words(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.casefold()).split())


@pytest.mark.parametrize("kinds", [["sentence"], ["title", "sentence"]])
def test_no_claim_is_in_its_own_source(kinds: list[str]) -> None:
    pool = load("demo", "test").sources
    made = pool_pairs(pool, kinds)  # type: ignore[arg-type]
    assert made.train.sources == made.dev.sources
    sources = {source.id: source for source in made.train.sources}
    by_id = {source.id: source for source in pool}
    # Many of the demo's papers have a title of several papers.
    assert len(made.train.claims) > 150
    for claim in (*made.train.claims, *made.dev.claims):
        kind, _, name = claim.id.partition("-")
        assert kind in kinds and claim.golds == (name,) and claim.lang == "en"
        own = sources[name]
        assert words(claim.text) not in words(f"{own.title} {own.abstract}")
        assert claim.text in (by_id[name].title, *by_id[name].abstract.split("\n")) or (
            claim.text in by_id[name].abstract
        )
        assert own.authors == by_id[name].authors and len(words(own.abstract).split()) >= 8
    titles = {source.title for source in made.train.sources}
    assert (titles == {""}) is ("title" in kinds)
    # A paper's two pairs are in one split: none is reported on that is trained on.
    assert not made.train.golds & made.dev.golds


def test_a_sentence_leaves_the_rest_as_it_was() -> None:
    one = paper("p", "Sleep", BEFORE, AFTER, "It was a long winter in the north of Norway.")
    made = pool_pairs(many(one), ["sentence"], min_words=5, dev_share=0.3)
    text = found(made)["sentence-p"]
    (source,) = (s for s in made.train.sources if s.id == "p")
    assert source == replace(one, abstract=" ".join(one.abstract.replace(text, " ").split()))
    # A number's point ends no sentence.
    assert "7.5 hours" in f"{text} {source.abstract}"


def test_what_is_not_a_papers_own_is_no_claim() -> None:
    twins = [paper(name, "One same title", f"{BEFORE} {AFTER} Number {name}.") for name in "ab"]
    copy = replace(twins[0], id="c", title="Another title here", abstract=twins[0].abstract.upper())
    quoting = paper("d", "Adults sleep well", "Adults sleep well. We asked them, they said so.")
    short = paper("e", "Editorial", "A word on this year, and on the one before it, from us.")
    empty = Source("f", "Only a long title", "")
    made = pool_pairs(
        many(*twins, copy, quoting, short, empty), ["title", "sentence"], min_words=5, dev_share=0.3
    )
    claims = found(made)
    names = {source.id for source in made.train.sources}
    assert {"a", "b", "d", "e"} <= names and not names & {"c", "f"}
    assert not [name for name in claims if name.startswith("title-") and name[6:] in "abde"]
    # Its two sentences are those of the other paper too; what is left is too short.
    assert not {"sentence-a", "sentence-b"} & set(claims)
    assert "2 of 46 papers are left out" in made.notes[0]


def test_the_draw_is_seeded_and_other_papers_do_not_change_it() -> None:
    papers = list(load("demo", "test").sources)[:160]
    first, second = (pool_pairs(papers, ["sentence"], seed=seed, dev_share=0.2) for seed in (1, 2))
    assert found(first) == found(pool_pairs(papers, ["sentence"], seed=1, dev_share=0.2))
    assert found(first) != found(second) and first.dev.golds != second.dev.golds
    half = found(pool_pairs(papers[::2], ["sentence"], seed=1, dev_share=0.2))
    assert len(half) > 40
    assert sum(found(first).get(name) == text for name, text in half.items()) > 0.95 * len(half)


def test_the_program_writes_a_data_set_and_keeps_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "pairs"
    main([f"--out={out}", "--kinds", "title"])
    train, dev = load(out, "train"), load(out, "dev")
    assert train.claims and dev.claims and train.sources == dev.sources
    for words_, said in (
        ([f"--out={out}"], "add --overwrite"),
        ([f"--out={tmp_path / 'x'}", "--dev_share", "0.0001"], "too few pairs"),
        ([f"--out={DEMO}", "--overwrite"], "would replace the input"),
    ):
        with pytest.raises(UserError, match=said):
            main(words_)
    assert not (tmp_path / "x").exists()
