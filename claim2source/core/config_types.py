"""Describe the keys of a config by the types of its dataclass: bounds, groups, help."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt

NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    str: "text",
    Path: "a path",
}


@dataclass(frozen=True)
class Bounds(GroupedMetadata):
    """Bound a number from `low` (or `above` it) to `high` (or `below` it)."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __iter__(self) -> Any:
        yield Gt(self.low) if self.above else Ge(self.low)
        yield Lt(self.high) if self.below else Le(self.high)

    def __str__(self) -> str:
        if not self.above and not self.below:
            return f"{self.low} to {self.high}"
        low = f"above {self.low}" if self.above else f"{self.low} or more"
        return f"{low}, {'below' if self.below else 'at most'} {self.high}"


@dataclass(frozen=True)
class Option:
    """Describe a key of a config: its type, default and help."""

    key: str
    hint: Any
    default: Any
    required: bool
    help: str
    file_of: type | None = None  # the group whose keys stand in the YAML file that this names

    @property
    def is_switch(self) -> bool:
        """Tell whether `--key` alone means true."""
        return without_annotation(self.hint) is bool


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Map the fields of a dataclass to their types, bounds included."""
    return get_type_hints(kind, include_extras=True)


@cache
def groups_of(kind: Any) -> dict[str, type]:
    """Map the fields of a dataclass that are dataclasses themselves to their types."""
    fields = {f.name for f in dataclasses.fields(kind)}
    parts = (
        (name, part)
        for name, hint in hints_of(kind).items()
        for part in (hint, *get_args(hint))
        if name in fields
    )
    return {name: p for name, p in parts if isinstance(p, type) and dataclasses.is_dataclass(p)}


@cache
def options_of(kind: Any, prefix: str = "", every: bool = False) -> tuple[Option, ...]:
    """List the flags of a config, a group's in its place; or `every` key that its YAML has.

    A group whose class names `FLAGS` is a flag itself, which takes a YAML file of the group's
    keys; of these only the named are flags too.
    """
    options: list[Option] = []
    hints, groups, helps = hints_of(kind), groups_of(kind), _helps(kind)
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        key, hint = f"{prefix}{field.name}", hints[field.name]
        about = field.metadata.get("help") or helps.get(field.name, "")
        missing = dataclasses.MISSING
        factory = field.default_factory is not missing
        required = field.default is missing and not factory
        if field.name in groups:
            if type(None) in get_args(hint):
                options.append(Option(key, hint, None, False, about))
            inside, flags = groups[field.name], getattr(groups[field.name], "FLAGS", None)
            named = options_of(inside, f"{key}.", every)
            if flags is not None and not every:
                named = tuple(one for one in named if one.key.removeprefix(f"{key}.") in flags)
                names = ", ".join(f.name for f in dataclasses.fields(inside))
                about = f"{about.rstrip('.')}: a YAML file of {names}"
                options.append(Option(key, Path, None, False, about, inside))
            options += named
            continue
        default = field.default_factory() if factory else field.default  # type: ignore[misc, operator]
        options.append(Option(key, hint, None if required else default, required, about))
    return tuple(options)


def keys_of(kind: type) -> list[str]:
    """List the keys of a config, and the names of its groups."""
    keys = [option.key for option in options_of(kind, every=True)]
    groups = {
        ".".join(key.split(".")[:depth]) for key in keys for depth in range(1, key.count(".") + 1)
    }
    return [*keys, *sorted(groups - {*keys})]


def _helps(kind: type) -> dict[str, str]:
    """Read what a dataclass and its bases say of their fields, under `Args:`."""
    helps: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        _, _, args = re.sub("^Attributes:$", "Args:", text, flags=re.MULTILINE).partition("Args:\n")
        for name, about in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", args, re.MULTILINE):
            helps[name] = " ".join(about.split())
    return helps


def without_annotation(hint: Any) -> Any:
    """Return a type without its bounds."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def parts_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a value may have one of, each without bounds."""
    hint = without_annotation(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(part for inner in get_args(hint) for part in parts_of(inner))
    return (hint,)


def is_list(hint: Any) -> bool:
    """Tell whether a key takes several values."""
    return any(get_origin(part) in (list, tuple) for part in parts_of(hint))


def items_of(hint: Any) -> Any:
    """Return the type of a list's items; of anything else its own."""
    for part in parts_of(hint):
        if get_origin(part) in (list, tuple):
            return get_args(part)[0]
    return hint


def is_text(hint: Any) -> bool:
    """Tell whether a key, or each item of its list, is text or a path."""
    parts = parts_of(items_of(hint))
    texts = all(part in (str, Path, type(None)) for part in parts)
    return texts and (str in parts or Path in parts)


def allowed_words(hint: Any) -> str:
    """Describe a type for a user."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        return ", ".join([allowed_words(inner), *(str(m) for m in marks if isinstance(m, Bounds))])
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin in (Union, types.UnionType):
        return " or ".join(allowed_words(part) for part in inner)
    if origin in (list, tuple):
        item = without_annotation(inner[0])
        if item in (int, float):
            bounds = allowed_words(inner[0]).partition(", ")[2]
            return f"a list of numbers, such as [1, 2]{bounds and f', each {bounds}'}"
        if get_origin(item) is Literal:
            return f"a list of {allowed_words(item)}"
        return "a list, such as [a, b]"
    if origin is dict:
        return f"a mapping of names to {allowed_words(inner[1])}"
    if dataclasses.is_dataclass(hint):
        return f"its keys: {', '.join(f.name for f in dataclasses.fields(hint))}"
    return NAMES.get(hint, getattr(hint, "__name__", str(hint)))
