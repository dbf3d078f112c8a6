"""Read YAML as plain values whose mappings know the line of each key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from claim2source.core.errors import InputError
from claim2source.core.files import why_not_file

MOST_VALUES = 100_000  # aliases may stand for billions
NO_TEXT = re.compile("[\0\ud800-\udfff]")
Place = tuple[str, int]  # file and line


class YamlMapping(dict[str, Any]):
    """Hold the values of a YAML mapping, and the place of each key; None of what no file set."""

    def __init__(
        self, values: Mapping[str, Any] = {}, places: Mapping[str, Place | None] = {}
    ) -> None:
        super().__init__(values)
        self.places = {**dict.fromkeys(values), **places}


def overlaid(under: Any, over: Any) -> Any:
    """Lay a mapping over another, key by key; of all else `over` stands."""
    if not (isinstance(under, YamlMapping) and isinstance(over, YamlMapping)):
        return over
    values = {name: overlaid(under.get(name), value) for name, value in over.items()}
    return YamlMapping({**under, **values}, {**under.places, **over.places})


def at(values: Any, key: str) -> tuple[Any, Place | None]:
    """Look up what a dotted key is set to, and where; None for what is not there."""
    place: Place | None = None
    for name in key.split("."):
        place = getattr(values, "places", {}).get(name)
        values = values.get(name) if isinstance(values, dict) else None
    return values, place


class _Loader(yaml.SafeLoader):
    """Read 5e-5 as a number, as everybody but YAML 1.1 does; no, off and dates as text.

    A number knows the `text` that it is written as.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=True)
        except (AttributeError, LookupError, ValueError):
            raise self.problem(node, f"{node.value[:40]!r} cannot be read as a value") from None
        if isinstance(value, str) and NO_TEXT.search(value):
            raise self.problem(node, f"{value[:40]!r} holds a NUL character or half of one")
        number = type(value) in (int, float)
        return type("Number", (type(value),), {"text": node.value})(value) if number else value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        found = YamlMapping()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith(":str"):
                raise self.problem(key, "a key must be plain text")
            if key.value in found:
                raise self.problem(key, f"{key.value}: is set twice in this file")
            found[key.value] = self.construct_object(value)
            found.places[key.value] = (self.name, key.start_mark.line + 1) if self.name else None
        return found

    def problem(self, node: yaml.Node, why: str) -> InputError:
        return InputError.at(self.name, node.start_mark.line + 1, why=why)


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_mapping)
_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if not pair[0].endswith((":timestamp", ":merge", ":bool"))]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_BOOL = re.compile("^([Tt]rue|TRUE|[Ff]alse|FALSE)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
_FLOAT = re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$|^[-+]?\.\d+([eE][-+]?\d+)?$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_yaml(source: Path | str) -> Any:
    """Read a YAML file, or a text; None where it is empty. Raises `InputError`."""
    line, name = None, str(source) if isinstance(source, Path) else ""
    try:
        if isinstance(source, Path):
            if why := why_not_file(source):
                raise InputError.at(name, why=why)
            source = source.read_text(encoding="utf-8")
        loader = _Loader(source)
        loader.name = name
        value = loader.get_single_data()
        if next(islice(json.JSONEncoder().iterencode(value), 4 * MOST_VALUES, None), None) is None:
            return value
        why = f"holds more than {MOST_VALUES} values"
    except UnicodeDecodeError:
        why = "not UTF-8"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        why = f"not YAML: {getattr(error, 'problem', None) or error}"
    except RecursionError:
        why = "nested too deeply"
    except (TypeError, ValueError):
        why = "holds more than plain values: a set, bytes, or itself"
    raise InputError.at(name, line, why=why)


def read_mapping(path: Path) -> YamlMapping:
    """Read a YAML file of keys; an empty one has none. Raises `InputError`."""
    values = read_yaml(path)
    if values is not None and not isinstance(values, YamlMapping):
        raise InputError.at(path, 1, why="must be `key: value` lines")
    return values or YamlMapping()
