"""Every number among the settings has bounds: none makes a program hang or fall over."""

import dataclasses
import importlib
import math
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from claim2source.core.errors import ConfigError
from tests.shared_data import REPOSITORY

FOLDERS = ("claim2source", "eval", "train")
WRONG = [-1, -(10**400), 10**12, 10**400]
NO_NUMBERS = [math.inf, -math.inf, math.nan, 1e300]
# Fields without a default need a value, whatever it is.
GIVEN: Any = {
    "out": "o",
    "pipeline": "p",
    "system": "s",
    "checkpoint": "c",
    "reports": ["r"],
    "qrels": "q",
    "run": ["r"],
    "views": "v",
    "dataset": "d",
    "post": "p",
    "source": "s",
    "index": "i",
}
# Arguments of pl.Trainer, which checks them itself.
ELSEWHERE = {"trainer"}


def configs() -> list[type]:
    """Every class of settings, of the library and of the programs in train/ and eval/."""
    paths = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in paths]
    modules = map(importlib.import_module, names)
    found = {kind for module in modules for kind in vars(module).values() if is_config(kind)}
    return sorted(found, key=lambda kind: (kind.__module__, kind.__name__))


def is_config(kind: object) -> bool:
    named = isinstance(kind, type) and kind.__name__.endswith(("Config", "Options"))
    return named and dataclasses.is_dataclass(kind)


def inner(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from inner(part)


def numbers() -> Iterator[tuple[Any, str, set[Any]]]:
    """Every setting that holds numbers: its class, its name and its type's parts."""
    for kind in configs():
        hints = get_type_hints(kind)
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            parts = set(inner(hints[field.name]))
            if {int, float} & parts and field.name not in ELSEWHERE:
                yield kind, field.name, parts


def test_every_number_has_bounds() -> None:
    seen = set()
    for kind, name, parts in numbers():
        seen.add(f"{kind.__name__}.{name}")
        given = {f.name: GIVEN[f.name] for f in dataclasses.fields(kind) if f.name in GIVEN}
        origins = {get_origin(part) for part in parts}
        for number in [*WRONG, *(NO_NUMBERS if float in parts else [])]:
            several = {"en": number} if dict in origins else [number]
            value: Any = several if origins & {dict, list, tuple} else number
            with pytest.raises(ConfigError) as caught:
                kind(**{**given, name: value})
                pytest.fail(f"{kind}: {name}: {value} is taken")
            assert name in caught.value.key
    assert {"BM25Config.k1", "OptimisationConfig.seed", "Config.repeats"} <= seen
    assert len(seen) > 70
