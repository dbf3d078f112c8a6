"""Read positional arguments, such as a post, which may be anywhere among the options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from claim2source.core.config import Option, config_options, is_cumulative

_BOOLEANS = ("true", "false", "null")
# Ends the options: every word after it is positional.
_END = "--"


def with_positionals(
    kind: Any,
    words: Sequence[str],
    names: Sequence[str],
) -> list[str]:
    """Turn positional words into options: `demo` into `--source=demo`.

    `kind` is the config's dataclass, which defines how many words each option has; options in its
    `ONE_WORD` have one and are repeated for more. Surplus words follow the last name, whose option
    refuses them.
    """
    options = config_options(kind)
    one_word = getattr(kind, "ONE_WORD", ())
    free: list[str] = []
    rest: list[str] = []
    expected: float = 0
    for position, word in enumerate(words):
        next_position = position + 1
        if word == _END:
            free += words[next_position:]
            break

        if word.startswith("--") or word == "-h":
            following = words[next_position] if next_position < len(words) else ""
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
    surplus = free[len(named) :]
    return [*named, *surplus, *rest]


def _word_count(
    options: Mapping[str, Option],
    word: str,
    following: str,
) -> float:
    """Return the number of words after an option that belong to it; `following` is the next."""
    flag = word.removeprefix("--")
    key, equals, _ = flag.partition("=")
    if is_cumulative(options, key):
        return float("inf")
    if equals or key in ("help", "print_config", "h", "-h"):
        return 0

    option = options.get(key) or options.get(key.removeprefix("no_"))
    is_switch = option is not None and option.hint in (bool, bool | None)
    if is_switch and following not in _BOOLEANS:
        return 0
    return 1
