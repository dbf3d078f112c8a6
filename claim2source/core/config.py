"""Read configs: a dataclass holds the defaults, a YAML file and flags what differs from them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from claim2source.core.errors import ConfigError, InputError, UserError, said_once, shown
from claim2source.core.files import why_not_file
from claim2source.core.keys import did_you_mean, short_help
from claim2source.core.old_names import successor
from claim2source.core.program import in_our_words, usage_of
from claim2source.core.shipped import shipped

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

# jsonargparse is imported where arguments are parsed: a config made in Python does not need it.
Config = TypeVar("Config")
MOST = 10**9  # of what is only counted
_NAME = "a name or path; the current folder is ."
_PARSERS: dict[tuple[type, str, str], ArgumentParser] = {}


def flag(help: str, default: bool = False) -> Any:
    """Declare a dataclass field that is set by `--name` alone and unset by `--no_name`."""
    return dataclasses.field(default=default, metadata={"flag": help})


def list_field(
    kind: type, default: Sequence[Any] | None = None, *, repeats: bool = False, help: str = ""
) -> Any:
    """Declare a dataclass field of several values: `--name a b`.

    With `repeats` values add up: `--name a --name b`.
    """
    metadata = {"list_of": kind, "repeats": repeats, "help": help}
    if default is None:
        return dataclasses.field(default=None, metadata=metadata)
    return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)


def parser_for(kind: type[Config], program: str, description: str) -> ArgumentParser:
    """Give the parser whose keys are the fields of the dataclass `kind`, with `--config FILE`.

    It is built once a process: reading arguments leaves it as it was.
    """
    key = (kind, program, description)
    if key not in _PARSERS:
        _PARSERS[key] = _parser_for(*key)
    return _PARSERS[key]


def _parser_for(kind: type[Config], program: str, description: str) -> ArgumentParser:
    """Build a parser."""
    from jsonargparse import ActionYesNo, ArgumentParser

    class Parser(ArgumentParser):
        def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Namespace:
            """Read a config as UTF-8, whatever the user's locale."""
            text = Path(path).read_text(encoding="utf-8")
            return self.parse_string(text, os.path.basename(path), *args, **kwargs)

    # No abbreviations: a key added later must not change what a command means.
    parser = Parser(prog=program, description=description, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="YAML with what differs")
    for action in parser._actions:
        if "--print_config" in action.option_strings:
            action.metavar = "[=flags]"  # jsonargparse's begins with a backspace
    _resolve_types(kind)
    own = {f.name: f for f in _fields(kind) if {"flag", "list_of"} & f.metadata.keys()}
    parser.add_class_arguments(kind, as_group=False, skip={*own})
    hints = get_type_hints(kind)
    for name, spec in own.items():
        if "flag" in spec.metadata:
            action = ActionYesNo(yes_prefix="", no_prefix="no_")
            text = spec.metadata["flag"]
            parser.add_argument(f"--{name}", action=action, default=spec.default, help=text)
        else:
            none = spec.default_factory is dataclasses.MISSING
            default = None if none else spec.default_factory()  # type: ignore[operator]
            text = spec.metadata["help"]
            parser.add_argument(f"--{name}", type=hints[name], default=default, help=text)
    return parser


@said_once()
def read_config(
    kind: type[Config],
    argv: Sequence[str] | None,
    *,
    program: str,
    description: str,
    common: Mapping[str, str] | None = None,
) -> Config:
    """Parse `argv` and the YAML files it names into an instance of the dataclass `kind`.

    Unknown keys and wrong types raise `UserError` naming the key; `--print_config` and
    `--help` print and exit. With `common`, which says what the most usual keys are, `--help`
    prints these alone, and `--help=all` every key.
    """
    from jsonargparse import ArgumentError

    places: dict[str, str] = {}
    name, description = usage_of(program), in_our_words(description, program)
    words = list(sys.argv[1:] if argv is None else argv)
    if "--help=all" in words:
        words = ["--help"]
    elif common and {"-h", "--help"} & {*words}:
        print(short_help(parser_for(kind, name, description), common), end="")
        sys.exit(0)
    for key in (word[2:].partition("=")[0] for word in words if word.startswith("--")):
        if now := successor(program, key):
            raise UserError(f"config: {key}: is gone; {now}")
    words = _check_files(kind, words, places, program)
    _refuse_empty(kind, words)
    # jsonargparse prints what it has read up to --print_config: it must come last.
    words.sort(key=lambda word: word.startswith("--print_config"))
    parser = parser_for(kind, name, description)
    try:
        parsed = parser.parse_args(_join_lists(kind, words))
    except ArgumentError as error:
        raise UserError(_explain(kind, error, places)) from None
    except (
        ArithmeticError,
        RecursionError,
        ValueError,
    ) as error:  # a number of 5,000 digits, 5,000 brackets
        raise UserError(f"config: a value cannot be read: {error}") from None
    try:
        return build(kind, parser, parsed)
    except ArgumentError as error:
        raise UserError(_explain(kind, error, places)) from None


def read_entries(
    kind: type[Config], path: Path, alone: str | None = None, folder: str = "systems"
) -> dict[str, Config]:
    """Read a YAML of named entries, each with the keys of the dataclass `kind`, in file order.

    A file with a list `alone` at its top is one entry, named as the file is. `folder` of
    configs/ has the files that ship.

    Raises `UserError` with file, line and key as `read_config` does.
    """
    from jsonargparse import ArgumentError

    path = shipped(path, folder)
    root = _compose(path)
    if not isinstance(root, yaml.MappingNode):
        raise InputError.at(path, why="must be names, each with its keys below it")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    parser = parser_for(kind, path.name, path.name)
    entries: dict[str, Config] = {}
    named = root.value
    if alone is not None and isinstance(values.get(alone), list):
        name = yaml.ScalarNode("tag:yaml.org,2002:str", path.stem, root.start_mark, root.end_mark)
        named, values = [(name, root)], {path.stem: values}
    for key, node in named:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith(":str"):
            raise InputError.at(path, line, why="a name must be text")
        if key.value in entries:
            raise InputError.at(path, line, key.value, "is set twice in this file")
        places: dict[str, str] = {}
        _check_keys(kind, node, path, "", places)
        try:
            entries[key.value] = build(kind, parser, parser.parse_object(values[key.value]))
        except ArgumentError as error:
            raise UserError(_explain(kind, error, places)) from None
        except ConfigError as error:
            why = str(error).removeprefix("config: ")
            raise InputError.at(path, line, key.value, why) from None
    return entries


def build(kind: type[Config], parser: ArgumentParser, parsed: Namespace) -> Config:
    """Turn parsed values into the dataclass, which checks them."""
    try:
        values = parser.instantiate(parsed)
        return kind(**{f.name: values[f.name] for f in _fields(kind)})
    except ConfigError as error:
        raise _with_whole_key(error, kind, parsed) from None
    except ValueError as error:
        # jsonargparse wraps errors of a dataclass that may be null.
        if isinstance(error.__cause__, ConfigError):
            raise _with_whole_key(error.__cause__, kind, parsed) from None
        raise


def _with_whole_key(error: ConfigError, kind: type, parsed: Namespace) -> ConfigError:
    """Name the key as it was given: a group deeper than usual does not know where it stands."""
    keys = [key for key, _, _ in _keys(kind) if f".{key}".endswith(f".{error.key}")]
    given = [key for key in keys if parsed.get(key) == error.value]
    return ConfigError(given[0], error.value, error.allowed) if len(given) == 1 else error


def _fields(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _resolve_types(kind: type) -> None:
    """Put the types of the fields into the signatures of `kind` and of its groups, as classes.

    jsonargparse looks up types given as text by running imports meant for type checkers: torch's.
    """
    kind.__init__.__annotations__ = {**get_type_hints(kind), "return": None}  # type: ignore[misc]
    for group in _groups(kind).values():
        _resolve_types(group)


def _groups(kind: type) -> dict[str, type]:
    """Map the fields of a dataclass that are dataclasses themselves to their types."""
    hints = get_type_hints(kind).items()
    parts = ((name, part) for name, hint in hints for part in (hint, *get_args(hint)))
    return {name: p for name, p in parts if isinstance(p, type) and dataclasses.is_dataclass(p)}


def _lists(kind: type, prefix: str = "--") -> Iterator[tuple[str, Any, bool]]:
    """Yield option, type of the items and whether values add up, of every list in `kind`."""
    hints, groups = get_type_hints(kind), _groups(kind)
    for spec in _fields(kind):
        if spec.name in groups:
            yield from _lists(groups[spec.name], f"{prefix}{spec.name}.")
        for part in (hints[spec.name], *get_args(hints[spec.name])):
            if get_origin(part) in (list, tuple):
                yield f"{prefix}{spec.name}", get_args(part)[0], spec.metadata.get("repeats", False)


def _switches(kind: type, prefix: str = "--") -> Iterator[str]:
    """Yield the options of groups that are true or false: `--data.lenient` alone means true."""
    for name, group in _groups(kind).items():
        inside = f"{prefix}{name}."
        yield from (inside + key for key, hint in get_type_hints(group).items() if hint is bool)
        yield from _switches(group, inside)


def _keys(kind: type, prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Yield every key in `kind`, its type, and whether it may be empty text."""
    hints, groups = get_type_hints(kind), _groups(kind)
    for spec in _fields(kind):
        yield f"{prefix}{spec.name}", hints[spec.name], spec.default == ""
        if spec.name in groups:
            yield from _keys(groups[spec.name], f"{prefix}{spec.name}.")


def _names_something(hint: Any) -> bool:
    """Tell whether a type is text or a path, or a list of paths: what "" would be no name of."""
    parts = (hint, *get_args(hint))
    lists = (item for part in parts if get_origin(part) is list for item in get_args(part))
    return Path in (*parts, *lists) or str in parts


def _is_empty(node: yaml.Node) -> bool:
    """Tell whether a YAML value is empty text, or a list that holds some."""
    if isinstance(node, yaml.SequenceNode):
        return any(_is_empty(item) for item in node.value)
    return node.tag.endswith(":str") and not str(node.value).strip()


def _refuse_empty(kind: type, words: Sequence[str]) -> None:
    """Raise `ConfigError` for `--key ""` where a name is needed: a path would mean `.`."""
    refusing = {key for key, hint, empty in _keys(kind) if _names_something(hint) and not empty}
    option = ""
    for word in words:
        if word.startswith("--"):
            option, equals, word = word.removeprefix("--").partition("=")
            if not equals:
                continue
        if not word.strip() and option in refusing:
            raise ConfigError(option, word, _NAME)


def _join_lists(kind: type, words: Sequence[str]) -> list[str]:
    """Join `--names a b` to the one value that jsonargparse takes for a list, `[a, b]`."""
    options = {option: (item, repeats) for option, item, repeats in _lists(kind)}
    switches = set(_switches(kind))
    joined: list[str] = []
    rest = list(words)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        values = [value] if equals else []
        if option in switches and not equals and not (rest and not rest[0].startswith("--")):
            equals, value = "=", "true"
        if option not in options:
            joined.append(f"{option}{equals}{value}")
            continue
        while not equals and rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        item, repeats = options[option]
        joined.append(f"{option}+" if repeats else option)
        if values and not values[0].startswith("["):
            # Quotes keep the language code `no` from being read as false.
            shown = values if item in (int, float) else map(json.dumps, values)
            values = [f"[{', '.join(shown)}]"]
        joined += values
    return joined


def _check_files(kind: type, words: list[str], places: dict[str, str], program: str) -> list[str]:
    """Check the YAML files that `words` name; returns the words without empty files."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        option = [word, *islice(rest, int(word == "--config"))]
        _, named, path = "=".join(option).partition("--config=")
        if named:
            path = str(shipped(Path(path), program))
            option = [f"--config={path}"]
        root = _compose(Path(path)) if named else None
        if root is not None:
            _refuse_old(root, Path(path), program)
            _check_keys(kind, root, Path(path), "", places)
        # jsonargparse refuses a file without keys.
        if root is not None or not named:
            kept += option
    return kept


def _compose(path: Path) -> yaml.Node | None:
    """Read a YAML file as nodes that know their lines. Raises `InputError`."""
    with _refusing(path):
        text = path.read_text(encoding="utf-8")
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _check_scalars(root, path)
    return root


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise `InputError` where the body cannot read a YAML file."""
    if why := why_not_file(path):
        raise InputError.at(path, why=why)
    try:
        yield
    except OSError as error:
        raise InputError.at(path, why=(error.strerror or str(error)).lower()) from None
    except UnicodeDecodeError:
        raise InputError.at(path, why="not UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error)
        raise InputError.at(path, mark.line + 1 if mark else None, why=f"not YAML: {why}") from None
    except RecursionError:
        raise InputError.at(path, why="nested too deeply") from None
    except ValueError as error:
        raise InputError.at(path, why=f"a value cannot be read: {error}") from None


def _check_scalars(root: yaml.Node, path: Path) -> None:
    """Raise `InputError` on a scalar that the YAML reader cannot turn into a value, or no path."""
    loader, rest, count = yaml.SafeLoader(""), [root], 0
    while rest:
        node, count = rest.pop(), count + 1
        if count > 100_000:  # aliases may go round, or stand for billions
            raise InputError.at(path, why="holds more than 100000 values")
        if isinstance(node, yaml.MappingNode):
            rest += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            rest += node.value
        else:
            try:
                loader.construct_object(node)
                why = "holds a NUL character" if "\0" in node.value else ""
            except (AttributeError, LookupError, ValueError, yaml.YAMLError):
                why = "cannot be read as a value"
            if why:
                line = node.start_mark.line + 1
                raise InputError.at(path, line, why=f"{node.value[:40]!r} {why}")


def _refuse_old(node: yaml.Node, path: Path, program: str, prefix: str = "") -> None:
    """Raise `InputError` for a key of a YAML mapping that is gone."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name = f"{prefix}{key.value}"
        if now := successor(program, name):
            raise InputError.at(path, key.start_mark.line + 1, name, f"is gone; {now}")
        _refuse_old(value, path, program, f"{name}.")


def _check_keys(
    kind: type,
    node: yaml.Node,
    path: Path,
    prefix: str,
    places: dict[str, str],
    known: Sequence[str] = (),
) -> None:
    """Check what jsonargparse lets pass in a YAML mapping, and note the line of every key.

    jsonargparse ignores repeated keys, groups that are no mappings, and null where the type does
    not allow it; its error for a flag does not name the key.
    """
    line = node.start_mark.line + 1
    fields = {f.name: f for f in _fields(kind)}
    if not isinstance(node, yaml.MappingNode):
        why = f"must be `key: value` lines; allowed keys: {', '.join(fields)}"
        raise InputError.at(path, line, prefix.rstrip(".") or None, why)
    groups, hints = _groups(kind), get_type_hints(kind)
    known = known or [key for key, *_ in _keys(kind)]
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise InputError.at(path, line, why="a key must be plain text")
        name = f"{prefix}{key.value}"
        if key.value not in fields:
            meant = did_you_mean(name, known)
            if name in known:  # as on the command line
                group, _, last = name.rpartition(".")
                meant = f"write `{last}` below `{group}:`; "
            why = f"no such key; {meant}allowed: {', '.join(fields)}"
            raise InputError.at(path, line, name, why)
        if places.get(name, "").startswith(f"{path}:"):
            raise InputError.at(path, line, name, "is set twice in this file")
        places[name] = f"{path}:{line}"
        hint, tag = hints[key.value], value.tag.rsplit(":", 1)[-1]
        if tag == "null" and (type(None) in get_args(hint) or fields[key.value].default is None):
            continue
        if key.value in groups:
            _check_keys(groups[key.value], value, path, f"{name}.", places, known)
        elif _is_empty(value) and _names_something(hint) and fields[key.value].default != "":
            raise InputError.at(path, line, name, f"'' is not allowed; allowed: {_NAME}")
        elif tag == "null" or "flag" in fields[key.value].metadata and tag != "bool":
            shown = repr(value.value) if isinstance(value, yaml.ScalarNode) else "this"
            why = f"{shown} is not allowed; allowed: {_allowed(hint)}"
            raise InputError.at(path, line, name, why)


def _explain(kind: type, error: Exception, places: dict[str, str]) -> str:
    """Rewrite jsonargparse's message as one line with key, value and what is allowed."""
    text = " ".join(str(error).split())
    if unknown := re.match("unrecognized arguments: (.*)", text):
        flags = [word[2:].split("=")[0] for word in unknown[1].split() if word.startswith("--")]
        meant = (did_you_mean(key, [key for key, *_ in _keys(kind)], "--") for key in flags)
        return f"config: {text}; {''.join(meant)}--help=all explains every key"
    match = re.match(r'Parser key "([\w.]+)": ?(.*)', text)
    if match is None:
        return f"config: {text}"
    key, why = match.groups()
    *path, last = key.split(".")
    for part in path:
        kind = _groups(kind).get(part, kind)
    hint = _groups(kind).get(last) or get_type_hints(kind).get(last)
    value = re.search(r".*(?:Got|Given) value: ?(.*)$", why)
    if hint is not None and value is not None:
        why = f"{shown(value[1])} is not allowed; allowed: {_allowed(hint)}"
    return f"{places.get(key, 'config')}: {key}: {why}"


def _allowed(hint: Any) -> str:
    """Describe a type for a user."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin in (Union, types.UnionType):
        return " or ".join(_allowed(part) for part in inner)
    if origin in (list, tuple):
        if inner[0] in (int, float):
            return "a list of numbers, such as [1, 2]"
        return "a list, such as [a, b] (in quotes: numbers, no, yes, on and off)"
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
    """Turn a config into JSON-ready values: dataclasses to dicts, paths to text."""

    def plain(part: Any) -> Any:
        return str(part) if isinstance(part, Path) else dataclasses.asdict(part)

    return json.loads(json.dumps(value, default=plain))


def to_yaml(value: Any) -> str:
    """Write a config as YAML text, in field order."""
    return yaml.safe_dump(as_plain(value), sort_keys=False, allow_unicode=True)


def require(condition: bool, key: str, value: Any, allowed: str) -> None:
    """Raise `ConfigError` unless `condition` holds."""
    if not condition:
        raise ConfigError(key, value, allowed)


def require_finite(key: str, value: float, *, positive: bool = False) -> None:
    """Raise `ConfigError` unless a number is 0 (above 0 if `positive`) to a billion."""
    good = 0 <= value <= MOST and not (positive and value == 0)
    require(good, key, value, f"{'above 0' if positive else '0 or more'}, at most {MOST}")


def require_between(
    key: str, value: float | None, low: float, high: float, *, none: bool = False
) -> None:
    """Raise `ConfigError` unless low <= value <= high, or, with `none`, there is no value."""
    good = none if value is None else low <= value <= high
    require(good, key, value, f"{low} to {high}{', or none' if none else ''}")


def require_seed(key: str, value: int | None, *, none: bool = False) -> None:
    """Raise `ConfigError` unless every library takes the seed: NumPy none below 0."""
    require_between(key, value, 0, 2**32 - 1, none=none)


def require_repeats(key: str, value: int) -> None:
    """Raise `ConfigError` on fewer draws or permutations than 1, or more than end in minutes."""
    require_between(key, value, 1, 1_000_000)


def require_one_of(key: str, value: object, allowed: Sequence[str]) -> None:
    """Raise `ConfigError` unless `value` is among the allowed."""
    if value not in allowed:
        raise ConfigError(key, value, ", ".join(allowed))
