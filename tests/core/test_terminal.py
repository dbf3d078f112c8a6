"""Nothing in a user's file controls the terminal."""

import unicodedata

from claim2source.core.terminal import printable, printable_line, say, shortened

HARMLESS = "Größe, naïve, 语言, 👩\u200d🔬, a\u00a0b, \\x1b, |"


def test_controls_surrogates_separators_and_turning_marks_are_escaped():
    for kind in ("Cc", "Cs", "Zl", "Zp"):
        chars = {chr(n) for n in range(0x11000) if unicodedata.category(chr(n)) == kind} - {"\n"}
        assert chars
        for character in chars:
            assert printable(character).isascii() and printable(character).startswith("\\")
    for kind in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI"):
        marks = [chr(n) for n in range(0x3000) if unicodedata.bidirectional(chr(n)) == kind]
        assert [printable(c) for c in marks] == [f"\\u{ord(c):04x}" for c in marks]


def test_escaping_twice_changes_nothing(capsys):
    assert printable(HARMLESS) == HARMLESS and printable_line("a\nb") == "a b"
    escaped = printable("\x1b]0;owned\x07\ud800")
    assert escaped == "\\x1b]0;owned\\x07\\ud800"
    say(escaped)
    assert capsys.readouterr().out == escaped + "\n"


def test_a_long_line_keeps_its_beginning_and_its_end():
    assert shortened("x" * 600) == "x" * 600
    line = shortened("file:3: " + "x" * 10_000 + " is not allowed; allowed: 1")
    assert len(line) < 620 and line.startswith("file:3: xx")
    assert line.endswith("xx is not allowed; allowed: 1")
