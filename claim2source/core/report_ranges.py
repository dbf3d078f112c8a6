"""Check that a report's numbers are in range: shares, counts, p-values, intervals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_ROUNDING = 1e-9
_AT = "\0"  # separates the parts of a field, since names may contain dots
_NAME = f"[^{_AT}]+"


class Fault(NamedTuple):
    """An impossible number: its field, its value and the allowed values."""

    field: str
    value: float
    allowed: str


class _Kind(NamedTuple):
    places: re.Pattern[str]
    low: float
    high: float
    allowed: str


def _places(*lines: str) -> re.Pattern[str]:
    """Compile dotted fields, in which * is any name."""
    patterns = [line.replace(".", _AT).replace("*", _NAME) for line in lines]
    return re.compile("|".join(patterns))


_SYSTEM = "systems.*."
_TEST = "tests.*."
# The first kind that matches a field applies.
_KINDS = (
    _Kind(
        _places(
            *(f"({_SYSTEM})?(macro|languages.*).queries", f"{_SYSTEM}(slices|val).*.*.queries"),
            "training.history.*.(val|parts.*).*.queries",
            f"{_SYSTEM}(stages.*.)?failures.*",
            f"{_SYSTEM}(stages.*.)?cost.(seconds|claims|peak_memory_bytes|tokens|reused|parameters|joules)",
            f"{_SYSTEM}(without_translation|twins.(golds|of_golds|ties|lost))",
            f"{_SYSTEM}intervals.(repeats|papers)",
            f"{_TEST}(repeats|draws|claims|groups|comparisons.*.(wins|ties|losses))",
        ),
        0,
        float("inf"),
        "0 or more",
    ),
    _Kind(
        _places(
            *(f"({_SYSTEM})?(macro|languages.*).*", f"{_SYSTEM}(slices|val).*.*.*", "headline.*"),
            "training.history.*.(val|parts.*).*.*",
            f"{_SYSTEM}(intervals.values.*.*.*|twins.as_one.*)",
            f"{_TEST}(alpha|least_p)",
            f"{_TEST}comparisons.*.(mean|baseline_mean|p|p_holm|t_p|t_p_holm)",
        ),
        0,
        1,
        "0 to 1",
    ),
    _Kind(_places(f"{_TEST}comparisons.*.(difference|low|high)"), -1, 1, "-1 to 1"),
)
_INTERVAL = _places(f"{_SYSTEM}intervals.values.*.*")
_COMPARISON = _places(f"{_TEST}comparisons.*")


def out_of_range(values: object, place: str = "") -> Iterator[Fault]:
    """Yield the impossible numbers among a report's JSON values."""
    if isinstance(values, int | float) and not isinstance(values, bool):
        kind = next((kind for kind in _KINDS if kind.places.fullmatch(place)), None)
        if kind and not kind.low - _ROUNDING <= values <= kind.high + _ROUNDING:
            yield Fault(place.replace(_AT, "."), values, kind.allowed)
        return
    items: list[tuple[object, object]] = []
    if isinstance(values, Mapping):
        items = [*values.items()]
    elif isinstance(values, list | tuple):
        items = [*enumerate(values)]
    ends = _ends(values, place)
    if ends is not None and ends[0] > ends[1] + _ROUNDING:
        yield Fault(place.replace(_AT, "."), ends[0], f"a lower bound, at most {ends[1]!r}")
    for name, value in items:
        yield from out_of_range(value, f"{place}{_AT}{name}" if place else str(name))


def _ends(values: object, place: str) -> Sequence[float] | None:
    """Return the lower and the upper bound of an interval; None for anything else."""
    if isinstance(values, Mapping) and _COMPARISON.fullmatch(place):
        return values["low"], values["high"]
    if isinstance(values, list | tuple) and _INTERVAL.fullmatch(place):
        return values
    return None
