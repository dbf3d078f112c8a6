"""Read YAML as nodes that know their lines, refusing what is no plain value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from claim2source.core.config_types import is_list, is_text, items_of
from claim2source.core.errors import InputError
from claim2source.core.files import why_not_file

MOST_VALUES = 100_000  # aliases may go round, or stand for billions


class _Loader(yaml.SafeLoader):
    """Read 5e-5 as a number, as everybody but YAML 1.1 does; no, off and dates as text."""


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if not pair[0].endswith((":timestamp", ":merge", ":bool"))]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^([Tt]rue|TRUE|[Ff]alse|FALSE)$"), list("tTfF")
)
_FLOAT = re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$|^[-+]?\.\d+([eE][-+]?\d+)?$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def compose(source: Path | str) -> yaml.Node | None:
    """Read a YAML file, or a text; None where it is empty. Raises `InputError`."""
    if isinstance(source, Path) and (why := why_not_file(source)):
        raise InputError.at(source, why=why)
    name = source if isinstance(source, Path) else "value"
    line, why = None, ""
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        root: yaml.Node | None = _Loader(text).get_single_node()
        if root is not None:
            _check_scalars(root, name)
        return root
    except OSError as error:
        why = (error.strerror or str(error)).lower()
    except UnicodeDecodeError:
        why = "not UTF-8"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        why = f"not YAML: {getattr(error, 'problem', None) or error}"
    except RecursionError:
        why = "nested too deeply"
    raise InputError.at(name, line, why=why)


def _check_scalars(root: yaml.Node, name: Path | str) -> None:
    """Raise `InputError` on a scalar that is no value, or on more values than a config has."""
    rest, count = [root], 0
    while rest:
        node, count = rest.pop(), count + 1
        if count > MOST_VALUES:
            raise InputError.at(name, why=f"holds more than {MOST_VALUES} values")
        if not isinstance(node, yaml.ScalarNode):
            pairs = isinstance(node, yaml.MappingNode)
            rest += [part for pair in node.value for part in pair] if pairs else node.value
            continue
        try:
            _scalar(node)
            why = "holds a NUL character" if "\0" in node.value else ""
        except (AttributeError, LookupError, ValueError, yaml.YAMLError):
            why = "cannot be read as a value"
        if why:
            raise InputError.at(name, line_of(node), why=f"{node.value[:40]!r} {why}")


def _scalar(node: yaml.Node) -> Any:
    return _Loader("").construct_object(node)


def line_of(node: yaml.Node) -> int:
    """Return a node's line, from 1."""
    return node.start_mark.line + 1


def entries_of(
    node: yaml.MappingNode, name: Path | str, prefix: str = ""
) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield key, line and value of a mapping. Raises `InputError` on a key that comes twice."""
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith(":str"):
            raise InputError.at(name, line_of(key), why="a key must be plain text")
        if key.value in seen:
            why = "is set twice in this file"
            raise InputError.at(name, line_of(key), prefix + key.value, why)
        seen.add(key.value)
        yield key.value, line_of(key), value


def is_null(node: yaml.Node) -> bool:
    """Tell whether a node is `null`, or nothing at all."""
    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")


def plain_value(node: yaml.Node, hint: Any, name: Path | str, prefix: str = "") -> Any:
    """Return a node's value; a number where the type wants text stays as it is written."""
    if isinstance(node, yaml.MappingNode):
        return {
            key: plain_value(value, Any, name, f"{prefix}{key}.")
            for key, _, value in entries_of(node, name, prefix)
        }
    if isinstance(node, yaml.SequenceNode):
        item = items_of(hint) if is_list(hint) else Any
        return [plain_value(value, item, name) for value in node.value]
    number = node.tag.endswith((":int", ":float"))
    return node.value if number and not is_list(hint) and is_text(hint) else _scalar(node)
