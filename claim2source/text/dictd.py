"""Read dictionaries of a dict server, as FreeDict's packages install them.

An `.index` has a line for each article: headword, start and length. The articles are in a `.dict`,
or in a `.dict.dz`, which gzip reads. The first line of an article is its headword, and its senses
follow, with numbers if there are several:

    bordel /bordel/ <n, masc>
    1. brothel
    2. bawdy, house of ill fame
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from claim2source.core.errors import InputError
from claim2source.core.files import file_error
from claim2source.data.text_files import open_bytes, read_lines

_ENDINGS = (".dict.dz", ".dict", ".index")
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_NUMBERED = re.compile(r"\s*\d+\.\s*(.*)")
# Notes on a sense: (rare), [slang], <noun>.
_NOTES = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|<[^<>]*>")
# Entries about the dictionary itself.
_ABOUT = "00database"


def is_dictd(path: Path) -> bool:
    """Whether a file is part of a dict server's dictionary, by its name."""
    return path.name.endswith(_ENDINGS)


def dictd_files(path: Path) -> tuple[Path, Path]:
    """Return the index and the articles of a dictionary, by either of them."""
    stem = path.name
    for ending in _ENDINGS:
        stem = stem.removesuffix(ending)
    articles = path.with_name(f"{stem}.dict.dz")
    if not articles.exists():
        articles = path.with_name(f"{stem}.dict")
    return path.with_name(f"{stem}.index"), articles


def read_articles(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the headwords of a dictionary with their senses. Raises `InputError`."""
    index, articles = dictd_files(path)
    text = _read_text(articles)
    for number, line in enumerate(read_lines(index), 1):
        word, *span = line.rstrip("\n").split("\t")[:3]
        if word.startswith(_ABOUT):
            continue
        try:
            start, length = map(_number, span)
        except (KeyError, ValueError):
            reason = "is not a line of a dictionary's index: headword, start, length"
            raise InputError(index, number, reason=reason) from None
        article = text[start : start + length].decode("utf-8", "replace")
        yield word, list(_senses(article))


def _read_text(path: Path) -> bytes:
    if reason := file_error(path):
        raise InputError(path, reason=reason)
    try:
        with open_bytes(path) as file:
            return file.read()
    except (OSError, EOFError, zlib.error):
        raise InputError(path, reason="is damaged") from None


def _number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = value * len(_DIGITS) + _VALUES[digit]
    return value


def _senses(article: str) -> Iterator[str]:
    """Yield the senses of an article, without the notes below them."""
    _, *lines = article.split("\n")
    for position, line in enumerate(lines):
        numbered = _NUMBERED.match(line)
        if numbered is None and position:
            continue
        senses = line if numbered is None else numbered.group(1)
        for sense in re.split("[,;]", _NOTES.sub(" ", senses)):
            if text := " ".join(sense.split()):
                yield text
