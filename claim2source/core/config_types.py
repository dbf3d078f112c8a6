"""Describe the keys of a config by the types of its dataclass: bounds, groups, help."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval

_OPTIONS = (
    "  --config FILE ..   YAML with what differs from the defaults; of several the later ones win",
    "  --print_config     print every key and its value",
)
_ALL = "  --help=all         explain every key"
_NAMES = {
    **{int: "a whole number", float: "a number", bool: "true or false"},
    **{str: "text", Path: "a path", NoneType: "null"},
}


@dataclass(frozen=True)
class Option:
    """Describe a key of a config, or a group of keys."""

    key: str
    hint: Any
    default: Any  # MISSING where the key is required
    help: str
    group: type | None = None  # the dataclass of a group
    within: str = ""  # the flag whose YAML file alone has the key

    @property
    def is_switch(self) -> bool:
        """Tell whether `--key` alone means true."""
        return parts_of(self.hint) == (bool,)

    @property
    def is_flag(self) -> bool:
        """Tell whether `--key` takes a value: of groups a file, or null."""
        null = NoneType in parts_of(self.hint)
        return not self.within and (self.group is None or self.is_file or null)

    @property
    def is_file(self) -> bool:
        """Tell whether the flag takes a YAML file of the group's keys."""
        return hasattr(self.group, "FLAGS")


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Map the fields of a dataclass to their types, bounds included."""
    return get_type_hints(kind, include_extras=True)


@cache
def options_of(kind: Any, prefix: str = "") -> dict[str, Option]:
    """Map every key of a config to its description, a group's after the group itself.

    Where a group's class names `FLAGS`, these alone of its keys are flags, and the group itself
    takes a YAML file.
    """
    options: dict[str, Option] = {}
    hints, helps = hints_of(kind), _helps(kind)
    for field in (field for field in dataclasses.fields(kind) if field.init):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        text = field.metadata.get("help") or helps.get(field.name, "")
        group = next((part for part in parts_of(hint) if dataclasses.is_dataclass(part)), None)
        if group is None:
            default = field.default
            default = default if field.default_factory is MISSING else field.default_factory()
            options[key] = Option(key, hint, default, text)
            continue
        inside, flags = options_of(group, f"{key}."), getattr(group, "FLAGS", None)
        if flags is not None:
            text = f"{text.rstrip('.')}: a YAML file of {', '.join(hints_of(group))}"
            named = {f"{key}.{name}" for name in flags}
            within = {name: "" if name in named else key for name in inside}
            inside = {k: dataclasses.replace(o, within=within[k]) for k, o in inside.items()}
        options |= {key: Option(key, hint, None, text, group), **inside}
    return options


def _helps(kind: type) -> dict[str, str]:
    """Read what a dataclass and its bases say of their fields, under `Args:`."""
    helps: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        _, _, args = re.sub("^Attributes:$", "Args:", text, flags=re.MULTILINE).partition("Args:\n")
        for name, about in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", args, re.MULTILINE):
            helps[name] = " ".join(about.split())
    return helps


def parts_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a value may have one of, each without bounds."""
    if get_origin(hint) is Annotated:
        return parts_of(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return tuple(part for inner in get_args(hint) for part in parts_of(inner))
    return (hint,)


def item_of(hint: Any) -> Any:
    """Return the type of a list's items; None of what is no list."""
    lists = (part for part in parts_of(hint) if get_origin(part) in (list, tuple))
    return next((get_args(part)[0] for part in lists), None)


def is_text(hint: Any) -> bool:
    """Tell whether a value is text or a path, or null."""
    return {*parts_of(hint)} - {NoneType} in ({str}, {Path}, {str, Path})


def allowed_words(hint: Any) -> str:
    """Describe a type for a user."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [_bounds(mark) for mark in inner[1:] if isinstance(mark, Interval)]
        return ", ".join([allowed_words(inner[0]), *bounds])
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " or ".join(allowed_words(part) for part in inner)
    if origin in (list, tuple):
        item, comma, bounds = allowed_words(inner[0]).partition(", ")
        if item in (_NAMES[int], _NAMES[float]):
            return f"a list of numbers, such as [1, 2]{comma and ', each '}{bounds}"
        return (
            "a list, such as [a, b]"
            if inner[0] in (str, Path)
            else f"a list of {item}{comma}{bounds}"
        )
    if origin is dict:
        return f"a mapping of names to {allowed_words(inner[1])}"
    if dataclasses.is_dataclass(hint):
        return f"its keys: {', '.join(field.name for field in dataclasses.fields(hint))}"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _bounds(of: Interval) -> str:
    if of.gt is None and of.lt is None:
        return f"{of.ge} to {of.le}"
    low = f"above {of.gt}" if of.ge is None else f"{of.ge} or more"
    return f"{low}, {'below' if of.le is None else 'at most'} {of.lt if of.le is None else of.le}"


def help_text(
    usage: str, about: str, options: Mapping[str, Option], common: Mapping[str, str] | None
) -> str:
    """Write the help of every flag, or of the keys in `common` alone, one line each."""
    lines = [f"usage: {usage} [--config FILE] [--key value ...]", ""]
    if common:
        lines.append(f"The {len(common)} keys that people change most, and their defaults:")
        width = max(map(len, common)) + 2
        for key, what in common.items():
            lines.append(f"  --{key:<{width}}{what} ({_shown(options[key].default)})")
        return "\n".join([*lines, "", *_OPTIONS, _ALL, "", about, ""])
    lines += [about, "", *_OPTIONS]
    for option in options.values():
        if option.is_flag:
            kind = allowed_words(Path if option.is_file else option.hint)
            head = f", --no_{option.key}" if option.is_switch else f" {kind}"
            head = f"  --{option.key}{head}"
            lines += textwrap.wrap(head, 110, subsequent_indent=" " * 8)
            default = option.default
            given = "required" if default is MISSING else f"default: {_shown(default)}"
            text = f"{option.help} ({given})".strip()
            lines += textwrap.wrap(text, 110, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join([*lines, ""])


def _shown(default: object) -> str:
    if isinstance(default, list | tuple):
        return f"[{', '.join(map(str, default))}]"
    plain = default is None or default == "" or isinstance(default, bool)
    return json.dumps(default) if plain else str(default)
