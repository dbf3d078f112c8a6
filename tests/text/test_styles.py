"""Styles: their rules, their refusals, and the folders of their texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.data.loading import load
from claim2source.text.quality import Quality, numbers, tags
from claim2source.text.styles import (
    REWRITTEN,
    RULES,
    STYLES,
    Original,
    StyleOrigin,
    originals,
    read_origin,
    read_style,
    refuse_other_folder,
    rewrite_by_rules,
    write_style,
)
from tests.refusals import refused
from tests.shared_data import shared

POST = (
    'BREAKING: "kids" can\'t pass it on!!! 😷 25% of 1,479 #SchoolKids in Oslo @user @nature '
    "https://t.co/x1 \n\nwow"
)
ABSTRACT = (
    "BACKGROUND: Masks are in the news. METHODS: We enrolled 120 patients in a randomised trial. "
    "RESULTS: In this study, we found that masks reduced infections by 25% (95% CI 12 to 31). "
    "Data were stored. It is important to note that no harm occurred in order to stay calm."
)


def by_rule(name: str, text: str, title: str | None = None) -> str:
    (one,) = rewrite_by_rules(STYLES[name], [Original("1", text, "en", title)])
    assert (one.id, one.version, one.failure, one.title) == ("1", 1, None, title)
    return one.text


def test_rules_of_claims() -> None:
    formal = by_rule("C1", POST)
    expected = "BREAKING: kids can't pass it on! 25% of 1,479 School Kids in Oslo nature wow."
    assert formal == expected
    text = by_rule("C2", POST)
    assert text == "Children cannot pass it on. 25% of 1,479 School children in Oslo nature."
    abstract = by_rule("C3", POST)
    assert STYLES["C3"].form(abstract) is None and abstract.count(text[1:]) == 2
    assert by_rule("C4", POST).endswith("25% of 1,479 School children in Oslo nature?")
    # A text of signs only is unchanged; no text is empty.
    assert by_rule("C1", "😷😷") == "😷😷"


def test_rules_of_sources() -> None:
    text = by_rule("S1", ABSTRACT, "Masks in wards")
    assert text == (
        "Masks are in the news. We enrolled 120 patients in a randomised trial. Masks reduced "
        "infections by 25% (95% CI 12 to 31). Data were stored. No harm occurred to stay calm."
    )
    short = by_rule("S2", ABSTRACT, "Masks in wards")
    assert "25%" in short and "120 patients" in short and "in the news" not in short
    tweet = by_rule("S3", ABSTRACT, "Hospital masks in surgical wards")
    assert "reduced infections by 25%" in tweet and tweet.endswith("#hospital #surgical")
    long = by_rule("S3", "We found " + "very significant antibodies " * 40 + "in 7.", "A title")
    assert 200 < len(long) <= 280 and "…" in long


# Pieces of posts and abstracts that the rules know, and some that they must leave alone.
PIECES = """
masks infections we found that reduced increased. 25% 1,479 H1N1 covid19 COVID-19 #SchoolKids @user
@nature https://t.co/x1 😷 "kids" “cohort” can't wow!!! BREAKING: why? risk. (n=12) RESULTS: METHODS:
in order to this study shows that patients; lol source: – 12. trial,
""".split()
TEXTS = st.builds(
    lambda first, pieces, gaps: first + "".join(map(str.__add__, gaps, pieces)),
    st.sampled_from(["Masks", "We", "25%", "😷"]),
    st.lists(st.sampled_from(PIECES), max_size=80),
    st.lists(st.sampled_from([" ", " ", "  ", "\n\n"]), min_size=80, max_size=80),
)


@settings(max_examples=80)
@given(TEXTS, st.none() | TEXTS, st.sampled_from(REWRITTEN))
def test_rules_keep_form_and_numbers_of_any_text(text: str, title: str | None, name: str) -> None:
    found = by_rule(name, text, title)
    assert found and (found == text or found == " ".join(found.split()))
    # A text without any words stays as it is, in whatever form.
    assert STYLES[name].form(found) is None or found == text
    assert numbers(found).keys() <= numbers(text).keys() | numbers(title or "").keys()
    if name in ("C1", "C2"):
        assert not tags(found) and "http" not in found and "😷" not in found.removeprefix("😷")
    if name == "C1":
        assert by_rule(name, found) == found


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(0, 260))
def test_long_texts_are_cut_at_a_word(letters: int, more: int) -> None:
    text = " ".join(["x" * letters, *["xxx"] * more])
    tweet = by_rule("S3", text, "A title")
    assert STYLES["S3"].form(tweet) is None and tweet.endswith(" #title")
    kept = tweet.removesuffix(" #title").lower()
    if kept.endswith("…"):
        assert f"{text} ".startswith(f"{kept[:-1]} ") and len(tweet) > 280 - 12
    else:
        assert kept == f"{text}."
    assert STYLES["C3"].form(by_rule("C3", text)) is None


@pytest.mark.parametrize(("name", "split"), [("demo", "test"), ("ct25", "dev")])
def test_every_rule_made_text_has_its_form_and_keeps_its_numbers(name: str, split: str) -> None:
    data = load(name if name == "demo" else shared(name), split)
    data = replace(data, claims=data.claims[::3], sources=data.sources[:50])
    for style in map(STYLES.__getitem__, REWRITTEN):
        texts = originals(data, style.side, "translation")
        rewrites = rewrite_by_rules(style, texts)
        assert [text.id for text in rewrites] == [text.id for text in texts]
        assert [style.form(text.text) for text in rewrites if style.form(text.text)] == []
        assert rewrites == rewrite_by_rules(style, texts)
        assert {text.text for text in rewrites} - {text.text for text in texts}
        for one, text in zip(rewrites, texts, strict=True):
            if style.side == "claims" or style.name == "S1":
                assert numbers(one.text).keys() == numbers(text.text).keys()
        quality = Quality.of([(b.text, a.text) for a, b in zip(rewrites, texts, strict=True)])
        assert quality is not None and quality.new_numbers == 0


def test_forms_are_checked_at_their_borders() -> None:
    words = STYLES["C3"].form
    assert [n for n in (99, 100, 150, 200, 201) if words("w " * n)] == [99, 201]
    assert [n for n in (280, 281) if STYLES["S3"].form("x" * n)] == [281]
    texts = ["Does it work?", "Does it? Or not?", "It works.", "Does it work? Yes."]
    assert [STYLES["C4"].form(text) is None for text in texts] == [True, False, False, False]


def test_which_text_of_a_foreign_claim_is_rewritten() -> None:
    claims = (
        Claim("e", "Masks", "en", translation="nonsense"),
        Claim("d", "Masken", "de", translation="Masks"),
        Claim("f", "Masques", "fr"),
    )
    sources = (Source("p", "T", "A"), Source("q", "T only"))
    data = Dataset(claims, sources, Qrels(), "dev")
    posted = [(text.text, text.language) for text in originals(data, "claims")]
    assert posted == [("Masks", "en"), ("Masken", "de"), ("Masques", "fr")]
    english = [(text.text, text.language) for text in originals(data, "claims", "translation")]
    assert english == [("Masks", "en"), ("Masks", "en"), ("Masques", "fr")]
    assert [(text.id, text.title) for text in originals(data, "sources")] == [("p", "T")]
    with refused(ConfigError, "'english'", "original, translation"):
        originals(data, "claims", "english")  # type: ignore[arg-type]


def test_a_folder_gives_back_what_was_written_and_says_what_made_it(tmp_path: Path) -> None:
    texts = [Original("1", "Ein Text", "de"), Original("2", "another")]
    style_origin = StyleOrigin("m/llm", "demo", "dev", versions=2, prompt="c2 1", claims="original")
    rewrites = [
        texts[0].rewritten("eins\n\u2028x", 1),
        texts[0].rewritten("zwei", 2, failure="281 characters, more than 280"),
        texts[1].rewritten("", 1, failure="not JSON"),
        texts[1].rewritten("b", 2),
    ]
    write_style(tmp_path, STYLES["C2"], rewrites, style_origin)
    titled = [Original("p", "text", title="T")]
    write_style(
        tmp_path,
        STYLES["S1"],
        rewrite_by_rules(STYLES["S1"], titled),
        StyleOrigin(RULES, "d", None),
    )
    assert read_style(tmp_path, STYLES["C2"]) == rewrites
    assert read_style(tmp_path, STYLES["C2"], texts[1:]) == rewrites[2:]
    (source,) = read_style(tmp_path, STYLES["S1"])
    assert (source.text, source.title) == ("Text.", "T")
    origin = read_origin(tmp_path)
    assert origin["C2"] == replace(style_origin, texts=4, failures=2) and origin["C2"].by != RULES
    assert origin["S1"].by == RULES
    # A missing claim and a claim with a changed text are reported.
    changed = [Original("3", "new"), replace(texts[0], text="Anders")]
    with refused(InputError, "'3' version 2", "'1' "):
        read_style(tmp_path, STYLES["C2"], changed)
    with refused(InputError, tmp_path, "C3"):
        read_style(tmp_path, STYLES["C3"])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"_id": "1", "version": 3, "text": "x"}, ":3: version: "),
        ({"_id": "1", "version": 2, "text": " "}, ":3: text: "),
        ({"_id": "1", "version": 1, "text": "x"}, ":3: _id: '1' version 1 "),
    ],
)
def test_a_wrong_line_of_a_folder_is_named(tmp_path: Path, row: object, reason: str) -> None:
    style_origin = StyleOrigin("m", "demo", "dev", versions=2)
    two = [Original("1", "t").rewritten("a"), Original("2", "t").rewritten("a")]
    write_style(tmp_path, STYLES["C2"], two, style_origin)
    with open(tmp_path / "C2.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(InputError) as error:
        read_style(tmp_path, STYLES["C2"])
    assert reason in str(error.value)


def test_a_folder_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    refuse_other_folder(tmp_path)
    refuse_other_folder(tmp_path / "new")
    (tmp_path / "C1.jsonl").touch()
    with refused(UserError, tmp_path, "styles.json"):
        refuse_other_folder(tmp_path)
    for text in ("[]", '{"format": 2, "styles": {}}', '{"format": 1, "styles": {"C9": {}}}'):
        (tmp_path / "styles.json").write_text(text)
        with refused(InputError, "styles.json"):
            read_origin(tmp_path)
    refuse_other_folder(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with refused(UserError, "'thesis.tex'"):
        refuse_other_folder(tmp_path)
