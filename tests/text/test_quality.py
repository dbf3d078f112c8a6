"""What a rewriting keeps: numbers, percentages, handles and hashtags."""

from __future__ import annotations

import pytest

from claim2source.text.quality import Quality, lost_facts, numbers, tags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("25% of 1,479", {"25": True, "1479": False}),
        ("25 Prozent von 1.479, 0,5 %", {"25": True, "1479": False, "05": True}),
        ("1 479 personnes, 12 pour cent", {"1479": False, "12": True}),
        (
            "12\u202f000 et 3.7x, age 5-11, 1980s",
            dict.fromkeys("12000 37 5 11 1980".split(), False),
        ),
        ("COVID-19 H1N1 SARS-CoV-2 #2020 #covid-19 @user1 https://t.co/4", {}),
        ("7 of 7%, 95 % CI 1.8-2.8%", {"7": True, "95": True, "18": False, "28": True}),
    ],
)
def test_numbers(text: str, expected: dict[str, bool]) -> None:
    assert numbers(text) == expected


@pytest.mark.parametrize(
    ("original", "text", "lost"),
    [
        ("Um 25 % auf 1.479, 4 Stunden", "By 25% to 1,479, four hours", []),
        ("25 % mehr", "52% more", ["the number 25 is gone", "the number 52 is new"]),
        ("25 % mehr", "25 more", ["25 is no longer a percentage"]),
        ("@Nature: #Masken helfen", "Masks help, @nature", ["#Masken is gone"]),
        ("der 3. Fall", "the third case", []),
    ],
)
def test_lost_facts(original: str, text: str, lost: list[str]) -> None:
    assert lost_facts(original, text) == lost


@pytest.mark.parametrize(
    ("original", "text", "lost"),
    [
        ("#immunologie", "#immunology", []),
        ("#Impfung und #Masken", "#masks and #vaccination", []),
        ("#Impfung und #Masken", "#masks", ["#Impfung"]),
        ("#Masken #Schule", "masks in #schools", ["#Masken"]),
        ("@ARD #Masken", "#masks #ARD", ["@ARD"]),
        ("#Masken", "@masks", ["#Masken"]),
        ("#COVID19 hilft", "#COVID helps", ["#COVID19"]),
        ("#covid19 #Studie", "#COVID19 #study #COVID19", []),
        ("#Masken", "#Masken #masks", []),
        ("#Schule #Masken", "#Masken", ["#Schule"]),
        ("#ÄRZTE", "#ärzte", []),
    ],
)
def test_a_translated_hashtag_is_not_lost_and_stands_for_one(
    original: str, text: str, lost: list[str]
) -> None:
    gone = [f"{tag} is gone" for tag in lost]
    assert lost_facts(original, text, is_translation=True) == gone


def test_a_rewriting_keeps_its_hashtags() -> None:
    assert lost_facts("#immunologie", "#immunology") == ["#immunologie is gone"]


def test_tags_are_handles_and_hashtags_once_each() -> None:
    tag_list = tags("@nature a@b.c #Covid_19, #Covid_19 (#dé) https://x.y/#z")
    assert tag_list == ["@nature", "#Covid_19", "#dé"]


def test_quality_is_a_mean_over_texts() -> None:
    originals = ["25% of 40 in Oslo", "no facts here", "seven"]
    texts = ["25% in Oslo in 2020 now", "none", "7"]
    quality = Quality.of(list(zip(originals, texts, strict=True)))
    assert quality is not None and quality.words == pytest.approx((6 + 1 + 1) / 3)
    assert quality.length == pytest.approx((6 / 5 + 1 / 3 + 1) / 3)
    # Only the first has numbers.
    assert (quality.numbers, quality.new_numbers) == (0.5, pytest.approx(1 / 3))
    assert "50% of the numbers kept" in quality.sentence()
    plain = Quality.of([("no facts here", "none")])
    assert plain is not None and plain.numbers is None and "numbers" not in plain.sentence()
    assert Quality.of([]) is None
