"""Quantities: all spellings in three languages give the same value and kind."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.text.quantities import Quantity, number_value, quantities

UNITS = {
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen",
    "de": "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
    "fünfzehn sechzehn siebzehn achtzehn neunzehn",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze "
    "seize dix-sept dix-huit dix-neuf",
}
TENS = {
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "fr": "vingt trente quarante cinquante soixante soixante quatre-vingt quatre-vingt",
}
HUNDRED = {"en": " hundred", "de": "hundert", "fr": " cent"}
THOUSAND = {"en": " thousand ", "de": "tausend", "fr": " mille "}
LANGS = ("en", "de", "fr")


def below_hundred(number: int, lang: str) -> str:
    units = UNITS[lang].split()
    if number < 20:
        return units[number]
    tens, unit = divmod(number, 10)
    ten = TENS[lang].split()[tens - 2]
    if lang == "de":
        return f"{units[unit]}und{ten}" if unit else ten
    if lang == "fr" and tens in (7, 9):
        unit += 10
    if not unit:
        return ten
    if lang == "fr" and unit in (1, 11) and tens < 8:
        return f"{ten} et {units[unit]}"
    return f"{ten}-{units[unit]}"


def spell(number: int, lang: str) -> str:
    """Write a number below 10,000 in words."""
    thousands, rest = divmod(number, 1000)
    hundreds, rest = divmod(rest, 100)
    text = ""
    if thousands:
        text += (UNITS[lang].split()[thousands] if thousands > 1 or lang != "fr" else "").strip()
        text += THOUSAND[lang]
    if hundreds:
        text += (UNITS[lang].split()[hundreds] if hundreds > 1 or lang != "fr" else "").strip()
        text += HUNDRED[lang]
    if rest or not text:
        joint = {"en": " and " if hundreds else " ", "de": "", "fr": " "}[lang]
        text += joint + below_hundred(rest, lang)
    return " ".join(text.split())


def marked(number: float, lang: str) -> str:
    """Write a number in digits, with marks of thousands and decimals."""
    text = f"{number:,}"
    if lang == "en":
        return text
    space = "." if lang == "de" else "\u202f"
    return text.replace(",", "_").replace(".", ",").replace("_", space)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9_999), st.sampled_from(LANGS))
def test_words_of_three_languages_are_the_number(number: int, lang: str) -> None:
    percent = {"en": "per cent", "de": "Prozent", "fr": "pour cent"}[lang]
    times = {"en": " times", "de": "mal", "fr": " fois"}[lang]
    words = spell(number, lang)
    if not 1900 <= number < 2100:
        assert quantities(f"Bei {words} !", lang) == ((number, "number"),), words
    assert quantities(f"({words} {percent})", lang) == ((number, "percent"),), words
    assert quantities(f"{words}{times} so", lang) == ((number, "times"),), words


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 10**8), st.integers(0, 2), st.sampled_from(LANGS))
def test_digits_with_the_marks_of_a_language_are_the_number(
    digits: int, decimals: int, lang: str
) -> None:
    number = round(digits / 10**decimals, decimals) if decimals else digits
    text = marked(number, lang)
    assert quantities(f"a {text} % of", lang) == ((number, "percent"),), text
    ends = {"en": "x", "de": "-fach", "fr": " fois"}
    assert quantities(f"{text}{ends[lang]} more", lang) == ((number, "times"),), text


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80), st.sampled_from(LANGS))
def test_any_text_can_be_read(text: str, lang: str) -> None:
    read = quantities(text, lang)
    assert len(set(read)) == len(read)
    assert all(quantity.value >= 0 for quantity in read)


@pytest.mark.parametrize(
    "text",
    [
        "dreizehn" * 2_000 + "x",
        "a 1" + " " * 20_000 + "x",
        "111 " * 5_000 + "1",
        "a " * 9_000,
        "1" * 9_000,
    ]
    + ["drei und " * 2_000, "1-" * 9_000, "half a " * 2_000, "quatre-" * 2_000],
)
def test_hostile_texts_take_no_longer_than_others(text: str) -> None:
    start = time.process_time()
    quantities(text)
    assert time.process_time() - start < 2


SAME = {
    (
        3.7,
        "times",
    ): "3.7x|3,7-fach|3,7 mal|3.7-fold|×3.7|3,7 fois|a rate ratio of 3.7|aOR 3.7|(HR: 3.7|OR = 3.7|um den Faktor 3,7",
    (3.0, "times"): "dreimal|three times|threefold|dreifach|trois fois|tripled|verdreifacht|triplé",
    (2.0, "times"): "doubled|twice|zweimal|doppelt so viele|verdoppelt|deux fois|doublée",
    (37.0, "percent"): "37 %|37%|37 Prozent|37 pour cent|thirty-seven percent|37\u00a0%|37 pct",
    (50.0, "percent"): "half|halved|die Hälfte|halbiert|la moitié|one in two|1/2",
    (33.0, "percent"): "one in three|un enfant sur trois|jeder Dritte|ein Drittel|un tiers|a third"
    "|eine von drei|1 in 3|one out of three|⅓",
    (67.0, "percent"): "two thirds|zwei Drittel|deux tiers|two-thirds",
    (75.0, "percent"): "three-quarters|drei Viertel|trois quarts|3 in 4|¾",
    (318.0, "number"): "318|dreihundertachtzehn|three hundred and eighteen|trois cent dix-huit",
    (3_700_000.0, "number"): "3.7 million|3,7 Millionen|3,7 Mio|3,7 millions",
    (12_000.0, "number"): "12 000|12'000|twelve thousand|zwölftausend|douze mille|12k",
    (80.0, "number"): "eighty|achtzig|quatre-vingts|huitante|80 mg|80kg",
}
CASES = [(form, value) for value, forms in SAME.items() for form in forms.split("|")]


@pytest.mark.parametrize(("form", "value"), CASES, ids=[form for form, _ in CASES])
def test_every_way_to_write_a_quantity_is_that_quantity(
    form: str, value: tuple[float, str]
) -> None:
    lang = "en" if "." in form else "de"
    assert quantities(f"Also: {form}.", lang) == (value,)


@pytest.mark.parametrize(
    "text",
    [
        "COVID-19, H1N1, IL-6, 5th, 3D and B.1.1.7",
        "on 12.05.2020 @user37 https://t.co/37",
        "einfach ein Versuch, une fois, one of us, a new one",
        "double-blind, half an hour, the third dose",
        "95% CI, 95 % KI",
    ],
)
def test_numbers_within_names_dates_and_addresses_are_not_read(text: str) -> None:
    assert not [quantity for quantity in quantities(text) if quantity.kind != "year"]


def test_a_number_of_schools_is_not_the_whole_of_a_share() -> None:
    assert set(quantities("a rate ratio of 3.7 in 312 schools, 5 of 30")) == {
        (3.7, "times"),
        (312, "number"),
        (17, "percent"),
    }


def test_years_are_apart_and_ranges_have_both_ends() -> None:
    assert quantities("from 2019 to 2021") == ((2021, "year"), (2019, "year"))
    assert quantities("2.020 Fälle", "de") == ((2020, "number"),)
    for text in ("10-20 %", "zwischen 10 und 20 Prozent", "de dix à vingt pour cent"):
        assert set(quantities(text, "de")) == {Quantity(10, "percent"), Quantity(20, "percent")}


def test_three_digits_after_a_mark_are_read_by_language() -> None:
    assert number_value("1,234", "en") == number_value("1.234", "de") == 1234
    assert number_value("1.234", "en") == number_value("1,234", "fr") == 1.234
    assert number_value("1,234.5", "en") == number_value("1.234,5", "de") == 1234.5
    assert number_value("0,123", "en") == 0.123
    assert number_value("1.2.3", "en") is None


@pytest.mark.parametrize("point", ["·", "∙", "⋅"])
def test_a_raised_point_is_a_decimal_point(point: str) -> None:
    text = "rate 17{}1% (95% CI 13{}3-21{}7), HR 0{}63, n=1204"
    assert quantities(text.replace("{}", point)) == quantities(text.replace("{}", "."))
    assert Quantity(17.1, "percent") in quantities(text.replace("{}", point))
    # Elsewhere it separates words: a list, a formula.
    assert quantities(f"3 {point} 5") == quantities("3 ; 5")
