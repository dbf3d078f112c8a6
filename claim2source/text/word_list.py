"""Translate texts to English word by word, with a word list in Ding's or FreeDict's format.

A line of Ding's list is `left :: right`. `|` splits both sides into corresponding blocks, and `;`
splits a block into words of one sense: `Maus {f} [zool.] | Mäuse {pl} :: mouse | mice`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from os.path import commonprefix
from pathlib import Path

from claim2source.core.errors import InputError
from claim2source.data.text_files import read_lines
from claim2source.text.dictd import is_dictd, read_articles

# Incremented when the same file is parsed differently.
FORMAT = 1
# Notes on a word: {f}, [zool.], (a sense), <another form>; they may be nested.
_NOTES = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|<[^<>]*>")
# Placeholders for other words, and the pronouns and auxiliaries of a verb's forms.
_FILLERS = frozenset(
    """
    etw etw. jd jd. jdm jdm. jdn jdn. jds jds. sich er/sie er/sie/es ich/er/sie ich/sie wir/sie
    hat/hatte ist/war sb sb. sb.'s sb.’s sth sth. to I/he/she I/she I/you/he he/she we/they
    has/had have/had
    """.split()
)
# Addresses and handles, which are kept, or words.
_WORD = re.compile(r"https?://\S+|@[\w.]+|[^\W\d_]+(?:[-'’][^\W\d_]+)*")
_WITHIN = re.compile(r"[-'’]")
_SPACES = re.compile(r"[ \t]+")
# Endings of inflected words, and letters that join the parts of a compound.
_ENDINGS = ("en", "em", "er", "es", "e", "n", "s", "t")
_JOINTS = ("", "s", "es", "n", "en", "er", "e")
# Minimum letters of a stem or a part of a compound, and maximum letters of a word to split.
_SHORTEST, _LONGEST = 4, 60
# Number of words whose translations are cached.
_MOST_WORDS = 200_000


class WordList:
    """Translate words with a word list, by their first sense; compounds by their parts.

    `left_out` are words to drop because they carry no meaning. Unknown words are kept. Lists that
    have no inflected forms need a `stem`: a form is looked up by it.
    """

    def __init__(
        self,
        senses: Mapping[str, str],
        left_out: Collection[str] = (),
        stem: Callable[[str], str] | None = None,
    ) -> None:
        self.senses, self.left_out = senses, frozenset(left_out)
        self._stem = stem
        self._by_stem: dict[str, list[str]] = {}
        self._found: dict[str, str | None] = {}

    def translate(self, text: str) -> str:
        """Translate a text, except addresses, handles, digits and signs.

        The result is "" if none of its words is known.
        """
        known = 0

        def english(match: re.Match[str]) -> str:
            nonlocal known
            word = match.group()
            if word.startswith(("@", "http:", "https:")):
                return word
            if word.lower() in self.left_out:
                return ""
            found = self._look_up(word)
            known += found is not None
            return word if found is None else found

        translated = _WORD.sub(english, text)
        return _SPACES.sub(" ", translated).strip() if known else ""

    def _look_up(self, word: str) -> str | None:
        if word not in self._found:
            if len(self._found) > _MOST_WORDS:
                self._found.clear()
            self._found[word] = self._whole(word) or self._parts(word)
        return self._found[word]

    def _whole(self, word: str) -> str | None:
        """Look up a word unchanged, in another case, by its stem or without its ending."""
        if sense := self._sense(word) or self._related(word):
            return sense
        for ending in _ENDINGS:
            stem = word.removesuffix(ending)
            if len(word) > len(stem) >= _SHORTEST and (sense := self._sense(stem)):
                return sense
        return None

    def _sense(self, word: str) -> str | None:
        lower = word.lower()
        for form in (word, lower, lower.capitalize()):
            if form in self.senses:
                return self.senses[form]
        return None

    def _related(self, word: str) -> str | None:
        """Return the sense of the word with the same stem that is most like a word."""
        if self._stem is None:
            return None
        if not self._by_stem:
            for known in self.senses:
                self._by_stem.setdefault(self._stem(known.lower()), []).append(known)
        lower = word.lower()

        def difference(known: str) -> tuple[int, int]:
            shared = len(commonprefix([known.lower(), lower]))
            return -shared, abs(len(known) - len(lower))

        related = self._by_stem.get(self._stem(lower), [])
        return self.senses[min(related, key=difference)] if related else None

    def _parts(self, word: str) -> str | None:
        """Translate a compound by two or more parts, with the longest possible last part."""
        if _WITHIN.search(word):
            parts = _WITHIN.split(word)
            found = [self._look_up(part) for part in parts]
            if not any(found):
                return None
            return " ".join(sense or part for part, sense in zip(parts, found, strict=True))
        if len(word) > _LONGEST:
            return None
        for start in range(_SHORTEST, len(word) - _SHORTEST + 1):
            last = self._whole(word[start:])
            if last and (first := self._first_part(word[:start])):
                return f"{first} {last}"
        return None

    def _first_part(self, part: str) -> str | None:
        for joint in _JOINTS:
            stem = part.removesuffix(joint)
            is_joined = stem != part or not joint
            if is_joined and len(stem) >= _SHORTEST and (sense := self._sense(stem)):
                return sense
        return self._parts(part)


def read_senses(path: Path) -> dict[str, str]:
    """Read the words of a file with their first English sense.

    Raises `InputError` for a file without an entry.
    """
    if is_dictd(path):
        senses = dictd_senses(read_articles(path))
        if not senses:
            raise InputError(path, reason="is not a word list: no word has a translation")
        return senses
    senses = parse_senses(read_lines(path))
    if not senses:
        raise InputError(path, reason="is not a word list: it has no line `word :: word`")
    return senses


def dictd_senses(articles: Iterable[tuple[str, Sequence[str]]]) -> dict[str, str]:
    """Map each single word of articles to its first sense."""
    first: dict[str, str] = {}
    for word, senses in articles:
        if senses and " " not in word:
            first.setdefault(word, senses[0])
    return first


def parse_senses(lines: Iterable[str]) -> dict[str, str]:
    """Map each single word of lines in Ding's format to its first sense.

    The first word of a line has precedence over synonyms and inflected forms.
    """
    heads: dict[str, str] = {}
    synonyms: dict[str, str] = {}
    for line in lines:
        for word, sense, is_head in _line_senses(line):
            senses = heads if is_head else synonyms
            senses.setdefault(word, sense)
    return {**synonyms, **heads}


def _line_senses(line: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the single words of a line with their sense, and whether they begin the line."""
    if line.startswith("#"):
        return
    left, separator, right = _without_notes(line).partition("::")
    if not separator:
        return
    for number, (own, other) in enumerate(zip(left.split("|"), right.split("|"), strict=False)):
        senses = _variants(other)
        if not senses:
            continue
        for place, word in enumerate(_variants(own)):
            if " " not in word:
                yield word, senses[0], number == 0 and place == 0


def _without_notes(line: str) -> str:
    before = ""
    while line != before:
        before, line = line, _NOTES.sub(" ", line)
    return line


def _variants(block: str) -> list[str]:
    """List the words of one sense, without placeholders for other words."""
    variants: list[str] = []
    for variant in block.split(";"):
        words = variant.split()
        while words and words[0] in _FILLERS:
            del words[0]
        while words and words[-1] in _FILLERS:
            del words[-1]
        if words:
            variants.append(" ".join(words))
    return variants
