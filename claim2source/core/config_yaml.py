"""Read YAML as plain values whose mappings know the line of each key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from claim2source.core.errors import InputError
from claim2source.core.files import why_not_file

MOST_VALUES = 100_000  # aliases may stand for billions
NO_TEXT = re.compile("[\0\ud800-\udfff]")
Location = tuple[str, int]  # file and line
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBER = re.compile(r"(?!.{1000})[-+]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][-+]?\d+)?")


class YamlMapping(dict[str, Any]):
    """Hold the values of a YAML mapping, and the place of each key; None where no file set it."""

    def __init__(self, values: Any = (), locations: Any = ()) -> None:
        super().__init__(values)
        self.locations: dict[str, Location | None] = {**dict.fromkeys(self), **dict(locations)}

    def overlaid(self, over: YamlMapping) -> YamlMapping:
        merged = YamlMapping({**self, **over}, {**self.locations, **over.locations})
        for name, value in over.items():
            if isinstance(value, YamlMapping) and isinstance(self.get(name), YamlMapping):
                merged[name] = self[name].overlaid(value)
        return merged

    def at(self, key: str) -> Location | None:
        name, _, rest = key.partition(".")
        if isinstance(value := self.get(name), YamlMapping) and key not in self:
            return value.at(rest)
        return self.locations.get(key)


class _Reader:
    """Read nodes as YAML 1.2 does: 5e-5 is a number; no, off and dates are text."""

    def __init__(self, file: str) -> None:
        self.file, self.left = file, MOST_VALUES

    def read(self, node: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise InputError(self.file, why=f"holds more than {MOST_VALUES} values")
        if isinstance(node, yaml.SequenceNode):
            return [self.read(part) for part in node.value]
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node)
        text = node.value
        if NO_TEXT.search(text):
            raise self.problem(node, f"{text[:40]!r} holds a NUL character or half of one")
        if not node.tag.endswith(":str"):
            raise self.problem(node, f"{text[:40]!r} cannot be read as a value")
        if node.style is None and text.lower() in _CONSTANTS:
            return _CONSTANTS[text.lower()]
        if node.style is None and _NUMBER.fullmatch(text):
            kind = float if {*text} & {*".eE"} else int
            return type("Number", (kind,), {"text": text})(text)  # for where a text is wanted
        return text

    def mapping(self, node: yaml.MappingNode) -> YamlMapping:
        values, origins = dict[str, Any](), dict[str, Location | None]()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.problem(key, "a key must be plain text")
            if key.value in values:
                raise self.problem(key, f"{key.value}: is set twice in this file")
            values[key.value] = self.read(value)
            origins[key.value] = (self.file, key.start_mark.line + 1) if self.file else None
        return YamlMapping(values, origins)

    def problem(self, node: yaml.Node, why: str) -> InputError:
        return InputError(self.file, node.start_mark.line + 1, why=why)


def read_yaml(source: Path | str) -> Any:
    """Read a YAML file, or a text; None where it is empty. Raises `InputError`."""
    line, name = None, str(source) if isinstance(source, Path) else ""
    try:
        if isinstance(source, Path):
            if why := why_not_file(source):
                raise InputError(name, why=why)
            source = source.read_text(encoding="utf-8")
        node = yaml.compose(source, Loader=yaml.BaseLoader)
        return None if node is None else _Reader(name).read(node)
    except UnicodeDecodeError:
        why = "not UTF-8"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        why = f"not YAML: {getattr(error, 'problem', None) or error}"
    except RecursionError:
        why = "nested too deeply, or within itself"
    raise InputError(name, line, why=why)


def read_mapping(path: Path) -> YamlMapping:
    """Read a YAML file of keys; an empty one has none. Raises `InputError`."""
    values = read_yaml(path)
    if values is not None and not isinstance(values, YamlMapping):
        raise InputError(path, 1, why="must be `key: value` lines")
    return values or YamlMapping()
