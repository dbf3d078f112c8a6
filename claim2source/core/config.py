"""One way to read a config: a dataclass holds the defaults, a YAML and flags what differs."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from claim2source.core.errors import ConfigError, InputError, UserError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

# jsonargparse is imported where words are parsed: a config made in Python needs none.
Config = TypeVar("Config")

REPOSITORY = Path(__file__).resolve().parents[2]


def parser_for(kind: type[Config], program: str, description: str) -> ArgumentParser:
    """A parser whose keys are the fields of the dataclass `kind`, with `--config FILE`."""
    from jsonargparse import ActionYesNo, ArgumentParser

    # No abbreviations: a key added later must not change what a command means.
    parser = ArgumentParser(
        prog=program, description=description, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config", action="config", help="YAML with what differs")
    many = {f.name: f for f in dataclasses.fields(kind) if "list_of" in f.metadata}  # type: ignore[arg-type]
    flags = {f.name: f for f in dataclasses.fields(kind) if "flag" in f.metadata}  # type: ignore[arg-type]
    parser.add_class_arguments(kind, as_group=False, skip={*many, *flags})
    for name, spec in flags.items():
        action = ActionYesNo(yes_prefix="", no_prefix="no_")
        parser.add_argument(
            f"--{name}", action=action, default=spec.default, help=spec.metadata["flag"]
        )
    for name, spec in many.items():
        parser.add_argument(
            f"--{name}",
            nargs="+",
            type=spec.metadata["list_of"],
            action="extend" if spec.metadata["repeats"] else "store",
            default=None if spec.default_factory is dataclasses.MISSING else spec.default_factory(),
            help=spec.metadata["help"],
        )
    return parser


def flag(help: str, default: bool = False) -> Any:
    """A dataclass field that is set by `--name` alone and unset by `--no_name`."""
    return dataclasses.field(default=default, metadata={"flag": help})


def list_field(
    kind: type, default: Sequence[Any] | None = None, *, repeats: bool = False, help: str = ""
) -> Any:
    """A dataclass field that takes several values: `--name a b`, or `--name a --name b`."""
    metadata = {"list_of": kind, "repeats": repeats, "help": help}
    if default is None:
        return dataclasses.field(default=None, metadata=metadata)
    return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)


def read_config(
    kind: type[Config], argv: Sequence[str] | None, *, program: str, description: str
) -> Config:
    """Parse `argv` (and the YAML it names) into an instance of the dataclass `kind`.

    Unknown keys and wrong types raise `UserError` naming the key; `--print_config` and
    `--help` print and exit.
    """
    from jsonargparse import ArgumentError

    places: dict[str, str] = {}
    given = _check_files(kind, list(sys.argv[1:] if argv is None else argv), places)
    # Where --print_config stands, jsonargparse prints what it has read so far: it comes last.
    given.sort(key=lambda word: word.startswith("--print_config"))
    given = _join_lists(given, _list_options(kind))
    parser = parser_for(kind, program, description)
    try:
        return build(kind, parser, parser.parse_args(given))
    except ArgumentError as error:
        raise UserError(_clear(kind, error, places)) from None


def read_entries(kind: type[Config], path: Path) -> dict[str, Config]:
    """A YAML of named entries, each with the keys of the dataclass `kind`, in the file's order.

    Raises `UserError` with file, line and key as `read_config` does.
    """
    from jsonargparse import ArgumentError

    root = _composed(path)
    if not isinstance(root, yaml.MappingNode):
        raise InputError.at(path, why="must be names, each with its keys below it")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    parser = parser_for(kind, path.name, path.name)
    found: dict[str, Config] = {}
    for key, node in root.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith(":str"):
            raise InputError.at(path, line, why="a name must be text")
        if key.value in found:
            raise InputError.at(path, line, key.value, "is set twice in this file")
        places: dict[str, str] = {}
        _check_keys(kind, node, path, "", places)
        try:
            found[key.value] = build(kind, parser, parser.parse_object(values[key.value]))
        except ArgumentError as error:
            raise UserError(_clear(kind, error, places)) from None
        except ConfigError as error:
            why = str(error).removeprefix("config: ")
            raise InputError.at(path, line, key.value, why) from None
    return found


def build(kind: type[Config], parser: ArgumentParser, parsed: Namespace) -> Config:
    """Turn parsed values into the dataclass, with its own checks."""
    _check_nulls(kind, parsed, "")
    try:
        values = parser.instantiate(parsed)
    except ValueError as error:
        # What a dataclass that may be null says of its values comes wrapped in a library's page.
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        raise
    fields = {f.name: values[f.name] for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**fields)


def _list_options(kind: type, prefix: str = "") -> dict[str, type]:
    """Options of nested dataclasses that hold a list, with the type of its items."""
    found: dict[str, type] = {}
    for name, group in _groups(kind).items():
        for key, hint in get_type_hints(group).items():
            if get_origin(hint) in (list, tuple):
                found[f"--{prefix}{name}.{key}"] = get_args(hint)[0]
        found |= _list_options(group, f"{prefix}{name}.")
    return found


def _join_lists(words: Sequence[str], options: Mapping[str, type]) -> list[str]:
    """`--lora.targets a b` as the one value that jsonargparse takes for a nested list."""
    joined: list[str] = []
    rest = list(words)
    while rest:
        joined.append(rest.pop(0))
        if joined[-1] not in options:
            continue
        values = []
        while rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        if values and not values[0].startswith("["):
            quoted = options[joined[-1]] is str
            shown = [json.dumps(value) if quoted else value for value in values]
            values = [f"[{', '.join(shown)}]"]
        joined += values
    return joined


def _check_files(kind: type, words: list[str], places: dict[str, str]) -> list[str]:
    """Check the YAML files that `words` name; returns the words without empty files."""
    kept: list[str] = []
    position = 0
    while position < len(words):
        taken = 2 if words[position] == "--config" else 1
        option = words[position : position + taken]
        named = "=".join(option)
        if not named.startswith("--config=") or _check_file(kind, Path(named[9:]), places):
            kept += option
        position += taken
    return kept


def _check_file(kind: type, path: Path, places: dict[str, str]) -> bool:
    """Raise `InputError` naming line and key of what cannot be; False for an empty file."""
    root = _composed(path)
    if root is not None:
        _check_keys(kind, root, path, "", places)
    return root is not None


def _composed(path: Path) -> yaml.Node | None:
    """A YAML file as nodes that know their lines. Raises `InputError`."""
    try:
        root: yaml.Node | None = yaml.compose(
            path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader
        )
    except OSError as error:
        raise InputError.at(path, why=(error.strerror or str(error)).lower()) from None
    except UnicodeDecodeError:
        raise InputError.at(path, why="not UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error)
        raise InputError.at(path, mark.line + 1 if mark else None, why=f"not YAML: {why}") from None
    return root


def _check_keys(
    kind: type, node: yaml.Node, path: Path, prefix: str, places: dict[str, str]
) -> None:
    """Check a YAML mapping against the fields of `kind`, noting the line of every key."""
    line = node.start_mark.line + 1
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if not isinstance(node, yaml.MappingNode):
        why = f"must be `key: value` lines; allowed keys: {', '.join(fields)}"
        raise InputError.at(path, line, prefix.rstrip(".") or None, why)
    groups, hints = _groups(kind), get_type_hints(kind)
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise InputError.at(path, key.start_mark.line + 1, why="a key must be plain text")
        name, line = f"{prefix}{key.value}", key.start_mark.line + 1
        if key.value not in fields:
            why = f"no such key; allowed: {', '.join(fields)}"
            raise InputError.at(path, line, name, why)
        if places.get(name, "").startswith(f"{path}:"):
            raise InputError.at(path, line, name, "is set twice in this file")
        places[name] = f"{path}:{line}"
        if key.value in groups:
            if value.tag.endswith(":null") and _may_be_none(hints[key.value]):
                continue
            _check_keys(groups[key.value], value, path, f"{name}.", places)
        elif (allowed := _not_allowed(fields[key.value].metadata, value)) is not None:
            shown = repr(value.value) if isinstance(value, yaml.ScalarNode) else "this"
            raise InputError.at(path, line, name, f"{shown} is not allowed; allowed: {allowed}")


def _not_allowed(metadata: Mapping[str, Any], node: yaml.Node) -> str | None:
    """What is allowed where `node` is not; jsonargparse checks fields of other kinds."""
    tag = node.tag.rsplit(":", 1)[-1]
    if "flag" in metadata and tag != "bool":
        return "true or false"
    if "list_of" not in metadata or tag == "null":
        return None
    if tag != "seq":
        return "a list, such as [a, b]"
    # YAML reads the language code `no` as false.
    if metadata["list_of"] is str and any(item.tag.endswith(":bool") for item in node.value):
        return 'a list of texts; write no, yes, on and off in quotes: ["no"]'
    return None


def _groups(kind: type) -> dict[str, type]:
    """Fields of a dataclass that are dataclasses themselves, with their types."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        for part in (hint, *get_args(hint)):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                found[name] = part
    return found


def _may_be_none(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _check_nulls(kind: type, parsed: Namespace, prefix: str) -> None:
    """Raise `ConfigError` where null was given and is not allowed: jsonargparse lets it pass."""
    from jsonargparse import Namespace

    groups, hints = _groups(kind), get_type_hints(kind)
    for spec in dataclasses.fields(kind):
        name, value = f"{prefix}{spec.name}", parsed.get(spec.name)
        if spec.name in groups and isinstance(value, Namespace):
            _check_nulls(groups[spec.name], value, f"{name}.")
        elif value is None and spec.default is not None and not _may_be_none(hints[spec.name]):
            raise ConfigError(name, value, _allowed(hints[spec.name]))


def _clear(kind: type, error: Exception, places: dict[str, str]) -> str:
    """jsonargparse's message as one line with key, value and what is allowed."""
    text = " ".join(str(error).split())
    found = re.match(r'Parser key "([\w.]+)": ?(.*)', text)
    if found is None:
        return f"config: {text}"
    key, why = found.groups()
    hint: Any = kind
    for part in key.split("."):
        group = hint if dataclasses.is_dataclass(hint) else None
        hint = get_type_hints(group).get(part) if group else None
        hint = _groups(group).get(part, hint) if group else hint  # type: ignore[arg-type]
    value = re.search(r"(?:Got|Given) value: (.*)$", why)
    if hint is None or value is None:
        return f"{places.get(key, 'config')}: {key}: {why}"
    return (
        f"{places.get(key, 'config')}: {key}: {value[1]!r} is not allowed; "
        f"allowed: {_allowed(hint)}"
    )


def _allowed(hint: Any) -> str:
    """A type as a user reads it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin in (Union, types.UnionType):
        return " or ".join(_allowed(part) for part in inner)
    if origin in (list, tuple):
        return "a list, such as [a, b]"
    if dataclasses.is_dataclass(hint):
        return f"its keys: {', '.join(f.name for f in dataclasses.fields(hint))}"
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        type(None): "null",
        str: "text",
        Path: "a path",
    }
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def as_plain(value: Any) -> Any:
    """A config as JSON-ready values: dataclasses to dicts, paths to text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def to_yaml(value: Any) -> str:
    """A config as YAML text, in field order."""
    return yaml.safe_dump(as_plain(value), sort_keys=False, allow_unicode=True)


def require(condition: bool, key: str, value: Any, allowed: str) -> None:
    """Raise `ConfigError` unless `condition` holds."""
    if not condition:
        raise ConfigError(key, value, allowed)


def require_one_of(key: str, value: object, allowed: Sequence[str]) -> None:
    """Raise `ConfigError` unless `value` is among the allowed."""
    require(value in allowed, key, value, ", ".join(allowed))
