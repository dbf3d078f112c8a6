"""Read configs: dataclasses hold the defaults, YAML files and flags what differs from them."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar, cast, get_args, get_origin

import yaml

from claim2source.core.config_types import (
    Bounds,
    Option,
    allowed_words,
    groups_of,
    hints_of,
    is_list,
    is_text,
    items_of,
    keys_of,
    options_of,
    parts_of,
)
from claim2source.core.config_yaml import compose, entries_of, is_null, line_of, plain_value
from claim2source.core.errors import ConfigError, InputError, UserError, said_once, shown
from claim2source.core.keys import did_you_mean, full_help, short_help
from claim2source.core.old_names import always_holds, successor
from claim2source.core.program import in_our_words, usage_of
from claim2source.core.shipped import shipped

# pydantic is imported where a value is checked: `--help` does without.
Config = TypeVar("Config")
MOST = 10**9  # of what is only counted
_FLAG = "a flag"  # in place of file and line
_EMPTY = "a name or path; the current folder is ."


def Between(low: float, high: float) -> Bounds:
    """Bound a number of a config: `Annotated[float, Between(0, 1)]`, ends included."""
    return Bounds(low, high)


def Above(low: float, high: float = MOST) -> Bounds:
    """Bound a number of a config from below, without that end itself."""
    return Bounds(low, high, above=True)


def Below(high: float, low: float = 0) -> Bounds:
    """Bound a number of a config from `low` to `high`, without `high` itself."""
    return Bounds(low, high, below=True)


Count = Annotated[int, Between(0, MOST)]
Number = Annotated[int, Between(1, MOST)]
Amount = Annotated[float, Between(0, MOST)]
Positive = Annotated[float, Above(0)]
Share = Annotated[float, Between(0, 1)]
PositiveShare = Annotated[float, Above(0, 1)]
SplitShare = Annotated[float, Bounds(0, 1, above=True, below=True)]  # not all, not nothing
Seed = Annotated[int, Between(0, 2**32 - 1)]  # NumPy takes none below 0
Repeats = Annotated[int, Between(1, 1_000_000)]


class Settings:
    """Check a dataclass of settings when it is made: bounds of its types, then its own rules."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for name, hint in hints_of(cast(Any, type(self))).items():
            if _is_bounded(hint):
                _checked(hint, getattr(self, name), name, python=True)
        self.check()

    def check(self) -> None:
        """Check the rules between keys; raise `ConfigError` by the key's name within the class."""


def flag(help: str, default: bool = False) -> Any:
    """Declare a dataclass field that is set by `--name` alone and unset by `--no_name`."""
    return dataclasses.field(default=default, metadata={"help": help})


def list_field(default: Sequence[Any] | None = None, *, help: str = "") -> Any:
    """Declare a dataclass field of several values: `--name a b`, or `--name a --name b`."""
    if default is None:
        return dataclasses.field(default=None, metadata={"help": help})
    return dataclasses.field(default_factory=lambda: list(default), metadata={"help": help})


@said_once()
def read_config(
    kind: type[Config],
    argv: Sequence[str] | None,
    *,
    program: str,
    description: str | None,
    common: Mapping[str, str] | None = None,
) -> Config:
    """Read `argv` and the YAML files it names into an instance of the dataclass `kind`.

    Flags stand over files, and what comes later over what came before. Unknown keys and wrong
    values raise `UserError` naming the key;
    `--print_config` and `--help` print and exit. With `common`, which says what the most usual
    keys are, `--help` prints these alone, and `--help=all` every key.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help", "--help=all"} & {*words}:
        about = in_our_words(description or "", program)
        name, options = usage_of(program), options_of(cast(Any, kind))
        if common and "--help=all" not in words:
            print(short_help(name, about, options, common), end="")
        else:
            print(full_help(name, about, options), end="")
        sys.exit(0)
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    rest = _files_first(kind, [word for word in words if word != "--print_config"])
    while rest:
        _take_option(kind, rest, values, places, program)
    config = make(kind, values, places=places)
    if "--print_config" in words:
        print(to_yaml(config), end="")
        sys.exit(0)
    return config


def read_entries(
    kind: type[Config], path: Path, alone: str | None = None, folder: str = "systems"
) -> dict[str, Config]:
    """Read a YAML of named entries, each with the keys of the dataclass `kind`, in file order.

    A file with the key `alone` at its top is one entry, named as the file is. `folder` of
    configs/ has the files that ship.

    Raises `UserError` with file, line and key as `read_config` does.
    """
    path = shipped(path, folder)
    root = compose(path)
    if not isinstance(root, yaml.MappingNode):
        raise InputError.at(path, why="must be names, each with its keys below it")
    named = list(entries_of(root, path))
    if any(name == alone for name, _, _ in named):
        named = [(path.stem, 1, root)]
    entries: dict[str, Config] = {}
    for name, line, node in named:
        places: dict[str, str] = {}
        values = _plain_group(kind, node, path, places)
        try:
            entries[name] = make(kind, values, places=places)
        except InputError:
            raise
        except UserError as error:
            why = str(error).removeprefix("config: ").partition("; give --")[0]
            raise InputError.at(path, line, name, why) from None
    return entries


def make(
    kind: type[Config],
    values: Mapping[str, Any],
    prefix: str = "",
    places: Mapping[str, str] | None = None,
) -> Config:
    """Make a dataclass of plain values: mappings for its groups, lists, text, numbers.

    `prefix` stands before the keys in messages, `places` maps keys to file and line.

    Raises `ConfigError`, or `UserError` with the place, for what is unknown, missing or wrong.
    """
    hashable = cast(Any, kind)
    hints, groups, places = hints_of(hashable), groups_of(hashable), places or {}
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    made: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in fields:
            _refuse(key, value, f"one of {', '.join(fields)}", places)
        if name in groups and isinstance(value, Mapping):
            made[name] = make(groups[name], value, f"{key}.", places)
        elif name in groups and dataclasses.is_dataclass(value):
            made[name] = value
        else:
            default = fields[name].default
            if is_text(hints[name]) and default != "" and _is_empty(value):
                _refuse(key, value, _EMPTY, places)
            absent = value is None and default is None
            made[name] = value if absent else _checked(hints[name], value, key, places=places)
    no_default = dataclasses.MISSING
    for name, field in fields.items():
        missing = field.default is no_default and field.default_factory is no_default
        if missing and name not in made:
            raise UserError(f"config: {prefix}{name}: is required; give --{prefix}{name}")
    try:
        return kind(**made)
    except ConfigError as error:
        key = error.key if error.key.startswith(prefix) else f"{prefix}{error.key}"
        raise ConfigError(key, error.value, error.allowed) from None


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


@cache
def _is_bounded(hint: Any) -> bool:
    return "Bounds(" in repr(hint) or "Literal[" in repr(hint)


@cache
def _adapter(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))


def _checked(
    hint: Any,
    value: Any,
    key: str,
    *,
    places: Mapping[str, str] | None = None,
    python: bool = False,
) -> Any:
    """Return a value as its type has it; raise naming the key where it is not allowed.

    Python's own values are checked and stay as they are.
    """
    from pydantic import ValidationError

    try:
        if python:
            _adapter(hint).validate_python(value)
            return value
        return _adapter(hint).validate_json(json.dumps(value), strict=True)
    except (ValidationError, OverflowError, ValueError):
        _refuse(key, value, allowed_words(hint), places)


def _is_empty(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return any(isinstance(one, str) and not one.strip() for one in values)


def _refuse(key: str, value: Any, allowed: str, places: Mapping[str, str] | None) -> NoReturn:
    """Raise an error at the line that set `key`, or by the key alone."""
    place = (places or {}).get(key, _FLAG)
    if place != _FLAG:
        raise UserError(f"{place}: {key}: {shown(value)} is not allowed; allowed: {allowed}")
    raise ConfigError(key, value, allowed)


def _merge(kind: type, into: dict[str, Any], values: Mapping[str, Any]) -> None:
    groups = groups_of(kind)
    for key, value in values.items():
        if key in groups and isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(groups[key], into[key], value)
        else:
            into[key] = value


def _files_first(kind: type, words: Sequence[str]) -> list[str]:
    """Order options with their values: configs, then files of a group's keys, then the others."""
    files = ["--config", *(f"--{option.key}" for option in options_of(kind) if option.file_of)]
    options: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not options:
            options.append([])
        options[-1].append(word)

    def rank(option: list[str]) -> int:
        name = option[0].partition("=")[0]
        return 2 - (name in files) - (name == "--config")

    options.sort(key=rank)
    return [word for option in options for word in option]


def _take_option(
    kind: type, rest: list[str], plain: dict[str, Any], places: dict[str, str], program: str
) -> None:
    """Take the first option of the words with its values, over what was given before."""
    word, equals, text = rest.pop(0).partition("=")
    key, options = word.removeprefix("--"), {option.key: option for option in options_of(kind)}
    if not word.startswith("--") or not key:
        raise UserError(f"config: {word}: is no option; --help explains every key")
    if now := successor(program, key):
        raise UserError(f"config: {key}: is gone; {now}")
    if key == "config":
        for name in [text] if equals else _words(rest, word, None):
            path = shipped(Path(name), program)
            if (root := compose(path)) is not None:
                _merge(kind, plain, _plain_group(kind, root, path, places, program))
        return
    option, negated = options.get(key) or _entry_of(options, key), options.get(key[3:])
    if option is None and key.startswith("no_") and negated is not None and negated.is_switch:
        key, option, equals, text = negated.key, negated, "=", "false"
    if option is None:
        files = [o.key for o in options.values() if o.file_of and key.startswith(f"{o.key}.")]
        if files:
            meant = "" if key in keys_of(kind) else did_you_mean(key, options, "--")
            why = f"{meant}write it in a YAML file: --{files[0]} FILE"
            raise UserError(f"config: --{key}: is no flag; {why}")
        if inside := [name for name in options if name.startswith(f"{key}.")]:
            raise ConfigError(key, " ".join(rest[:1]), f"its keys, such as --{inside[0]}")
        if now := successor(program, f"{key}."):
            raise UserError(f"config: {key}: is gone; {now}")
        meant = did_you_mean(key, options, "--")
        raise UserError(f"config: --{key}: no such key; {meant}--help=all explains every key")
    if option.is_switch and not equals and rest[:1] not in (["true"], ["false"]):
        equals, text = "=", "true"
    given = [text] if equals else _words(rest, word, None if is_list(option.hint) else 1)
    *groups, name = key.split(".")
    group = plain
    for part in groups:
        if not isinstance(group.get(part), dict):
            group[part] = {}
        group = group[part]
    if option.file_of is not None:
        path = shipped(Path(given[0]), key)
        if (root := compose(path)) is not None:
            found = _plain_group(option.file_of, root, path, places, prefix=f"{key}.")
            group[name] = {**group.get(name, {}), **found}
        return
    value, before = _plain_words(option.hint, given, key), group.get(name)
    if places.get(key) == _FLAG and isinstance(before, list) and isinstance(value, list):
        value = [*before, *value]
    group[name] = value
    places[key] = _FLAG


def _words(rest: list[str], option: str, most: int | None) -> list[str]:
    """Take the values after an option: words up to the next one."""
    taken: list[str] = []
    while rest and not rest[0].startswith("--") and (most is None or len(taken) < most):
        taken.append(rest.pop(0))
    if not taken:
        raise UserError(f"config: {option}: needs a value")
    return taken


def _entry_of(options: Mapping[str, Option], key: str) -> Option | None:
    """Find the mapping that `--routes.de` puts an entry into."""
    name, _, _ = key.rpartition(".")
    option = options.get(name)
    if option is None:
        return None
    for part in (option.hint, *get_args(option.hint)):
        if get_origin(part) is dict:
            return dataclasses.replace(option, key=key, hint=get_args(part)[1])
    return None


def _plain_words(hint: Any, words: list[str], key: str) -> Any:
    """Read an option's words as YAML reads them; text stays as it is written."""
    if is_list(hint) and not (len(words) == 1 and words[0].startswith("[")):
        return [_plain_word(word, items_of(hint), key) for word in words]
    return _plain_word(words[0], hint, key)


def _plain_word(text: str, hint: Any, key: str) -> Any:
    if is_text(hint) and not is_list(hint) and text != "null":
        return text
    try:
        node = compose(text)
        return None if node is None else plain_value(node, hint, "value")
    except InputError as error:
        raise ConfigError(key, text, f"a value as YAML has it ({error.problems[0].why})") from None


def _plain_group(
    kind: type,
    node: yaml.Node,
    path: Path,
    places: dict[str, str],
    program: str = "",
    prefix: str = "",
    known: Sequence[str] = (),
) -> dict[str, Any]:
    """Turn a YAML mapping into plain values by the keys of `kind`, noting the line of each."""
    hints, groups = hints_of(kind), groups_of(kind)
    known = known or keys_of(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    if not isinstance(node, yaml.MappingNode):
        why = f"must be `key: value` lines; allowed keys: {', '.join(names)}"
        raise InputError.at(path, line_of(node), prefix.rstrip(".") or None, why)
    values: dict[str, Any] = {}
    for name, line, value in entries_of(node, path, prefix):
        key = f"{prefix}{name}"
        if always_holds(key, plain_value(value, Any, path, f"{key}."), program):
            continue
        below = f"{key}." if isinstance(value, yaml.MappingNode) else key
        if now := successor(program, key) or successor(program, below):
            raise InputError.at(path, line, key, f"is gone; {now}")
        if name not in names:
            meant = did_you_mean(key, known)
            if key in known:  # as on the command line
                group, _, last = key.rpartition(".")
                meant = f"write `{last}` below `{group}:`; "
            why = f"no such key; {meant}allowed: {', '.join(names)}"
            raise InputError.at(path, line, key, why)
        places[key] = f"{path}:{line}"
        optional = type(None) in parts_of(hints[name])
        if name in groups and not (is_null(value) and optional):
            values[name] = _plain_group(
                groups[name], value, path, places, program, f"{key}.", known
            )
        else:
            values[name] = plain_value(value, hints[name], path)
    return values


def require_one_of(key: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(key, value, ", ".join(allowed))
