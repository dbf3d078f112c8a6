"""Read words without an option, such as a post: they may stand anywhere among the options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from claim2source.core.config import Option, config_options, is_cumulative

_BOOLEANS = ("true", "false", "null")
# What ends the options: every word after it is none.
_END = "--"


def with_positionals(kind: Any, words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Turn words that belong to no option into options: `demo` into `--source=demo`.

    `kind` is the config's dataclass, whose options say how many words they take; those of its
    `ONE_WORD` take one, and are repeated for more. What is left of such words belongs to the last
    name, which refuses them.
    """
    options = config_options(kind)
    one_word = getattr(kind, "ONE_WORD", ())
    free: list[str] = []
    rest: list[str] = []
    expected: float = 0
    for position, word in enumerate(words):
        if word == _END:
            free += words[position + 1 :]
            break
        if word.startswith("--") or word == "-h":
            following = words[position + 1] if position + 1 < len(words) else ""
            expected = _word_count(options, word, following)
            key, equals, _ = word.removeprefix("--").partition("=")
            if key in one_word:
                expected = 0 if equals else 1
            rest.append(word)
        elif expected:
            expected -= 1
            rest.append(word)
        else:
            free.append(word)
    named = [f"--{name}={word}" for name, word in zip(names, free, strict=False)]
    return [*named, *free[len(named) :], *rest]


def _word_count(options: Mapping[str, Option], word: str, following: str) -> float:
    """Count the words that an option takes after it; `following` is the next one."""
    key, equals, _ = word.removeprefix("--").partition("=")
    if is_cumulative(options, key):
        return float("inf")
    if equals or key in ("help", "print_config", "h", "-h"):
        return 0
    option = options.get(key) or options.get(key.removeprefix("no_"))
    is_switch = option is not None and option.hint in (bool, bool | None)
    if is_switch and following not in _BOOLEANS:
        return 0
    return 1
