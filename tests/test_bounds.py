"""Every number in the settings has bounds, so that none makes a program hang or crash."""

import dataclasses
import importlib
import math
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from annotated_types import Interval
from pydantic import TypeAdapter

from claim2source.core.config import Count, Positive, Seed, Settings, Share, config_options
from claim2source.core.errors import ConfigError
from claim2source.search.bm25 import BM25
from claim2source.search.fielded import Fielded
from tests.shared_data import REPOSITORY

FOLDERS = ("claim2source", "eval", "train")
# Arguments of pl.Trainer, which checks them itself.
ELSEWHERE = {"trainer"}


def configs() -> list[type]:
    """Every class of settings, of the library and of the programs in train/ and eval/."""
    paths = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in paths]
    modules = map(importlib.import_module, names)
    kinds = {kind for module in modules for kind in vars(module).values() if is_config(kind)}
    return sorted(kinds, key=lambda kind: (kind.__module__, kind.__name__))


def is_config(kind: object) -> bool:
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return False
    return kind in (BM25, Fielded) or kind.__name__.endswith(("Config", "Options"))


def is_unbounded(hint: Any) -> bool:
    """Whether this type allows a number without bounds."""
    if hint in (int, float):
        return True
    if get_origin(hint) is Annotated and any(isinstance(m, Interval) for m in get_args(hint)):
        return False
    return any(is_unbounded(part) for part in get_args(hint))


def test_every_number_has_bounds_in_its_type_and_its_class_checks_them() -> None:
    bounded = set()
    for kind in configs():
        for name, hint in get_type_hints(kind, include_extras=True).items():
            assert name in ELSEWHERE or not is_unbounded(hint), f"{kind.__name__}.{name}: {hint}"
            if "Interval(" in repr(hint):
                bounded.add(f"{kind.__name__}.{name}")
                assert issubclass(kind, Settings), kind
        # Defaults are not checked when they are used.
        for option in config_options(kind).values():
            bounded_hint = "Interval(" in repr(option.hint) or "Literal[" in repr(option.hint)
            if bounded_hint and option.default not in (None, dataclasses.MISSING):
                TypeAdapter(option.hint).validate_python(option.default)
    assert {"BM25.k1", "OptimisationConfig.seed", "Config.repeats"} <= bounded
    assert len(bounded) > 70


@dataclasses.dataclass(frozen=True)
class Numbers(Settings):
    """Numbers of every kind, also in lists, mappings and alternatives."""

    count: Count = 0
    share: Share = 0.5
    rate: Positive = 1.0
    seed: Seed | None = None
    counts: tuple[Count, ...] = ()
    shares: dict[str, Share] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("count", [-1, 10**400, 1.5, math.nan]),
        ("share", [-0.1, 1.1, math.inf, math.nan, 1e300, "x"]),
        ("rate", [0, -1, math.inf, math.nan]),
        ("seed", [-1, 2**32, 0.5]),
        ("counts", [(1, -1), (math.nan,), 3]),
        ("shares", [{"en": 1.1}, {"en": math.nan}]),
    ],
)
def test_a_number_outside_its_bounds_is_refused_by_its_key(name: str, numbers: list[Any]) -> None:
    for number in numbers:
        with pytest.raises(ConfigError) as error:
            Numbers(**{name: number})
            pytest.fail(f"{name}: {number} is taken")
        assert error.value.key.split(".")[0] == name
    assert Numbers(1, 1.0, 0.1, 5, (2,), {"en": 0.5}).seed == 5
