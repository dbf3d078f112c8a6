"""Read YAML 1.2, with the file and line of every key, and write it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import yaml

from claim2source.core.errors import InputError
from claim2source.core.files import file_error
from claim2source.core.parts import NamedParts

MOST_VALUES = 100_000  # aliases may expand to billions
NO_TEXT = re.compile("[\0\ud800-\udfff]")
_BREAKS = re.compile("[\x85\u2028\u2029]")  # line breaks of YAML 1.1
Location = tuple[str, int]  # file and line
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_TAG = "tag:yaml.org,2002:"  # prefix of the tag of a node without an explicit tag
_OWN_PARSER = re.compile("[\t\ufeff]")
# PyYAML may be installed without libyaml.
_FAST: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_NUMBER = re.compile(r"(?!.{1000})[-+]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


class YamlMapping(dict[str, Any]):
    """Values of a YAML mapping, and the location of each key; None if no file set it."""

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
        """Look up where a dotted key is set."""
        if key in self:
            return self.locations.get(key)
        for name, value in self.items():
            if not key.startswith(f"{name}."):
                continue
            rest = key[len(name) + 1 :]
            if isinstance(value, YamlMapping):
                return value.at(rest)
            for part in value if isinstance(value, list) else ():
                place = None
                if isinstance(part, YamlMapping):
                    place = part.at_part(rest)
                if place is not None:
                    return place
        return None

    def at_part(self, key: str) -> Location | None:
        """Look up where a key of a named part is set; if it is not set, where the part is."""
        for name in self:
            if f"{key}.".startswith(f"{name}."):
                return self.at(key) or self.locations[name]
        return None


class _Reader:
    """Read nodes as YAML 1.2 does: 5e-5 is a number; no, off and dates are text."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.left = MOST_VALUES

    def read(self, node: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise InputError(self.file, reason=f"has more than {MOST_VALUES} values")
        if isinstance(node, yaml.SequenceNode):
            self.require_untagged(node, "seq")
            return [self.read(part) for part in node.value]
        if isinstance(node, yaml.MappingNode):
            self.require_untagged(node, "map")
            return self.mapping(node)
        text = self.text(node)
        if node.style:  # in quotes
            return text
        if text.lower() in _CONSTANTS:
            return _CONSTANTS[text.lower()]
        if _NUMBER.fullmatch(text):
            kind = float if {*text} & {*".eE"} else int
            return type("Number", (kind,), {"text": text})(text)  # the key may want a text
        return text

    def mapping(self, node: yaml.MappingNode) -> YamlMapping:
        values: dict[str, Any] = {}
        locations: dict[str, Location | None] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.problem(key, "a key must be plain text")
            self.text(key)
            if key.value in values:
                raise self.problem(key, f"{key.value}: is set twice in this file")
            values[key.value] = self.read(value)
            if self.file:
                locations[key.value] = (self.file, key.start_mark.line + 1)
        return YamlMapping(values, locations)

    def text(self, node: yaml.ScalarNode) -> str:
        text: str = node.value
        if NO_TEXT.search(text):
            raise self.problem(node, f"{text[:40]!r} has a NUL character or half a character")
        self.require_untagged(node, "str")
        return text

    def require_untagged(self, node: yaml.Node, kind: str) -> None:
        if node.tag != f"{_TAG}{kind}":
            tag = node.tag.replace(_TAG, "!!")
            what = f"a value with the tag {tag[:40]}"
            if kind == "str":
                what = repr(node.value[:40])
            raise self.problem(node, f"{what} is not a plain value")

    def problem(self, node: yaml.Node, reason: str) -> InputError:
        return InputError(self.file, node.start_mark.line + 1, reason=reason)


def read_yaml(source: Path | str) -> Any:
    """Read a YAML file, or a text; None if it is empty. Raises `InputError`."""
    line = None
    name = ""
    try:
        if isinstance(source, Path):
            name = str(source)
            if reason := file_error(source):
                raise InputError(name, reason=reason)
            source = source.read_text(encoding="utf-8")
        node = _parsed(source)
        if node is None:
            return None
        return _Reader(name).read(node)
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        reason = f"not YAML: {getattr(error, 'problem', None) or error}"
    except RecursionError:
        reason = "nested too deeply, or within itself"
    raise InputError(name, line, reason=reason)


def _parsed(text: str) -> Any:
    """Parse YAML with libyaml, fifteen times as fast as PyYAML's own parser, which the rest needs.

    Both differ in tabs and byte order marks, and in the words of their errors.
    """
    if not _OWN_PARSER.search(text):
        try:
            return yaml.compose(text, Loader=_FAST)
        except (yaml.YAMLError, UnicodeEncodeError) as error:
            # Anything else is refused with PyYAML's own message.
            if "nesting depth" in str(error):
                raise RecursionError from None
    return yaml.compose(text, Loader=yaml.BaseLoader)


def read_mapping(path: Path) -> YamlMapping:
    """Read a YAML file of keys, which may be empty. Raises `InputError`."""
    values = read_yaml(path)
    if values is not None and not isinstance(values, YamlMapping):
        raise InputError(path, 1, reason="must be `key: value` lines")
    return values or YamlMapping()


def as_plain(value: Any) -> Any:
    """Turn a config into JSON-ready values: dataclasses to dicts, paths to text."""

    def to_builtin(part: Any) -> Any:
        if isinstance(part, Path):
            return str(part)
        if isinstance(part, NamedParts):
            return part.as_plain()
        return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}

    return json.loads(json.dumps(value, default=to_builtin))


def to_yaml(value: Any) -> str:
    """Write a config, or plain values, as YAML that `read_yaml` reads back."""
    return yaml.dump(as_plain(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Quote texts that YAML 1.2 would read as another value, such as 1e-1."""

    def text(self, value: str) -> yaml.ScalarNode:
        style = None
        if _BREAKS.search(value):  # in other quotes they would be read as a space
            style = '"'
        elif value.lower() in _CONSTANTS or _NUMBER.fullmatch(value):
            style = "'"
        return self.represent_scalar(f"{_TAG}str", value, style=style)


_Dumper.add_representer(str, _Dumper.text)
