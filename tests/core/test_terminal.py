"""Nothing that a user's file holds steers the terminal."""

import unicodedata

import pytest

from claim2source.core.terminal import printable, printable_line, say, shortened

HARMLESS = "Größe, naïve, 语言, 👩\u200d🔬, a\u00a0b, \\x1b, |"


def test_text_that_is_harmless_stays():
    assert printable(HARMLESS) == HARMLESS
    assert printable("a\nb") == "a\nb"
    assert printable_line("a\nb") == "a b"


@pytest.mark.parametrize(
    "kind", ["Cc", "Cs", "Zl", "Zp"], ids=["controls", "surrogates", "lines", "paragraphs"]
)
def test_whole_categories_are_escaped(kind):
    found = [chr(n) for n in range(0x11000) if unicodedata.category(chr(n)) == kind]
    assert found
    for character in set(found) - {"\n"}:
        assert printable(character).isascii()
        assert printable(character).startswith("\\")


@pytest.mark.parametrize("kind", ["RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI"])
def test_marks_that_turn_text_round_are_escaped(kind):
    found = [chr(n) for n in range(0x3000) if unicodedata.bidirectional(chr(n)) == kind]
    assert [printable(character) for character in found] == [f"\\u{ord(c):04x}" for c in found]


def test_escaping_twice_changes_nothing(capsys):
    once = printable("\x1b]0;owned\x07\ud800")
    assert once == "\\x1b]0;owned\\x07\\ud800"
    say(once)
    assert capsys.readouterr().out == once + "\n"


def test_a_long_line_keeps_its_beginning_and_its_end():
    assert shortened("x" * 600) == "x" * 600
    line = shortened("file:3: " + "x" * 10_000 + " is not allowed; allowed: 1")
    assert (
        len(line) < 620
        and line.startswith("file:3: xx")
        and line.endswith("xx is not allowed; allowed: 1")
    )
